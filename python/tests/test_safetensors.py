"""Safetensors files: what is loaded is what is in them, and what is saved is what others save."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sidecore
from conftest import as_bytes, run_python, stamped, write_safetensors

#: Every type of the format that has whole bytes.
DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4,
    "C64": 8, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


def data_of(dtype: str, count: int, seed: int) -> bytes:
    data = stamped(count * DTYPES[dtype], seed)
    return bytes(byte & 1 for byte in data) if dtype == "BOOL" else data


def every_dtype(known) -> dict:
    """Tensors of each type: a matrix, a scalar, an empty one, one of odd length."""
    tensors = {}
    for seed, dtype in enumerate(d for d in DTYPES if known(d)):
        for name, shape in [("matrix", (3, 4)), ("scalar", ()), ("empty", (0, 5)), ("odd", (7,))]:
            count = 1
            for length in shape:
                count *= length
            tensors[f"{dtype}.{name}"] = (
                dtype,
                shape,
                data_of(dtype, count, seed * 8 + len(shape)),
            )
    return tensors


def knows(framework: str):
    """Whether the framework that is installed has a type."""
    from sidecore import _dtypes

    def known(dtype: str) -> bool:
        row = _dtypes.DTYPES[dtype]
        if framework == "torch":
            import torch

            return row.torch is not None and hasattr(torch, row.torch)
        if framework == "numpy" and "." in row.numpy:
            ml_dtypes = pytest.importorskip("ml_dtypes")
            return hasattr(ml_dtypes, row.numpy.partition(".")[2])
        return True

    return known


@pytest.mark.parametrize("shared", [True, False])
def test_every_type_and_shape_arrives_with_its_bytes(tmp_path, framework, shared):
    tensors = every_dtype(knows(framework))
    write_safetensors(tmp_path / "a.safetensors", tensors)
    loaded = sidecore.load_safetensors(
        tmp_path / "a.safetensors", framework=framework, shared=shared
    )
    assert list(loaded) == list(tensors)
    for name, (dtype, shape, data) in tensors.items():
        assert tuple(loaded[name].shape) == shape, name
        assert as_bytes(loaded[name]) == data, name
        assert type_of(loaded[name], framework) == dtype, name


def type_of(tensor, framework: str) -> str:
    from sidecore import _dtypes

    if framework == "torch":
        return _dtypes.of_torch(tensor.dtype).name
    if framework == "numpy":
        return _dtypes.of_numpy(tensor.dtype).name
    return tensor.dtype.name


def test_every_type_is_what_the_reference_loads(tmp_path):
    pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    known = knows("torch")
    # What this version of the reference has a word for.
    tensors = every_dtype(
        lambda d: (
            known(d) and d in ("F32", "F64", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")
        )
    )
    path = tmp_path / "a.safetensors"
    write_safetensors(path, tensors)
    ours, theirs = sidecore.load_safetensors(path, framework="torch"), reference.load_file(path)
    assert ours.keys() == theirs.keys() and len(ours) == 40
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape
        # Bytes, not values: a NaN is not equal to itself.
        assert as_bytes(ours[name]) == as_bytes(tensor), name


@pytest.mark.parametrize("bits", [0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0xFF800000])
def test_nans_keep_their_payload(tmp_path, framework, bits):
    data = struct.pack("<I", bits) * 5
    write_safetensors(tmp_path / "n.safetensors", {"x": ("F32", (5,), data)})
    loaded = sidecore.load_safetensors(tmp_path / "n.safetensors", framework=framework)
    assert as_bytes(loaded["x"]) == data
    sidecore.save_safetensors(loaded, tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes()[-20:] == data


def test_saved_files_are_the_reference_s_to_the_byte(tmp_path):
    np = pytest.importorskip("numpy")
    reference = pytest.importorskip("safetensors.numpy")
    tensors = {
        "b": np.arange(12, dtype=np.float32).reshape(3, 4),
        "a": np.arange(5, dtype=np.int64),
        "z": np.array(7, dtype=np.uint8),
        "empty": np.zeros((0, 3), dtype=np.float64),
        "flag": np.array([True, False]),
        "h": np.arange(3, dtype=np.float16),
        "i": np.arange(3, dtype=np.int16),
        "u": np.arange(3, dtype=np.uint32),
        'quote " and \u00e4': np.arange(2, dtype=np.int8),
    }
    sidecore.save_safetensors(tensors, tmp_path / "ours", {"format": "np"})
    reference.save_file(tensors, tmp_path / "theirs", {"format": "np"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_what_is_saved_is_loaded(tmp_path, framework):
    tensors = every_dtype(knows(framework))
    write_safetensors(tmp_path / "a.safetensors", tensors, {"k": "v"})
    loaded = sidecore.load_safetensors(tmp_path / "a.safetensors", framework=framework)
    sidecore.save_safetensors(loaded, tmp_path / "b.safetensors", {"k": "w"})
    again = sidecore.load_safetensors(tmp_path / "b.safetensors", framework=framework)
    assert {name: as_bytes(t) for name, t in again.items()} == {
        name: data for name, (_, _, data) in tensors.items()
    }
    assert sidecore.safetensors_metadata(tmp_path / "b.safetensors") == {"k": "w"}


def sharded(folder, shards: int = 3) -> dict:
    tensors, weight_map = {}, {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {
            f"layer{shard}.{n}": ("F32", (64, 16), stamped(4096, shard * 10 + n)) for n in range(4)
        }
        write_safetensors(folder / name, part)
        tensors |= part
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 4096 * 4 * shards}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors


@pytest.mark.parametrize("by", ["index", "list", "folder"])
def test_shards_come_as_one(tmp_path, framework, by):
    tensors = sharded(tmp_path)
    named = {
        "index": tmp_path / "model.safetensors.index.json",
        "list": sorted(tmp_path.glob("*.safetensors")),
        "folder": tmp_path,
    }[by]
    loaded = sidecore.load_safetensors(named, framework=framework)
    assert {n: as_bytes(t) for n, t in loaded.items()} == {n: t[2] for n, t in tensors.items()}


def test_shards_with_the_same_name_are_refused(tmp_path):
    for name in "ab":
        write_safetensors(tmp_path / name, {"x": ("U8", (4,), b"data")})
    with pytest.raises(sidecore.FormatError, match=r"is in .* and in"):
        sidecore.load_safetensors([tmp_path / "a", tmp_path / "b"], framework="sidecore")


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "", "..", 7])
def test_an_index_names_files_beside_it_only(tmp_path, shard):
    (tmp_path / "i.json").write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(sidecore.FormatError, match="no file beside it"):
        sidecore.load_safetensors(tmp_path / "i.json", framework="sidecore")


def test_a_tensor_that_only_the_index_knows_is_missed(tmp_path):
    sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    known = json.loads(index.read_text())
    known["weight_map"]["layer1.9"] = known["weight_map"]["layer1.0"]
    index.write_text(json.dumps(known))
    with pytest.raises(sidecore.FormatError, match=r"'layer1.9' in .*-00002-of.*1 tensors"):
        sidecore.load_safetensors(index, framework="sidecore")


def test_some_tensors_only(tmp_path, framework):
    tensors = sharded(tmp_path)
    before = read_bytes()
    loaded = sidecore.load_safetensors(
        tmp_path, framework=framework, names=["layer2.3", "layer0.1"]
    )
    assert read_bytes() - before == 8192
    assert {n: as_bytes(t) for n, t in loaded.items()} == {
        n: tensors[n][2] for n in ["layer0.1", "layer2.3"]
    }
    with pytest.raises(sidecore.MisuseError, match="layer9"):
        sidecore.load_safetensors(tmp_path, framework=framework, names=["layer9.1"])


def read_bytes() -> int:
    return sum(route["bytes_read"] for route in sidecore.stats()["routes"].values())


def test_stats_count_each_byte_under_a_route(tmp_path, framework):
    payload = 3 * (1 << 20) + 12
    write_safetensors(tmp_path / "a", {"x": ("U8", (payload,), stamped(payload, 1))})
    before = read_bytes()
    sidecore.load_safetensors(tmp_path / "a", framework=framework)
    assert read_bytes() - before == payload


def test_unaligned_tensors_are_moved_to_where_they_may_be_used(tmp_path, framework):
    tensors = {
        "one": ("U8", (1,), b"1"),
        "two": ("F64", (3,), stamped(24, 5)),
        "three": ("U8", (3,), b"abc"),
        "four": ("F32", (2, 2), stamped(16, 6)),
    }
    write_safetensors(tmp_path / "a", tensors)
    loaded = sidecore.load_safetensors(tmp_path / "a", framework=framework)
    for name, (_, _, data) in tensors.items():
        assert as_bytes(loaded[name]) == data
        address = sidecore._arrays.memory(loaded[name]).address
        assert address % 16 == 0, name


def test_shared_and_apart_are_what_they_say(tmp_path):
    np = pytest.importorskip("numpy")
    sharded(tmp_path, 1)
    shared = list(sidecore.load_safetensors(tmp_path, framework="numpy").values())
    apart = list(sidecore.load_safetensors(tmp_path, framework="numpy", shared=False).values())

    def root(array):
        while isinstance(array.base, np.ndarray):
            array = array.base
        return id(array)

    assert len({root(array) for array in shared}) == 1
    assert len({root(array) for array in apart}) == len(apart) == 4


def test_a_new_generation_arrives_in_fresh_memory(tmp_path, framework):
    path = tmp_path / "a.safetensors"
    kept = []
    for generation in range(6):
        data = stamped(1 << 20, 1000 + generation)
        if generation == 0:
            write_safetensors(path, {"x": ("U8", (1 << 20,), data)})
        else:
            with open(path, "r+b") as file:
                file.seek(-(1 << 20), os.SEEK_END)
                file.write(data)
        loaded = sidecore.load_safetensors(path, framework=framework)["x"]
        kept.append((loaded, data))
    for loaded, data in kept:
        assert as_bytes(loaded) == data


def test_loading_needs_no_safetensors_package(tmp_path):
    sharded(tmp_path)
    code = """
import sys
sys.modules["safetensors"] = None  # as where it is not installed
import sidecore
loaded = sidecore.load_safetensors(sys.argv[1], framework="sidecore")
print(len(loaded), "numpy" in sys.modules, "torch" in sys.modules)
"""
    done = run_python(code, tmp_path)
    assert done.stdout.split() == ["12", "False", "False"], done.stderr


def test_without_any_framework_the_package_s_own_tensors_come(tmp_path):
    sharded(tmp_path)
    code = """
import sys
for name in ("numpy", "torch", "cupy", "jax", "safetensors"):
    sys.modules[name] = None
import sidecore
loaded = sidecore.load_safetensors(sys.argv[1])
print({type(t).__module__ for t in loaded.values()})
"""
    done = run_python(code, tmp_path)
    assert done.stdout.strip() == "{'sidecore._tensor'}", done.stderr


def test_shards_are_not_mapped(tmp_path):
    """On a plain file system; on overlayfs the engine maps files to ask which pages are cached."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if os.access("/dev/shm", os.W_OK):
        tmp_path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        trace_a_load(tmp_path)
    finally:
        if str(tmp_path).startswith("/dev/shm"):
            shutil.rmtree(tmp_path)


def trace_a_load(tmp_path):
    sharded(tmp_path)

    code = "import sidecore, sys; sidecore.load_safetensors(sys.argv[1], framework='sidecore')"
    log = tmp_path / "trace"
    run = subprocess.run(
        ["strace", "-f", "-y", "-o", log, "-e", "trace=mmap,openat,pread64,preadv2,io_uring_enter",
         sys.executable, "-c", code, tmp_path],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "ptrace" in run.stderr.lower():
        pytest.skip("strace may not trace here")
    assert run.returncode == 0, run.stderr
    trace = log.read_text()
    assert "of-00003.safetensors" in trace
    mapped = [line for line in trace.splitlines() if "mmap(" in line and ".safetensors>" in line]
    assert not mapped, mapped


def test_a_type_that_a_framework_lacks_is_refused_before_any_byte_moves(tmp_path):
    pytest.importorskip("numpy")
    write_safetensors(tmp_path / "a", {"x": ("F6_E2M3", (4,), b"abc")})
    loaded = sidecore.load_safetensors(tmp_path / "a", framework="sidecore")
    assert loaded["x"].tobytes() == b"abc"
    code = """
import sys
sys.modules["ml_dtypes"] = None
import sidecore
try:
    sidecore.load_safetensors(sys.argv[1], framework="numpy")
except sidecore.UnsupportedError as error:
    moved = sum(r["bytes_read"] for r in sidecore.stats()["routes"].values())
    print(moved, "ml_dtypes" in error.remedy, error.code)
"""
    write_safetensors(tmp_path / "b", {"x": ("BF16", (2,), b"abcd")})
    done = run_python(code, tmp_path / "b")
    assert done.stdout.split() == ["0", "True", "unsupported"], done.stderr


def test_no_gpu_is_an_error_that_names_what_is_missing(tmp_path):
    sharded(tmp_path)
    with pytest.raises(sidecore.Error) as caught:
        for framework in ["sidecore"]:
            sidecore.load_safetensors(tmp_path, device="cuda", framework=framework)
            pytest.skip("this machine has a GPU")
    assert isinstance(caught.value, sidecore.DeviceError)
    assert "libcuda" in str(caught.value) and "cpu" in caught.value.remedy


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:3", "cuda:-1"])
def test_unknown_devices_are_refused(tmp_path, device):
    sharded(tmp_path)
    with pytest.raises(sidecore.MisuseError, match="No device"):
        sidecore.load_safetensors(tmp_path, device=device)


def test_missing_files_say_so(tmp_path):
    with pytest.raises(sidecore.IoError) as caught:
        sidecore.load_safetensors(tmp_path / "none", framework="sidecore")
    assert caught.value.errno == 2 and isinstance(caught.value, OSError)
    assert "Check the path" in str(caught.value)


def test_a_load_that_is_broken_off_gives_its_memory_back(tmp_path, monkeypatch, framework):
    """Tensors are made while bytes move; where that fails, nothing moves any more afterwards."""
    data = stamped(8 << 20, 5)
    write_safetensors(tmp_path / "x", {"a": ("U8", (len(data),), data)})
    kind = sidecore._frameworks._KINDS[framework]
    blocks = []

    def broken(self, block, *_):
        blocks.append(block)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "tensor", broken)
        with pytest.raises(KeyboardInterrupt):
            sidecore.load_safetensors(tmp_path / "x", framework=framework)
    assert sidecore.stats()["in_flight"] == 0
    # What is written there now stays.
    before = ctypes.string_at(blocks[0].address, len(data))
    ctypes.memset(blocks[0].address, 0xEE, len(data))
    assert before[: 1 << 20] != b"\xee" * (1 << 20)
    assert as_bytes(sidecore.load_safetensors(tmp_path / "x", framework=framework)["a"]) == data
    assert ctypes.string_at(blocks[0].address, len(data)) == b"\xee" * len(data)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_large_loads_are_in_large_pages(tmp_path, library):
    """New memory costs a fault a page, which else is most of the time of a load."""
    pytest.importorskip(library)
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this system has no huge pages")
    nbytes = 128 << 20
    with open(tmp_path / "x", "wb") as file:
        header = json.dumps({"x": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}})
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(8 + len(header) + nbytes)
    code = """
import resource, sys, sidecore
sidecore.load_safetensors(sys.argv[1], framework=sys.argv[2], names=[])
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
kept = sidecore.load_safetensors(sys.argv[1], framework=sys.argv[2])
print(faults() - before)
"""
    done = run_python(code, tmp_path / "x", library)
    # In small pages there would be 32768.
    assert int(done.stdout) < 20000, done.stderr
