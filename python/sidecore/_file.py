"""Files for arrays: reads and writes at once, as futures, in the order of a stream, and by rows."""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Iterable
from typing import Any

from . import _arrays, _engine, _frameworks, _sidecore
from ._errors import MisuseError, UnsupportedError, WaitError, from_os
from ._paths import is_path, whole
from ._paths import path as path_of
from ._progress import progress_for

_MODES = {"r": "r", "r+": "r+", "w": "w", "w+": "w", "a": "a", "a+": "a"}


class IOFuture:
    """A read or write that goes on by itself.

    It keeps its buffer; do not use the buffer before the end.
    """

    def __init__(self, pending: Any, task: Any = None) -> None:
        self._pending = pending
        self._task = task

    def get(self, timeout: float | None = None) -> int:
        """Waits for the end, without the GIL; returns how many bytes were moved.

        Raises
        ------
        WaitError
            A ``TimeoutError``, after ``timeout`` seconds. The transfer goes on.
        Error
            Where it failed, or belongs to the process that this one was forked from.
        """
        try:
            seconds = None if timeout is None else float(timeout)
        except (TypeError, ValueError):
            seconds = math.nan
        if seconds is not None and math.isnan(seconds):
            raise MisuseError(f"timeout is {timeout!r}", "Name seconds, or None")
        moved = self._pending.get(seconds)
        if moved is None:
            raise WaitError(f"The transfer goes on after {timeout} s", "Ask again, or cancel it")
        return moved

    result = get

    def done(self) -> bool:
        """Whether it has ended."""
        return self._pending.done()

    def cancel(self) -> None:
        """Asks for its end; it has not ended before :meth:`get` says so."""
        self._pending.cancel()


class IOFutureStream(IOFuture):
    """A read or write in the order of a CUDA stream."""

    def check_bytes_done(self) -> int:
        """Waits for the end; returns how many bytes were moved."""
        return self.get()


class File:
    """An open file, for arrays on the host and on GPUs.

    Buffers are torch tensors, whatever has ``__cuda_array_interface__``, ``__array_interface__`` or
    ``__dlpack__``, and objects of the buffer protocol; without gaps between their elements. A
    buffer on a GPU is used after the work that its producer's current stream has been given.

    Parameters
    ----------
    file : path
        A regular file or a block device.
    flags : str
        ``"r"`` reads, ``"r+"`` also writes, ``"w"`` makes or empties the file, ``"a"`` makes it or
        leaves it as it is (offsets are always named, so nothing is appended by itself).
    """

    def __init__(self, file: str | os.PathLike[str], flags: str = "r") -> None:
        mode = flags.replace("b", "") if isinstance(flags, str) else None
        if mode not in _MODES:
            raise MisuseError(f"No file can be opened with {flags!r}", 'Use "r", "r+", "w" or "a"')
        self.path = path_of(file)
        self._mode = _MODES[mode]
        self._handles: dict[int | None, Any] = {}
        self._lock = threading.Lock()
        self._closed = False
        # The first one makes or empties the file; those for other devices only open it.
        self._first = self._open(None)

    def _open(self, device: int | None) -> Any:
        if self._closed:
            raise MisuseError(f"{self.path} is closed", "Open it again")
        with self._lock:
            found = self._handles.get(device)
            if found is None:
                mode = self._mode
                if self._handles and mode != "r":
                    mode = "r+"
                found = _engine.engine(device, self.path).open(self.path, mode)
                self._handles[device] = found
            return found

    def _raw(self, device: int | None) -> Any:
        return _engine.engine(device, self.path).raw

    def __enter__(self) -> File:
        if self._closed:
            raise MisuseError(f"{self.path} is closed", "Open it again")
        return self

    def __bool__(self) -> bool:
        return True  # an empty file is a file

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        # For worker processes: they open it again, and empty nothing.
        if self._closed:
            raise MisuseError(f"{self.path} is closed", "Open it again")
        return File, (os.path.abspath(self.path), "r" if self._mode == "r" else "r+")

    def close(self) -> None:
        """Closes the file; what was submitted before goes on to its end."""
        self._closed = True
        self._handles.clear()
        self._first = None

    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def nbytes(self) -> int:
        """The file's length now."""
        return self._open(None).bytes()

    __len__ = nbytes

    def sync(self) -> None:
        """Makes what was written durable (fsync); until then it is in the page cache."""
        self._open(None).sync()

    def _request(
        self, buf: Any, size: int | None, file_offset: int, dev_offset: int, write: bool
    ) -> _engine.Request:
        if write and self._mode == "r":
            raise MisuseError(f"{self.path} was opened for reading", 'Open it with "r+" or "w"')
        found = buf
        if not isinstance(buf, _arrays.Memory):
            found = _arrays.memory(buf, write=not write)
        dev_offset, file_offset = whole(dev_offset, "dev_offset"), whole(file_offset, "file_offset")
        nbytes = found.nbytes - dev_offset if size is None else whole(size, "size")
        inside = dev_offset >= 0 and nbytes >= 0 and dev_offset + nbytes <= found.nbytes
        if not inside or not 0 <= file_offset < 1 << 63:
            raise MisuseError(
                f"{nbytes} bytes from byte {dev_offset} of a buffer of {found.nbytes}, at byte "
                f"{file_offset} of {self.path}",
                "Name a range inside the buffer",
            )
        handle = self._open(found.device)
        address = found.address + dev_offset
        return _engine.Request(handle, file_offset, address, nbytes, found.device, found.owner)

    def _run(self, buf, size, file_offset, write) -> int:
        request = self._request(buf, size, file_offset, 0, write)
        return self._raw(request.device).run(_engine.raw(request), write)

    def _submit(self, buf, size, file_offset, write, dev_offset=0) -> IOFuture:
        request = self._request(buf, size, file_offset, dev_offset, write)
        pending = self._raw(request.device).submit(_engine.raw(request), write)
        return IOFuture(pending)

    def read(self, buf: Any, size: int | None = None, file_offset: int = 0) -> int:
        """Reads into a buffer; returns how many bytes, fewer than asked for at the file's end only.

        When it returns, every kernel that is launched afterwards, on any stream, sees the bytes.
        """
        return self._run(buf, size, file_offset, False)

    def write(self, buf: Any, size: int | None = None, file_offset: int = 0) -> int:
        """Writes a buffer; all of it, or an error. Durable after :meth:`sync`."""
        return self._run(buf, size, file_offset, True)

    def pread(
        self,
        buf: Any,
        size: int | None = None,
        file_offset: int = 0,
        task_size: int | None = None,
    ) -> IOFuture:
        """Starts a read and returns at once. ``task_size`` is KvikIO's; the planner cuts here."""
        return self._submit(buf, size, file_offset, False)

    def pwrite(
        self,
        buf: Any,
        size: int | None = None,
        file_offset: int = 0,
        task_size: int | None = None,
    ) -> IOFuture:
        """Starts a write and returns at once."""
        return self._submit(buf, size, file_offset, True)

    # Names that KvikIO's users know. Sizes of tasks are the planner's business here.
    def raw_read(self, buf: Any, size: int | None = None, file_offset: int = 0) -> int:
        return self.read(buf, size, file_offset)

    def raw_write(self, buf: Any, size: int | None = None, file_offset: int = 0) -> int:
        return self.write(buf, size, file_offset)

    def _on_stream(self, buf, stream, size, file_offset, dev_offset, write) -> IOFutureStream:
        # The stream itself says when the buffer is ready, so nothing is waited for here.
        found = _arrays.memory(buf, write=not write, settled=True)
        if found.device is None:
            raise MisuseError("The order of a stream is for memory on its GPU", "Use pread, pwrite")
        request = self._request(found, size, file_offset, dev_offset, write)
        pending = self._raw(found.device).submit_on_stream(
            _engine.raw(request), write, _stream(stream)
        )
        return IOFutureStream(pending)

    def read_async(
        self,
        buf: Any,
        stream: Any,
        size: int | None = None,
        file_offset: int = 0,
        dev_offset: int = 0,
    ) -> IOFutureStream:
        """Reads in the order of a CUDA stream; returns at once.

        The buffer is written after what the stream was given before, and before what it is given
        afterwards. ``stream`` is torch's, CuPy's, or the driver's handle as a number.
        """
        return self._on_stream(buf, stream, size, file_offset, dev_offset, False)

    def write_async(
        self,
        buf: Any,
        stream: Any,
        size: int | None = None,
        file_offset: int = 0,
        dev_offset: int = 0,
    ) -> IOFutureStream:
        """Writes in the order of a CUDA stream; returns at once."""
        return self._on_stream(buf, stream, size, file_offset, dev_offset, True)

    def read_rows(
        self,
        indices: Any,
        row_bytes: int,
        out: Any = None,
        *,
        device: Any = "cpu",
        framework: str | None = None,
    ) -> Any:
        """See :func:`sidecore.read_rows`."""
        return read_rows(self, indices, row_bytes, out, device=device, framework=framework)

    def explain(self, buf: Any = None, size: int | None = None, file_offset: int = 0) -> str:
        """Which way a read into ``buf`` would go, and why not a better one; moves nothing."""
        if buf is None:
            return self._open(None).explain()
        request = self._request(buf, size, file_offset, 0, False)
        return self._raw(request.device).explain(_engine.raw(request), False)


def _stream(stream: Any) -> int:
    """The driver's handle of a stream of torch, CuPy, or by its number."""
    for name in ("cuda_stream", "ptr"):
        found = getattr(stream, name, None)
        if isinstance(found, int):
            return found
    if isinstance(stream, int):
        return stream
    raise MisuseError(f"A {type(stream).__name__} is no CUDA stream", "Hand over its handle")


def read_rows(
    file: File | str | os.PathLike[str],
    indices: Any,
    row_bytes: int,
    out: Any = None,
    *,
    device: Any = "cpu",
    framework: str | None = None,
) -> Any:
    """Gathers rows of a file: row ``i`` is the bytes ``i * row_bytes`` up to the next row.

    Parameters
    ----------
    file : File or path
        Where the rows are.
    indices : array of 64-bit integers in host memory, or sequence of int
        Which rows, in any order, any number of times.
    row_bytes : int
        Bytes of a row.
    out : buffer, optional
        Where the rows go, one after the other; else a new tensor of bytes, (rows, row_bytes).
    device, framework
        As for :func:`sidecore.load_safetensors`, where ``out`` is not given.

    Returns
    -------
    tensor
        ``out``, or the new tensor. The GIL is released meanwhile.
    """
    if not isinstance(file, File):
        with File(file) as opened:
            return read_rows(opened, indices, row_bytes, out, device=device, framework=framework)
    if not hasattr(row_bytes, "__index__") or row_bytes <= 0:
        raise MisuseError(f"Rows of {row_bytes!r} bytes", "Name a positive number")
    row_bytes = operator.index(row_bytes)
    address, count, owner = _indices(indices)
    nbytes = count * row_bytes
    if out is None:
        where = _frameworks.device(device)
        kind = _frameworks.framework(framework, where)
        block = kind.allocate(nbytes, where)
        place, index, keeper = block.address, where.gpu, block.owner
        out = kind.tensor(block, 0, _frameworks.DTYPES["U8"], (count, row_bytes), where)
    else:
        found = _arrays.memory(out, write=True)
        if found.nbytes != nbytes:
            raise MisuseError(
                f"{count} rows of {row_bytes} bytes do not fill {found.nbytes} bytes",
                "Hand over an array of that many bytes",
            )
        place, index, keeper = found.address, found.device, found.owner
    if count:
        handle = file._open(index)
        file._raw(index).read_rows(
            handle, (address, count, owner), row_bytes, (place, nbytes, index is not None, keeper)
        )
    return out


def _indices(indices: Any) -> tuple[int, int, Any]:
    """Row numbers as 64-bit integers in host memory."""
    if isinstance(indices, (list, tuple, range)):
        import array

        try:
            indices = array.array("Q", indices)
        except (OverflowError, TypeError) as error:
            raise MisuseError(f"Row numbers: {error}", "Name rows from 0 on") from None
    try:
        found = _arrays.memory(indices)
    except UnsupportedError as error:
        raise UnsupportedError(f"Row numbers: {error.cause}", error.remedy) from None
    name = found.dtype.name if found.dtype is not None else getattr(indices, "typecode", "?")
    if found.device is not None or name not in ("I64", "U64", "Q", "q"):
        raise MisuseError(
            f"Row numbers of type {name}",
            "Hand over 64-bit integers in host memory (numpy.int64, or a list)",
        )
    return found.address, found.nbytes // 8, found.owner


def read_files(
    files: Iterable[str | os.PathLike[str]],
    device: Any = "cpu",
    framework: str | None = None,
    *,
    progress: bool | None = None,
) -> list[Any]:
    """Reads many whole files at once, small ones together.

    Parameters
    ----------
    files : iterable of path
        Regular files; each is opened when its turn comes, so there may be more than may be open.
    device, framework, progress
        As for :func:`sidecore.load_safetensors`.

    Returns
    -------
    list of tensors
        One of bytes for each file, in order. They share one allocation.
    """
    if is_path(files):
        raise UnsupportedError(f"{files!r} is one file", "Hand over a list of them")
    try:
        listed = list(files)
    except TypeError:
        raise UnsupportedError(
            f"A {type(files).__name__} is no list of paths", "Hand over a list of them"
        ) from None
    where = _frameworks.device(device)
    kind = _frameworks.framework(framework, where)
    if not listed:
        return []
    try:
        found = _measured(listed)
    except OSError as error:
        raise from_os(error, "Reading", error.filename) from None
    block = kind.allocate(found.nbytes, where)
    target = (block.address, found.nbytes, where.gpu is not None, block.owner)
    raw = _engine.engine(where.gpu, path_of(listed[0])).raw
    with progress_for("load", found.payload, progress) as bar:
        moving = _engine.Meanwhile(found.start(raw, target), bar)
        if not kind.looks_at_bytes:
            with moving:
                return kind.parts(block, found.offsets(), found.sizes(), where)
        with moving:
            pass
    return kind.parts(block, found.offsets(), found.sizes(), where)


def _measured(files: list[Any]) -> Any:
    """The files with their lengths: of very many, so that each is looked at once."""
    try:
        return _sidecore.FileList(files, _frameworks.ALIGNMENT)
    except (TypeError, UnicodeError):
        # One of them is bytes, or no path.
        return _sidecore.FileList([path_of(file) for file in files], _frameworks.ALIGNMENT)
    except OSError as error:
        if not error.errno:
            path_of(error.filename)  # which says what is wrong with it
        raise
