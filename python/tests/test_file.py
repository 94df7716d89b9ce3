"""Files, futures, rows and arrays of others."""

from __future__ import annotations

import array
import ctypes
import os
import threading
import time

import pytest

import sidecore
from conftest import run_python, stamped

MIB = 1 << 20


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(stamped(4 * MIB, 7))
    return path


def test_reads_into_all_kinds_of_host_memory(file):
    whole = file.read_bytes()
    targets = [
        bytearray(5000),
        memoryview(bytearray(5000)),
        array.array("B", bytes(5000)),
        (ctypes.c_ubyte * 5000)(),
    ]
    try:
        import numpy as np

        targets.append(np.zeros(5000, np.uint8))
        targets.append(np.zeros((50, 100), np.uint8))
    except ImportError:
        pass
    try:
        import torch

        targets.append(torch.zeros(5000, dtype=torch.uint8))
    except ImportError:
        pass
    with sidecore.File(file) as opened:
        for target in targets:
            assert opened.read(target, file_offset=4097) == 5000
            got = bytes(target.numpy()) if hasattr(target, "numpy") else bytes(target)
            assert got == whole[4097:9097], type(target)


def test_writes_and_reads_back(tmp_path):
    data = stamped(3 * MIB + 5, 9)
    with sidecore.File(tmp_path / "x", "w") as opened:
        assert opened.write(data, file_offset=3) == len(data)
        opened.sync()
        assert opened.nbytes() == len(data) + 3
    assert (tmp_path / "x").read_bytes() == b"\0\0\0" + data
    with sidecore.File(tmp_path / "x", "a") as opened:
        opened.write(b"abc")
    assert (tmp_path / "x").read_bytes()[:4] == b"abc" + data[:1]
    with sidecore.File(tmp_path / "x", "w"):
        pass
    assert (tmp_path / "x").stat().st_size == 0


def test_the_end_of_the_file_makes_a_short_read(file):
    target = bytearray(b"\xee" * 100)
    with sidecore.File(file) as opened:
        assert opened.read(target, file_offset=4 * MIB - 10) == 10
        assert opened.read(target, file_offset=5 * MIB) == 0
    assert target[:10] == file.read_bytes()[-10:] and target[10:] == b"\xee" * 90


def test_read_only_memory_and_read_only_files_are_refused(file):
    with sidecore.File(file) as opened:
        with pytest.raises(sidecore.MisuseError, match="read only"):
            opened.read(b"x" * 10)
        with pytest.raises(sidecore.MisuseError, match="opened for reading"):
            opened.write(b"x" * 10)
        with pytest.raises(sidecore.MisuseError, match="inside the buffer"):
            opened.read(bytearray(10), size=11)
        with pytest.raises(sidecore.MisuseError):
            opened.read(bytearray(10), file_offset=-1)
        with pytest.raises(sidecore.UnsupportedError, match="no array"):
            opened.read(object())
    with pytest.raises(sidecore.MisuseError, match="closed"):
        opened.read(bytearray(10))
    with pytest.raises(sidecore.IoError) as caught:
        sidecore.File(file.parent / "none")
    assert caught.value.errno == 2
    with pytest.raises(sidecore.Error, match="directory"):
        sidecore.File(file.parent)


def test_arrays_with_gaps_are_refused(file):
    np = pytest.importorskip("numpy")
    with sidecore.File(file) as opened:
        for gap in (np.zeros((10, 10), np.uint8)[:, ::2], np.zeros((4, 5), np.uint8, order="F")):
            with pytest.raises(sidecore.UnsupportedError, match="ascontiguousarray"):
                opened.read(gap)
        with pytest.raises(sidecore.UnsupportedError, match="big endian"):
            opened.read(np.zeros(4, ">i4"))


def test_a_thousand_futures_at_once(file):
    whole = file.read_bytes()
    targets = [bytearray(4096) for _ in range(1000)]
    with sidecore.File(file) as opened:
        futures = [opened.pread(target, file_offset=n * 4096) for n, target in enumerate(targets)]
        assert [future.get() for future in futures] == [4096] * 1000
        assert all(future.done() for future in futures)
    assert b"".join(targets) == whole[: 4096 * 1000]
    assert sidecore.stats()["in_flight_max"] > 1
    assert sidecore.stats()["in_flight"] == 0


def test_writes_by_futures(tmp_path):
    data = [stamped(10_000, n) for n in range(50)]
    with sidecore.File(tmp_path / "x", "w") as opened:
        futures = [opened.pwrite(part, file_offset=n * 10_000) for n, part in enumerate(data)]
        assert [future.get() for future in futures] == [10_000] * 50
    assert (tmp_path / "x").read_bytes() == b"".join(data)


def test_a_future_keeps_its_buffer(file):
    with sidecore.File(file) as opened:
        futures = [opened.pread(bytearray(MIB)) for _ in range(20)]
    assert [future.get() for future in futures] == [MIB] * 20


def test_a_failing_future_raises_when_it_is_asked(tmp_path):
    path = tmp_path / "full"
    path.write_bytes(b"")
    with sidecore.File(path, "r+") as opened:
        future = opened.pwrite(b"x" * 10, file_offset=(1 << 63) - 20)
        with pytest.raises(sidecore.Error):
            future.get()


def test_threads_may_share_a_file(file):
    whole = file.read_bytes()
    wrong = []

    def work(seed: int) -> None:
        target = bytearray(70_001)
        for n in range(20):
            at = (seed * 7919 + n * 104_729) % (3 * MIB)
            opened.read(target, file_offset=at)
            if target != whole[at : at + 70_001]:
                wrong.append(at)

    with sidecore.File(file) as opened:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_the_gil_is_released(file, tmp_path):
    """While a large file is read, another thread of Python goes on."""
    large = tmp_path / "large"
    large.write_bytes(stamped(MIB, 1) * 256)
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    most = 0
    try:
        target = bytearray(256 * MIB)
        with sidecore.File(large) as opened:
            # Where all is busy the other thread may get no turn in one read; in many it gets one.
            for _ in range(30):
                before = counted
                opened.read(target)
                most = max(most, counted - before)
                if most >= 10:
                    break
    finally:
        stop.set()
        thread.join()
    assert most >= 10, f"at most {most} turns of another thread while one read"


ROW = 512


@pytest.mark.parametrize("indices", ["list", "numpy", "signed"])
def test_rows_are_gathered(file, framework, indices):
    import random

    rows = [random.Random(3).randrange(4 * MIB // ROW) for _ in range(3000)]
    rows[5] = rows[4] = 0
    rows[6] = 4 * MIB // ROW - 1
    wanted = rows
    if indices != "list":
        np = pytest.importorskip("numpy")
        wanted = np.array(rows, dtype=np.uint64 if indices == "numpy" else np.int64)
    got = sidecore.read_rows(file, wanted, ROW, framework=framework)
    assert tuple(got.shape) == (3000, ROW)
    whole = file.read_bytes()
    data = got.numpy().tobytes() if framework == "torch" else got.tobytes()
    assert data == b"".join(whole[r * ROW : r * ROW + ROW] for r in rows)


def test_rows_into_memory_of_the_caller(file):
    out = bytearray(3 * ROW)
    with sidecore.File(file) as opened:
        assert opened.read_rows([2, 0, 1], ROW, out) is out
    whole = file.read_bytes()
    assert out == whole[2 * ROW : 3 * ROW] + whole[: 2 * ROW]


@pytest.mark.parametrize("rows", [[4 * MIB // ROW], [1 << 63], [-1], ["x"], [0.5]])
def test_rows_outside_the_file_are_refused(file, rows):
    with pytest.raises(sidecore.MisuseError):
        sidecore.read_rows(file, rows, ROW, framework="sidecore")


def test_rows_of_a_wrong_shape_are_refused(file):
    for row_bytes in (0, -1, 1.5):
        with pytest.raises(sidecore.MisuseError, match="Rows of"):
            sidecore.read_rows(file, [0], row_bytes)
    with pytest.raises(sidecore.MisuseError, match="do not fill"):
        sidecore.read_rows(file, [0], ROW, bytearray(ROW - 1))
    np = pytest.importorskip("numpy")
    with pytest.raises(sidecore.MisuseError, match="type"):
        sidecore.read_rows(file, np.array([0], np.float64), ROW)
    assert sidecore.read_rows(file, np.array([], np.int64), ROW, framework="numpy").shape == (
        0,
        ROW,
    )


def test_many_files_at_once(tmp_path, framework):
    paths, data = [], []
    for n in range(300):
        data.append(stamped(n * 37 % 5000, n))
        paths.append(tmp_path / f"f{n}")
        paths[-1].write_bytes(data[-1])
    loaded = sidecore.read_files(paths, framework=framework)
    assert len(loaded) == 300
    for tensor, expected in zip(loaded, data, strict=True):
        got = tensor.numpy().tobytes() if framework == "torch" else tensor.tobytes()
        assert got == expected
    with pytest.raises(sidecore.IoError, match="none"):
        sidecore.read_files([paths[0], tmp_path / "none"], framework=framework)


def test_dlpack_goes_out_and_comes_back(file):
    np = pytest.importorskip("numpy")
    rows = sidecore.read_rows(file, [0, 1], ROW, framework="sidecore")
    assert rows.__dlpack_device__() == (1, 0)
    taken = np.from_dlpack(rows)
    assert taken.tobytes() == file.read_bytes()[: 2 * ROW] and taken.shape == (2, ROW)
    del rows  # the array keeps the memory
    assert taken.tobytes() == file.read_bytes()[: 2 * ROW]

    class OnlyDlpack:
        def __init__(self, of):
            self.of = of

        def __dlpack__(self, **options):
            options.pop("max_version", None)
            return self.of.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.of.__dlpack_device__()

    target = np.zeros((4, 8), np.float32)
    with sidecore.File(file) as opened:
        assert opened.read(OnlyDlpack(target), file_offset=16) == 128
    assert target.tobytes() == file.read_bytes()[16:144]
    with sidecore.File(file) as opened, pytest.raises(sidecore.UnsupportedError, match="gaps"):
        opened.read(OnlyDlpack(target[:, ::2]))


def test_capsules_that_nobody_takes_free_their_memory(file):
    import weakref

    class Owner:
        pass

    from sidecore import _dtypes

    owner = Owner()
    gone = weakref.ref(owner)
    tensor = sidecore.Tensor(1 << 20, (0,), _dtypes.DTYPES["U8"], None, owner)
    for version in [None, (1, 0)]:
        capsule = tensor.__dlpack__(max_version=version)
        del capsule
    del tensor, owner
    assert gone() is None


def test_torch_takes_them(file):
    torch = pytest.importorskip("torch")
    rows = sidecore.read_rows(file, [3], ROW, framework="sidecore")
    taken = torch.utils.dlpack.from_dlpack(rows.__dlpack__())
    assert taken.numpy().tobytes() == file.read_bytes()[3 * ROW : 4 * ROW]


def test_explain_says_the_route_that_stats_count(file):
    for size in (1000, MIB, 4 * MIB):
        target = bytearray(size)
        with sidecore.File(file) as opened:
            said = opened.explain(target)
            before = sidecore.stats()["routes"]
            opened.read(target)
            after = sidecore.stats()["routes"]
        used = [n for n in after if after[n]["bytes_read"] > before[n]["bytes_read"]]
        assert len(used) == 1 and f"by route {used[0]}" in said, (used, said)
    assert f"{4 * MIB} bytes" in sidecore.explain(file)


def test_a_required_route_is_taken_or_nothing_is(file):
    code = """
import sys, sidecore
sidecore.configure(require="direct")
try:
    sidecore.File(sys.argv[1]).read(bytearray(8192))
except sidecore.RouteError as error:
    moved = sum(r["bytes_read"] for r in sidecore.stats()["routes"].values())
    print(error.code, moved, "direct" in str(error))
sidecore.configure()
print(sidecore.File(sys.argv[1]).read(bytearray(8192)))
"""
    done = run_python(code, file)
    assert done.stdout.split() == ["route", "0", "True", "8192"], done.stderr


def test_what_was_tuned_for_a_file_system_is_used(file, tmp_path):
    """The store of `sidecore tune`: with knees for a file system, chunks are as they say."""
    code = """
import json, os, sys, sidecore
folder = os.path.dirname(sys.argv[1])
mounts = [line.split() for line in open("/proc/self/mountinfo")]
number = os.stat(folder).st_dev
number = f"{os.major(number)}:{os.minor(number)}"
mount = [m for m in mounts if m[2] == number][-1]
key = f"{mount[mount.index('-') + 1]} at {mount[4]}, host"
knees = {"threads_cached": 3, "threads_direct": 1, "threads_write": 1, "slot_bytes": 262144,
         "slots": 2, "window_bytes_max": 0, "direct_bytes_min": 4096, "inline_bytes_max": 4096,
         "gather_bytes_max": 4096}
usual = sidecore.explain(sys.argv[1])
store = os.path.join(os.environ["XDG_CONFIG_HOME"], "sidecore")
os.makedirs(store)
with open(os.path.join(store, "knees.json"), "w") as out:
    json.dump({"version": 1, "knees": {key: knees}}, out)
sidecore.configure()
tuned = sidecore.explain(sys.argv[1])
print("262144 bytes" in usual, "262144 bytes" in tuned)
"""
    done = run_python(code, file, env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert done.stdout.split() == ["False", "True"], done.stderr
