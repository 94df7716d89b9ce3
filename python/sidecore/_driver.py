"""The two questions that arrays of other libraries leave to NVIDIA's driver."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from ._errors import DeviceError

#: Source: ``CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`` in cuda.h.
_DEVICE_ORDINAL = 9


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"NVIDIA's driver is not there: {error}", "Install it") from None


def device_of(address: int) -> int:
    """The index of the GPU that an address belongs to."""
    ordinal = ctypes.c_int(-1)
    where = ctypes.c_uint64(address)
    status = _driver().cuPointerGetAttribute(ctypes.byref(ordinal), _DEVICE_ORDINAL, where)
    if status:
        raise DeviceError(
            f"Address {address:#x} is no memory that the driver knows (its error {status})",
            "Hand over an array on a GPU of this process",
        )
    return ordinal.value


def wait_for_stream(stream: int) -> None:
    """Waits until what was given to a stream of the calling thread's context has ended."""
    status = _driver().cuStreamSynchronize(ctypes.c_void_p(stream))
    if status:
        raise DeviceError(
            f"Waiting for the stream of an array: the driver says {status}",
            "See the error that an earlier kernel or copy left behind",
        )
