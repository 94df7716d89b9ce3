"""A tensor that belongs to no framework: memory, a shape and a type, for whoever takes it."""

from __future__ import annotations

from math import prod
from typing import Any

from . import _sidecore
from ._dtypes import DTYPES, DType
from ._errors import UnsupportedError

#: DLPack's numbers of the devices that memory may lie on. Source: ``DLDeviceType`` in dlpack.h.
CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13


class Tensor:
    """Memory with a shape and a type; NumPy, torch, CuPy and JAX take it without a copy.

    By DLPack (``__dlpack__``) and by the array interfaces (``__array_interface__`` on the host,
    ``__cuda_array_interface__`` on a GPU), where these have a word for its type.
    """

    __slots__ = ("address", "device", "dtype", "nbytes", "owner", "shape")

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: DType, device: int | None, owner: object
    ) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        #: The GPU's index; ``None`` on the host.
        self.device = device
        self.owner = owner
        self.nbytes = prod(shape) * dtype.bits // 8

    def __repr__(self) -> str:
        place = "cpu" if self.device is None else f"cuda:{self.device}"
        return f"sidecore.Tensor(shape={self.shape}, dtype={self.dtype.name}, device={place})"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0) if self.device is None else (CUDA, self.device)

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        # The bytes had all arrived before this object was made, so no stream needs to wait.
        if self.dtype.dlpack is None:
            raise UnsupportedError(f"DLPack has no word for {self.dtype.name}", "Use its bytes")
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("only memory as it is, where it is, can be handed over")
        described = _Described(self)
        return _sidecore.dlpack_export(self.owner, described, (max_version or (0, 0))[0] >= 1)

    @property
    def _interface(self) -> dict[str, Any]:
        if self.dtype.interface is None:
            raise AttributeError(f"array interfaces have no word for {self.dtype.name}")
        return {
            "shape": self.shape,
            "typestr": self.dtype.interface,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.device is not None:
            raise AttributeError("the tensor is on a GPU")
        return self._interface

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device is None:
            raise AttributeError("the tensor is on the host")
        # No "stream": nothing is pending.
        return self._interface

    def view(self, dtype: str) -> Tensor:
        """The same bytes as another type of the same width, or all of them as ``U8``."""
        other = DTYPES.get(dtype)
        if other is None:
            raise UnsupportedError(
                f"No type is called {dtype!r}", f"Name one of {', '.join(DTYPES)}"
            )
        if other.bits == self.dtype.bits:
            shape = self.shape
        elif dtype == "U8":
            shape = (self.nbytes,)
        else:
            raise UnsupportedError(f"{self.dtype.name} is not as wide as {dtype}", "View it as U8")
        return Tensor(self.address, shape, other, self.device, self.owner)

    def tobytes(self) -> bytes:
        """A copy of the bytes; on the host only."""
        if self.device is not None:
            raise UnsupportedError("The tensor is on a GPU", "Copy it by its framework")
        return _sidecore.copy_bytes(self.address, self.nbytes, self) if self.nbytes else b""


class _Described:
    """What :func:`_sidecore.dlpack_export` reads off."""

    __slots__ = ("address", "device", "dtype", "read_only", "shape")

    def __init__(self, tensor: Tensor) -> None:
        self.address = tensor.address
        self.device = tensor.__dlpack_device__()
        self.dtype = (tensor.dtype.dlpack, tensor.dtype.bits, 1)
        self.shape = list(tensor.shape)
        self.read_only = False
