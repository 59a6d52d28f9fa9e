"""Reads TOML files that people write, and reports errors in one form: the position, and what was expected.

A position names the file, the tables with their numbers, and the field, as in `queues.toml, [[queue]] 2, weight`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from kant.model.errors import InputError

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T", bound=Struct)
LONGEST = 253  # the most characters of a free key
BOUNDLESS = 1e15  # an upper bound from this value on only keeps a number finite: no error message names it
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?(MiB|GiB|TiB)")
NOTHING: Mapping[str, str] = {}
WORDS: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    datetime: "a date and time",
}


def read_toml(path: Path, kind: type[T], expected: Mapping[str, str] = NOTHING) -> T:
    """Return the file at `path` as a `kind`. Raises InputError if the file cannot be read, or as `parse_toml` does."""
    return parse_toml(str(path), read_text(path), kind, expected)


def read_text(path: Path) -> str:
    """The text of a file. Raises InputError if it cannot be read, or is not in UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), f"a file that can be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"text in UTF-8 ({error.reason})") from None


def parse_toml(where: str, text: str, kind: type[T], expected: Mapping[str, str] = NOTHING) -> T:
    """Parse the TOML `text` as a `kind`. `where` is the path that error messages name.

    `expected` describes the valid values of fields whose type does not say it well, by the field's name; for the values
    of a table with free keys, by `NAME.*`. Raises InputError.
    """
    tree = parse_tree(where, text)
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise _refusal(where, tree, kind, expected, str(error)) from None


def parse_tree(where: str, text: str) -> dict[str, Any]:
    """The TOML `text` as dicts and lists. Raises InputError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(where, f"TOML ({error or 'nested too deeply'})") from None


def _refusal(where: str, tree: Any, kind: type[Struct], expected: Mapping[str, str], complaint: str) -> InputError:
    """Translate msgspec's `complaint` about `tree` into Kant's InputError; `expected` says which values are valid."""
    message, _, steps = complaint.partition(" - at `$")
    value, within, place, table = tree, Annotated[kind, ""], where, where
    path: list[str] = []  # the names of the arrays of tables passed so far
    field = ""
    for key, number in re.findall(r"\.(\w+)|\[([0-9]+|\.\.\.)\]", steps):
        if key:
            table, field = place, key
            place, value, within = f"{place}, {key}", value[key], _field(within, key)
        elif number == "...":  # a value under a free key; msgspec does not say which
            within = _inner(within)
            key = next(key for key, each in value.items() if not _converts(each, within))
            if not (key.isprintable() and 0 < len(key) <= LONGEST):
                return InputError(place, f"text of 1 to {LONGEST} printable characters", key)
            place, field, value = f"{place}, {key}", f"{field}.*", value[key]
        else:
            within, value = _inner(within), value[int(number)]
            if _struct(within) is not None:
                path.append(field)
                place = f"{table}, [[{'.'.join(path)}]] {int(number) + 1}"
                field = ""
            else:
                place = f"{place} {int(number) + 1}"
    known = getattr(_struct(within), "__struct_fields__", ())
    if message.startswith("Object contains unknown field"):
        return InputError(place, f"only the keys {', '.join(known)}", next(key for key in value if key not in known))
    if message.startswith("Object missing required field"):
        missing = message.split("`")[1]
        what = expected.get(missing) or _in_words(_field(within, missing), missing)
        return InputError(place, f"the key {missing}, {what}")
    return InputError(place, expected.get(field) or _in_words(within, ".".join([*path, field])), value)


def _in_words(kind: Any, name: str) -> str:
    """Describe the values of a type, for fields without a description of their own."""
    inner = _inner(kind)
    if inner is not Any and get_origin(kind) is not dict:
        return f"[[{name}]] tables" if _struct(inner) is not None else f"a list, each {_in_words(inner, name)}"
    words = []
    for member in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        for each in _alternatives(member):
            if get_origin(each) is Literal or (isinstance(each, type) and issubclass(each, Enum)):
                choices = get_args(each) or [choice.value for choice in each]
                words.append(f"one of {', '.join(map(str, choices))}")
            elif each is not type(None):
                words.append(WORDS.get(each, "a table") + _bounds(member))
    return " or ".join(dict.fromkeys(words))


def _bounds(kind: Any) -> str:
    """Which numbers a type takes, by its `msgspec.Meta`, as " from 1 to 8" or " above 0"; "" for all of them."""
    words = ""
    for each in get_args(kind)[1:]:
        if isinstance(each, msgspec.Meta):
            words += f" above {each.gt:,}" if each.gt is not None else ""
            words += f" from {each.ge:,}" if each.ge is not None else ""
            words += f" to {each.le:,}" if each.le is not None and each.le < BOUNDLESS else ""
    return words


def _converts(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _field(kind: Any, name: str) -> Any:
    """The type of a field of a Struct, or of the values of a table of free keys."""
    struct = _struct(kind)
    return _inner(kind) if struct is None else next(each.type for each in fields(struct) if each.name == name)


def _inner(kind: Any) -> Any:
    """The type of the elements of a list, or of the values of a table."""
    for each in _alternatives(kind):
        if get_origin(each) in (list, tuple, dict):
            return get_args(each)[1 if get_origin(each) is dict else 0]
    return Any


def _struct(kind: Any) -> type[Struct] | None:
    return next((each for each in _alternatives(kind) if isinstance(each, type) and issubclass(each, Struct)), None)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, without their annotations; of another type, the type itself."""
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(each for member in get_args(kind) for each in _alternatives(member))
    return (kind,)


def mebibytes_of(text: str) -> Fraction | None:
    """Return the MiB in text such as `512GiB` or `1.5 TiB`; None for any other text."""
    from fractions import Fraction  # takes longer to load than most commands to run

    part = _SIZE.fullmatch(text)
    return Fraction(part[1]) * {"MiB": 1, "GiB": 1 << 10, "TiB": 1 << 20}[part[2]] if part is not None else None
