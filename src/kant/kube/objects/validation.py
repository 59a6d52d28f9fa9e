"""Limits of texts and numbers in objects. An error is an InputError about one object, and affects no other object."""

from __future__ import annotations

from kant.model.errors import InputError

MAX_TEXT = 256 << 10
"""Maximum characters of all annotations of an object: the API server's own limit (TotalAnnotationSizeLimitB)."""


MAX_NAME = 253
"""Maximum characters of a name in the API. Kant checks names in annotations, since the API does not limit these."""


def name_of(where: str, text: str) -> str:
    """Return the text if it can be a name. Raises InputError, naming `where`, if it is longer than MAX_NAME."""
    if len(text) > MAX_NAME:
        raise InputError(where, f"a name of at most {MAX_NAME} characters", text)
    return text


def whole(where: str, value: object, low: int = 0, high: int = (1 << 31) - 1) -> int:
    """Return a whole number from an int or its text, as in labels. Raises InputError if it is none or out of range."""
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and low <= int(text) <= high):
        raise InputError(where, f"a whole number from {low} to {high}", value)
    return int(text)
