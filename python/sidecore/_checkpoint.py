"""State dicts in torch's own file format, read and written without torch's help.

A file is a zip archive of records that are not compressed: ``NAME/data.pkl`` (a pickle),
``NAME/data/KEY`` (the bytes of a storage) and a few words about them. Storages are read as they
lie, many at a time, straight to where the tensors shall be.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from . import _arrays, _dtypes, _engine, _frameworks, _pickle, _zip
from ._dtypes import BY_STORAGE, BY_TORCH, DTYPES, DType
from ._errors import FormatError, UnsupportedError, from_os
from ._frameworks import Block, Device, Framework
from ._paths import path as path_of
from ._progress import progress_for

_AGAIN = "Get the file from its source again"
#: Where a storage begins in its allocation.
_ALIGNMENT = 256


class _Placed(NamedTuple):
    """A record's place at its destination."""

    block: Block
    offset: int
    nbytes: int


class _Storage(NamedTuple):
    placed: _Placed
    dtype: DType
    nbytes: int


def torch_load(
    file: str | os.PathLike[str],
    device: Any = "cpu",
    framework: str | None = None,
    *,
    shared: bool = True,
    progress: bool | None = None,
) -> Any:
    """Loads what ``torch.save`` or :func:`torch_save` saved: tensors, containers, primitives.

    The pickle in the file is read by a machine that runs no code of the file's choosing; what it
    cannot build is an error before any byte is moved. Tensors that shared memory share it again;
    parameters stay parameters. Subclasses of tensors, quantized and sparse ones are refused.

    Parameters
    ----------
    file : path
        A zip archive, as torch has written since version 1.6.
    device, framework, progress
        As for :func:`sidecore.load_safetensors`. The device that one was saved from is ignored.
    shared : bool
        Whether all storages share one allocation. ``torch.save`` of a single tensor then saves the
        whole allocation, :func:`torch_save` does not.

    Returns
    -------
    object
        What was saved. Where torch is not there, tensors of the other framework.
    """
    where = _frameworks.device(device)
    kind = _frameworks.framework(framework, where)
    path = path_of(file)
    engine = _engine.engine(where.gpu, path)
    handle = engine.open(path, "r")
    try:
        archive = _zip.Archive(path, handle.fileno())
    except OSError as error:
        raise from_os(error, "Reading", path) from error
    with archive:
        prefix = archive.prefix
        order = archive.small(f"{prefix}/byteorder", b"little")
        if order.strip() != b"little":
            raise UnsupportedError(
                f"{path} was saved on a machine of byte order {order!r}",
                "Load it by torch.load and save it again",
            )
        records = archive.below(f"{prefix}/data/")
        placed = _place(records, kind, where, shared)
        requests = [
            _engine.Request(
                handle,
                records[key].offset,
                place.block.address + place.offset,
                place.nbytes,
                where.gpu,
                place.block.owner,
            )
            for key, place in placed.items()
            if place.nbytes
        ]
        pickle = archive.small(f"{prefix}/data.pkl")
        # The pickle first: a file that is refused moves no byte.
        result = _pickle.load(pickle, _Builder(path, kind, where, placed))
        total = sum(place.nbytes for place in placed.values())
        with progress_for("load", total, progress) as bar:
            engine.transfer(requests, bar)
    return result


def _place(
    records: dict[str, _zip.Record], kind: Framework, where: Device, shared: bool
) -> dict[str, _Placed]:
    if not shared:
        return {
            key: _Placed(kind.allocate(record.nbytes, where), 0, record.nbytes)
            for key, record in records.items()
        }
    offsets, end = {}, 0
    for key, record in records.items():
        end += -end % _ALIGNMENT
        offsets[key] = end
        end += record.nbytes
    block = kind.allocate(end, where)
    return {key: _Placed(block, offsets[key], r.nbytes) for key, r in records.items()}


class _Builder(_pickle.Builder):
    """Makes tensors over storages that are in place, or are being read."""

    def __init__(
        self, path: str, kind: Framework, where: Device, placed: dict[str, _Placed]
    ) -> None:
        self.path = path
        self.kind: Any = kind
        self.where = where
        self.placed = placed

    def known(self, what: _pickle.Global) -> bool:
        if what.module in ("torch", "torch.storage"):
            return (
                what.name in BY_STORAGE
                or what.name in BY_TORCH
                or what.name in ("UntypedStorage", "_UntypedStorage", "Size", "device")
            )
        return (what.module, what.name) in _CALLS

    def call(self, what: _pickle.Global, arguments: tuple) -> Any:
        if what.module == "torch" and what.name == "Size" and len(arguments) == 1:
            return self.size(arguments[0])
        if what.module == "torch" and what.name == "device":
            return self.device(*arguments)
        call = _CALLS.get((what.module, what.name))
        if call is None:
            raise FormatError(f"{self.path}: the pickle calls {what}", _AGAIN)
        return call(self, *arguments)

    def value(self, what: _pickle.Global) -> Any:
        if what.name not in BY_TORCH:
            raise FormatError(f"{self.path}: the pickle keeps {what}, which is no data", _AGAIN)
        return getattr(self.kind.torch, what.name) if self.kind.name == "torch" else repr(what)

    def size(self, value: Any) -> Any:
        numbers = _sizes(value)
        return self.kind.torch.Size(numbers) if self.kind.name == "torch" else numbers

    def device(self, kind: Any, index: Any = None) -> Any:
        if type(kind) is not str or not (index is None or type(index) is int):
            raise FormatError(f"{self.path}: a device of an unknown form", _AGAIN)
        name = kind if index is None else f"{kind}:{index}"
        return self.kind.torch.device(name) if self.kind.name == "torch" else name

    def persistent(self, identity: Any) -> _Storage:
        tag, kind, key, _location, count = identity
        sound = type(tag) is str and tag == "storage" and type(key) is str
        if not sound or not isinstance(kind, _pickle.Global) or type(count) is not int:
            raise FormatError(f"{self.path}: a storage of an unknown form", _AGAIN)
        placed = self.placed.get(key)
        if placed is None:
            raise FormatError(f"{self.path} has no record for storage {key!r}", _AGAIN)
        dtype = BY_STORAGE.get(kind.name, DTYPES["U8"])
        nbytes = count * dtype.bytes
        if not 0 <= nbytes <= placed.nbytes:
            raise FormatError(
                f"{self.path}: storage {key!r} is said to have {nbytes} bytes, its record has "
                f"{placed.nbytes}",
                _AGAIN,
            )
        return _Storage(placed, dtype, nbytes)

    def tensor(
        self,
        storage: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any = False,
        _hooks: Any = None,
        metadata: Any = None,
    ) -> Any:
        return self.typed(storage, offset, size, stride, requires_grad, metadata, None)

    def tensor_of(
        self,
        storage: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any,
        _hooks: Any,
        dtype: Any,
        metadata: Any = None,
    ) -> Any:
        if not isinstance(dtype, _pickle.Global) or dtype.name not in BY_TORCH:
            raise FormatError(f"{self.path}: a tensor of an unknown type", _AGAIN)
        wanted = BY_TORCH[dtype.name]
        return self.typed(storage, offset, size, stride, requires_grad, metadata, wanted)

    def typed(self, storage, offset, size, stride, requires_grad, metadata, dtype) -> Any:
        if not isinstance(storage, _Storage):
            raise FormatError(f"{self.path}: a tensor without a storage", _AGAIN)
        if metadata:
            raise UnsupportedError(
                f"{self.path}: a tensor that is stored conjugated or negated",
                "Load it by torch.load, and save it resolved (resolve_conj, resolve_neg)",
            )
        dtype = dtype or storage.dtype
        size, stride = _sizes(size), _sizes(stride)
        # Frameworks multiply the other lengths of an empty tensor all the same.
        possible = prod(n for n in size if n) < 1 << 59 and len(size) == len(stride)
        if type(offset) is not int or offset < 0 or not possible:
            raise FormatError(f"{self.path}: a tensor of an impossible shape", _AGAIN)
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        empty = prod(size) == 0
        if not empty and (last + 1) * dtype.bytes > storage.nbytes:
            raise FormatError(
                f"{self.path}: a tensor of shape {size} reaches beyond its storage of "
                f"{storage.nbytes} bytes",
                _AGAIN,
            )
        self.kind.check(dtype)
        view = _strided(self.kind, storage, dtype, offset, size, stride, self.where)
        if requires_grad and hasattr(view, "requires_grad_"):
            view.requires_grad_(True)
        return view

    def parameter(self, data: Any, requires_grad: Any, _hooks: Any = None) -> Any:
        if self.kind.name != "torch":
            return data
        return self.kind.torch.nn.Parameter(data, requires_grad=bool(requires_grad))

    def ordered(self, items: Any = ()) -> OrderedDict:
        return OrderedDict((_pickle.hashable(key), value) for key, value in items)

    def encode(self, text: Any, encoding: Any = "latin1") -> bytes:
        latin = type(encoding) is str and encoding in ("latin1", "latin-1")
        if not latin or type(text) is not str:
            raise FormatError(f"{self.path}: bytes by an unknown encoding", _AGAIN)
        return text.encode("latin1")

    def set(self, items: Any = ()) -> set:
        return {_pickle.hashable(item) for item in items}

    def frozenset(self, items: Any = ()) -> frozenset:
        return frozenset(self.set(items))

    def bytearray(self, text: Any = "", encoding: Any = "latin1") -> bytearray:
        return bytearray(text if type(text) is bytes else self.encode(text, encoding))

    def counter(self, items: Any = None) -> Counter:
        if items is not None and type(items) is not dict:
            raise FormatError(f"{self.path}: counts of an unknown form", _AGAIN)
        return Counter(items)

    def complex(self, real: float = 0.0, imaginary: float = 0.0) -> complex:
        if type(real) is not float or type(imaginary) is not float:
            raise FormatError(f"{self.path}: a complex number of no numbers", _AGAIN)
        return complex(real, imaginary)


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Builder.tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _Builder.tensor_of,
    ("torch._utils", "_rebuild_parameter"): _Builder.parameter,
    ("collections", "OrderedDict"): _Builder.ordered,
    ("collections", "Counter"): _Builder.counter,
    ("_codecs", "encode"): _Builder.encode,
    ("__builtin__", "bytearray"): _Builder.bytearray,
    ("builtins", "bytearray"): _Builder.bytearray,
    ("__builtin__", "set"): _Builder.set,
    ("builtins", "set"): _Builder.set,
    ("__builtin__", "frozenset"): _Builder.frozenset,
    ("builtins", "frozenset"): _Builder.frozenset,
    ("__builtin__", "complex"): _Builder.complex,
    ("builtins", "complex"): _Builder.complex,
}


def _sizes(value: Any) -> tuple[int, ...]:
    numbers = tuple(value)
    if len(numbers) > 64 or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        raise FormatError("A tensor of an impossible shape", _AGAIN)
    return numbers


def _strided(kind, storage, dtype, offset, size, stride, where) -> Any:
    """A view of a storage; a copy is made by nobody."""
    placed = storage.placed
    start = placed.offset + offset * dtype.bytes
    if prod(size) == 0 or _in_order(size, stride):
        return kind.tensor(placed.block, start, dtype, size, where)
    whole = kind.tensor(placed.block, placed.offset, dtype, (storage.nbytes // dtype.bytes,), where)
    if kind.name == "torch":
        base = whole.storage_offset()
        return kind.torch.as_strided(whole, size, stride, base + offset)
    if kind.name in ("numpy", "cupy"):
        steps = tuple(step * dtype.bytes for step in stride)
        if kind.name == "numpy":
            tricks = kind.numpy.lib.stride_tricks
        else:
            tricks = kind.cupy.lib.stride_tricks
        return tricks.as_strided(whole[offset:], size, steps)
    raise UnsupportedError(
        f"A tensor of strides {stride} for framework {kind.name!r}",
        'Load it with framework="torch", or save it contiguous',
    )


def _in_order(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if length != 1:
            if step != expected:
                return False
            expected *= length
    return True


class _Kept(NamedTuple):
    """A tensor to be saved: where its bytes lie, and how they are laid out."""

    first: int  # address of its first element, before which it has nothing
    nbytes: int  # from there to the end of its last element
    device: int | None
    dtype: DType
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    parameter: bool
    owner: object


def torch_save(
    value: Any,
    file: str | os.PathLike[str],
    *,
    crc32: bool = True,
    progress: bool | None = None,
) -> None:
    """Saves tensors, containers and primitives so that plain ``torch.load`` reads them.

    The file appears under its name when it is complete and durable, as by
    :func:`sidecore.save_safetensors`. Tensors that overlap in memory do so again when they are
    loaded. Arrays of other frameworks are saved as tensors.

    Parameters
    ----------
    value : object
        Dicts, lists, tuples, sets, numbers, texts, bytes, ``None``, and tensors on host or GPUs.
    file : path
        Where.
    crc32 : bool
        Whether to write the sums that zip programs check (torch does not). They are taken from the
        page cache by several threads after the bytes are there.
    progress : bool, optional
        As for :func:`sidecore.load_safetensors`.
    """
    collected = _Collected()
    draft = _pickle.Writer(collected.collect)
    draft.object(value)
    collected.group(path_of(file))
    writer = _pickle.Writer(collected.write)
    writer.object(value)
    archive = _zip.Layout("archive")
    archive.add("data.pkl", writer.finish())
    archive.add("byteorder", b"little")
    payload = []
    for key, part in enumerate(collected.parts):
        at = archive.reserve(f"data/{key}", part.nbytes)
        if part.nbytes:
            memory = _arrays.Memory(
                part.first, part.nbytes, part.device, (), None, True, part.owners
            )
            payload.append((at, memory))
    archive.add("version", b"3\n")
    with progress_for("save", sum(m.nbytes for _, m in payload), progress) as bar:
        pieces = archive.pieces(None)
        _engine.save(file, pieces, payload, bar, archive if crc32 else None)


class _Part(NamedTuple):
    """A range of memory that becomes one storage."""

    first: int
    nbytes: int
    device: int | None
    dtype: DType
    owners: list[object]


class _Collected:
    """The tensors of an object, and the storages that they are saved in.

    Tensors that overlap share a storage, as they did. Memory between tensors is not saved: so a
    tensor out of a large allocation costs its own bytes only.
    """

    def __init__(self) -> None:
        self.kept: dict[int, _Kept] = {}
        self.alive: list[object] = []
        self.parts: list[_Part] = []
        self.part_of: dict[int, int] = {}

    def collect(self, _writer: _pickle.Writer, value: Any) -> bool:
        if id(value) not in self.kept:
            kept = _keep(value)
            if kept is None:
                return False
            self.kept[id(value)] = kept
            self.alive.append(value)
        return True

    def group(self, path: str) -> None:
        order = sorted(self.kept.items(), key=lambda item: _place_of(item[1]))
        end, device = -1, None
        for identity, kept in order:
            last = self.parts[-1] if self.parts else None
            used = last is not None and last.nbytes and kept.nbytes
            if last is None or not (used and kept.device == device and kept.first < end):
                self.parts.append(_Part(kept.first, kept.nbytes, kept.device, kept.dtype, []))
                end, device = kept.first + kept.nbytes, kept.device
            elif last.dtype != kept.dtype or (kept.first - last.first) % kept.dtype.bytes:
                raise UnsupportedError(
                    f"Saving {path}: tensors of types {last.dtype.name} and {kept.dtype.name} "
                    "share memory, which the format cannot say",
                    "Save a copy of one of them (clone)",
                )
            else:
                end = max(end, kept.first + kept.nbytes)
                self.parts[-1] = last._replace(nbytes=end - last.first)
            self.parts[-1].owners.append(kept.owner)
            self.part_of[identity] = len(self.parts) - 1

    def write(self, writer: _pickle.Writer, value: Any) -> bool:
        kept = self.kept.get(id(value))
        if kept is None:
            return False
        number = self.part_of[id(value)]
        part = self.parts[number]
        if kept.parameter:
            writer.named("torch._utils", "_rebuild_parameter")
            writer.raw(b"(")
        storage, named = kept.dtype.storage, kept.dtype.torch or ""
        name = "_rebuild_tensor_v2" if storage else "_rebuild_tensor_v3"
        writer.named("torch._utils", name)
        writer.raw(b"((")
        writer.text("storage")
        if storage:
            writer.named("torch", storage)
            count = part.nbytes // kept.dtype.bytes
        else:
            writer.named("torch.storage", "UntypedStorage")
            count = part.nbytes
        writer.text(str(number))
        writer.text("cpu" if kept.device is None else f"cuda:{kept.device}")
        writer.number(count)
        writer.raw(b"tQ")
        writer.number((kept.first - part.first) // kept.dtype.bytes if kept.nbytes else 0)
        writer.numbers(kept.size)
        writer.numbers(kept.stride)
        writer.raw(b"\x88" if kept.requires_grad and not kept.parameter else b"\x89")
        writer.named("collections", "OrderedDict")
        writer.raw(b")R")
        if not storage:
            writer.named("torch", named)
        writer.raw(b"tR")
        if kept.parameter:
            writer.raw(b"\x88" if kept.requires_grad else b"\x89")
            writer.named("collections", "OrderedDict")
            writer.raw(b")RtR")
        return True


def _place_of(kept: _Kept) -> tuple[int, int]:
    return (-1 if kept.device is None else kept.device, kept.first)


def _keep(value: Any) -> _Kept | None:
    if _arrays.is_torch(value):
        return _keep_torch(value)
    arrays = ("__cuda_array_interface__", "__array_interface__", "__dlpack__")
    if not any(hasattr(value, name) for name in arrays):
        return None
    found = _arrays.memory(value)
    if found.dtype is None or found.dtype.torch is None:
        raise UnsupportedError(f"torch has no type for a {type(value).__name__}", "Convert it")
    stride = [1] * len(found.shape)
    for at in range(len(stride) - 1, 0, -1):
        stride[at - 1] = stride[at] * found.shape[at]
    return _Kept(
        found.address,
        found.nbytes,
        found.device,
        found.dtype,
        found.shape,
        tuple(stride),
        False,
        False,
        found.owner,
    )


def _keep_torch(tensor: Any) -> _Kept:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedError(
            f"A tensor of layout {tensor.layout}, or quantized", "Save it dense (to_dense)"
        )
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.get_device()).synchronize()
    elif tensor.device.type != "cpu":
        raise UnsupportedError(f"A tensor on {tensor.device}", "Move it to the host or a CUDA GPU")
    dtype = _dtypes.of_torch(tensor.dtype)
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    nbytes = (reach + 1) * dtype.bytes if prod(size) else 0
    return _Kept(
        tensor.data_ptr(),
        nbytes,
        tensor.get_device() if tensor.is_cuda else None,
        dtype,
        size,
        stride,
        bool(tensor.requires_grad),
        isinstance(tensor, torch.nn.Parameter),
        tensor,
    )
