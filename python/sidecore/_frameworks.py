"""Destinations by framework: memory that it owns, and its tensors over that memory."""

from __future__ import annotations

import importlib
import operator
import re
import sys
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from . import _engine, _sidecore
from ._dtypes import DTYPES, DType
from ._errors import DeviceError, ExhaustedError, MisuseError, UnsupportedError
from ._tensor import Tensor

#: From here on allocators take memory from the system, and it is worth asking for large pages.
_LARGE_BYTES = 32 << 20
#: Where each tensor of a framework that takes DLPack must begin.
ALIGNMENT = 64


class Block(NamedTuple):
    """Memory that tensors are made over."""

    address: int
    nbytes: int
    owner: Any


class Device(NamedTuple):
    """Where tensors shall be."""

    #: The GPU's index; ``None`` is the host.
    gpu: int | None

    def __str__(self) -> str:
        return "cpu" if self.gpu is None else f"cuda:{self.gpu}"


def device(wanted: Any) -> Device:
    """Reads ``"cpu"``, ``"cuda"``, ``"cuda:1"``, an index, or a ``torch.device``."""
    if wanted is None:
        return Device(None)
    if hasattr(type(wanted), "__index__") and not isinstance(wanted, bool):
        text = f"cuda:{operator.index(wanted)}"
    else:
        text = str(wanted)
    kind, _, index = text.partition(":")
    if kind == "cpu" and index in ("", "0"):
        return Device(None)
    if kind in ("cuda", "gpu") and index == "" and text == kind:
        return Device(_current_device())
    # No machine has so many that their numbers are longer.
    if kind in ("cuda", "gpu") and re.fullmatch("[0-9]{1,4}", index):
        return Device(int(index))
    raise MisuseError(f"No device is called {text!r:.80}", 'Name "cpu", "cuda" or "cuda:N"')


def _current_device() -> int:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.current_device()
    return 0


class Framework:
    """What loading needs of a framework."""

    name = ""
    #: Whether making a tensor may read its bytes, so that they must be there before.
    looks_at_bytes = False

    def check(self, dtype: DType) -> None:
        """Refuses a type that the framework has no word for, before any byte is moved."""

    def allocate(self, nbytes: int, where: Device) -> Block:
        """Memory whose earlier users have all finished with it."""
        raise NotImplementedError

    def tensor(
        self, block: Block, offset: int, dtype: DType, shape: tuple[int, ...], where: Device
    ) -> Any:
        """A tensor over a part of a block, which keeps the block."""
        raise NotImplementedError

    def parts(
        self, block: Block, offsets: Sequence[int], sizes: Sequence[int], where: Device
    ) -> list[Any]:
        """Tensors of bytes, one after the other in a block; many, so with little to do for each."""
        byte = DTYPES["U8"]
        each = zip(offsets, sizes, strict=True)
        return [self.tensor(block, at, byte, (size,), where) for at, size in each]


def _new_on_host(address: int, nbytes: int) -> None:
    """Host memory that nobody has touched: in large pages, whose first use costs a fraction."""
    if nbytes >= _LARGE_BYTES:
        _sidecore.prefer_huge_pages(address, nbytes)


def _no_counterpart(framework: str, dtype: DType, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"{framework} has no type for {dtype.name}", remedy)


class Torch(Framework):
    name = "torch"

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")

    def check(self, dtype: DType) -> None:
        if dtype.torch is None or not hasattr(self.torch, dtype.torch):
            raise _no_counterpart(
                f"torch {self.torch.__version__}",
                dtype,
                'Install a newer torch, or load with framework="sidecore" and use the bytes',
            )

    def allocate(self, nbytes: int, where: Device) -> Block:
        torch = self.torch
        if where.gpu is not None and not torch.cuda.is_available():
            raise DeviceError(
                f"{where}: this torch ({torch.__version__}) finds no CUDA GPU",
                'Install a torch built for CUDA and NVIDIA\'s driver, or load with device="cpu"',
            )
        try:
            owner = torch.empty(nbytes, dtype=torch.uint8, device=str(where))
        except (RuntimeError, TypeError, OverflowError) as error:
            raise _no_room(nbytes, where, error) from error
        if where.gpu is not None:
            # The allocator may hand out memory that work in its stream still uses.
            torch.cuda.current_stream(where.gpu).synchronize()
        else:
            _new_on_host(owner.data_ptr(), nbytes)
        return Block(owner.data_ptr(), nbytes, owner)

    def tensor(self, block, offset, dtype, shape, where):
        torch = self.torch
        kind = getattr(torch, dtype.torch)
        count = prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=kind, device=str(where))
        part = block.owner.narrow(0, offset, count * dtype.bytes)
        return part.view(kind).view(shape)

    def parts(self, block, offsets, sizes, where):
        # One call makes all views: every file, and what lies between it and the next one, if any.
        ends = [*offsets[1:], block.nbytes]
        if all(map(operator.eq, map(operator.add, offsets, sizes), ends)):
            return list(self.torch.split_with_sizes(block.owner, sizes))
        cuts = [0] * (2 * len(sizes))
        cuts[::2] = sizes
        cuts[1::2] = [e - at - n for e, at, n in zip(ends, offsets, sizes, strict=True)]
        return list(self.torch.split_with_sizes(block.owner, cuts)[::2])


class Numpy(Framework):
    name = "numpy"

    def __init__(self) -> None:
        self.numpy = importlib.import_module("numpy")

    def kind(self, dtype: DType) -> Any:
        """NumPy's type, from ``ml_dtypes`` where NumPy has none of its own."""
        package, _, name = (dtype.numpy or "").rpartition(".")
        if not package and name:
            return self.numpy.dtype(name)
        if package:
            try:
                return self.numpy.dtype(getattr(importlib.import_module(package), name))
            except (ImportError, AttributeError):
                pass
        raise _no_counterpart(
            "NumPy",
            dtype,
            "Install ml_dtypes (it brings bfloat16 and the 8-bit floats) or torch, or load with "
            'framework="sidecore" and use the bytes',
        )

    def check(self, dtype: DType) -> None:
        self.kind(dtype)

    def allocate(self, nbytes: int, where: Device) -> Block:
        if where.gpu is not None:
            raise MisuseError(
                f"NumPy's arrays cannot be on {where}",
                'Load with framework="torch", "cupy", "jax" or "sidecore", or with device="cpu"',
            )
        try:
            whole = self.numpy.empty(nbytes + ALIGNMENT, dtype=self.numpy.uint8)
        except (MemoryError, ValueError, OverflowError) as error:
            raise _no_room(nbytes, where, error) from error
        _new_on_host(whole.ctypes.data, nbytes)
        start = -whole.ctypes.data % ALIGNMENT
        owner = whole[start : start + nbytes]
        return Block(owner.ctypes.data, nbytes, owner)

    def tensor(self, block, offset, dtype, shape, where):
        nbytes = prod(shape) * dtype.bytes
        return block.owner[offset : offset + nbytes].view(self.kind(dtype)).reshape(shape)

    def parts(self, block, offsets, sizes, where):
        owner = block.owner
        return [owner[at : at + n] for at, n in zip(offsets, sizes, strict=True)]


class Own(Framework):
    """Tensors of this package, for whoever takes DLPack or an array interface."""

    name = "sidecore"

    def allocate(self, nbytes: int, where: Device) -> Block:
        owner = _engine.allocate(max(nbytes, 1), where.gpu)
        return Block(owner.address, nbytes, owner)

    def tensor(self, block, offset, dtype, shape, where):
        return Tensor(block.address + offset, tuple(shape), dtype, where.gpu, block.owner)


class Cupy(Framework):
    name = "cupy"

    def __init__(self) -> None:
        self.cupy = importlib.import_module("cupy")
        self.numpy = Numpy()

    def check(self, dtype: DType) -> None:
        try:
            self.cupy.ndarray((0,), self.numpy.kind(dtype))
        except (TypeError, ValueError) as error:
            raise _no_counterpart("CuPy", dtype, "Load with another framework") from error

    def allocate(self, nbytes: int, where: Device) -> Block:
        if where.gpu is None:
            raise MisuseError("CuPy's arrays cannot be on the host", 'Load with device="cuda"')
        try:
            with self.cupy.cuda.Device(where.gpu):
                owner = self.cupy.empty(max(nbytes, 1), dtype=self.cupy.uint8)
                self.cupy.cuda.get_current_stream().synchronize()
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise _no_room(nbytes, where, error) from error
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"{where}: CuPy finds no such GPU: {error}", "See nvidia-smi"
            ) from error
        return Block(owner.data.ptr, nbytes, owner)

    def tensor(self, block, offset, dtype, shape, where):
        place = block.owner.data + offset
        return self.cupy.ndarray(shape, dtype=self.numpy.kind(dtype), memptr=place)


class Jax(Own):
    name = "jax"
    looks_at_bytes = True

    def __init__(self) -> None:
        self.jax = importlib.import_module("jax")
        self.numpy = Numpy()

    def check(self, dtype: DType) -> None:
        kind = self.numpy.kind(dtype)
        if dtype.bits == 64 and not self.jax.config.jax_enable_x64:
            raise _no_counterpart(
                "JAX without 64-bit types",
                dtype,
                'Switch them on: jax.config.update("jax_enable_x64", True)',
            )
        try:
            self.jax.numpy.dtype(kind)
        except TypeError as error:
            raise _no_counterpart("JAX", dtype, "Load with another framework") from error

    def tensor(self, block, offset, dtype, shape, where):
        kind = self.numpy.kind(dtype)
        if prod(shape) == 0:
            return self.jax.numpy.empty(shape, kind)
        own = super().tensor(block, offset, dtype, shape, where)
        if dtype.name.startswith("F8") or dtype.name == "BOOL":
            # Not every version takes these by DLPack; as bytes every one does.
            array = self.jax.dlpack.from_dlpack(own.view("U8")).reshape(shape)
            if dtype.name == "BOOL":
                return array.astype(bool)
            return self.jax.lax.bitcast_convert_type(array, kind)
        return self.jax.dlpack.from_dlpack(own)


def _no_room(nbytes: int, where: Device, error: BaseException) -> Exception:
    text = str(error).strip().splitlines()[0] if str(error).strip() else "out of memory"
    if "out of memory" not in str(error).lower() and where.gpu is not None:
        return DeviceError(f"{where}: {text}", "See nvidia-smi for the GPUs there are")
    return ExhaustedError(
        f"No room for {nbytes} bytes on {where}: {text}",
        "Free some memory, or load fewer tensors at a time",
    )


_KINDS: dict[str, type[Framework]] = {kind.name: kind for kind in (Torch, Numpy, Own, Cupy, Jax)}


def framework(wanted: str | None, where: Device) -> Framework:
    """The framework of that name; without one, torch where it can be imported, else NumPy on the
    host and CuPy on a GPU, else this package's own tensors."""
    if wanted is not None:
        wanted = {"pt": "torch", "np": "numpy"}.get(str(wanted), str(wanted))
        named = _KINDS.get(wanted)
        if named is None:
            names = ", ".join(_KINDS)
            raise MisuseError(f"No framework is called {wanted!r}", f"Name one of {names}")
        try:
            return named()
        except ImportError as error:
            raise UnsupportedError(
                f"{wanted} cannot be imported: {error}", f"Install it (pip install {wanted})"
            ) from error
    order: list[type[Framework]] = [Torch, Numpy] if where.gpu is None else [Torch, Cupy]
    for kind in order:
        try:
            return kind()
        except ImportError:
            continue
    return Own()


def sub_byte(dtype: DType, shape: tuple[int, ...]) -> tuple[DType, tuple[int, ...]]:
    """Types narrower than a byte, as their packed bytes along the last axis."""
    if dtype.bytes or not shape:
        return dtype, shape
    return DTYPES["U8"], (*shape[:-1], shape[-1] * dtype.bits // 8)
