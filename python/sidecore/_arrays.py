"""Memory of other libraries' arrays: where it lies, how long it is, and who keeps it.

Taken are torch tensors, whatever has ``__cuda_array_interface__``, ``__array_interface__`` or
``__dlpack__``, and the buffer protocol. Nothing is copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from . import _driver, _dtypes, _sidecore
from ._dtypes import DType
from ._errors import MisuseError, UnsupportedError
from ._tensor import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, Tensor


class Memory(NamedTuple):
    """A range of bytes without gaps."""

    address: int
    nbytes: int
    #: The GPU's index; ``None`` on the host.
    device: int | None
    shape: tuple[int, ...]
    #: ``None`` where the object is bytes only.
    dtype: DType | None
    read_only: bool
    #: Keeps the range alive.
    owner: object


def memory(array: Any, write: bool = False, settled: bool = False) -> Memory:
    """Where ``array`` lies; on a GPU, after what its producer still does to it.

    Parameters
    ----------
    array : object
        A tensor, an array or a buffer without gaps between its elements.
    write : bool
        Whether it will be written, which read-only ones refuse.
    settled : bool
        Whether its producer is known to have finished, so that no stream is waited for.
    """
    found = _memory(array, settled)
    if write and found.read_only:
        raise MisuseError(
            f"The {type(array).__name__} is read only", "Hand over one that can be written"
        )
    return found


def _memory(array: Any, settled: bool) -> Memory:
    if isinstance(array, Tensor):
        return Memory(
            array.address, array.nbytes, array.device, array.shape, array.dtype, False, array
        )
    if is_torch(array):
        return _of_torch(array, settled)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_cuda_interface(array, interface, settled)
    if hasattr(array, "__array_interface__"):
        return _of_array_interface(array)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array)
    return _of_buffer(array)


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor or of a class made from it; imports nothing."""
    return any(
        kind.__module__ == "torch" and kind.__name__ == "Tensor" for kind in type(array).__mro__
    )


def _of_torch(tensor: Any, settled: bool) -> Memory:
    import torch

    if tensor.layout != torch.strided:
        raise UnsupportedError(
            f"A tensor of layout {tensor.layout}", "Convert it by to_dense() first"
        )
    if not tensor.is_contiguous():
        raise _gaps(tensor, "tensor.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError(
            "A tensor whose bytes are not its values: it is stored conjugated or negated",
            "Hand over tensor.resolve_conj().resolve_neg()",
        )
    device = None
    if tensor.is_cuda:
        device = tensor.get_device()
        if not settled:
            torch.cuda.current_stream(device).synchronize()
    elif tensor.device.type != "cpu":
        raise UnsupportedError(f"A tensor on {tensor.device}", "Move it to the host or a CUDA GPU")
    nbytes = tensor.numel() * tensor.element_size()
    dtype = _dtypes.of_torch(tensor.dtype)
    return Memory(tensor.data_ptr(), nbytes, device, tuple(tensor.shape), dtype, False, tensor)


def _of_cuda_interface(array: Any, interface: dict, settled: bool) -> Memory:
    dtype, shape, nbytes = _described(array, interface)
    stream = interface.get("stream")
    if settled:
        pass
    elif stream is not None:
        _driver.wait_for_stream(stream)
    elif type(array).__module__.partition(".")[0] == "cupy":
        import cupy

        cupy.cuda.get_current_stream().synchronize()
    address, read_only = interface["data"]
    device = _driver.device_of(address) if nbytes else 0
    return Memory(address, nbytes, device, shape, dtype, bool(read_only), array)


def _of_array_interface(array: Any) -> Memory:
    if type(array).__module__ == "numpy" and not hasattr(array, "ctypes"):
        # A scalar's interface names memory that is gone by now.
        import numpy

        array = numpy.array(array)
        array.flags.writeable = False
    if type(array).__module__ == "numpy" and hasattr(array, "ctypes"):
        # NumPy's own arrays say more about their types than the interface can.
        if array.ndim and not array.flags.c_contiguous:
            raise _gaps(array, "numpy.ascontiguousarray(array)")
        try:
            dtype = _dtypes.of_numpy(array.dtype)
        except UnsupportedError:
            if array.dtype.hasobject or array.dtype.byteorder == ">":
                raise
            dtype = None  # times, records and such: bytes like all others
        read_only = not array.flags.writeable
        where = array.ctypes.data
        return Memory(where, array.nbytes, None, tuple(array.shape), dtype, read_only, array)
    interface = array.__array_interface__
    dtype, shape, nbytes = _described(array, interface)
    if interface.get("data") is None:
        return _of_buffer(array)._replace(shape=shape, dtype=dtype)
    address, read_only = interface["data"]
    return Memory(address, nbytes, None, shape, dtype, bool(read_only), array)


def _described(array: Any, interface: dict) -> tuple[DType, tuple[int, ...], int]:
    dtype = _dtypes.of_interface(interface["typestr"])
    shape: tuple[int, ...] = tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    if strides is not None and prod(shape) and not _packed(shape, strides, dtype.bytes):
        raise _gaps(array, "array.copy(order='C')")
    return dtype, shape, prod(shape) * dtype.bytes


def _packed(shape: tuple[int, ...], strides: Sequence[int], item: int) -> bool:
    expected = item
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _of_dlpack(array: Any) -> Memory:
    kind, index = array.__dlpack_device__()
    if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise UnsupportedError(f"Memory of DLPack's device kind {kind}", "Move it to host or GPU")
    on_device = kind in (CUDA, CUDA_MANAGED)
    arguments = {"stream": 1} if on_device else {}
    try:
        capsule = array.__dlpack__(max_version=(1, 1), **arguments)
    except TypeError:
        capsule = array.__dlpack__(**arguments)
    taken = _sidecore.dlpack_import(capsule)
    if on_device:
        _driver.wait_for_stream(1)
    dtype = _dtypes.of_dlpack(*taken.dtype)
    shape = tuple(taken.shape)
    if taken.strides is not None and prod(shape) and not _packed(shape, taken.strides, 1):
        raise _gaps(array, "a copy in C order")
    nbytes = prod(shape) * dtype.bits // 8
    device = index if on_device else None
    return Memory(taken.address, nbytes, device, shape, dtype, taken.read_only, (taken, array))


def _gaps(array: Any, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"The {type(array).__name__} has gaps between its elements, or another order than C",
        f"Hand over {remedy}",
    )


class _PyBuffer(ctypes.Structure):
    """``Py_buffer``; its layout has been the same since Python 3.3."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def _of_buffer(array: Any) -> Memory:
    buffer = _PyBuffer()
    try:
        # The view keeps the exporter from moving the memory, and ends without code of Python's: a
        # signal that came meanwhile is not lost in a destructor.
        view = memoryview(array)
        # PyBUF_SIMPLE: bytes without gaps.
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    except (TypeError, BufferError, ValueError) as error:
        raise UnsupportedError(
            f"A {type(array).__name__} is no array and no buffer without gaps: {error}",
            "Hand over a tensor, an array, or an object of the buffer protocol",
        ) from error
    address, size, read_only = buffer.buf or 0, buffer.len, bool(buffer.readonly)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return Memory(address, size, None, (size,), None, read_only, view)
