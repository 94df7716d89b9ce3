// A run-time compiler that is not quite one.
#ifndef NVRTC_MAJOR
#define NVRTC_MAJOR 13
#endif
int nvrtcVersion(int* major, int* minor) { return *major = NVRTC_MAJOR, *minor = 1, 0; }
#ifndef PARTIAL
#ifdef WORKS
int nvrtcGetCUBINSize(void* program, unsigned long* bytes) { return (void)program, *bytes = 8, 0; }
int nvrtcGetCUBIN(void* program, char* code) { return (void)program, *code = 1, 0; }
int nvrtcGetProgramLogSize(void* program, unsigned long* bytes) { return (void)program, *bytes = 1, 0; }
int nvrtcGetProgramLog(void* program, char* log) { return (void)program, *log = 0, 0; }
#define NOTHING(name) int name() { return 0; }
NOTHING(nvrtcCreateProgram) NOTHING(nvrtcCompileProgram) NOTHING(nvrtcDestroyProgram)
#else
#define REFUSED(name) int name() { return 1; }
REFUSED(nvrtcCreateProgram) REFUSED(nvrtcCompileProgram) REFUSED(nvrtcGetCUBINSize)
REFUSED(nvrtcGetCUBIN) REFUSED(nvrtcGetProgramLogSize) REFUSED(nvrtcGetProgramLog)
REFUSED(nvrtcDestroyProgram)
#endif
#endif
