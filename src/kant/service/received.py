"""Decodes request bodies: JSON that matches the schema."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def received(text: bytes, kind: type[T]) -> T:
    """Decode an object of a type. A number such as 4.0 is an integer, as in JSON Schema. Raises msgspec.DecodeError."""
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
