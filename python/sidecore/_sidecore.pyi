"""The compiled part. Its interface may change; the package's own names are the stable ones."""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str

# Handle, file offset, address, bytes, whether on the GPU, what keeps the memory.
_Request = tuple[Handle, int, int, int, bool, object]

class DlpackMemory:
    """Memory taken from a DLPack capsule; given back when this object goes."""

    address: int
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: list[int]
    strides: list[int] | None
    read_only: bool

def dlpack_export(owner: object, described: Any, versioned: bool) -> object: ...
def dlpack_import(capsule: object) -> DlpackMemory: ...

class Memory:
    """Host or device memory of this package's own, zeroed; freed when this object goes."""

    address: int
    nbytes: int

def copy_bytes(address: int, bytes: int, owner: object) -> bytes: ...

class Handle:
    """An open file."""

    def bytes(self) -> int: ...
    def sync(self) -> None: ...
    def resize(self, bytes: int) -> None: ...
    def explain(self) -> str: ...

class Pending:
    """A transfer that goes on by itself."""

    def get(self, timeout: float | None = None) -> int: ...
    def done(self) -> bool: ...
    def cancel(self) -> None: ...

class Engine:
    """A bulk engine, of the host or of a GPU. All waiting is without the GIL."""

    def __new__(
        cls,
        device: int | None = None,
        threads: int | None = None,
        pool_bytes: int | None = None,
        require: str | None = None,
        quiet: bool | None = None,
    ) -> Engine: ...
    def open(self, path: str, mode: str) -> Handle: ...
    def transfer(
        self,
        asked: Sequence[_Request],
        write: bool,
        progress: Callable[[int], object] | None = None,
    ) -> int: ...
    def run(self, asked: _Request, write: bool) -> int: ...
    def read_paths(
        self,
        files: Sequence[tuple[str, int, int]],
        target: tuple[int, int, bool, object],
        progress: Callable[[int], object] | None = None,
    ) -> int: ...
    def submit(self, asked: _Request, write: bool) -> Pending: ...
    def submit_on_stream(self, asked: _Request, write: bool, stream: int) -> Pending: ...
    def read_rows(
        self,
        handle: Handle,
        indices: tuple[int, int, object],
        row_bytes: int,
        target: tuple[int, int, bool, object],
    ) -> int: ...
    def explain(self, asked: _Request, write: bool) -> str: ...
    def explain_size(self, handle: Handle, offset: int, bytes: int) -> str: ...
    def allocate(self, bytes: int) -> Memory: ...
    def counters(self) -> dict[str, Any]: ...

def no_counters() -> dict[str, Any]: ...
def read_header(
    path: str,
) -> tuple[list[tuple[str, str, list[int], int, int]], list[tuple[str, str]]]: ...

class Save:
    """A file that is written beside its target; without ``commit`` it vanishes."""

    def __new__(cls, target: str) -> Save: ...
    @property
    def temporary(self) -> str: ...
    def write_at(self, data: bytes, offset: int) -> None: ...
    def crc32(self, ranges: Sequence[tuple[int, int]]) -> list[int]: ...
    def commit(self) -> None: ...
    def abandon(self) -> None: ...
