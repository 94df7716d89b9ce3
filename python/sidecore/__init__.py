"""Files into GPU memory, and out again.

>>> import sidecore
>>> tensors = sidecore.load_safetensors("model.safetensors", device="cuda")  # doctest: +SKIP

Everything also works without a GPU, into host memory (``device="cpu"``). No framework is needed;
torch, NumPy, CuPy and JAX are used where they are installed and asked for.

Every call releases the GIL while bytes move, and answers Ctrl-C. Errors are subclasses of
:class:`Error`, which say the cause and the remedy.
"""

from __future__ import annotations

from ._checkpoint import torch_load, torch_save
from ._errors import (
    DeviceError,
    Error,
    ExhaustedError,
    FormatError,
    IoError,
    MisuseError,
    RouteError,
    ShortReadError,
    UnsupportedError,
    WaitError,
)
from ._file import File, IOFuture, IOFutureStream, read_files, read_rows
from ._report import configure, explain, prepare, stats
from ._safetensors import load_safetensors, safetensors_metadata, save_safetensors
from ._sidecore import __version__
from ._tensor import Tensor

__all__ = [
    "DeviceError",
    "Error",
    "ExhaustedError",
    "File",
    "FormatError",
    "IOFuture",
    "IOFutureStream",
    "IoError",
    "MisuseError",
    "RouteError",
    "ShortReadError",
    "Tensor",
    "UnsupportedError",
    "WaitError",
    "__version__",
    "configure",
    "explain",
    "load_safetensors",
    "prepare",
    "read_files",
    "read_rows",
    "safetensors_metadata",
    "save_safetensors",
    "stats",
    "torch_load",
    "torch_save",
]
