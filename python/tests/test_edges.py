"""What users do by mistake, and what others do to their files meanwhile."""

from __future__ import annotations

import json
import os
import struct
import threading
import time

import pytest

import sidecore
from conftest import as_bytes, run_python, stamped, write_safetensors


def test_a_scalar_of_numpy_is_its_value_and_cannot_be_read_into(tmp_path):
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "x.safetensors"
    for value in (numpy.float32(3.5), numpy.int64(-7), numpy.complex64(1 + 2j), numpy.bool_(True)):
        sidecore.save_safetensors({"x": value}, path)
        loaded = sidecore.load_safetensors(path, framework="numpy")["x"]
        assert (loaded.shape, loaded.dtype, loaded[()]) == ((), value.dtype, value)
        # Its interface names memory that is gone: nothing must be written there.
        with sidecore.File(path) as file, pytest.raises(sidecore.MisuseError, match="read only"):
            file.read(value)


def test_a_tensor_that_is_stored_conjugated_is_not_saved_as_it_lies(tmp_path):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    path = tmp_path / "x.safetensors"
    with pytest.raises(sidecore.UnsupportedError, match="'x'.*resolve_conj"):
        sidecore.save_safetensors({"x": tensor}, path)
    with sidecore.File(tmp_path / "y", "w") as file, pytest.raises(sidecore.UnsupportedError):
        file.write(tensor)
    sidecore.save_safetensors({"x": tensor.resolve_conj()}, path)
    assert torch.equal(sidecore.load_safetensors(path)["x"], tensor)


def test_a_save_takes_no_name_that_is_there(tmp_path):
    numpy = pytest.importorskip("numpy")
    (tmp_path / "other").write_bytes(b"other")
    # What a killed process of the same number may have left, or somebody else has put there.
    for serial in range(200):
        name = f".x.safetensors.{os.getpid()}-{serial}.tmp"
        (tmp_path / name).symlink_to(tmp_path / "other")
    sidecore.save_safetensors({"x": numpy.arange(5)}, tmp_path / "x.safetensors")
    assert sidecore.load_safetensors(tmp_path / "x.safetensors")["x"].tolist() == [0, 1, 2, 3, 4]
    assert (tmp_path / "other").read_bytes() == b"other"


def test_a_save_replaces_files_only(tmp_path):
    numpy = pytest.importorskip("numpy")
    os.mkfifo(tmp_path / "pipe")
    before = os.stat(tmp_path / "pipe")
    for save in (sidecore.save_safetensors, sidecore.torch_save):
        with pytest.raises(sidecore.IoError, match="pipe"):
            save({"x": numpy.arange(5)}, tmp_path / "pipe")
        with pytest.raises(sidecore.IoError, match="folder"):
            save({"x": numpy.arange(5)}, tmp_path)
    assert os.stat(tmp_path / "pipe").st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_name_may_be_as_long_as_a_name_may_be(tmp_path):
    numpy = pytest.importorskip("numpy")
    for name in ("n" * 255, "\u20ac" * 85):
        sidecore.save_safetensors({"x": numpy.arange(5)}, tmp_path / name)
        assert sidecore.load_safetensors(tmp_path / name)["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code = """
import sys, sidecore
for load in (sidecore.load_safetensors, sidecore.torch_load, sidecore.File):
    try:
        load(sys.argv[1])
    except sidecore.Error as error:
        print(type(error).__name__)
"""
    done = run_python(code, tmp_path / "pipe", timeout=30)
    assert done.stdout.split() == ["UnsupportedError"] * 3, done.stderr


@pytest.mark.parametrize("shape", [[0, 1 << 63], [1 << 62, 2, 0], [0, (1 << 64) - 1]], ids=str)
def test_an_empty_tensor_of_an_impossible_shape_is_refused(tmp_path, shape, framework):
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(sidecore.FormatError, match="overflows"):
        sidecore.load_safetensors(tmp_path / "x", framework=framework)


def test_header_and_data_are_of_one_file(tmp_path):
    # Two files with the same names, of which either is whole at any time.
    files = []
    for turn in range(2):
        parts = {f"{name}": ("U8", (4096,), stamped(4096, name + turn * 1000)) for name in range(8)}
        order = sorted(parts, reverse=bool(turn))
        path = tmp_path / f"whole{turn}"
        write_safetensors(path, {name: parts[name] for name in order})
        files.append(({name: part[2] for name, part in parts.items()}, path))
    target = tmp_path / "x"
    os.link(files[0][1], target)
    stop = threading.Event()

    def replace() -> None:
        turn = 0
        while not stop.is_set():
            turn = 1 - turn
            os.link(files[turn][1], tmp_path / "next")
            os.rename(tmp_path / "next", target)
            # A rename of a link to the same file leaves it.
            (tmp_path / "next").unlink(missing_ok=True)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            loaded = sidecore.load_safetensors(target, framework="sidecore")
            found = {name: as_bytes(tensor) for name, tensor in loaded.items()}
            assert found in (files[0][0], files[1][0])
    finally:
        stop.set()
        thread.join()


def test_numbers_that_no_file_has_are_misuse(tmp_path):
    numpy = pytest.importorskip("numpy")
    (tmp_path / "x").write_bytes(bytes(4096))
    with sidecore.File(tmp_path / "x") as file:
        for offset in (1 << 63, 1 << 64, 1 << 200, -1):
            with pytest.raises(sidecore.MisuseError):
                file.read(bytearray(8), file_offset=offset)
        assert file.read_rows([1], numpy.int64(64)).shape == (1, 64)
        for row_bytes in (0, -1, 1.5, None, "x"):
            with pytest.raises(sidecore.MisuseError):
                file.read_rows([0], row_bytes)
        with pytest.raises(sidecore.ExhaustedError):
            file.read_rows([0], 1 << 63, framework="numpy")


def test_an_error_of_a_save_names_the_tensor(tmp_path):
    numpy = pytest.importorskip("numpy")
    good = numpy.zeros((4, 4))
    for bad in (None, good.T[1:], "text", object()):
        with pytest.raises(sidecore.UnsupportedError, match=r"'layer\.7'"):
            sidecore.save_safetensors({"a": good, "layer.7": bad}, tmp_path / "x")
    with pytest.raises(sidecore.MisuseError, match="Unicode"):
        sidecore.save_safetensors({"\ud800": good}, tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_types_devices_and_tuples_of_tensors_come_back_as_themselves(tmp_path):
    torch = pytest.importorskip("torch")
    value = {
        "type": torch.float16,
        "types": [torch.int8, (torch.bool, 1)],
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "pair": (torch.arange(3), torch.arange(4)),
    }
    torch.save(value, tmp_path / "x")
    loaded = sidecore.torch_load(tmp_path / "x", framework="torch")
    for key in ("type", "types", "device", "size"):
        assert loaded[key] == value[key] and type(loaded[key]) is type(value[key])
    loaded = sidecore.torch_load(tmp_path / "x", framework="sidecore")
    assert loaded["type"] == "torch.float16"
    assert [as_bytes(part) for part in loaded["pair"]] == [as_bytes(p) for p in value["pair"]]
    loaded = sidecore.torch_load(tmp_path / "x", framework="numpy")
    assert [part.tolist() for part in loaded["pair"]] == [[0, 1, 2], [0, 1, 2, 3]]
