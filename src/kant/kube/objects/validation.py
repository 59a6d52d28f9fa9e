"""What texts and numbers of objects may be; what is wrong is an InputError about one object, and harms no other."""

from __future__ import annotations

from kant.model.errors import InputError

MAX_TEXT = 256 << 10
"""Characters of all annotations of an object: the API server's own limit (TotalAnnotationSizeLimitB)."""


MAX_NAME = 253
"""Characters of a name in the API; labels have at most 63, but an annotation may have anything."""


def name_of(where: str, text: str) -> str:
    """The text, if it may be the name of something. Raises InputError for a longer one."""
    if len(text) > MAX_NAME:
        raise InputError(where, f"a name of at most {MAX_NAME} characters", text)
    return text


def whole(where: str, value: object, low: int = 0, high: int = (1 << 31) - 1) -> int:
    """A whole number, also where it stands in text as labels do. Raises InputError for anything else."""
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and low <= int(text) <= high):
        raise InputError(where, f"a whole number from {low} to {high}", value)
    return int(text)
