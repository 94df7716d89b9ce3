"""Calls that cannot be: each is an error of this package, and of a kind that Python knows."""

from __future__ import annotations

import collections
import json
import os
import pickle

import pytest

import sidecore
from conftest import as_bytes, run_python, stamped, write_safetensors

LOADERS = [
    sidecore.load_safetensors,
    sidecore.safetensors_metadata,
    sidecore.torch_load,
    sidecore.File,
    sidecore.explain,
    lambda file: sidecore.read_files([file]),
    lambda file: sidecore.read_rows(file, [0], 1),
]
NAMES = ["load", "metadata", "torch_load", "File", "explain", "read_files", "read_rows"]


@pytest.fixture(params=LOADERS, ids=NAMES)
def loader(request):
    return request.param


def test_a_missing_file_is_pythons_own_error_too(tmp_path, loader):
    path = tmp_path / "none"
    with pytest.raises(FileNotFoundError) as caught:
        loader(path)
    error = caught.value
    assert isinstance(error, sidecore.Error) and isinstance(error, sidecore.IoError)
    assert (error.errno, error.filename, error.code) == (2, str(path), "io")
    assert str(path) in str(error) and error.remedy == "Check the path"


def test_a_folder_in_the_way_of_a_file(tmp_path, loader):
    if loader in (sidecore.load_safetensors,):
        with pytest.raises(sidecore.MisuseError, match="has no .*safetensors"):
            loader(tmp_path)
        return
    with pytest.raises(IsADirectoryError) as caught:
        loader(tmp_path)
    assert isinstance(caught.value, sidecore.IoError)
    assert (caught.value.filename, caught.value.remedy) == (
        str(tmp_path),
        "Name a file, not a folder",
    )


def test_a_file_in_the_way_of_a_folder(tmp_path, loader):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as caught:
        loader(tmp_path / "x" / "y")
    assert isinstance(caught.value, sidecore.IoError)


def test_what_may_not_be_read_is_a_permission_error(tmp_path):
    write_safetensors(tmp_path / "x", {"a": ("U8", (1,), b"a")})
    (tmp_path / "x").chmod(0)
    code = """
import os, sys, sidecore
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
for load in (sidecore.load_safetensors, sidecore.torch_load, sidecore.File):
    try:
        load(sys.argv[1])
    except PermissionError as error:
        right = isinstance(error, sidecore.IoError) and error.filename == sys.argv[1]
        print(error.errno, right, error.remedy)
try:
    sidecore.save_safetensors({}, os.path.join(os.path.dirname(sys.argv[1]), "new"))
except PermissionError as error:
    print(error.errno, isinstance(error, sidecore.IoError))
"""
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    done = run_python(code, tmp_path / "x")
    line = "13 True Check the file's permissions"
    assert done.stdout.splitlines() == [line] * 3 + ["13 True"], done.stderr


def test_a_save_into_a_folder_that_is_not_there(tmp_path):
    for save in (sidecore.save_safetensors, sidecore.torch_save):
        with pytest.raises(FileNotFoundError) as caught:
            save({}, tmp_path / "none" / "x")
        assert isinstance(caught.value, sidecore.IoError)
        assert caught.value.filename == str(tmp_path / "none" / "x")


@pytest.mark.parametrize("wrong", [5, None, 1.5, object(), ["x", 5], {"a": 1}], ids=repr)
def test_what_is_no_path_is_said_to_be_none(wrong, loader):
    with pytest.raises((sidecore.UnsupportedError, sidecore.MisuseError, FileNotFoundError)) as e:
        loader(wrong)
    assert isinstance(e.value, sidecore.Error) and e.value.remedy


def test_paths_that_no_file_can_have(tmp_path, loader):
    for wrong in ("a\0b", "\ud800"):
        with pytest.raises(sidecore.MisuseError, match="path"):
            loader(wrong)
    for save in (sidecore.save_safetensors, sidecore.torch_save):
        with pytest.raises(sidecore.MisuseError, match="null"):
            save({}, "a\0b")
        with pytest.raises(sidecore.UnsupportedError, match="no path"):
            save({}, 7)


def test_paths_of_bytes_are_paths(tmp_path):
    path = os.fsencode(tmp_path / "x")
    write_safetensors(tmp_path / "x", {"a": ("U8", (3,), b"abc")})
    loaded = sidecore.load_safetensors(path, framework="sidecore")
    assert as_bytes(loaded["a"]) == b"abc"
    whole = (tmp_path / "x").read_bytes()
    read = sidecore.read_files([path, str(tmp_path / "x")], framework="sidecore")
    assert [as_bytes(one) for one in read] == [whole] * 2
    with pytest.raises(sidecore.UnsupportedError, match="one file"):
        sidecore.read_files(path)
    sidecore.save_safetensors({}, os.fsencode(tmp_path / "y"))
    assert (tmp_path / "y").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": -1},
        {"threads": 257},
        {"threads": 1 << 80},
        {"threads": 1.5},
        {"threads": "4"},
        {"threads": True},
        {"pool_bytes": 0},
        {"pool_bytes": -1},
        {"pool_bytes": 1 << 20},
        {"pool_bytes": 1 << 40},
        {"pool_bytes": 1 << 70},
        {"pool_bytes": "1 GiB"},
        {"require": "teleport"},
        {"require": ["host"]},
        {"quiet": 1},
    ],
    ids=str,
)
def test_configure_refuses_what_cannot_be_and_changes_nothing(options):
    before = dict(sidecore._engine._options)
    with pytest.raises((ValueError, TypeError)) as caught:
        sidecore.configure(**options)
    assert isinstance(caught.value, sidecore.Error) and caught.value.remedy
    assert next(iter(options)) in str(caught.value) or "route" in str(caught.value)
    assert sidecore._engine._options == before


def test_configure_takes_what_can_be(tmp_path):
    (tmp_path / "x").write_bytes(stamped(1 << 20, 3))
    try:
        for options in ({"threads": 1, "pool_bytes": 2 << 20}, {"threads": 256}, {"quiet": True}):
            sidecore.configure(**options)
            target = bytearray(1 << 20)
            assert sidecore.File(tmp_path / "x").read(target) == 1 << 20
            assert target == stamped(1 << 20, 3)
    finally:
        sidecore.configure(threads=None, pool_bytes=None, quiet=None)


@pytest.mark.parametrize(
    "device",
    ["cuda:9999999999", "cuda:-1", "cuda:", "cuda:x", "cuda:\u0663", "tpu", 1 << 70, -1, ""],
)
def test_devices_that_there_are_none_of(tmp_path, device):
    write_safetensors(tmp_path / "x", {"a": ("U8", (1,), b"a")})
    for load in (
        lambda: sidecore.load_safetensors(tmp_path / "x", device=device),
        lambda: sidecore.torch_load(tmp_path / "x", device=device),
        lambda: sidecore.prepare(device),
        lambda: sidecore.explain(tmp_path / "x", device),
        lambda: sidecore.read_files([tmp_path / "x"], device),
    ):
        with pytest.raises(sidecore.MisuseError, match="No device") as caught:
            load()
        assert len(str(caught.value)) < 200


def test_numbers_must_be_whole(tmp_path):
    (tmp_path / "x").write_bytes(bytes(64))
    with sidecore.File(tmp_path / "x") as file:
        for wrong in ({"size": 1.5}, {"size": "8"}, {"file_offset": 0.0}, {"file_offset": None}):
            with pytest.raises(sidecore.UnsupportedError, match="no whole number"):
                file.read(bytearray(8), **wrong)
        with pytest.raises(sidecore.MisuseError):
            file.read(bytearray(8), size=-1)
        numpy = pytest.importorskip("numpy")
        assert file.read(bytearray(8), size=numpy.int32(4), file_offset=numpy.uint8(60)) == 4


def test_waiting_too_short_is_pythons_own_error_too(tmp_path):
    (tmp_path / "x").write_bytes(bytes(64))
    with sidecore.File(tmp_path / "x") as file:
        future = file.pread(bytearray(64))
        assert future.get(timeout=60) == 64
        # It has ended: no time is too short, and no time too long.
        for timeout in (0, 1e300, float("inf"), -1):
            assert future.get(timeout) == 64
        for timeout in (float("nan"), "soon"):
            with pytest.raises(sidecore.MisuseError, match="timeout"):
                future.get(timeout)
    assert issubclass(sidecore.WaitError, TimeoutError)


def test_errors_come_back_from_other_processes(tmp_path):
    def caught(call, *arguments):
        with pytest.raises(sidecore.Error) as error:
            call(*arguments)
        return error.value

    (tmp_path / "bad").write_bytes(b"bad")
    errors = [
        caught(sidecore.File, tmp_path / "none"),
        caught(sidecore.load_safetensors, tmp_path / "bad"),
        caught(sidecore.File, tmp_path / "x", "q"),
        sidecore.ShortReadError("cause", "remedy", None, "file"),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        for name in ("cause", "remedy", "code", "errno", "filename"):
            assert getattr(again, name, None) == getattr(error, name, None)


def test_an_open_file_goes_to_other_processes_and_empties_nothing(tmp_path):
    (tmp_path / "x").write_bytes(b"0123456789")
    for flags in ("r", "r+", "a"):
        with (
            sidecore.File(tmp_path / "x", flags) as file,
            pickle.loads(pickle.dumps(file)) as again,
        ):
            target = bytearray(4)
            assert again.read(target, file_offset=3) == 4 and target == b"3456"
    file = sidecore.File(tmp_path / "y", "w")
    file.write(b"kept")
    with pickle.loads(pickle.dumps(file)) as again:
        assert again.nbytes() == 4
    file.close()
    with pytest.raises(sidecore.MisuseError, match="closed"):
        pickle.dumps(file)


def test_a_shard_that_is_missing_is_named(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"a": ("U8", (1,), b"a")})
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for place in (tmp_path, tmp_path / "model.safetensors.index.json"):
        with pytest.raises(FileNotFoundError) as caught:
            sidecore.load_safetensors(place)
        assert caught.value.filename == str(tmp_path / "b.safetensors")


def test_what_torch_loads_of_a_checkpoint_is_saved_too(tmp_path):
    torch = pytest.importorskip("torch")
    value = {
        "device": torch.device("cuda", 3),
        "devices": [torch.device("cpu"), torch.device("cuda")],
        "size": torch.Size([3, 0, 1 << 40]),
        "type": torch.bfloat16,
        "types": (torch.complex64, {"x": torch.complex128}),
        "number": 1.5 - 2j,
        "bytes": bytearray(b"\x00\xff\n"),
        "milestones": collections.Counter({10: 1, 20: 2}),
    }
    sidecore.torch_save(value, tmp_path / "ours")
    torch.save(value, tmp_path / "theirs")
    for load in (torch.load, sidecore.torch_load):
        for name in ("ours", "theirs"):
            loaded = load(tmp_path / name)
            assert loaded == value
            assert [type(part) for part in loaded.values()] == [type(v) for v in value.values()]


def test_complex_tensors_go_both_ways(tmp_path):
    torch = pytest.importorskip("torch")
    value = {
        "c64": torch.randn(5, dtype=torch.complex64),
        "c128": torch.randn(2, 3, dtype=torch.complex128),
        "view": torch.randn(4, 4, dtype=torch.complex64).t()[1:],
    }
    sidecore.torch_save(value, tmp_path / "ours")
    torch.save(value, tmp_path / "theirs")
    for load in (torch.load, sidecore.torch_load):
        for name in ("ours", "theirs"):
            loaded = load(tmp_path / name)
            assert all(torch.equal(loaded[key], tensor) for key, tensor in value.items())


def test_a_checkpoint_of_an_optimizer_and_a_schedule(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    for _ in range(3):
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        schedule.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "random": torch.get_rng_state(),
    }
    sidecore.torch_save(state, tmp_path / "ours")
    for loaded in (torch.load(tmp_path / "ours"), sidecore.torch_load(tmp_path / "ours")):
        schedule.load_state_dict(loaded["schedule"])
        optimizer.load_state_dict(loaded["optimizer"])
        model.load_state_dict(loaded["model"])
        assert torch.equal(loaded["random"], state["random"])
        assert loaded["schedule"]["milestones"] == state["schedule"]["milestones"]
        moments = loaded["optimizer"]["state"][0]
        assert torch.equal(moments["exp_avg"], state["optimizer"]["state"][0]["exp_avg"])


def test_what_is_no_mapping_no_list_and_no_name(tmp_path):
    path = tmp_path / "x"
    write_safetensors(path, {"a": ("U8", (3,), b"abc")})
    for tensors, metadata in (([1], None), (None, None), ({}, ["a"]), ({}, "text")):
        with pytest.raises(sidecore.UnsupportedError, match="mapping"):
            sidecore.save_safetensors(tensors, tmp_path / "y", metadata)
    for names in (5, [["a"]], "a", [5, "zz"], ["zz"]):
        with pytest.raises((sidecore.UnsupportedError, sidecore.MisuseError)):
            sidecore.load_safetensors(path, names=names)
    for framework in ([], 5, "tensorflow"):
        with pytest.raises(sidecore.MisuseError, match="No framework"):
            sidecore.load_safetensors(path, framework=framework)
    with pytest.raises(sidecore.UnsupportedError, match="No type"):
        sidecore.load_safetensors(path, framework="sidecore")["a"].view("U9")
    assert list(tmp_path.iterdir()) == [path]


def test_arrays_of_any_type_are_bytes_to_a_file(tmp_path):
    numpy = pytest.importorskip("numpy")
    (tmp_path / "x").write_bytes(stamped(4096, 1))
    with sidecore.File(tmp_path / "x") as file:
        for kind in ("M8[s]", "S5", "U2", "V8", [("a", "<i4"), ("b", "<f4")], "g"):
            target = numpy.zeros(8, kind)
            assert file.read(target, file_offset=16) == target.nbytes
            assert target.tobytes() == stamped(4096, 1)[16 : 16 + target.nbytes]
            with pytest.raises(sidecore.UnsupportedError, match="'x'"):
                sidecore.save_safetensors({"x": target}, tmp_path / "y")
        with pytest.raises(sidecore.UnsupportedError, match="object"):
            file.read(numpy.array([None]))


def test_a_closed_file_is_closed_and_an_empty_one_is_a_file(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    file = sidecore.File(tmp_path / "x")
    assert file and len(file) == 0
    file.close()
    for use in (file.__enter__, file.nbytes, file.sync, file.explain):
        with pytest.raises(sidecore.MisuseError, match="closed"):
            use()


def test_explaining_needs_no_memory(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.truncate(1 << 40)
    for nbytes in (None, 1 << 40, 1 << 80):
        assert f"{1 << 40} bytes" in sidecore.explain(tmp_path / "x", nbytes=nbytes)
    assert sidecore.explain(tmp_path / "x", offset=1 << 41)


def test_a_save_follows_links_and_respects_a_files_own_permission(tmp_path):
    code = """
import os, sys, sidecore
os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
os.symlink("there", "link"), os.symlink("circle", "circle"), os.symlink("folder/none", "lost")
with open("kept", "w") as file:
    file.write("kept")
os.chmod("kept", 0o444)
for save in (sidecore.save_safetensors, sidecore.torch_save):
    save({}, "link")
    print(os.readlink("link"), os.path.getsize("there") > 0)
    os.unlink("there")
    for name in ("kept", "circle", "lost"):
        try:
            save({}, name)
        except sidecore.IoError as error:
            print(type(error).__name__, error.errno, error.filename, bool(error.remedy))
print(open("kept").read(), sorted(os.listdir()))
"""
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    done = run_python(code, tmp_path)
    each = [
        "there True",
        "ForbiddenError 13 kept True",
        "IoError 40 circle True",
        "NoFileError 2 lost True",
    ]
    assert done.stdout.splitlines() == [
        *each,
        *each,
        "kept ['circle', 'kept', 'link', 'lost']",
    ], (done.stdout, done.stderr)
