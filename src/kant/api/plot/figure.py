"""`Figure`: a picture that a notebook shows, and that can be saved as SVG, PDF or PNG."""

from __future__ import annotations

import io
import re
from os import PathLike
from pathlib import Path
from typing import Any

from kant.api.plot.style import look
from kant.files import write_bytes
from kant.model.errors import InputError

UNSIGNED: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}
"""By format, the metadata left out of a file so that equal pictures are equal bytes."""


class Figure:
    """A picture of one or several results. `inner` is the matplotlib figure, for further changes."""

    def __init__(self, inner: Any, about: str) -> None:
        self.inner = inner
        self.about = about
        """What it shows, in a sentence: the alternative text."""

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the picture; the suffix selects the format: .svg, .pdf or .png. The same results give the same bytes.

        Raises InputError for another suffix, and for a file that cannot be written.
        """
        where = Path(path)
        if where.suffix[1:] not in UNSIGNED:
            raise InputError(str(path), f"a name that ends in {', '.join(f'.{name}' for name in UNSIGNED)}")
        try:
            write_bytes(where, self._bytes(where.suffix[1:]))
        except OSError as error:
            raise InputError(str(path), "a file that can be written", error.strerror) from None
        return where

    def svg(self) -> str:
        """Return the picture as SVG text."""
        return self._bytes("svg").decode()

    def _bytes(self, form: str) -> bytes:
        out = io.BytesIO()
        with look():
            self.inner.savefig(
                out, format=form, bbox_inches="tight", pad_inches=0.04, metadata=UNSIGNED[form] | {"Title": self.about}
            )
        return out.getvalue() if form != "svg" else _shortened(out.getvalue())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows."""
        return {"image/svg+xml": self.svg(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Figure({self.about})"


def _shortened(svg: bytes) -> bytes:
    """Return the same picture with paths rounded to a hundredth of a point: half the bytes, no visible change."""
    return re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"(\.\d\d)\d+", rb"\1", path[0]), svg)
