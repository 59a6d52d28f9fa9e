"""The error message of a verb that needs an extra which is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kant.model.errors import missing_extra


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import dependencies of `extra` in this block. Raises InputError that names the extra if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "kant":
            raise
        raise missing_extra(extra) from None
