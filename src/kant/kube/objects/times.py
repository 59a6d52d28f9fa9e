"""Times of the API, such as 2026-01-31T12:00:00Z, also as microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime

from kant.model.errors import InputError
from kant.model.units import SECOND

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def now_text() -> str:
    """Return the present time in the form of the API, such as 2026-01-31T12:00:00Z."""
    return micro_now()[:19] + "Z"


def micro_now() -> str:
    """Return the present time as a MicroTime of the API, which has microseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def microseconds(text: str, where: str) -> int:
    """Return the time in microseconds since 1970. Raises InputError for anything but a time with a time zone."""
    try:
        passed = datetime.fromisoformat(text) - _BEGINNING
    except (ValueError, TypeError, OverflowError):
        raise InputError(where, "a time such as 2026-01-31T12:00:00Z", text) from None
    return (passed.days * 86_400 + passed.seconds) * SECOND + passed.microseconds
