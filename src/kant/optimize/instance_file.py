"""Instances of solvers as JSON files: an object of lists, with one line for each row of a list."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from kant.model.errors import InputError, shown
from kant.toml_file import read_text

T = TypeVar("T", bound=Struct)


def read_json(path: Path, kind: type[T]) -> T:
    """Read the instance of a file. Raises InputError that names the file, the field, and the expected value."""
    return parse_json(str(path), read_text(path), kind)


def parse_json(where: str, text: str, kind: type[T]) -> T:
    """Parse an instance. `where` names the text in errors, which are those of `read_json`."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        complaint, _, place = str(error).partition(" - at `$.")
        where = f"{where}, {place.rstrip('`')}" if place else where
        expected, _, got = complaint.removeprefix("Expected ").partition(", got ")
        if complaint.startswith("Object "):  # a field that is missing or unknown
            raise InputError(where, f"the fields of its format (o{complaint[1:]})") from None
        raise InputError(where, expected + (f", got {got}" if got else "")) from None
    except msgspec.DecodeError as error:
        raise InputError(where, f"JSON ({error})") from None


def check_names(names: Iterable[str], where: str) -> None:
    """Raise InputError at the first repeated name."""
    seen = set[str]()
    for name in names:
        if name in seen:
            raise InputError(where, f"different names ({shown(name)} occurs twice)")
        seen.add(name)


def instance_text(instance: Struct) -> str:
    """An instance with one line for each row of its lists, so that people can read and compare it."""
    parts = []
    for name, value in msgspec.structs.asdict(instance).items():
        text = msgspec.json.encode(value).decode()
        if isinstance(value, tuple) and value:
            text = "[\n    " + ",\n    ".join(msgspec.json.encode(row).decode() for row in value) + "\n  ]"
        parts.append(f'  "{name}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
