"""The one table of element types, by the safetensors format's names."""

from __future__ import annotations

from typing import NamedTuple

from ._errors import UnsupportedError


class DType(NamedTuple):
    """An element type in the words of each library."""

    name: str
    bits: int
    #: Attribute of the module ``torch``.
    torch: str | None
    #: NumPy's name; those with a dot are attributes of ``ml_dtypes``.
    numpy: str | None
    #: Kind and width for array interfaces, none where they have no word for it.
    interface: str | None
    #: DLPack's code (bits and one lane follow).
    dlpack: int | None
    #: The storage class that torch's files name; none where they name the type itself.
    storage: str | None
    #: Place in the order by which tensors are laid out in a file.
    order: int

    @property
    def bytes(self) -> int:
        """Bytes of an element; 0 for types smaller than a byte."""
        return self.bits // 8


# In the order that the format's reference implementation sorts by when it saves.
_ROWS = [
    ("BOOL", 8, "bool", "bool", "|b1", 6, "BoolStorage"),
    ("F4", 4, None, None, None, None, None),
    ("F6_E2M3", 6, None, None, None, None, None),
    ("F6_E3M2", 6, None, None, None, None, None),
    ("U8", 8, "uint8", "uint8", "|u1", 1, "ByteStorage"),
    ("I8", 8, "int8", "int8", "|i1", 0, "CharStorage"),
    ("F8_E5M2", 8, "float8_e5m2", "ml_dtypes.float8_e5m2", None, 12, None),
    ("F8_E4M3", 8, "float8_e4m3fn", "ml_dtypes.float8_e4m3fn", None, 10, None),
    ("F8_E8M0", 8, "float8_e8m0fnu", "ml_dtypes.float8_e8m0fnu", None, 14, None),
    ("F8_E4M3FNUZ", 8, "float8_e4m3fnuz", "ml_dtypes.float8_e4m3fnuz", None, 11, None),
    ("F8_E5M2FNUZ", 8, "float8_e5m2fnuz", "ml_dtypes.float8_e5m2fnuz", None, 13, None),
    ("I16", 16, "int16", "int16", "<i2", 0, "ShortStorage"),
    ("U16", 16, "uint16", "uint16", "<u2", 1, None),
    ("F16", 16, "float16", "float16", "<f2", 2, "HalfStorage"),
    ("BF16", 16, "bfloat16", "ml_dtypes.bfloat16", None, 4, "BFloat16Storage"),
    ("I32", 32, "int32", "int32", "<i4", 0, "IntStorage"),
    ("U32", 32, "uint32", "uint32", "<u4", 1, None),
    ("F32", 32, "float32", "float32", "<f4", 2, "FloatStorage"),
    ("C64", 64, "complex64", "complex64", "<c8", 5, "ComplexFloatStorage"),
    ("F64", 64, "float64", "float64", "<f8", 2, "DoubleStorage"),
    ("I64", 64, "int64", "int64", "<i8", 0, "LongStorage"),
    ("U64", 64, "uint64", "uint64", "<u8", 1, None),
    # Not of the safetensors format; torch's own files have them.
    ("C32", 32, "complex32", None, None, 5, None),
    ("C128", 128, "complex128", "complex128", "<c16", 5, "ComplexDoubleStorage"),
]
DTYPES = {row[0]: DType(*row, order) for order, row in enumerate(_ROWS)}
#: Types that the safetensors format has no name for.
NOT_SAFETENSORS = {"C32", "C128"}

BY_TORCH = {d.torch: d for d in DTYPES.values() if d.torch}
BY_STORAGE = {d.storage: d for d in DTYPES.values() if d.storage}
_BY_NUMPY = {d.numpy.rpartition(".")[2]: d for d in DTYPES.values() if d.numpy}
_BY_INTERFACE = {d.interface: d for d in DTYPES.values() if d.interface}
_BY_DLPACK = {(d.dlpack, d.bits): d for d in DTYPES.values() if d.dlpack is not None}


def of_torch(dtype: object) -> DType:
    """The type of a ``torch.dtype``."""
    return _known(BY_TORCH, str(dtype).rpartition(".")[2], "torch's")


def of_numpy(dtype: object) -> DType:
    """The type of a ``numpy.dtype`` (``ml_dtypes`` included), little endian."""
    byteorder = getattr(dtype, "byteorder", "=")
    if byteorder == ">":
        raise UnsupportedError(
            f"Type {dtype} is big endian", "Convert it first: array.astype(dtype.newbyteorder('<'))"
        )
    return _known(_BY_NUMPY, getattr(dtype, "name", str(dtype)), "NumPy's")


def of_interface(typestr: str) -> DType:
    """The type of an array interface's ``typestr``."""
    return _known(_BY_INTERFACE, typestr.replace("=", "<"), "the array interface's")


def of_dlpack(code: int, bits: int, lanes: int) -> DType:
    """The type of a DLPack triple."""
    if lanes != 1:
        raise UnsupportedError(f"DLPack vectors of {lanes} lanes", "Hand over a tensor of scalars")
    return _known(_BY_DLPACK, (code, bits), "DLPack's")


def _known(table: dict, key: object, whose: str) -> DType:
    found = table.get(key)
    if found is None:
        raise UnsupportedError(
            f"{whose} type {key!r} has no counterpart here", "Convert the tensor to another type"
        )
    return found
