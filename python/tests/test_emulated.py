"""The package over a driver without a device: emulated, device memory is the host's.

So what a GPU's user calls runs everywhere; what a real GPU does besides is in ``test_gpu.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import run_python

CRATES = Path(__file__).resolve().parents[2] / "crates"
DRIVER = CRATES / "bulk/tests/fake/cuda.cpp"
API = CRATES / "cuda/src/api.rs"


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> dict[str, str]:
    """The environment of a program that finds the driver without a device."""
    if not (shutil.which("g++") and DRIVER.exists() and API.exists()):
        pytest.skip("needs g++ and the source tree")
    folder = tmp_path_factory.mktemp("driver")
    # Functions that the driver has and this one does not: all fail.
    names = [word for word in API.read_text().split('"') if word.startswith("cu")]
    weak = "".join(
        f"__attribute__((weak)) int {name}() {{ return 1; }}\n" for name in names if " " not in name
    )
    (folder / "rest.c").write_text(weak)
    flags = ["-fPIC", "-O1", "-w"]
    rest = ["-x", "c", "-std=gnu11", "-c", "rest.c", "-o", "rest.o"]
    whole = ["-shared", "-std=c++17", "-pthread", str(DRIVER), "rest.o", "-o", "libcuda.so.1"]
    for arguments in (rest, whole):
        subprocess.run(["g++", *flags, *arguments], cwd=folder, check=True, timeout=120)
    return os.environ | {"LD_LIBRARY_PATH": str(folder)}


HEAD = """
import ctypes, sys, sidecore
from pathlib import Path
sys.path.insert(0, TESTS)
from conftest import stamped, write_safetensors
folder = Path(sys.argv[1])
def bytes_of(tensor):
    assert tensor.device == 0
    return ctypes.string_at(tensor.address, tensor.nbytes) if tensor.nbytes else b""
def memory(nbytes):
    made = sidecore._engine.allocate(nbytes, 0)
    ctypes.memset(made.address, 0xEE, nbytes)
    return made
def part(of, at, nbytes):
    return sidecore.Tensor(of.address + at, (nbytes,), sidecore._dtypes.DTYPES["U8"], 0, of)
"""


def run(driver: dict[str, str], code: str, folder: Path) -> None:
    head = HEAD.replace("TESTS", repr(str(Path(__file__).parent)))
    done = run_python(head + code + "\nprint('done')", folder, env=driver)
    assert done.stdout.split()[-1:] == ["done"], (done.stdout, done.stderr)


@pytest.mark.parametrize("shared", [True, False])
def test_loads_and_saves(driver, tmp_path, shared):
    code = """
from test_safetensors import every_dtype
tensors = every_dtype(lambda dtype: True)
many = {f"t{n}": ("U8", (70_000 + n,), stamped(70_000 + n, n)) for n in range(40)}
large = {"large": ("U8", (9 << 20,), stamped(9 << 20, 1))}
for n, part in enumerate((tensors, many, large)):
    write_safetensors(folder / f"{n}", part)
tensors |= many | large
for _ in range(5):
    files = [folder / f"{n}" for n in range(3)]
    loaded = sidecore.load_safetensors(files, "cuda", "sidecore", shared=SHARED)
    assert loaded.keys() == tensors.keys()
    for name, (_, shape, data) in tensors.items():
        assert tuple(loaded[name].shape) == shape and bytes_of(loaded[name]) == data, name
sidecore.save_safetensors(loaded, folder / "saved")
again = sidecore.load_safetensors(folder / "saved", framework="sidecore")
assert {name: t.tobytes() for name, t in again.items()} == {n: t[2] for n, t in tensors.items()}
some = {name: t for name, t in loaded.items() if t.dtype.torch}
sidecore.torch_save(some, folder / "x.pt")
again = sidecore.torch_load(folder / "x.pt", "cuda:0", "sidecore", shared=SHARED)
assert {n: bytes_of(t) for n, t in again.items()} == {n: tensors[n][2] for n in some}
assert sidecore.stats()["routes"]["staged"]["bytes_written"] > 0
"""
    run(driver, code.replace("SHARED", str(shared)), tmp_path)


def test_files_futures_rows_and_many_files(driver, tmp_path):
    code = """
data = stamped(6 << 20, 9)
(folder / "x").write_bytes(data)
for offset in (0, 1, 4095, 4097):
    for size in (1, 4096, 70_001, (5 << 20) + 3):
        whole = memory(size + 64)
        with sidecore.File(folder / "x") as file:
            assert file.read(part(whole, 32, size), file_offset=offset) == size
        edge = b"\\xee" * 32
        got = ctypes.string_at(whole.address, size + 64)
        assert got == edge + data[offset : offset + size] + edge, (offset, size)
        with sidecore.File(folder / "y", "w") as file:
            assert file.write(part(whole, 32, size), file_offset=offset) == size
        assert (folder / "y").read_bytes() == bytes(offset) + data[offset : offset + size]
rows = [n * 7919 % 1536 for n in range(5000)]
got = sidecore.read_rows(folder / "x", rows, 4096, device="cuda", framework="sidecore")
assert bytes_of(got) == b"".join(data[row * 4096 :][:4096] for row in rows)
with sidecore.File(folder / "x") as file:
    kept = [memory(8192) for _ in range(500)]
    places = [n * 8191 % (5 << 20) for n in range(500)]
    futures = [file.pread(part(m, 0, 8192), file_offset=at) for m, at in zip(kept, places)]
    assert all(future.get(30) == 8192 for future in futures)
for one, at in zip(kept, places):
    assert ctypes.string_at(one.address, 8192) == data[at : at + 8192]
files = []
for n in range(1500):
    files.append(folder / f"f{n}")
    files[-1].write_bytes(data[n : n + n * 37 % 5000])
for _ in range(3):
    loaded = sidecore.read_files(files, "cuda", "sidecore")
    assert all(bytes_of(t) == data[n : n + n * 37 % 5000] for n, t in enumerate(loaded))
"""
    run(driver, code, tmp_path)


def test_what_a_gpu_refuses(driver, tmp_path):
    code = """
(folder / "x").write_bytes(bytes(4096))
write_safetensors(folder / "y", {"x": ("U8", (8 << 20,), bytes(8 << 20))})
try:
    sidecore.load_safetensors(folder / "y", "cuda", "sidecore")
except sidecore.ExhaustedError as error:
    print(error)
else:
    raise SystemExit("no error")
said = sidecore.explain(folder / "x", "cuda")
assert "4096 bytes" in said, said
with open(folder / "huge", "wb") as file:
    file.truncate(1 << 36)
assert f"{1 << 36} bytes" in sidecore.explain(folder / "huge", "cuda")
nobodys = sidecore.Tensor(1 << 45, (4096,), sidecore._dtypes.DTYPES["U8"], 0, None)
try:
    sidecore.File(folder / "x").read(nobodys)
except sidecore.Error as error:
    print(type(error).__name__, error)
else:
    raise SystemExit("no error")
"""
    run(driver | {"FAKE_DEVICE_BYTES": str(4 << 20)}, code, tmp_path)


def test_a_fork_of_a_process_with_a_gpu_says_to_spawn(driver, tmp_path):
    code = """
import os
(folder / "x").write_bytes(bytes(4096))
sidecore.read_files([folder / "x"], "cuda", "sidecore")
sys.stdout.flush()
child = os.fork()
if child == 0:
    try:
        sidecore.read_files([folder / "x"], "cuda", "sidecore")
        os._exit(1)
    except sidecore.DeviceError as error:
        ok = "spawn" in error.remedy
    ok = ok and len(sidecore.read_files([folder / "x"], "cpu", "sidecore")[0].tobytes()) == 4096
    os._exit(0 if ok else 2)
assert os.waitpid(child, 0)[1] == 0
"""
    run(driver, code, tmp_path)
