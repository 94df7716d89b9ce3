// A run-time compiler that is not quite one.
#ifndef NVRTC_MAJOR
#define NVRTC_MAJOR 13
#endif
int nvrtcVersion(int* major, int* minor) { return *major = NVRTC_MAJOR, *minor = 1, 0; }
#ifndef PARTIAL
#define REFUSED(name) int name() { return 1; }
REFUSED(nvrtcCreateProgram) REFUSED(nvrtcCompileProgram) REFUSED(nvrtcGetCUBINSize)
REFUSED(nvrtcGetCUBIN) REFUSED(nvrtcGetProgramLogSize) REFUSED(nvrtcGetProgramLog)
REFUSED(nvrtcDestroyProgram)
#endif
