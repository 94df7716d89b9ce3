"""Files that are damaged, or made to do harm: an error each, and no large memory for any."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile

import pytest

import sidecore
from conftest import run_python, stamped, write_raw, write_safetensors


def described(dtype="U8", shape=(4,), offsets=(0, 4), **more) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def text(tensors: dict) -> bytes:
    return json.dumps(tensors).encode()


HOSTILE = {
    "length of 2^63": (text({}), b"", 1 << 63, "truncated or no"),
    "length of 2^64 - 1": (text({}), b"", (1 << 64) - 1, "truncated or no"),
    "length one too long": (text({}), b"", 3, "truncated or no"),
    "empty header": (b"", b"", None, "does not begin"),
    "an array": (b"[]", b"", None, "does not begin"),
    "blanks first": (b" {}", b"", None, "does not begin"),
    "half an object": (b'{"x":', b"", None, "header"),
    "bytes after it": (b"{}{}", b"", None, "header"),
    "no UTF-8": (b'{"\xff":1}', b"", None, "not UTF-8"),
    "lone surrogate": (b'{"\\ud800":1}', b"", None, "header"),
    "deep": (b'{"a":' * 5000, b"", None, "header"),
    "a number": (b'{"x":5}', b"", None, "header"),
    "the same key twice": (
        b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
        b'"x":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}', b"abcd", None, "twice",
    ),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{}}', b"", None, "twice"),
    "a metadata key twice": (b'{"__metadata__":{"a":"b","a":"c"}}', b"", None, "twice"),
    "metadata of numbers": (b'{"__metadata__":{"a":1}}', b"", None, "header"),
    "a field twice": (
        b'{"x":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}', b"abcd", None,
        "duplicate",
    ),
    "an unknown field": (text({"x": described(code="os.system")}), b"abcd", None, "unknown field"),
    "an unknown type": (text({"x": described("F1")}), b"abcd", None, "not known"),
    "backwards": (text({"x": described(offsets=(4, 0))}), b"abcd", None, "do not lie inside"),
    "beyond the end": (text({"x": described(shape=(5,), offsets=(0, 5))}), b"abcd", None, "inside"),
    "offsets of 2^64": (text({"x": described(offsets=(0, 1 << 64))}), b"abcd", None, "header"),
    "negative offsets": (text({"x": described(offsets=(-4, 0))}), b"abcd", None, "header"),
    "a negative shape": (text({"x": described(shape=(-4,))}), b"abcd", None, "header"),
    "overlap": (
        text({"x": described(), "y": described(offsets=(2, 6))}), b"abcdef", None, "inside the one",
    ),
    "the same bytes": (text({"x": described(), "y": described()}), b"abcd", None, "inside the one"),
    "a gap": (
        text({"x": described(), "y": described(offsets=(5, 9))}), b"abcdefghi", None, "no tensor",
    ),
    "a gap first": (text({"x": described(offsets=(1, 5))}), b"abcde", None, "no tensor"),
    "a gap last": (text({"x": described()}), b"abcde", None, "follow the header"),
    "data without tensors": (b"{}", b"abcd", None, "follow the header"),
    "shape and range differ": (text({"x": described(shape=(3,))}), b"abcd", None, "takes 3 bytes"),
    "a shape that overflows": (
        text({"x": described(shape=(1 << 40, 1 << 40))}), b"abcd", None, "overflows",
    ),
    "bits that overflow": (
        text({"x": described("F64", shape=((1 << 63) - 1,))}), b"abcd", None, "overflows",
    ),
    "half a byte": (text({"x": described("F4", shape=(7,))}), b"abcd", None, "no whole bytes"),
    "too many dimensions": (
        text({"x": described(shape=(1,) * 100 + (4,))}), b"abcd", None, "dimensions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_an_error(tmp_path, name):
    header, data, length, why = HOSTILE[name]
    write_raw(tmp_path / "x", header, data, length)
    with pytest.raises(sidecore.FormatError, match=why) as caught:
        sidecore.load_safetensors(tmp_path / "x", framework="sidecore")
    assert str(tmp_path / "x") in str(caught.value) and caught.value.remedy


def test_every_truncation_is_an_error(tmp_path):
    write_safetensors(tmp_path / "whole", {"x": ("F32", (8,), stamped(32, 1))})
    whole = (tmp_path / "whole").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "part").write_bytes(whole[:length])
        with pytest.raises(sidecore.FormatError):
            sidecore.load_safetensors(tmp_path / "part", framework="sidecore")


def test_random_damage_of_a_header_is_refused_or_harmless(tmp_path):
    import random

    tensors = {f"t{n}": ("F32", (2, 3), stamped(24, n)) for n in range(5)}
    write_safetensors(tmp_path / "whole", tensors, {"k": "v"})
    whole = (tmp_path / "whole").read_bytes()
    header = len(whole) - 120
    chance = random.Random(20261130)
    refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(header)] = chance.choice(b'0123456789"{}[]:,xU\xff')
        (tmp_path / "x").write_bytes(damaged)
        try:
            loaded = sidecore.load_safetensors(tmp_path / "x", framework="sidecore")
        except sidecore.FormatError:
            refused += 1
        else:
            # Names may be others; the bytes are the file's all the same, each of them once.
            assert b"".join(t.tobytes() for t in loaded.values()) == whole[header:]
    assert 300 < refused < 600


def test_a_claim_of_much_memory_allocates_none(tmp_path):
    """A sparse file may be as long as it says; its header is judged before all else."""
    header = text({"x": described("F64", shape=(1 << 36,), offsets=(0, 1 << 39))})
    write_raw(tmp_path / "x", header, b"")
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({4 << 30}, {4 << 30}))
import sidecore
for path in sys.argv[1:]:
    try:
        sidecore.load_safetensors(path, framework="sidecore")
    except sidecore.FormatError as error:
        print("FormatError")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    long = tmp_path / "long"
    with open(long, "wb") as file:
        file.write(struct.pack("<Q", 1 << 38))
        file.truncate(1 << 39)
    done = run_python(code, tmp_path / "x", long)
    lines = done.stdout.split()
    assert lines[:2] == ["FormatError"] * 2, done.stderr
    assert int(lines[2]) < 200_000, "kilobytes of resident memory"


def checkpoint(path, pickled: bytes, records: dict | None = None) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, data in (records or {}).items():
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", "3\n")


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def test_a_pickle_that_calls_something_is_refused(tmp_path):
    import os

    marker = tmp_path / "ran"
    for call in [
        (os.system, f"touch {marker}"),
        (exec, f"open({str(marker)!r}, 'w')"),
        (getattr, 1),
    ]:
        for protocol in range(2, 6):
            checkpoint(tmp_path / "x", pickle.dumps({"a": Evil(*call)}, protocol))
            with pytest.raises(sidecore.FormatError, match="names"):
                sidecore.torch_load(tmp_path / "x", framework="sidecore")
    assert not marker.exists()
    # The same file does what it was made for where pickles are trusted: the test can fail.
    pickle.loads(pickle.dumps(Evil(os.system, f"touch {marker}")))
    assert marker.exists()


def tensor_pickle(count=4, offset=0, size=(4,), stride=(1,), key="0", kind="ByteStorage") -> bytes:
    from sidecore import _pickle

    writer = _pickle.Writer(lambda *_: False)
    writer.named("torch._utils", "_rebuild_tensor_v2")
    writer.raw(b"((")
    writer.text("storage")
    writer.named("torch", kind)
    writer.text(key)
    writer.text("cpu")
    writer.number(count)
    writer.raw(b"tQ")
    writer.number(offset)
    writer.numbers(size)
    writer.numbers(stride)
    writer.raw(b"\x89NtR")
    return writer.finish()


def test_a_sound_tensor_pickle_loads(tmp_path):
    checkpoint(tmp_path / "x", tensor_pickle(), {"0": b"abcd"})
    assert sidecore.torch_load(tmp_path / "x", framework="sidecore").tobytes() == b"abcd"


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 5}, {"count": -1}, {"offset": 1}, {"offset": -1}, {"size": (5,)},
        {"stride": (2,)}, {"size": (1 << 62,), "stride": (1 << 62,)}, {"size": (-1,)},
        {"stride": (-1,)}, {"key": "1"}, {"size": (2, 2)}, {"kind": "LongStorage"},
        {"size": (2,), "stride": (1 << 63,)}, {"kind": "Tensor"}, {"count": 1 << 70},
    ],
    ids=str,
)  # fmt: skip
def test_a_tensor_outside_its_storage_is_refused(tmp_path, wrong):
    checkpoint(tmp_path / "x", tensor_pickle(**wrong), {"0": b"abcd"})
    with pytest.raises(sidecore.FormatError):
        sidecore.torch_load(tmp_path / "x", framework="sidecore")


DAMAGED = {
    "nothing": b"",
    "no stop": b"\x80\x02}",
    "empty stack": b"\x80\x02.",
    "two results": b"\x80\x02NN.",
    "an unknown instruction": b"\x80\x02\x97.",
    "an integer in words": b"I5\n.",
    "a text of 4 GB": b"\x80\x02X\xff\xff\xff\xffab.",
    "bytes of 2^64": b"\x80\x04\x8e" + b"\xff" * 8 + b".",
    "a long of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f1.",
    "a negative long": b"\x80\x02\x8b\xff\xff\xff\xff1.",
    "no mark": b"\x80\x02Nt.",
    "an unknown memo": b"\x80\x02h\x05.",
    "a huge memo": b"\x80\x02j\xff\xff\xff\xff.",
    "append to a number": b"\x80\x02K\x01Na.",
    "a key without a value": b"\x80\x02}(Nu.",
    "an unhashable key": b"\x80\x02}]Ns.",
    "state of a list": b"\x80\x02]}b.",
    "a call of a text": b"\x80\x02X\x01\x00\x00\x00a)R.",
    "a storage of nothing": b"\x80\x02NQ.",
    "the mark as a value": b"\x80\x02(\x85.",
    "a global without an end": b"\x80\x02ctorch",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_pickle_is_an_error(tmp_path, name):
    checkpoint(tmp_path / "x", DAMAGED[name])
    with pytest.raises(sidecore.FormatError):
        sidecore.torch_load(tmp_path / "x", framework="sidecore")


def test_keys_that_take_for_ever_to_hash_are_refused(tmp_path):
    # A tuple of a tuple twice, 60 deep: its hash would take 2^60 steps.
    nested = b"\x80\x02}" + b")" + b"q\x00h\x00\x86" * 60 + b"Ns."
    checkpoint(tmp_path / "x", nested)
    with pytest.raises(sidecore.FormatError, match="no primitive"):
        sidecore.torch_load(tmp_path / "x", framework="sidecore")


def test_random_damage_never_does_anything_else(tmp_path):
    import random

    checkpoint(tmp_path / "whole", tensor_pickle(), {"0": b"abcd"})
    whole = (tmp_path / "whole").read_bytes()
    chance = random.Random(20261201)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (tmp_path / "x").write_bytes(damaged[: chance.randint(1, len(whole))])
        try:
            sidecore.torch_load(tmp_path / "x", framework="sidecore")
        except sidecore.Error:
            refused += 1
    assert refused > 200


def test_records_that_overlap_are_refused(tmp_path):
    """A zip bomb: many names for the same bytes."""
    from sidecore import _zip

    layout = _zip.Layout("archive")
    layout.add("data.pkl", tensor_pickle(key="000"))
    layout.add("data/000", b"abcd" * 250)
    for n in range(1, 200):
        again = layout.planned[1]._replace(name=b"archive/data/%03d" % n)
        layout.planned.append(again)
    image = bytearray(100_000)
    for at, data in reversed(layout.pieces(None)):
        image[at : at + len(data)] = data
    end = layout.pieces(None)[-1]
    (tmp_path / "x").write_bytes(image[: end[0] + len(end[1])])
    with pytest.raises(sidecore.FormatError, match="overlap"):
        sidecore.torch_load(tmp_path / "x", framework="sidecore")


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip", pickle.dumps({"a": 1})])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(sidecore.FormatError, match="zip archive"):
        sidecore.torch_load(tmp_path / "x", framework="sidecore")


def test_compressed_records_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", tensor_pickle())
    with pytest.raises(sidecore.FormatError, match="compressed"):
        sidecore.torch_load(tmp_path / "x", framework="sidecore")


#: A pair of a pair of a pair ..: small in memory, endless when it is written out or hashed.
_PAIRS = b")q\x000" + b"".join(b"h%ch%c\x86q%c0" % (n, n, n + 1) for n in range(60))
_STORAGE = b"X\x07\x00\x00\x00storagectorch\nByteStorage\n"
_NUMBERS = b"(" + b"".join(b"J" + struct.pack("<i", n) for n in range(100_000)) + b"lq\x000"
_LONG = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x000"
_LATIN = b"X\x06\x00\x00\x00latin1q\x020"
ENDLESS = {
    "a device": _PAIRS + b"ctorch\ndevice\nh\x3c\x85R.",
    "a key": _PAIRS + b"(" + _STORAGE + b"h\x3cX\x03\x00\x00\x00cpuK\x00tQ.",
    "an encoding": _PAIRS + b"c_codecs\nencode\nX\x01\x00\x00\x00ah\x3c\x86R.",
    "sets": _NUMBERS + b"cbuiltins\nset\nq\x010(" + b"h\x01h\x00\x85R" * 3000 + b"l.",
    "texts": _LONG + _LATIN + b"c_codecs\nencode\nq\x010(" + b"h\x01h\x00h\x02\x86R" * 4000 + b"l.",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_small_pickle_takes_neither_much_memory_nor_for_ever(tmp_path, name):
    checkpoint(tmp_path / "x", b"\x80\x02" + ENDLESS[name], {"0": b"abcd"})
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({2 << 30}, {2 << 30}))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
import sidecore
try:
    sidecore.torch_load(sys.argv[1], framework="sidecore")
except sidecore.FormatError as error:
    print("FormatError", len(str(error)) < 1000)
"""
    done = run_python(code, tmp_path / "x")
    assert done.stdout.split() == ["FormatError", "True"], done.stderr[-500:]
