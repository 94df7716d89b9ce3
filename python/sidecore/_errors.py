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

    def __reduce__(self) -> tuple:
        # Errors of worker processes come back as pickles.
        return _again, (type(self), self.cause, self.remedy, None, None, self.code)


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

    def __reduce__(self) -> tuple:
        return _again, (type(self), self.cause, self.remedy, self.errno, self.filename, self.code)


class ShortReadError(IoError):
    """A file ended before the bytes that it should have: it was truncated meanwhile."""

    code = "short_read"


class WaitError(Error, TimeoutError):
    """The time is up, and the transfer goes on."""

    code = "timeout"


# The same under the names that Python gives them, so that ``except FileNotFoundError`` works.
class NoFileError(IoError, FileNotFoundError):
    """There is no such file, or no such folder."""


class ForbiddenError(IoError, PermissionError):
    """The system does not allow it."""


class FolderError(IoError, IsADirectoryError):
    """It is a folder, and no file."""


class NoFolderError(IoError, NotADirectoryError):
    """Something on the way is no folder."""


class ExistsError(IoError, FileExistsError):
    """It is there already."""


class IoTimeoutError(IoError, TimeoutError):
    """A file system's server did not answer in its time."""


_KINDS: dict[int, type[IoError]] = {
    _errno.ENOENT: NoFileError,
    _errno.EACCES: ForbiddenError,
    _errno.EPERM: ForbiddenError,
    _errno.EISDIR: FolderError,
    _errno.ENOTDIR: NoFolderError,
    _errno.EEXIST: ExistsError,
    _errno.ETIMEDOUT: IoTimeoutError,
}


def _again(
    kind: type[Error], cause: str, remedy: str, number: int | None, path: str | None, code: str
) -> Error:
    """An error as it was, out of a pickle."""
    more = (number, path) if issubclass(kind, IoError) else ()
    error = kind(cause, remedy, *more)
    if error.code != code:
        error.code = code
    return error


def of_system(cause: str, remedy: str, number: int, path: str | None) -> IoError:
    """An :class:`IoError` that is also what Python itself raises for this number."""
    return _KINDS.get(number, IoError)(cause, remedy, number, path)


_IO_REMEDIES = {
    _errno.ENOENT: "Check the path",
    _errno.EACCES: "Check the file's permissions",
    _errno.EPERM: "Check the file's permissions",
    _errno.EISDIR: "Name a file, not a folder",
    _errno.ENOTDIR: "Check the path: something on the way is a file",
    _errno.ELOOP: "Check the path: its links lead in a circle",
    _errno.ENAMETOOLONG: "Use a shorter name",
    _errno.ETXTBSY: "End the program that is running from this file, or save elsewhere",
    _errno.EFBIG: "Save less into one file, or elsewhere (see ulimit -f)",
    _errno.ENOMEM: "Free some memory",
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
    return of_system(cause, remedy, number, os.fspath(path))


_REMEDIES = {
    "cancelled": "Start it again",
    "closed": "Open the file again",
    "forked": "Start child processes by spawn, or use this package after the fork only",
    "gpu": "See nvidia-smi and the driver's log (dmesg); free device memory where it ran out",
    "misuse": "See the documentation of the call",
    "route_refused": "Require another route, or none; explain() says what each needs",
    "truncated": "Write the file again, and do not change files while they are read",
}


def of_engine(code: str, text: str, number: int | None, path: str | None = None) -> Error:
    """The exception for an error of the engine, by its stable code."""
    remedy = _REMEDIES.get(code, "")
    if code == "os":
        number = number or _errno.EIO
        remedy = _IO_REMEDIES.get(number, "See the system's log (dmesg)")
        return of_system(text, remedy, number, path)
    if code == "truncated":
        return ShortReadError(text, remedy, None, path)
    if code == "unsupported":
        # The engine says itself what to do, since it knows what is missing.
        before, _, after = text.rpartition("; ")
        text, remedy = before or text, after[:1].upper() + after[1:] if before else ""
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
