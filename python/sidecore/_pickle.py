"""Pickles of state dicts: a reader that can build nothing but data, and a writer.

The reader is a machine of its own over the opcodes. It imports nothing and calls nothing that the
file names: every global that it knows stands for a function here, and any other is an error. So a
hostile file can make it fail, not make it act. What it allocates is bounded by the file's length.

Source: the standard library's ``pickletools`` for opcodes; torch's ``torch/_utils.py`` and
``torch/serialization.py`` (2.11) for what its files hold.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from ._errors import FormatError

_MARK = object()
#: Containers within containers; deeper ones would break whoever walks them.
_DEPTH_MAX = 200


class Global:
    """A name that a pickle refers to; only a builder may know what it stands for."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __repr__(self) -> str:
        return f"{self.module}.{self.name}"


class Builder:
    """What the reader asks for: storages, tensors and such."""

    def known(self, what: Global) -> bool:
        """Whether a pickle may name it."""
        raise NotImplementedError

    def call(self, what: Global, arguments: tuple) -> Any:
        """What a call of a known global gives."""
        raise NotImplementedError

    def persistent(self, identity: Any) -> Any:
        """What a persistent identity stands for."""
        raise NotImplementedError

    def value(self, what: Global) -> Any:
        """What a known global is where it is kept, not called."""
        raise NotImplementedError


def load(data: bytes, builder: Builder) -> Any:
    """The object that a pickle describes."""
    reader = _Reader(data, builder)
    try:
        return reader.run()
    except FormatError:
        raise
    except (IndexError, struct.error) as error:
        raise FormatError("The pickle ends too early, or its stack is empty", _AGAIN) from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise FormatError(
            f"The pickle is damaged at byte {reader.at}: {error!r}", _AGAIN
        ) from error


_AGAIN = "Get the file from its source again"
#: How many bytes calls may copy for each byte of the pickle: what is there once can be named often.
_COPIES = 16
_SIZED = (str, bytes, bytearray, list, tuple, dict, OrderedDict, set, frozenset)
#: Items of a key that is a tuple, whose hash is taken anew each time.
_KEY_ITEMS_MAX = 64


class _Reader:
    def __init__(self, data: bytes, builder: Builder) -> None:
        self.data = data
        self.at = 0
        self.builder = builder
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.copies = _COPIES * len(data) + 4096

    def run(self) -> Any:
        data, operations = self.data, _OPERATIONS
        while True:
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                (result,) = self.stack
                return self.kept(result)
            operation = operations.get(code)
            if operation is None:
                raise FormatError(
                    f"The pickle has an instruction {bytes([code])!r} at byte {self.at - 1} that "
                    "no state dict needs",
                    "Save it as a state dict: tensors, containers, numbers and texts only",
                )
            operation(self)

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise FormatError("The pickle ends too early", _AGAIN)
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def since_mark(self) -> list[Any]:
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise IndexError("no mark")

    def kept(self, value: Any) -> Any:
        """What goes into a container: a global as its value."""
        if type(value) is Global:
            return self.builder.value(value)
        if type(value) is tuple and any(type(item) is Global for item in value):
            return tuple(map(self.kept, value))
        return value

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def named(self, module: str, name: str) -> None:
        what = Global(module, name)
        if not self.builder.known(what):
            raise FormatError(
                f"The pickle names {what}, which is neither a tensor, a container nor a primitive; "
                "nothing of it was run",
                "If you trust the file, load it by torch.load(..., weights_only=False) and save "
                "its state dict",
            )
        self.push(what)

    def global_line(self) -> None:
        module = self.line()
        self.named(module, self.line())

    def global_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.named(_text(module), _text(name))

    def reduce(self) -> None:
        arguments, what = self.stack.pop(), self.stack.pop()
        if not isinstance(what, Global) or not isinstance(arguments, tuple):
            raise FormatError("The pickle calls something that is no known function", _AGAIN)
        self.copies -= sum(len(item) for item in arguments if type(item) in _SIZED)
        if self.copies < 0:
            raise FormatError("The pickle copies the same data again and again", _AGAIN)
        self.push(self.builder.call(what, arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        # A module's state dict carries versions of its parts in one attribute; nothing else does.
        if not (isinstance(target, OrderedDict) and isinstance(state, dict)):
            raise FormatError("The pickle sets the state of something that has none", _AGAIN)
        for key, value in state.items():
            if key != "_metadata":
                raise FormatError("The pickle sets an attribute of a dict", _AGAIN)
            target._metadata = self.kept(value)  # type: ignore[attr-defined]

    def append(self) -> None:
        value = self.stack.pop()
        _list(self.stack[-1]).append(self.kept(value))

    def appends(self) -> None:
        items = self.since_mark()
        _list(self.stack[-1]).extend(map(self.kept, items))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _dict(self.stack[-1])[hashable(key)] = self.kept(value)

    def set_items(self) -> None:
        items = self.since_mark()
        target = _dict(self.stack[-1])
        for key, value in _pairs(items):
            target[hashable(key)] = self.kept(value)

    def add_items(self) -> None:
        items = self.since_mark()
        if type(self.stack[-1]) is not set:
            raise TypeError("no set")
        self.stack[-1].update(map(hashable, items))

    def new_tuple(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) < count or any(item is _MARK for item in items):
            raise IndexError("a tuple of too few")
        del self.stack[-count:]
        self.push(items)

    def long(self, count: int) -> None:
        self.push(int.from_bytes(self.take(count), "little", signed=True))

    def put(self, at: int) -> None:
        if self.stack[-1] is _MARK:
            raise IndexError("a mark in the memo")
        self.memo[at] = self.stack[-1]

    def pop(self) -> None:
        self.stack.pop()


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _list(value: Any) -> list:
    if type(value) is not list:
        raise TypeError("no list")
    return value


def _dict(value: Any) -> dict:
    if type(value) not in (dict, OrderedDict):
        raise TypeError("no dict")
    return value


_PLAIN = (str, int, float, bool, bytes, type(None))


def hashable(value: Any) -> Any:
    """A key that is hashed in little time, whatever the file made of it."""
    if type(value) in _PLAIN:
        return value
    short = type(value) is tuple and len(value) <= _KEY_ITEMS_MAX
    if short and all(type(item) in _PLAIN for item in value):
        return value
    raise TypeError("a key that is no primitive")


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    if len(items) % 2:
        raise IndexError("a key without a value")
    return list(zip(items[::2], items[1::2], strict=True))


def _ignored(reader: _Reader, count: int) -> None:
    reader.take(count)


_OPERATIONS: dict[int, Callable[[_Reader], None]] = {
    ord(code): operation
    for code, operation in {
        "\x80": lambda r: _ignored(r, 1),  # PROTO
        "\x95": lambda r: _ignored(r, 8),  # FRAME
        "(": lambda r: r.push(_MARK),
        "0": _Reader.pop,
        "1": lambda r: r.since_mark() and None,
        "N": lambda r: r.push(None),
        "\x88": lambda r: r.push(True),
        "\x89": lambda r: r.push(False),
        "K": lambda r: r.push(r.number("<B")),
        "M": lambda r: r.push(r.number("<H")),
        "J": lambda r: r.push(r.number("<i")),
        "\x8a": lambda r: r.long(r.number("<B")),
        "\x8b": lambda r: r.long(r.number("<i")),
        "G": lambda r: r.push(r.number(">d")),
        "X": lambda r: r.push(r.take(r.number("<I")).decode("utf-8", "surrogatepass")),
        "\x8c": lambda r: r.push(r.take(r.number("<B")).decode("utf-8", "surrogatepass")),
        "\x8d": lambda r: r.push(r.take(r.number("<Q")).decode("utf-8", "surrogatepass")),
        "B": lambda r: r.push(r.take(r.number("<I"))),
        "C": lambda r: r.push(r.take(r.number("<B"))),
        "\x8e": lambda r: r.push(r.take(r.number("<Q"))),
        "\x96": lambda r: r.push(bytearray(r.take(r.number("<Q")))),
        "]": lambda r: r.push([]),
        "l": lambda r: r.push(r.since_mark()),
        "a": _Reader.append,
        "e": _Reader.appends,
        ")": lambda r: r.push(()),
        "t": lambda r: r.push(tuple(r.since_mark())),
        "\x85": lambda r: r.new_tuple(1),
        "\x86": lambda r: r.new_tuple(2),
        "\x87": lambda r: r.new_tuple(3),
        "}": lambda r: r.push({}),
        "d": lambda r: r.push({hashable(key): value for key, value in _pairs(r.since_mark())}),
        "s": _Reader.set_item,
        "u": _Reader.set_items,
        "\x8f": lambda r: r.push(set()),
        "\x90": _Reader.add_items,
        "\x91": lambda r: r.push(frozenset(map(hashable, r.since_mark()))),
        "q": lambda r: r.put(r.number("<B")),
        "r": lambda r: r.put(r.number("<I")),
        "\x94": lambda r: r.put(len(r.memo)),
        "h": lambda r: r.push(r.memo[r.number("<B")]),
        "j": lambda r: r.push(r.memo[r.number("<I")]),
        "c": _Reader.global_line,
        "\x93": _Reader.global_stack,
        "R": _Reader.reduce,
        "b": _Reader.build,
        "Q": lambda r: r.push(r.builder.persistent(r.stack.pop())),
    }.items()
}


class Writer:
    """Writes a pickle of protocol 2, which every torch reads.

    ``tensor`` is asked about each object first, and answers with instructions or ``None``.
    """

    def __init__(self, tensor: Callable[[Writer, Any], bool]) -> None:
        self.parts: list[bytes] = [b"\x80\x02"]
        self.tensor = tensor
        self.open: list[int] = []

    def finish(self) -> bytes:
        return b"".join([*self.parts, b"."])

    def raw(self, *parts: bytes) -> None:
        self.parts.extend(parts)

    def named(self, module: str, name: str) -> None:
        self.raw(f"c{module}\n{name}\n".encode())

    def text(self, value: str) -> None:
        data = value.encode("utf-8", "surrogatepass")
        self.raw(b"X", struct.pack("<I", len(data)), data)

    def number(self, value: int) -> None:
        if 0 <= value < 256:
            self.raw(b"K", bytes([value]))
        elif -(1 << 31) <= value < 1 << 31:
            self.raw(b"J", struct.pack("<i", value))
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            if len(data) < 256:
                self.raw(b"\x8a", bytes([len(data)]), data)
            else:
                self.raw(b"\x8b", struct.pack("<i", len(data)), data)

    def numbers(self, values: tuple[int, ...]) -> None:
        self.raw(b"(")
        for value in values:
            self.number(value)
        self.raw(b"t")

    def object(self, value: Any) -> None:
        """Writes a tensor, a container or a primitive."""
        kind = type(value)
        if value is None:
            self.raw(b"N")
        elif kind is bool:
            self.raw(b"\x88" if value else b"\x89")
        elif kind is int:
            self.number(value)
        elif kind is float:
            self.raw(b"G", struct.pack(">d", value))
        elif kind is str:
            self.text(value)
        elif kind is bytes:
            self.named("_codecs", "encode")
            self.raw(b"(")
            self.text(value.decode("latin1"))
            self.text("latin1")
            self.raw(b"tR")
        elif kind is bytearray:
            self.named("__builtin__", "bytearray")
            self.raw(b"(")
            self.text(value.decode("latin1"))
            self.text("latin1")
            self.raw(b"tR")
        elif kind is complex:
            self.named("__builtin__", "complex")
            self.raw(b"(G", struct.pack(">d", value.real), b"G", struct.pack(">d", value.imag))
            self.raw(b"tR")
        elif kind in _CONTAINERS:
            self.container(value)
        elif kind.__module__ == "torch" and kind.__name__ in _OF_TORCH:
            _OF_TORCH[kind.__name__](self, value)
        elif not self.tensor(self, value):
            raise FormatError(
                f"A {kind.__module__}.{kind.__qualname__} is neither a tensor, a container nor a "
                "primitive",
                "Save its state dict, or turn it into numbers, texts and containers",
            )

    def container(self, value: Any) -> None:
        if id(value) in self.open:
            raise FormatError("A container holds itself", "Save it without the cycle")
        if len(self.open) >= _DEPTH_MAX:
            raise FormatError(f"Containers more than {_DEPTH_MAX} deep", "Save them flatter")
        self.open.append(id(value))
        _CONTAINERS[type(value)](self, value)
        self.open.pop()

    def items(self, values: Any, end: bytes) -> None:
        self.raw(b"(")
        for value in values:
            self.object(value)
        self.raw(end)

    def mapping(self, value: dict) -> None:
        self.raw(b"}")
        self.pairs(value)

    def list_of(self, value: list) -> None:
        self.raw(b"]")
        self.items(value, b"e")

    def ordered(self, value: OrderedDict) -> None:
        self.named("collections", "OrderedDict")
        self.raw(b")R")
        self.pairs(value)
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            self.raw(b"}")
            self.pairs({"_metadata": metadata})
            self.raw(b"b")

    def pairs(self, value: dict) -> None:
        self.raw(b"(")
        for key, item in value.items():
            self.object(key)
            self.object(item)
        self.raw(b"u")

    def counter(self, value: Counter) -> None:
        self.named("collections", "Counter")
        self.raw(b"(}")
        self.pairs(value)
        self.raw(b"tR")

    def torch_size(self, value: Any) -> None:
        self.named("torch", "Size")
        self.raw(b"(")
        self.numbers(tuple(value))
        self.raw(b"tR")

    def torch_device(self, value: Any) -> None:
        self.named("torch", "device")
        self.raw(b"(")
        self.text(value.type)
        if value.index is not None:
            self.number(value.index)
        self.raw(b"tR")

    def torch_dtype(self, value: Any) -> None:
        self.named("torch", str(value).rpartition(".")[2])

    def set(self, value: Any) -> None:
        # Protocol 2 makes sets by a call, and finds them where Python 2 had them.
        self.named("__builtin__", type(value).__name__)
        self.raw(b"(]")
        self.items(value, b"e")
        self.raw(b"tR")


_CONTAINERS: dict[type, Callable[[Writer, Any], None]] = {
    dict: Writer.mapping,
    OrderedDict: Writer.ordered,
    Counter: Writer.counter,
    list: Writer.list_of,
    tuple: lambda w, value: w.items(value, b"t"),
    set: Writer.set,
    frozenset: Writer.set,
}

#: Values of torch that are no tensors, by the names of their types.
_OF_TORCH: dict[str, Callable[[Writer, Any], None]] = {
    "Size": Writer.torch_size,
    "device": Writer.torch_device,
    "dtype": Writer.torch_dtype,
}
