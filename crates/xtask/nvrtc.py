"""Compiles one CUDA file with NVRTC: nvrtc.py LIBRARY FILE ARCH INCLUDE...

Prints the compiler's log and the size of the cubin; exits 1 where it does not compile or warns.
"""

import ctypes
import sys


def main() -> int:
    library, path, arch, *includes = sys.argv[1:]
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(name, *arguments):
        result = getattr(nvrtc, name)(*arguments)
        return None if result == 0 else nvrtc.nvrtcGetErrorString(result).decode()

    def must(name, *arguments):
        error = call(name, *arguments)
        if error:
            sys.exit(f"{name}: {error}")

    program = ctypes.c_void_p()
    with open(path, "rb") as file:
        source = file.read()
    must("nvrtcCreateProgram", ctypes.byref(program), source, path.encode(), 0, None, None)
    options = [f"--gpu-architecture={arch}", "--std=c++17", *(f"-I{folder}" for folder in includes)]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    error = call("nvrtcCompileProgram", program, len(options), array)
    size = ctypes.c_size_t()
    must("nvrtcGetProgramLogSize", program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    must("nvrtcGetProgramLog", program, log)
    text = log.value.decode().strip()
    print(text)
    if error:
        sys.exit(f"nvrtcCompileProgram: {error}")
    must("nvrtcGetCUBINSize", program, ctypes.byref(size))
    print(f"{path}: {arch}: cubin of {size.value} bytes")
    return 1 if "warning" in text else 0


if __name__ == "__main__":
    sys.exit(main())
