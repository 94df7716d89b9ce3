"""What the tests share: data that says where it belongs, and files made without the package."""

from __future__ import annotations

import array
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest


def stamped(nbytes: int, seed: int) -> bytes:
    """Bytes of which each 16 carry their own offset and the seed: nothing misplaced goes unseen."""
    words = array.array("Q")
    for at in range(0, nbytes, 16):
        words.append((at * 0x9E3779B97F4A7C15 + seed) & 0xFFFFFFFFFFFFFFFF)
        words.append((seed << 40 | at) ^ 0xA5A5A5A5A5A5A5A5)
    return words.tobytes()[:nbytes]


def write_safetensors(path: Path, tensors: dict, metadata: dict | None = None) -> None:
    """Writes a file from ``{name: (dtype, shape, bytes)}``, in that order."""
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
    write_raw(path, json.dumps(header).encode(), b"".join(t[2] for t in tensors.values()))


def write_raw(path: Path, header: bytes, data: bytes, length: int | None = None) -> None:
    """Writes a header as it is, however wrong."""
    count = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", count & 0xFFFFFFFFFFFFFFFF) + header + data)


def run_python(code: str, *arguments: object, timeout: float = 60, **options):
    """Runs a program of its own; its output is the result."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )


def as_bytes(tensor) -> bytes:
    """The bytes of a tensor of any framework, without asking its type."""
    kind = type(tensor).__module__.partition(".")[0]
    if kind == "torch":
        import torch

        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel() == 0:
            return b""
        return flat.view(torch.uint8).numpy().tobytes()
    if kind == "cupy":
        return tensor.get().tobytes()
    return tensor.tobytes()


def has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


@pytest.fixture(params=["torch", "numpy", "sidecore"])
def framework(request) -> str:
    if request.param != "sidecore":
        pytest.importorskip(request.param)
    return request.param
