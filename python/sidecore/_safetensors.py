"""Reading and writing safetensors files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import _arrays, _engine, _frameworks, _sidecore
from ._dtypes import DTYPES, NOT_SAFETENSORS, DType
from ._errors import Error, FormatError, MisuseError, UnsupportedError, from_os
from ._frameworks import Block, Device, Framework
from ._paths import is_path
from ._paths import path as path_of
from ._progress import progress_for

#: Where a tensor must begin, so that every kernel takes it at full speed.
_ALIGNMENT = 16
#: Where a run of tensors begins in its allocation.
_RUN_ALIGNMENT = 256


class _Entry(NamedTuple):
    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class _Shard(NamedTuple):
    path: str
    handle: Any
    entries: list[_Entry]
    metadata: dict[str, str]


def load_safetensors(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    device: Any = "cpu",
    framework: str | None = None,
    *,
    shared: bool = True,
    names: Iterable[str] | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Loads safetensors files: every tensor with its name, type, shape and bytes.

    Parameters
    ----------
    files : path, or iterable of paths
        A file, several shards, an index (``*.index.json``), or a folder with either. Shards are
        read in parallel.
    device : str, int or torch.device
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    framework : {"torch", "numpy", "cupy", "jax", "sidecore"}, optional
        Whose tensors to make; by default torch's where it can be imported, else NumPy's on the host
        and CuPy's on a GPU, else :class:`sidecore.Tensor`, which every framework takes by DLPack.
    shared : bool
        Whether the tensors of a file share one allocation, which is the fastest; its memory is
        free again when the last of them is gone. With ``False`` each has one of its own.
    names : iterable of str, optional
        Load these only.
    progress : bool, optional
        Whether to draw a bar on stderr; by default for large loads on a terminal.

    Returns
    -------
    dict of str to tensor
        In the order of the files, and of the data in each. Kernels that are launched after the
        return, on any stream, see every byte; nothing needs to be synchronised.

    Raises
    ------
    FormatError
        A file is damaged or hostile. Headers are judged before anything is allocated.
    IoError, DeviceError, ExhaustedError, UnsupportedError, MisuseError, RouteError
        As their names say.

    Notes
    -----
    The GIL is released while bytes move. Ctrl-C ends the load. The files are read, not mapped: what
    happens to them afterwards does not matter to the tensors.
    """
    where = _frameworks.device(device)
    kind = _frameworks.framework(framework, where)
    paths, named = _resolve(files)
    engine = _engine.engine(where.gpu, paths[0])
    shards = [_read_header(path, engine) for path in paths]
    _no_name_twice(shards)
    _all_there(shards, named)
    if names is not None:
        shards = _only(shards, names)
    for shard in shards:
        for entry in shard.entries:
            kind.check(_frameworks.sub_byte(entry.dtype, entry.shape)[0])
    with progress_for("load", sum(e.nbytes for s in shards for e in s.entries), progress) as bar:
        tensors: dict[str, tuple] = {}
        requests: list[_engine.Request] = []
        for shard in shards:
            placed = _place_shared if shared else _place_apart
            for entry, block, offset in placed(shard, kind, where, shard.handle, requests):
                dtype, shape = _frameworks.sub_byte(entry.dtype, entry.shape)
                tensors[entry.name] = (block, offset, dtype, shape)
        if not kind.looks_at_bytes:
            # Tensors are made over their memory while it is being filled.
            with engine.meanwhile(requests, bar):
                return _made(tensors, kind, where)
        engine.transfer(requests, bar)
    return _made(tensors, kind, where)


def _made(tensors: dict[str, tuple], kind: Framework, where: Device) -> dict[str, Any]:
    return {
        name: kind.tensor(block, offset, dtype, shape, where)
        for name, (block, offset, dtype, shape) in tensors.items()
    }


def safetensors_metadata(file: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a safetensors file: the texts under ``__metadata__``."""
    path = path_of(file)
    return _read_header(path, _engine.engine(None, path)).metadata


def _resolve(files: Any) -> tuple[list[str], dict[str, str]]:
    """The shards that an argument names: a file, a list of them, an index, or a folder.

    Also which tensor an index expects in which of them.
    """
    if is_path(files):
        path = Path(path_of(files))
        if path.is_dir():
            return _resolve_folder(path)
        if path.name.endswith(".json"):
            return _resolve_index(path)
        return [os.fspath(path)], {}
    try:
        listed = list(files)
    except TypeError:
        listed = [files]  # which says what it is not
    paths = [path_of(path) for path in listed]
    if not paths:
        raise MisuseError("The list of files is empty", "Name at least one")
    return paths, {}


def _resolve_folder(folder: Path) -> tuple[list[str], dict[str, str]]:
    indices = sorted(folder.glob("*.safetensors.index.json"))
    if len(indices) == 1:
        return _resolve_index(indices[0])
    found = sorted(os.fspath(path) for path in folder.glob("*.safetensors"))
    if not found:
        raise MisuseError(f"{folder} has no *.safetensors file", "Name another folder or a file")
    return found, {}


def _resolve_index(path: Path) -> tuple[list[str], dict[str, str]]:
    try:
        index = json.loads(path.read_bytes())
        weight_map = dict(index["weight_map"])
        shards = sorted(set(weight_map.values()))
    except OSError as error:
        raise from_os(error, "Reading", os.fspath(path)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path} is no index of shards: {type(error).__name__} {error}",
            'It must be JSON with an object "weight_map" from tensor names to file names',
        ) from error
    for name in shards:
        # An index names files beside it, and nothing else of the machine.
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", ".."):
            raise FormatError(
                f"{path} names a shard {name!r}, which is no file beside it",
                "Get the index from its source again",
            )
    if not shards:
        raise FormatError(f"{path} names no shard", "Get the index from its source again")
    beside = {name: os.fspath(path.parent / name) for name in shards}
    return list(beside.values()), {tensor: beside[shard] for tensor, shard in weight_map.items()}


def _read_header(path: str, engine: _engine.Engine) -> _Shard:
    # The header and the data are of one open file, even if another takes its name meanwhile.
    handle = engine.open(path, "r")
    try:
        entries, metadata = _sidecore.read_header(handle)
    except OSError as error:
        raise from_os(error, "Reading", path) from error
    except ValueError as error:
        raise FormatError(
            f"{path} is no sound safetensors file: {error}", "Get it from its source again"
        ) from None
    return _Shard(
        path,
        handle,
        [_Entry(name, DTYPES[d], tuple(shape), at, size) for name, d, shape, at, size in entries],
        dict(metadata),
    )


def _no_name_twice(shards: list[_Shard]) -> None:
    seen: dict[str, str] = {}
    for shard in shards:
        for entry in shard.entries:
            other = seen.setdefault(entry.name, shard.path)
            if other != shard.path:
                raise FormatError(
                    f"Tensor {entry.name!r} is in {other} and in {shard.path}",
                    "Load the files one by one",
                )


def _all_there(shards: list[_Shard], named: Mapping[str, str]) -> None:
    has = {shard.path: {entry.name for entry in shard.entries} for shard in shards}
    missing = sorted(tensor for tensor, path in named.items() if tensor not in has[path])
    if missing:
        raise FormatError(
            f"The index names {missing[0]!r} in {named[missing[0]]}, which lacks it "
            f"({len(missing)} tensors are missing)",
            "Get the index and the shards from one source again",
        )


def _only(shards: list[_Shard], names: Iterable[str]) -> list[_Shard]:
    if isinstance(names, (str, bytes)):
        raise MisuseError(f"names is {names!r}, which is one text", "Hand over a list of names")
    try:
        wanted = set(names)
    except TypeError as error:
        raise UnsupportedError(f"names: {error}", "Hand over a list of texts") from None
    missing = wanted - {entry.name for shard in shards for entry in shard.entries}
    if missing:
        raise MisuseError(
            f"No shard has {min(map(repr, missing))} ({len(missing)} names are missing)",
            "See the names in the files' headers",
        )
    return [
        shard._replace(entries=[entry for entry in shard.entries if entry.name in wanted])
        for shard in shards
    ]


def _place_shared(
    shard: _Shard, kind: Framework, where: Device, handle: Any, requests: list[_engine.Request]
) -> list[tuple[_Entry, Block, int]]:
    """One allocation for the file: neighbours stay neighbours as long as each begins well.

    So a file whose tensors are all aligned is one request.
    """
    offsets: list[int] = []
    runs: list[list[int]] = []  # file offset, block offset, bytes
    end = 0
    for entry in shard.entries:
        last = runs[-1] if runs else None
        follows = last is not None and last[0] + last[2] == entry.offset
        if not (follows and (end % _ALIGNMENT == 0 or entry.nbytes == 0)):
            end += -end % _RUN_ALIGNMENT
            runs.append([entry.offset, end, 0])
        offsets.append(end)
        runs[-1][2] += entry.nbytes
        end += entry.nbytes
    block = kind.allocate(end, where)
    for file_offset, offset, nbytes in runs:
        if nbytes:
            requests.append(
                _engine.Request(
                    handle, file_offset, block.address + offset, nbytes, where.gpu, block.owner
                )
            )
    return [(e, block, offset) for e, offset in zip(shard.entries, offsets, strict=True)]


def _place_apart(
    shard: _Shard, kind: Framework, where: Device, handle: Any, requests: list[_engine.Request]
) -> list[tuple[_Entry, Block, int]]:
    """An allocation for each tensor."""
    placed = []
    for entry in shard.entries:
        block = kind.allocate(entry.nbytes, where)
        if entry.nbytes:
            requests.append(
                _engine.Request(
                    handle, entry.offset, block.address, entry.nbytes, where.gpu, block.owner
                )
            )
        placed.append((entry, block, 0))
    return placed


def _type_of(array: Any) -> str:
    return str(getattr(array, "dtype", type(array).__name__))


def save_safetensors(
    tensors: Mapping[str, Any],
    file: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    progress: bool | None = None,
) -> None:
    """Saves tensors as a safetensors file, byte for byte as the reference implementation would.

    The file appears under its name when it is complete and durable (temporary file, fsync, rename,
    fsync of the folder); until then, and where it fails, the name keeps what it had.

    Parameters
    ----------
    tensors : mapping of str to tensor
        Of any framework, on the host or on GPUs, without gaps between their elements.
    file : path
        Where.
    metadata : mapping of str to str, optional
        Goes under ``__metadata__``.
    progress : bool, optional
        As for :func:`sidecore.load_safetensors`.
    """
    if not isinstance(tensors, Mapping):
        raise UnsupportedError(
            f"A {type(tensors).__name__} is no mapping of names to tensors", "Hand over a dict"
        )
    if not (metadata is None or isinstance(metadata, Mapping)):
        raise UnsupportedError("Metadata is a mapping of texts to texts", "Hand over a dict")
    parts = []
    for name, array in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise MisuseError(f"{name!r} is no name for a tensor", "Use another text")
        try:
            found = _arrays.memory(array)
        except Error as error:
            raise type(error)(f"Tensor {name!r}: {error.cause}", error.remedy) from error
        if found.dtype is None or found.dtype.name in NOT_SAFETENSORS:
            raise UnsupportedError(
                f"Tensor {name!r}: the format has no type for {_type_of(array)}",
                "Convert it to another type",
            )
        parts.append((name, found, found.dtype))
    parts.sort(key=lambda part: (-part[2].order, part[0]))
    header: dict[str, Any] = {}
    offset = 0
    if metadata is not None:
        for key, value in metadata.items():
            if not (isinstance(key, str) and isinstance(value, str)):
                raise MisuseError("Metadata is a mapping of texts to texts", "Use json.dumps")
        header["__metadata__"] = dict(metadata)
    for name, found, dtype in parts:
        header[name] = {
            "dtype": dtype.name,
            "shape": list(found.shape),
            "data_offsets": [offset, offset + found.nbytes],
        }
        offset += found.nbytes
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise MisuseError(
            f"A name or a metadata text is no Unicode text: {error.object[error.start :]!r:.40}",
            "Use texts without lone surrogates",
        ) from None
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    pieces, at = [(0, head)], len(head)
    payload = []
    for _, found, _ in parts:
        if found.nbytes:
            payload.append((at, found))
        at += found.nbytes
    with progress_for("save", offset, progress) as bar:
        _engine.save(file, pieces, payload, bar)
