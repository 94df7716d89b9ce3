"""The engines of this process: one for the host, one for each GPU that was used.

They are made when they are first needed. A process that was forked makes its own: the threads of
the parent's stayed with the parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _sidecore
from ._errors import DeviceError, Error, ExhaustedError, from_os
from ._paths import path as path_of

_lock = threading.Lock()
#: By GPU and by the name of what ``sidecore tune`` measured for a file system, ``None`` without.
_engines: dict[tuple[int | None, str | None], Engine] = {}
#: By GPU and device number of a file system, that name.
_tuned: dict[tuple[int | None, int], str | None] = {}
_options: dict[str, Any] = {}
#: Engines of the parent; never ended here, since their threads are not in this process.
_inherited: list[Any] = []
_forked_with_gpu = False
#: Counters of engines that were ended by :func:`configure`.
_ended: Any = None


class Request(NamedTuple):
    """A range of a file, and memory of the same length."""

    handle: Any
    offset: int
    address: int
    nbytes: int
    device: int | None
    owner: Any


class Engine:
    """An engine of the compiled part, with paths in its errors."""

    def __init__(self, device: int | None, near: str | None) -> None:
        self.device = device
        try:
            self.raw = _sidecore.Engine(device, near=near, **_options)
        except Error:
            raise
        except RuntimeError as error:
            raise DeviceError(
                f"GPU {device} cannot be used: {error}",
                'Install what is missing, or work on the host: device="cpu"',
            ) from None

    def open(self, path: str, mode: str) -> Any:
        """An open file, for :class:`Request`."""
        return self.raw.open(path, mode)

    def transfer(self, requests: Sequence[Request], progress: Any = None) -> int:
        """Reads all, in parallel, each to its last byte; returns how many bytes."""
        return self._move(requests, False, progress)

    def write(self, requests: Sequence[Request], progress: Any = None) -> int:
        """Writes all, in parallel."""
        return self._move(requests, True, progress)

    def _move(self, requests: Sequence[Request], write: bool, progress: Any) -> int:
        return self.raw.start([raw(r) for r in requests], write).finish(progress)

    def meanwhile(self, requests: Sequence[Request], progress: Any) -> Meanwhile:
        """Reads all while the body of a ``with`` runs, at whose end every byte has arrived."""
        return Meanwhile(self.raw.start([raw(r) for r in requests], False), progress)


class Meanwhile:
    """Transfers that go on while a ``with`` statement's body runs; its end is theirs."""

    def __init__(self, started: Any, progress: Any) -> None:
        self.started = started
        self.progress = progress

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.started.finish(self.progress)
        else:
            self.started.abort()


def raw(request: Request) -> tuple[Any, int, int, int, bool, Any]:
    """A request as the compiled part takes it."""
    handle, offset, address, nbytes, device, owner = request
    return handle, offset, address, nbytes, device is not None, owner


def engine(device: int | None, path: str | None = None) -> Engine:
    """The engine of a GPU, or of the host; for files near ``path``, as it was tuned for these."""
    with _lock:
        found = _engine(device, None, None)
        if path is None:
            return found
        folder = os.path.dirname(path) or "."
        try:
            number = os.stat(folder).st_dev
        except OSError:
            return found  # opening the file will say it better
        key = (device, number)
        if key not in _tuned:
            _tuned[key] = found.raw.tuned(folder)
        return _engine(device, _tuned[key], folder)


def _engine(device: int | None, tuned: str | None, near: str | None) -> Engine:
    key = (device, tuned)
    found = _engines.get(key)
    if found is None:
        if device is not None and _forked_with_gpu:
            raise DeviceError(
                "This process was forked from one that used a GPU, and CUDA does not survive that",
                'Start it by spawn: multiprocessing.set_start_method("spawn")',
            )
        found = _engines[key] = Engine(device, near)
    return found


def configure(**options: Any) -> None:
    """See the package's documentation."""
    global _ended
    with _lock:
        for key, value in options.items():
            if value is None:
                _options.pop(key, None)
            else:
                _options[key] = value
        _ended = _sum(_engines.values(), _ended)
        _engines.clear()
        _tuned.clear()


def allocate(nbytes: int, device: int | None) -> Any:
    """Memory of this package's own."""
    try:
        return engine(device).raw.allocate(nbytes)
    except MemoryError as error:
        where = "the host" if device is None else f"GPU {device}"
        raise ExhaustedError(
            f"No room for {nbytes} bytes on {where}: {error}", "Free some"
        ) from None


def stats() -> dict[str, Any]:
    """The counters of all engines of this process, added up."""
    with _lock:
        return _sum(_engines.values(), _ended)


def _sum(engines: Any, base: Any) -> Any:
    # High waters of different engines need not have been reached together: their sum is a bound.
    total = base if base is not None else _sidecore.no_counters()
    for one in engines:
        total = _add(total, one.raw.counters())
    return total


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {key: _add(a[key], b[key]) for key in a}
    return a + b


def save(
    file: str | os.PathLike[str],
    pieces: Sequence[tuple[int, bytes]],
    payload: Sequence[tuple[int, Any]],
    progress: Any,
    layout: Any = None,
) -> None:
    """Writes a whole file beside its target, which it replaces when every byte is durable.

    ``layout`` makes ``pieces`` from the sums of the payload, where those are wanted.
    """
    path = path_of(file)
    by_device: dict[int | None, list[tuple[int, Any]]] = {}
    for offset, memory in payload:
        by_device.setdefault(memory.device, []).append((offset, memory))
    try:
        target = _sidecore.Save(path)
    except OSError as error:
        raise from_os(error, "Saving", path) from None
    try:
        done = 0
        for device, parts in by_device.items():
            one = engine(device, path)
            handle = one.open(target.temporary, "r+")
            requests = [
                Request(handle, offset, m.address, m.nbytes, device, m.owner) for offset, m in parts
            ]
            one.write(requests, None if progress is None else lambda n, d=done: progress(d + n))
            done += sum(m.nbytes for _, m in parts)
        if layout is not None:
            pieces = layout.pieces(target.crc32([tuple(r) for r in layout.reserved]))
        for offset, data in pieces:
            target.write_at(data, offset)
        target.commit()
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise from_os(error, "Saving", path) from None
    finally:
        target.abandon()


def _before_fork() -> None:
    _lock.acquire()


def _in_parent() -> None:
    _lock.release()


def _in_child() -> None:
    global _ended, _forked_with_gpu, _lock
    _forked_with_gpu = _forked_with_gpu or any(device is not None for device, _ in _engines)
    # What the parent has moved is not this process's.
    _inherited.append(dict(_engines))
    _engines.clear()
    _ended = None
    _lock = threading.Lock()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
