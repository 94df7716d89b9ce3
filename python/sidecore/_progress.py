"""A progress bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import sys
import time

#: Below this many bytes nobody sees a bar anyway.
_BYTES_MIN = 256 << 20
_WIDTH = 30


class Bar:
    """Draws one line on stderr, at most ten times a second."""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.start = time.monotonic()
        self.drawn = 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self.drawn < 0.1 and done < self.total:
            return
        self.drawn = now
        part = done / self.total if self.total else 1.0
        rate = done / max(now - self.start, 1e-9) / 1e9
        full = int(part * _WIDTH)
        sys.stderr.write(
            f"\rsidecore {self.what} [{'#' * full}{'.' * (_WIDTH - full)}] "
            f"{done / 1e9:.1f} of {self.total / 1e9:.1f} GB, {rate:.1f} GB/s "
        )
        sys.stderr.flush()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.drawn:
            sys.stderr.write("\n")


class _Silent:
    """No bar: callers pass ``None`` on."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def progress_for(what: str, total: int, wanted: bool | None) -> Bar | _Silent:
    """A bar where one is wanted, or where none was spoken of and stderr is a terminal."""
    if wanted is None:
        wanted = total >= _BYTES_MIN and sys.stderr is not None and sys.stderr.isatty()
    return Bar(what, total) if wanted else _Silent()
