"""The pages of the documentation, and what a program can read in them.

An HTML comment on the line before a fenced block says what to do with it:

- `<!-- file: NAME -->`: the block is the file NAME in the folder in which the page's commands run;
- `<!-- output -->`: each line of the block occurs in what the commands before it printed (spaces aside);
- `<!-- fails: N -->`: the commands exit with N instead of 0;
- `<!-- not run: WHY -->`: the commands are not run;
- `<!-- needs: PROGRAM -->`: the commands, and the output that follows, are left out where there is no such program;
- `<!-- python -->`: the block is run in the page's session of Python, which prints the value of its last expression;
- `<!-- python: raises -->`: likewise, and it raises;
- `<!-- source: PATH -->`: the block is the file PATH of this repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "changes").glob("*.md")),
]

_BLOCK = re.compile(r"^(?:<!-- (?P<what>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, its text, and the comment before it as (word, rest)."""

    kind: str
    text: str
    what: str = ""
    rest: str = ""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        what, _, rest = (match["what"] or "").partition(":")
        yield Block(match["kind"], match["text"], what.strip(), rest.strip())


def links(page: Path) -> list[str]:
    """The targets of all links and pictures outside fenced blocks."""
    return _LINK.findall(_BLOCK.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def words_in_backticks(page: Path) -> set[str]:
    """Everything that a page sets in backticks outside fenced blocks."""
    return set(re.findall(r"`([^`\n]+)`", _BLOCK.sub("", page.read_text(encoding="utf-8"))))


def squeezed(text: str) -> str:
    """`text` with runs of spaces made one."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())
