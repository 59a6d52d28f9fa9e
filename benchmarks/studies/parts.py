"""A page of results that several studies write: each its part, below a comment with the study's name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def part_of(text: str, study: str) -> str:
    """The part of a page that this study wrote; the whole page where its studies are not named."""
    parts = re.split(r"^<!-- study: (\w+) -->\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(study, text)


def write_part(page: Path, study: str, lines: Iterable[str]) -> str:
    """Write a study's lines, which begin with its title, in place of its part of a page; the others stay.

    Returns the lines as one text.
    """
    text = "\n".join(lines)
    before, mark = page.read_text(encoding="utf-8"), f"<!-- study: {study} -->\n"
    head, found, rest = before.partition(mark)
    if not found:
        raise LookupError(f"{page} has no line {mark.strip()}")
    others = rest[len(part_of(before, study)) :]
    page.write_text(f"{head}{mark}\n{_lower(text.strip())}\n\n{others}".rstrip() + "\n", encoding="utf-8")
    return text


def _lower(text: str) -> str:
    """The text with its headings a level lower; what stands in fenced blocks is not touched."""
    pieces = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    pieces[::2] = [re.sub(r"^#", "##", piece, flags=re.MULTILINE) for piece in pieces[::2]]
    return "".join(pieces)
