"""Names of files, and numbers, as users hand them over."""

from __future__ import annotations

import operator
import os
from typing import Any

from ._errors import MisuseError, UnsupportedError


def path(file: Any) -> str:
    """The name of a file as text."""
    try:
        name = os.fsdecode(file)
        os.fsencode(name)
    except TypeError:
        raise UnsupportedError(
            f"A {type(file).__name__} is no path", "Name a file by a str, bytes or pathlib.Path"
        ) from None
    except UnicodeError as error:
        raise MisuseError(
            f"The path {file!r} cannot be a file's name: {error}", "Check the path"
        ) from None
    if "\0" in name:
        raise MisuseError(f"The path {name!r} has a null character", "Check the path")
    return name


def is_path(value: Any) -> bool:
    """Whether it names one file."""
    return isinstance(value, (str, bytes, os.PathLike))


def whole(value: Any, what: str) -> int:
    """A whole number; of NumPy's too, but no truth value and no fraction."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UnsupportedError(
            f"{what} is {value!r}, which is no whole number", "Hand over an int"
        ) from None
