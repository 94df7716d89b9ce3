"""Zip archives of uncompressed records: where each record's bytes lie, and where they will."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from typing import NamedTuple

from ._errors import FormatError

#: Records of torch's files begin at multiples of this.
_ALIGNMENT = 64
#: More than any pickle of a state dict, and a bound for what is read into memory at once.
_SMALL_BYTES_MAX = 1 << 30
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_LOCAL_MAGIC = 0x04034B50
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_CENTRAL_MAGIC = 0x02014B50
_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")
_WORD_MAX = 0xFFFFFFFF
#: Names are UTF-8.
_FLAGS = 0x0800
#: 1 January 1980, midnight: files of the same tensors are the same.
_DATE = 0x21
_AGAIN = "Get the file from its source again"


class Record(NamedTuple):
    """The bytes of a record within the file."""

    offset: int
    nbytes: int


class Archive:
    """An archive that is open for reading."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        # The directory and the data are of one open file, even if another takes its name meanwhile.
        self.file = open(os.dup(descriptor), "rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        try:
            self.length = os.fstat(self.file.fileno()).st_size
            self._read_directory()
        except BaseException:
            self.file.close()
            raise

    def _read_directory(self) -> None:
        try:
            self.zip = zipfile.ZipFile(self.file)
        except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
            raise FormatError(
                f"{self.path} is no sound zip archive: {error}",
                "If torch older than 1.6 saved it, load it by torch.load and save it again; "
                "otherwise get it from its source again",
            ) from None
        names = [n for n in self.zip.namelist() if n.endswith("/data.pkl") and n.count("/") == 1]
        if len(names) != 1:
            raise FormatError(
                f"{self.path} is a zip archive, but no file of torch: it has {len(names)} records "
                "data.pkl",
                "Name a file that torch.save or torch_save made",
            )
        self.prefix = names[0].partition("/")[0]
        if f"{self.prefix}/constants.pkl" in self.zip.NameToInfo:
            raise FormatError(f"{self.path} is a TorchScript archive", "Load it by torch.jit.load")

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.zip.close()
        self.file.close()

    def record(self, name: str) -> Record:
        """Where a record's bytes lie, checked against the file's length."""
        facts = self.zip.NameToInfo[name]
        if facts.compress_type != zipfile.ZIP_STORED or facts.flag_bits & 1:
            raise FormatError(
                f"{self.path}: record {name} is compressed or encrypted, which torch's are not",
                "Unpack and repack it (zip -0)",
            )
        head = b""
        if 0 <= facts.header_offset < self.length:
            head = os.pread(self.file.fileno(), _LOCAL.size, facts.header_offset)
        if len(head) < _LOCAL.size:
            raise FormatError(f"{self.path}: record {name} lies beyond the end", _AGAIN)
        fields = _LOCAL.unpack(head)
        offset = facts.header_offset + _LOCAL.size + fields[9] + fields[10]
        sound = fields[0] == _LOCAL_MAGIC and facts.file_size == facts.compress_size
        if not sound or offset + facts.file_size > self.length:
            raise FormatError(f"{self.path}: record {name} is damaged or truncated", _AGAIN)
        return Record(offset, facts.file_size)

    def below(self, folder: str) -> dict[str, Record]:
        """The records of a folder by the rest of their names, in the file's order."""
        facts = [f for f in self.zip.filelist if f.filename.startswith(folder)]
        facts.sort(key=lambda f: f.header_offset)
        records = {f.filename[len(folder) :]: self.record(f.filename) for f in facts}
        # Each byte belongs to one record at most, so that no small file claims a large memory.
        if sum(record.nbytes for record in records.values()) > self.length:
            raise FormatError(f"{self.path}: its records overlap", _AGAIN)
        return records

    def small(self, name: str, default: bytes | None = None) -> bytes:
        """The bytes of a record that is read as a whole."""
        if name not in self.zip.NameToInfo:
            if default is None:
                raise FormatError(f"{self.path} has no record {name}", _AGAIN)
            return default
        record = self.record(name)
        if record.nbytes > _SMALL_BYTES_MAX:
            raise FormatError(f"{self.path}: record {name} has {record.nbytes} bytes", _AGAIN)
        parts, at = [], record.offset
        while at < record.offset + record.nbytes:
            part = os.pread(self.file.fileno(), record.offset + record.nbytes - at, at)
            if not part:
                raise FormatError(f"{self.path}: record {name} is truncated", _AGAIN)
            parts.append(part)
            at += len(part)
        return b"".join(parts)


class _Planned(NamedTuple):
    name: bytes
    header_offset: int
    offset: int
    nbytes: int
    #: The bytes, where they are known already.
    data: bytes | None
    extra: bytes


class Layout:
    """An archive that is to be written: places first, headers when the sums are known."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.planned: list[_Planned] = []
        self.end = 0

    def add(self, name: str, data: bytes) -> None:
        """Adds a record whose bytes are known."""
        self._plan(name, len(data), data)

    def reserve(self, name: str, nbytes: int) -> int:
        """Adds a record whose bytes somebody else writes; returns where."""
        return self._plan(name, nbytes, None)

    def _plan(self, name: str, nbytes: int, data: bytes | None) -> int:
        full = f"{self.prefix}/{name}".encode()
        large = struct.pack("<HHQQ", 1, 16, nbytes, nbytes) if nbytes >= _WORD_MAX else b""
        bare = self.end + _LOCAL.size + len(full) + len(large) + 4
        padding = -bare % _ALIGNMENT
        # An extra field of torch's own kind moves the bytes to an aligned place.
        extra = large + b"FB" + struct.pack("<H", padding) + b"Z" * padding
        offset = bare + padding
        self.planned.append(_Planned(full, self.end, offset, nbytes, data, extra))
        self.end = offset + nbytes
        return offset

    @property
    def reserved(self) -> list[Record]:
        """Where others write, in the order of :meth:`reserve`, empty records left out."""
        return [Record(p.offset, p.nbytes) for p in self.planned if p.data is None and p.nbytes]

    def pieces(self, sums: list[int] | None) -> list[tuple[int, bytes]]:
        """Everything but the reserved bytes; ``sums`` are the CRC-32 of :attr:`reserved`."""
        given = iter(sums or [])
        pieces, directory = [], []
        for planned in self.planned:
            if planned.data is not None:
                crc = zlib.crc32(planned.data)
            else:
                crc = next(given, 0) if planned.nbytes else 0
            pieces.append((planned.header_offset, self._local(planned, crc)))
            if planned.data:
                pieces.append((planned.offset, planned.data))
            directory.append(self._central(planned, crc))
        pieces.append((self.end, b"".join([*directory, self._tail(sum(map(len, directory)))])))
        return pieces

    @staticmethod
    def _local(planned: _Planned, crc: int) -> bytes:
        size = min(planned.nbytes, _WORD_MAX)
        version = 45 if planned.nbytes >= _WORD_MAX else 20
        lengths = (len(planned.name), len(planned.extra))
        head = _LOCAL.pack(_LOCAL_MAGIC, version, _FLAGS, 0, 0, _DATE, crc, size, size, *lengths)
        return head + planned.name + planned.extra

    @staticmethod
    def _central(planned: _Planned, crc: int) -> bytes:
        size = min(planned.nbytes, _WORD_MAX)
        at = min(planned.header_offset, _WORD_MAX)
        large = b""
        if size == _WORD_MAX:
            large += struct.pack("<QQ", planned.nbytes, planned.nbytes)
        if at == _WORD_MAX:
            large += struct.pack("<Q", planned.header_offset)
        extra = struct.pack("<HH", 1, len(large)) + large if large else b""
        version = 45 if large else 20
        head = _CENTRAL.pack(
            _CENTRAL_MAGIC,
            version,
            version,
            _FLAGS,
            0,
            0,
            _DATE,
            crc,
            size,
            size,
            len(planned.name),
            len(extra),
            0,
            0,
            0,
            0,
            at,
        )
        return head + planned.name + extra

    def _tail(self, directory: int) -> bytes:
        count = len(self.planned)
        tail = b""
        if self.end + directory >= _WORD_MAX or count >= 0xFFFF:
            end64 = _END64.pack(0x06064B50, 44, 45, 45, 0, 0, count, count, directory, self.end)
            tail = end64 + _LOCATOR64.pack(0x07064B50, 0, self.end + directory, 1)
        few = min(count, 0xFFFF)
        size, at = min(directory, _WORD_MAX), min(self.end, _WORD_MAX)
        return tail + _END.pack(0x06054B50, 0, 0, few, few, size, at, 0)
