"""What was moved, which way, and why; and how to have it otherwise."""

from __future__ import annotations

import os
from typing import Any

from . import _engine, _frameworks


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
    raw = _engine.engine(where.gpu, file).raw
    handle = raw.open(os.fspath(file), "r")
    size = handle.bytes() - offset if nbytes is None else nbytes
    return raw.explain_size(handle, offset, max(size, 0))


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
    _engine.engine(where.gpu, near).raw.prepare()


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
        Threads that read; else as many as were measured to be best, or a guess.
    pool_bytes : int, optional
        Bound of pinned host memory; 256 MiB where nothing is said.
    require : str, optional
        A route. What would take another one fails (:class:`RouteError`) instead of falling back.
    quiet : bool, optional
        Whether to be silent at a first fallback, which is otherwise said on stderr once a cause.
    """
    _engine.configure(threads=threads, pool_bytes=pool_bytes, require=require, quiet=quiet)
