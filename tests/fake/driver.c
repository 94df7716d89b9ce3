// A driver whose device memory is the process's own: enough of CUDA to allocate, to copy and to tell
// pointers apart, and no kernels. What allocates, frees, registers or loads is noted in the file that
// FAKE_LOG names, with the thread that did it, so that tests can see that nothing of it happens.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef void* handle;
typedef unsigned long long u64;

static void note(const char* name) {
  const char* file = getenv("FAKE_LOG");
  const int log = file ? open(file, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
  if (log < 0) return;
  char thread[17] = "", line[80];
  prctl(PR_GET_NAME, thread);
  const int length = snprintf(line, sizeof line, "%s by %s\n", name, thread);
  if (write(log, line, length) != length) abort();
  close(log);
}

// Kinds of memory.
enum { PINNED = 1, DEVICE, MANAGED, VIRTUAL, OTHER_GPU, OWN_CONTEXT };
static struct { char* base; size_t bytes; int kind; } blocks[256];
static int count;
static int primary, own, thing;
static handle current, pushed[64];
static int depth;

// Memory of a kind; `shown` of its bytes are told to belong to the allocation.
void* fake_allocate(int kind, size_t bytes, size_t shown) {
  char* base = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  memset(base, 0, bytes);
  blocks[count].base = base;
  blocks[count].bytes = shown;
  blocks[count].kind = kind;
  ++count;
  return base;
}
// Which context was current at the last copy: 1 the primary one, 2 the caller's own.
static int copied_in;
int fake_copied_in(void) { return copied_in; }

static int find(u64 address) {
  for (int i = 0; i < count; ++i)
    if (address - (u64)blocks[i].base < blocks[i].bytes) return i;
  return -1;
}

int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuInit(unsigned flags) { return (int)flags; }
int cuGetErrorName(int error, const char** name) { return *name = error == 1 ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_X", 0; }
int cuDeviceGetCount(int* found) { return *found = 2, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int bytes, int device) { return strncpy(name, device ? "Fake 1" : "Fake 0", bytes), 0; }
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) { return memset(uuid, 7 + device, 16), 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
  (void)device;
  const char* ordering = getenv("FAKE_ORDERING");
  *value = which == 75 ? 9 : which == 76 ? 0 : which == 118 ? (ordering ? atoi(ordering) : 100) : 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(handle* context, int device) { return (void)device, *context = &primary, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, 0; }
// Contexts that were reset have other ids, and nothing in them may be touched.
static u64 generation = 1;
void fake_reset(void) { ++generation; }
int cuCtxGetId(handle context, u64* id) { return *id = generation * 2 + (context == &own), 0; }
static void touch(void) { if (generation != 1) abort(); }
int cuCtxSetCurrent(handle context) { return current = context, 0; }
int cuCtxPushCurrent_v2(handle context) { return pushed[depth++ % 64] = current, current = context, 0; }
int cuCtxPopCurrent_v2(handle* context) { return *context = current, current = pushed[--depth % 64], 0; }
int cuMemGetInfo_v2(size_t* unused, size_t* total) { return *unused = *total = 1ul << 30, 0; }
int cuMemAlloc_v2(u64* address, size_t bytes) { return note("cuMemAlloc"), *address = (u64)fake_allocate(DEVICE, bytes, bytes), 0; }
int cuMemFree_v2(u64 address) { return (void)address, touch(), note("cuMemFree"), 0; }
int cuMemHostAlloc(handle* base, size_t bytes, unsigned flags) { return (void)flags, note("cuMemHostAlloc"), *base = fake_allocate(PINNED, bytes, bytes), 0; }
int cuMemFreeHost(handle base) { return (void)base, touch(), note("cuMemFreeHost"), 0; }
int cuMemHostRegister_v2(handle base, size_t bytes, unsigned flags) {
  (void)flags;
  blocks[count].base = base;
  blocks[count].bytes = bytes;
  blocks[count++].kind = PINNED;
  return note("cuMemHostRegister"), 0;
}
int cuMemHostUnregister(handle base) { return (void)base, touch(), note("cuMemHostUnregister"), 0; }

int cuPointerGetAttribute(void* place, int which, u64 address) {
  const int i = find(address);
  if (i < 0) return 1;
  const int kind = blocks[i].kind;
  switch (which) {
    case 1: return *(handle*)place = kind == VIRTUAL ? 0 : kind == OWN_CONTEXT ? (handle)&own : (handle)&primary, 0;
    case 2: return *(unsigned*)place = kind == PINNED ? 1 : 2, 0;
    case 3: return *(u64*)place = address, 0;
    case 4: return kind == PINNED || kind == MANAGED ? (*(u64*)place = address, 0) : 1;
    case 8: return *(unsigned*)place = kind == MANAGED, 0;
    case 9: return *(int*)place = kind == OTHER_GPU, 0;
    case 11: return *(u64*)place = (u64)blocks[i].base, 0;
    case 12: return *(size_t*)place = blocks[i].bytes, 0;
    case 17: return *(u64*)place = 0, 0;
    default: return 1;
  }
}

int cuMemcpyAsync(u64 to, u64 from, size_t bytes, handle stream) {
  (void)stream;
  touch();
  copied_in = current == &primary ? 1 : current == &own ? 2 : 0;
  return memcpy((void*)to, (void*)from, bytes), 0;
}
int cuMemsetD8Async(u64 at, unsigned char value, size_t bytes, handle stream) { return (void)stream, memset((void*)at, value, bytes), 0; }
int cuStreamCreate(handle* stream, unsigned flags) { return (void)flags, note("cuStreamCreate"), *stream = &thing, 0; }
int cuEventCreate(handle* event, unsigned flags) { return (void)flags, *event = &thing, 0; }
int cuModuleLoadData(handle* module, const void* image) { return (void)image, note("cuModuleLoadData"), *module = &thing, 1; }
#define NOTHING(name) int name() { return 0; }
int cuStreamDestroy_v2(handle stream) { return (void)stream, touch(), 0; }
NOTHING(cuStreamSynchronize) NOTHING(cuEventDestroy_v2) NOTHING(cuEventSynchronize)
NOTHING(cuEventRecord) NOTHING(cuEventQuery) NOTHING(cuStreamQuery)
#define REFUSED(name) int name() { return 1; }
REFUSED(cuStreamWaitValue32_v2) REFUSED(cuStreamWriteValue32_v2) REFUSED(cuLaunchHostFunc) REFUSED(cuEventElapsedTime)
REFUSED(cuModuleUnload) REFUSED(cuModuleGetFunction) REFUSED(cuFuncGetAttribute) REFUSED(cuLaunchKernel)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuImportExternalMemory) REFUSED(cuExternalMemoryGetMappedBuffer) REFUSED(cuDestroyExternalMemory)
