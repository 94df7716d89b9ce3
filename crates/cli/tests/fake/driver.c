// A driver that is not quite one: what is wrong with it is chosen by macros.
#include <string.h>

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef MAJOR
#define MAJOR 9
#endif

#ifndef EMPTY
typedef void* handle;
int cuDriverGetVersion(int* version) { return *version = VERSION, 0; }
#ifndef PARTIAL
int cuInit(unsigned flags) { return (void)flags, INIT; }
#endif
int cuGetErrorName(int error, const char** name) { return *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_X", 0; }
int cuDeviceGetCount(int* count) { return *count = DEVICES, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int bytes, int device) { return (void)device, strncpy(name, "Fake GPU", bytes), 0; }
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) { return (void)device, memset(uuid, 7, 16), 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
  (void)device;
  *value = which == 75 ? MAJOR : which == 76 ? 0 : which == 118 ? 100 : 1;
  return 0;
}
static int made;
static int give(handle* place) { return *place = &made, 0; }
int cuDevicePrimaryCtxRetain(handle* context, int device) { return (void)device, give(context); }
int cuStreamCreate(handle* stream, unsigned flags) { return (void)flags, give(stream); }
int cuMemGetInfo_v2(unsigned long* free, unsigned long* total) { return *free = *total = 1ul << 30, 0; }
#define NOTHING(name) int name() { return 0; }
NOTHING(cuDevicePrimaryCtxRelease_v2) NOTHING(cuCtxSetCurrent) NOTHING(cuCtxPushCurrent_v2) NOTHING(cuCtxPopCurrent_v2) NOTHING(cuStreamDestroy_v2)
#define REFUSED(name) int name() { return 1; }
#ifdef WORKS
// Host memory stands for device memory, and kernels do nothing.
#include <stdlib.h>
static void* block(unsigned long bytes) { return aligned_alloc(4096, (bytes + 4095) / 4096 * 4096); }
int cuMemAlloc_v2(unsigned long* at, unsigned long bytes) { return *at = (unsigned long)block(bytes), 0; }
int cuMemHostAlloc(void** at, unsigned long bytes, unsigned flags) { return (void)flags, *at = block(bytes), 0; }
int cuMemcpyAsync(void* to, void* from, unsigned long bytes, handle stream) { return (void)stream, memcpy(to, from, bytes), 0; }
int cuMemsetD8Async(void* at, unsigned char value, unsigned long bytes, handle stream) { return (void)stream, memset(at, value, bytes), 0; }
int cuEventCreate(handle* event, unsigned flags) { return (void)flags, give(event); }
int cuEventElapsedTime(float* ms) { return *ms = 1, 0; }
int cuModuleLoadData(handle* module) { return give(module); }
int cuModuleGetFunction(handle* function) { return give(function); }
int cuFuncGetAttribute(int* value) { return *value = 1024, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks) { return *blocks = 1, 0; }
int cuImportExternalMemory(handle* memory) { return give(memory); }
int cuExternalMemoryGetMappedBuffer(unsigned long* at, handle memory, const unsigned long* range) {
  return (void)memory, *at = (unsigned long)block(range[1]), 0;
}
int cuCtxGetId(handle context, unsigned long* id) { return (void)context, *id = 1, 0; }
NOTHING(cuMemFree_v2) NOTHING(cuMemFreeHost) NOTHING(cuStreamSynchronize) NOTHING(cuEventDestroy_v2)
NOTHING(cuEventSynchronize) NOTHING(cuEventRecord) NOTHING(cuEventQuery) NOTHING(cuModuleUnload)
NOTHING(cuLaunchKernel) NOTHING(cuDestroyExternalMemory) NOTHING(cuStreamQuery)
REFUSED(cuPointerGetAttribute) REFUSED(cuStreamWaitValue32_v2) REFUSED(cuStreamWriteValue32_v2)
REFUSED(cuLaunchHostFunc) REFUSED(cuMemHostRegister_v2) REFUSED(cuMemHostUnregister)
#else
REFUSED(cuMemAlloc_v2) REFUSED(cuMemFree_v2) REFUSED(cuMemHostAlloc) REFUSED(cuMemFreeHost)
REFUSED(cuCtxGetId) REFUSED(cuPointerGetAttribute) REFUSED(cuMemcpyAsync) REFUSED(cuMemsetD8Async)
REFUSED(cuStreamSynchronize) REFUSED(cuEventCreate) REFUSED(cuEventDestroy_v2)
REFUSED(cuEventSynchronize)
REFUSED(cuStreamWaitValue32_v2) REFUSED(cuStreamWriteValue32_v2) REFUSED(cuStreamQuery) REFUSED(cuLaunchHostFunc)
REFUSED(cuEventRecord) REFUSED(cuEventQuery) REFUSED(cuEventElapsedTime) REFUSED(cuModuleLoadData)
REFUSED(cuModuleUnload) REFUSED(cuModuleGetFunction) REFUSED(cuFuncGetAttribute)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuLaunchKernel) REFUSED(cuImportExternalMemory) REFUSED(cuExternalMemoryGetMappedBuffer)
REFUSED(cuDestroyExternalMemory) REFUSED(cuMemHostRegister_v2) REFUSED(cuMemHostUnregister)
#endif
#endif
