"""The same on a real GPU: every framework, streams that are not waited for, and what goes wrong."""

from __future__ import annotations

import os
import threading

import pytest

import sidecore
from conftest import as_bytes, run_python, stamped, write_safetensors
from test_safetensors import every_dtype, knows, type_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

MIB = 1 << 20


@pytest.fixture(params=["torch", "cupy", "sidecore"])
def on_gpu(request) -> str:
    if request.param == "cupy":
        pytest.importorskip("cupy")
    return request.param


def bytes_of(tensor) -> bytes:
    if isinstance(tensor, sidecore.Tensor):
        if not tensor.nbytes:
            return b""
        flat = torch.from_dlpack(tensor.view("U8"))
        return flat.cpu().numpy().tobytes()
    return as_bytes(tensor)


@pytest.mark.parametrize("shared", [True, False])
def test_every_type_arrives(tmp_path, on_gpu, shared):
    known = knows("numpy" if on_gpu == "cupy" else on_gpu)
    types = {"F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E4M3", "F8_E5M2", "BF16"}
    tensors = every_dtype(lambda d: known(d) and not (on_gpu == "cupy" and d in types))
    write_safetensors(tmp_path / "a", tensors)
    loaded = sidecore.load_safetensors(tmp_path / "a", "cuda", on_gpu, shared=shared)
    for name, (dtype, shape, data) in tensors.items():
        assert tuple(loaded[name].shape) == shape and bytes_of(loaded[name]) == data, name
        if on_gpu == "torch":
            assert loaded[name].is_cuda and type_of(loaded[name], "torch") == dtype
    sidecore.save_safetensors(loaded, tmp_path / "b")
    again = sidecore.load_safetensors(tmp_path / "b", framework="sidecore")
    assert {n: t.tobytes() for n, t in again.items()} == {n: t[2] for n, t in tensors.items()}


def test_jax_takes_them(tmp_path):
    jax = pytest.importorskip("jax")
    tensors = {
        "f": ("F32", (3, 5), stamped(60, 1)),
        "b": ("BF16", (4,), stamped(8, 2)),
        "i": ("I32", (2, 2), stamped(16, 3)),
        "e": ("F8_E4M3", (16,), stamped(16, 4)),
        "t": ("BOOL", (3,), b"\1\0\1"),
    }
    write_safetensors(tmp_path / "a", tensors)
    loaded = sidecore.load_safetensors(tmp_path / "a", "cuda", "jax")
    import numpy as np

    for name, (_, shape, data) in tensors.items():
        assert isinstance(loaded[name], jax.Array) and loaded[name].shape == shape
        assert np.asarray(loaded[name]).tobytes() == data, name


def test_another_stream_sees_every_byte_of_every_generation(tmp_path):
    path, count = tmp_path / "a", 64
    words = 128 * 1024
    data = {n: stamped(words * 8, n) for n in range(count)}
    write_safetensors(path, {str(n): ("I64", (words,), d) for n, d in data.items()})
    sums = {
        n: int(torch.frombuffer(bytearray(d), dtype=torch.int64).sum()) for n, d in data.items()
    }
    first = {n: int.from_bytes(d[:8], "little", signed=True) for n, d in data.items()}
    head = os.path.getsize(path) - count * words * 8
    stream, kept = torch.cuda.Stream(), []
    for generation in range(1, 8):
        with open(path, "r+b", buffering=0) as file:
            for n in range(count):
                file.seek(head + n * words * 8)
                file.write((generation * 1000 + n).to_bytes(8, "little"))
        loaded = sidecore.load_safetensors(path, "cuda", "torch")
        with torch.cuda.stream(stream):
            got = torch.stack([loaded[str(n)].sum() for n in range(count)])
        stream.synchronize()
        for n, value in enumerate(got.tolist()):
            expected = sums[n] - first[n] + generation * 1000 + n
            assert (value - expected) % (1 << 64) == 0, (generation, n)
        kept.append(loaded)
    assert len({tensors["0"].data_ptr() for tensors in kept}) == 7, "fresh memory each time"


def test_memory_that_the_allocator_hands_out_again_is_waited_for(tmp_path):
    """Work that was queued on memory which its owner let go must not write over what is loaded."""
    write_safetensors(tmp_path / "a", {"x": ("U8", (64 * MIB,), stamped(64 * MIB, 5))})
    for _ in range(5):
        old = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(100_000_000)
        old.fill_(0xEE)
        place = old.data_ptr()
        del old
        loaded = sidecore.load_safetensors(tmp_path / "a", "cuda", "torch")["x"]
        torch.cuda.synchronize()
        assert bytes_of(loaded[:4096]) == stamped(4096, 5)
        assert not bool((loaded == 0xEE).all()), place


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 4097])
@pytest.mark.parametrize("size", [1, 4096, 70_001, 5 * MIB + 3])
def test_reads_and_writes_at_any_place(tmp_path, offset, size):
    data = stamped(6 * MIB, 9)
    (tmp_path / "x").write_bytes(data)
    target = torch.full((size + 64,), 0xEE, dtype=torch.uint8, device="cuda")
    with sidecore.File(tmp_path / "x") as file:
        assert file.read(target[32 : 32 + size], file_offset=offset) == size
    got = target.cpu().numpy().tobytes()
    assert got[32:-32] == data[offset : offset + size]
    assert got[:32] == got[-32:] == b"\xee" * 32
    with sidecore.File(tmp_path / "y", "w") as file:
        assert file.write(target[32 : 32 + size], file_offset=offset) == size
    assert (tmp_path / "y").read_bytes() == bytes(offset) + data[offset : offset + size]


def test_cupy_arrays_and_dlpack(tmp_path):
    cupy = pytest.importorskip("cupy")
    data = stamped(MIB, 3)
    (tmp_path / "x").write_bytes(data)
    array = cupy.zeros(MIB // 4, cupy.float32)
    with sidecore.File(tmp_path / "x") as file:
        assert file.pread(array).get() == MIB
        assert array.get().tobytes() == data
        rows = file.read_rows([3, 0, 255], 4096, device="cuda", framework="sidecore")
    expected = data[3 * 4096 : 4 * 4096] + data[:4096] + data[255 * 4096 :]
    assert cupy.from_dlpack(rows).get().tobytes() == expected
    assert cupy.asarray(rows).get().tobytes() == expected  # __cuda_array_interface__
    assert torch.from_dlpack(rows).cpu().numpy().tobytes() == expected


def test_checkpoints_from_the_gpu(tmp_path):
    torch.manual_seed(1)
    types = [
        t
        for t in (
            "float32",
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
            "uint16",
            "int64",
            "bool",
            "complex64",
        )
        if hasattr(torch, t)
    ]
    state = {t: torch.randint(0, 2, (64, 32), device="cuda").to(getattr(torch, t)) for t in types}
    state["step"], state["view"] = 5, state["float32"][3:7].t()
    state["empty"] = torch.empty(0, 3, device="cuda")
    sidecore.torch_save(state, tmp_path / "ours")
    torch.save(state, tmp_path / "theirs")
    for loaded in (
        torch.load(tmp_path / "ours", weights_only=True),
        torch.load(tmp_path / "ours", weights_only=True, mmap=True, map_location="cpu"),
        sidecore.torch_load(tmp_path / "ours", "cuda"),
        sidecore.torch_load(tmp_path / "theirs", "cuda"),
        sidecore.torch_load(tmp_path / "theirs", "cuda", shared=False),
    ):
        assert list(loaded) == list(state) and loaded["step"] == 5
        for name, tensor in state.items():
            if name != "step":
                assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
                assert as_bytes(loaded[name]) == as_bytes(tensor), name


def test_a_load_that_does_not_fit_is_an_error_and_the_next_one_works(tmp_path):
    size = 1 << 40
    header = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    with open(tmp_path / "large", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    write_safetensors(tmp_path / "a", {"x": ("U8", (4,), b"abcd")})
    for framework in ("torch", "cupy", "sidecore"):
        if framework == "cupy":
            pytest.importorskip("cupy")
        with pytest.raises(sidecore.ExhaustedError, match="No room"):
            sidecore.load_safetensors(tmp_path / "large", "cuda", framework)
        assert (
            bytes_of(sidecore.load_safetensors(tmp_path / "a", "cuda", framework)["x"]) == b"abcd"
        )


def test_a_gpu_that_is_not_there(tmp_path):
    write_safetensors(tmp_path / "a", {"x": ("U8", (4,), b"abcd")})
    for framework in ("torch", "sidecore"):
        with pytest.raises(sidecore.DeviceError):
            sidecore.load_safetensors(tmp_path / "a", "cuda:63", framework)


def test_threads_without_a_context(tmp_path):
    write_safetensors(tmp_path / "a", {"x": ("U8", (MIB,), stamped(MIB, 2))})
    wrong = []

    def work() -> None:
        got = sidecore.load_safetensors(tmp_path / "a", "cuda", "sidecore")["x"]
        if bytes_of(got) != stamped(MIB, 2):
            wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_is_told_to_spawn(tmp_path):
    write_safetensors(tmp_path / "a", {"x": ("U8", (MIB,), stamped(MIB, 2))})
    code = """
import os, sys, sidecore
sidecore.load_safetensors(sys.argv[1], "cuda", "sidecore")
child = os.fork()
if child == 0:
    try:
        sidecore.load_safetensors(sys.argv[1], "cuda", "sidecore")
    except sidecore.DeviceError as error:
        os._exit(0 if "spawn" in str(error) else 2)
    os._exit(1)
print(os.waitpid(child, 0)[1])
"""
    done = run_python(code, tmp_path / "a")
    assert done.stdout.strip() == "0", done.stderr


def test_bytes_are_counted_and_pinned_memory_is_bounded(tmp_path):
    write_safetensors(tmp_path / "a", {"x": ("U8", (3 * MIB,), stamped(3 * MIB, 2))})
    before = sidecore.stats()["routes"]
    sidecore.load_safetensors(tmp_path / "a", "cuda", "torch")
    after = sidecore.stats()
    moved = {n: r["bytes_read"] - before[n]["bytes_read"] for n, r in after["routes"].items()}
    assert sum(moved.values()) == 3 * MIB and moved["host"] == 0, moved
    assert 0 < after["pinned_bytes_max"] <= 512 * MIB
    said = sidecore.explain(tmp_path / "a", "cuda")
    assert any(f"by route {n}" in said for n, bytes_ in moved.items() if bytes_), said


def test_streams_that_were_prepared_are_not_waited_for(tmp_path):
    data = stamped(MIB, 6)
    (tmp_path / "x").write_bytes(data)
    target = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    expected = torch.frombuffer(bytearray(data), dtype=torch.uint8).cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        (target == expected).all()  # loads the kernel, which waits for everything
    sidecore.prepare("cuda", tmp_path)
    with sidecore.File(tmp_path / "x") as file:
        file.read(bytearray(16))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            future = file.read_async(target, stream)
            assert not future.done() and not stream.query()
            same = (target == expected).all()
        stream.synchronize()
        assert bool(same) and future.check_bytes_done() == MIB
