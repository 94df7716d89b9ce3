"""What can go wrong, by whose fault it is. Every message names the cause and a remedy."""

from __future__ import annotations

import errno as _errno
import os


class Error(Exception):
    """Base of all errors of this package.

    Attributes
    ----------
    code : str
        A stable name of the kind of failure, the same in every version.
    cause, remedy : str
        What happened, and what to do about it.
    """

    code = "error"

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(f"{cause}. {remedy}" if remedy else cause)


class FormatError(Error, ValueError):
    """A file's content is not what its format says: damaged, truncated, or hostile."""

    code = "format"


class MisuseError(Error, ValueError):
    """A call's arguments do not fit each other."""

    code = "misuse"


class UnsupportedError(Error, TypeError):
    """A type, a layout or a framework that cannot be served."""

    code = "unsupported"


class DeviceError(Error, RuntimeError):
    """A GPU or its driver is not there, or has failed."""

    code = "device"


class RouteError(Error, RuntimeError):
    """The route that was required cannot be taken; no byte was moved."""

    code = "route"


class ExhaustedError(Error, MemoryError):
    """Memory of some kind is used up."""

    code = "exhausted"


class IoError(Error, OSError):
    """The system refused or broke off an I/O; ``errno`` and ``filename`` say which."""

    code = "io"

    def __init__(
        self, cause: str, remedy: str = "", number: int | None = None, path: str | None = None
    ) -> None:
        self.cause = cause
        self.remedy = remedy
        text = f"{cause}. {remedy}" if remedy else cause
        OSError.__init__(self, number if number is not None else _errno.EIO, text, path)

    def __str__(self) -> str:
        return f"{self.cause}. {self.remedy}" if self.remedy else self.cause


class ShortReadError(IoError):
    """A file ended before the bytes that it should have: it was truncated meanwhile."""

    code = "short_read"


_IO_REMEDIES = {
    _errno.ENOENT: "Check the path",
    _errno.EACCES: "Check the file's permissions",
    _errno.EPERM: "Check the file's permissions",
    _errno.EISDIR: "Name a file, not a folder",
    _errno.ENOSPC: "Free some space, or save elsewhere",
    _errno.EDQUOT: "Free some space, or save elsewhere",
    _errno.EMFILE: "Close files, or raise the limit (ulimit -n)",
    _errno.EROFS: "Save elsewhere",
}


def from_os(error: OSError, doing: str, path: str | os.PathLike[str]) -> IoError:
    """An :class:`IoError` for what the system said while ``doing`` something with ``path``."""
    number = error.errno or _errno.EIO
    remedy = _IO_REMEDIES.get(number, "See the system's log (dmesg) and the file system's health")
    cause = f"{doing} {os.fspath(path)}: {os.strerror(number)}"
    return IoError(cause, remedy, number, os.fspath(path))


_REMEDIES = {
    "cancelled": "Start it again",
    "closed": "Open the file again",
    "forked": "Start child processes by spawn, or use this package after the fork only",
    "gpu": "See nvidia-smi and the driver's log (dmesg); free device memory where it ran out",
    "misuse": "See the documentation of the call",
    "route_refused": "Require another route, or none; explain() says what each needs",
    "truncated": "Write the file again, and do not change files while they are read",
    "unsupported": "See explain() for what this machine and this file allow",
}


def of_engine(code: str, text: str, number: int | None) -> Error:
    """The exception for an error of the engine, by its stable code."""
    remedy = _REMEDIES.get(code, "")
    if code == "os":
        return IoError(text, _IO_REMEDIES.get(number or 0, "See the system's log (dmesg)"), number)
    if code == "truncated":
        return ShortReadError(text, remedy)
    kind = {
        "gpu": DeviceError,
        "misuse": MisuseError,
        "route_refused": RouteError,
        "unsupported": UnsupportedError,
    }.get(code, Error)
    error = kind(text, remedy)
    if kind is Error:
        error.code = code
    return error
