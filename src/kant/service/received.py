"""Decodes request bodies: JSON that matches the schema."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

BOUND = re.compile(r"Expected `(int|float|str)`( of length)? (>=|>|<=|<) (\S+) - at `\$\.(\w+)`")
"""Matches msgspec's message that the value of a field is too small or too large."""

KINDS = {"int": "a whole number", "float": "a number", "str": "text"}
SIGNS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}


def received(text: bytes, kind: type[T]) -> T:
    """Decode JSON to a type. A number such as 4.0 is an integer, as in JSON Schema. Raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        try:
            return msgspec.convert(_whole(msgspec.json.decode(text)), kind)
        except RecursionError:
            raise error from None


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def refusal(error: msgspec.ValidationError) -> str:
    """Return the sentence for a body that does not match the schema."""
    found = BOUND.fullmatch(str(error))
    if found is None:
        return f"the request: expected a valid body ({error})"
    kind, length, sign, bound, field = found.groups()
    return f"{field}: expected {KINDS[kind]} {SIGNS[sign]} {float(bound):,.10g}{' characters' if length else ''}"
