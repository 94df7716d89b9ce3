"""Reads a file into a CuPy array by a kernel's own requests: position_sum.py FILE.

The kernel of position_sum_kernel.cu is compiled by CuPy's RawModule with sidecore's device headers; the shared
library is used through ctypes. Needs CuPy, and SIDECORE_HOME with lib/libsidecore.so and include/ (as
`cargo xtask capi --out DIR` makes it).
"""

import ctypes
import os
import sys

HOME = os.environ.get("SIDECORE_HOME", os.path.join(os.path.dirname(__file__), "../.."))
INCLUDE = os.path.join(HOME, "include")
HERE = os.path.dirname(os.path.abspath(__file__))
BLOCKS, THREADS, BLOCK_BYTES = 8, 128, 4096

#: The views at the head of the kernel's arguments, in order.
VIEWS = ("ring", "source", "buffer")


class Sidecore:
    """The shared library; a call that fails raises what it says."""

    def __init__(self):
        self.library = ctypes.CDLL(os.path.join(HOME, "lib", "libsidecore.so"))
        for name in ("last_error", "gpu_name", "memory_routes"):
            getattr(self.library, "sidecore_" + name).restype = ctypes.c_char_p
        self.library.sidecore_view_bytes.restype = ctypes.c_size_t

    def __getattr__(self, name):
        function = getattr(self.library, "sidecore_" + name)

        def call(*arguments):
            code = function(*arguments)
            if code != 0:
                raise RuntimeError(f"{name}: {self.library.sidecore_last_error().decode()}")

        return call

    def make(self, name, *arguments):
        """Calls a function that makes a handle."""
        handle = ctypes.c_void_p()
        getattr(self, name)(*arguments, ctypes.byref(handle))
        return handle


class RingOptions(ctypes.Structure):
    """sidecore_ring_options."""

    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            "struct_bytes depth records transfer_bytes read_route write_route limit_ms reserved".split()
        )
    ]


def main():
    import cupy
    import numpy

    code = open(os.path.join(HERE, "position_sum_kernel.cu")).read()
    module = cupy.RawModule(code=code, options=("-std=c++17", "-I" + INCLUDE), backend="nvrtc")
    kernel = module.get_function("position_sum")
    sidecore = Sidecore()
    buffer = cupy.zeros(BLOCKS * THREADS * BLOCK_BYTES, dtype=cupy.uint8)
    results = cupy.zeros(2, dtype=cupy.uint64)
    gpu = sidecore.make("gpu_open_of", ctypes.c_uint64(buffer.data.ptr))
    pointer, length = ctypes.c_uint64(buffer.data.ptr), ctypes.c_uint64(buffer.nbytes)
    memory = sidecore.make("memory_adopt", gpu, pointer, length)
    engine = sidecore.make("engine_start", gpu, None)
    file = sidecore.make("storage_file", sys.argv[1].encode())
    options = RingOptions(struct_bytes=ctypes.sizeof(RingOptions), read_route=2)
    ring = sidecore.make("ring_create", engine, ctypes.byref(options))
    sizes = {name: sidecore.library.sidecore_view_bytes(name.encode()) for name in VIEWS}
    views = {name: ctypes.create_string_buffer(size) for name, size in sizes.items()}
    size = {name: ctypes.c_size_t(size) for name, size in sizes.items()}
    sidecore.ring_view(ring, views["ring"], size["ring"])
    sidecore.source_register(engine, file, 1, views["source"], size["source"], None)
    sidecore.buffer_register(engine, memory, 1, views["buffer"], size["buffer"], None)
    raw = b"".join(view.raw for view in views.values())
    raw += BLOCK_BYTES.to_bytes(8, "little")
    raw += results.data.ptr.to_bytes(8, "little") + (results.data.ptr + 8).to_bytes(8, "little")
    # An array of one element is passed by value: its bytes are the structure's.
    structure = numpy.frombuffer(raw, dtype=numpy.dtype((numpy.void, len(raw))))
    kernel((BLOCKS,), (THREADS,), (structure,))
    total, failures = (int(value) for value in results.get())
    requests = ctypes.c_uint64()
    sidecore.ring_count(ring, b"requests", ctypes.byref(requests))
    name = sidecore.library.sidecore_gpu_name(gpu).decode()
    print(f"{name}, buffer: {sidecore.library.sidecore_memory_routes(memory).decode()}")
    length = int.from_bytes(views["source"].raw[:8], "little")
    print(f"{length} bytes by {requests.value} requests, {failures} failures, sum by position {total}")
    # All are destroyed by functions without a result.
    library = sidecore.library
    for close, handle in (
        (library.sidecore_ring_close, ring),
        (library.sidecore_engine_stop, engine),
        (library.sidecore_storage_close, file),
        (library.sidecore_memory_free, memory),
        (library.sidecore_gpu_close, gpu),
    ):
        close.restype = None
        close(handle)
    return 0 if failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
