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
