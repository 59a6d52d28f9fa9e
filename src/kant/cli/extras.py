"""What a verb says where the extra that it needs is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kant.model.errors import missing_extra


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Importing what comes with `extra` of the package. Raises InputError that names it where something is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "kant":
            raise
        raise missing_extra(extra) from None
