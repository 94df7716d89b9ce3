"""What was moved, which way, and why; and how to have it otherwise."""

from __future__ import annotations

import os
from typing import Any

from . import _engine, _frameworks, _sidecore
from ._errors import MisuseError
from ._paths import path, whole

#: Source: the engine, which has threads for no more; pinned memory below the least would not do for
#: one thread.
_THREADS_MAX = 256
_POOL_BYTES_MIN, _POOL_BYTES_MAX = 2 << 20, 512 << 20


def stats() -> dict[str, Any]:
    """Counters of this process since its start.

    Returns
    -------
    dict
        ``routes``: for each route ``bytes_read``, ``bytes_written`` and ``ios``; ``fallbacks``: how
        often each cause kept a request from the best route; ``requests``, ``hot_bytes``,
        ``cold_bytes``, ``pinned_bytes_max``, ``in_flight_max`` and others. Engines of several GPUs
        are added up.
    """
    return _engine.stats()


def explain(
    file: str | os.PathLike[str], device: Any = "cpu", offset: int = 0, nbytes: int | None = None
) -> str:
    """Which way a read of ``file`` into memory of ``device`` would go, and why not a better one.

    Nothing is moved and nothing is allocated.
    """
    where = _frameworks.device(device)
    name, offset = path(file), whole(offset, "offset")
    raw = _engine.engine(where.gpu, name).raw
    handle = raw.open(name, "r")
    left = max(handle.bytes() - offset, 0)
    size = left if nbytes is None else whole(nbytes, "nbytes")
    if not 0 <= offset < 1 << 63 or size < 0:
        raise MisuseError(f"{size} bytes from byte {offset} of {name}", "Name a range of a file")
    return raw.explain_size(handle, offset, min(size, left))


def prepare(device: Any = "cuda", near: str | os.PathLike[str] | None = None) -> None:
    """Makes now what the first transfers with a GPU would make: context, threads, pinned memory.

    The driver may wait for running kernels meanwhile, so before the first ``read_async`` behind a
    long kernel this is worth a call. On the host there is nothing to prepare.

    Parameters
    ----------
    device : str, int or torch.device
        Which GPU.
    near : path, optional
        A file on the file system that is meant, where ``sidecore tune`` has measured several.
    """
    where = _frameworks.device(device)
    _engine.engine(where.gpu, None if near is None else path(near)).raw.prepare()


def configure(
    *,
    threads: int | None = None,
    pool_bytes: int | None = None,
    require: str | None = None,
    quiet: bool | None = None,
) -> None:
    """Sets how engines are made; those that there are end when their last transfer has ended.

    Parameters
    ----------
    threads : int, optional
        Threads that read, 1 to 256; else as many as were measured to be best, or a guess.
    pool_bytes : int, optional
        Bound of pinned host memory, 2 to 512 MiB; 256 MiB where nothing is said.
    require : str, optional
        A route. What would take another one fails (:class:`RouteError`) instead of falling back.
    quiet : bool, optional
        Whether to be silent at a first fallback, which is otherwise said on stderr once a cause.

    Raises
    ------
    MisuseError, UnsupportedError
        What is asked for cannot be; everything stays as it was.
    """
    if threads is not None:
        threads = _within("threads", threads, 1, _THREADS_MAX)
    if pool_bytes is not None:
        pool_bytes = _within("pool_bytes", pool_bytes, _POOL_BYTES_MIN, _POOL_BYTES_MAX)
    routes = ", ".join(_sidecore.no_counters()["routes"])
    if require is not None and require not in routes.split(", "):
        raise MisuseError(f"No route is called {require!r}", f"Name one of {routes}")
    if quiet is not None and not isinstance(quiet, bool):
        raise MisuseError(f"quiet is {quiet!r}", "Say True or False")
    _engine.configure(threads=threads, pool_bytes=pool_bytes, require=require, quiet=quiet)


def _within(what: str, value: Any, least: int, most: int) -> int:
    number = whole(value, what)
    if not least <= number <= most:
        raise MisuseError(f"{what} is {number}", f"Name {least} to {most}")
    return number
