"""Lines and tables for the terminal, with only the standard library, for frequently used verbs.

They look like those of `show`, which uses rich. Loading rich takes longer than such a verb runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from kant.cli.output import printable

STYLES = {"bold": "1", "dim": "2", "cyan": "36"}
BETWEEN = "  "
"""The separator of two columns."""


def say(text: str, style: str = "") -> None:
    """Print one line of any length; `style` is one of STYLES, used only on a terminal."""
    sys.stdout.write(_styled(_on_one_line(text), style) + "\n")


def section(title: str, lines: Sequence[str]) -> None:
    """Print a title and its indented lines; print nothing if there are no lines."""
    if lines:
        say(title, "cyan")
        for line in lines:
            say(f"  {line}")


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), whole: Sequence[str] = ()
) -> None:
    """Print rows below the names of their columns; columns named in `right` are right-aligned.

    Nothing is truncated: a long cell continues on the next line. Columns named in `whole` are never broken, so that
    their cells can be copied.
    """
    cells = [[_on_one_line(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(cells_of, column)) for column in zip(*cells, strict=True)]
    widths = fitted(widths, _room(len(columns)), [name in whole for name in columns])
    for number, row in enumerate(cells):
        parts = [list(folded(cell, width)) for cell, width in zip(row, widths, strict=True)]
        for at in range(max(map(len, parts))):
            line = [
                _aligned(part[at] if at < len(part) else "", width, name in right)
                for part, width, name in zip(parts, widths, columns, strict=True)
            ]
            sys.stdout.write(_styled(BETWEEN.join(line).rstrip(), "" if number else "bold") + "\n")


def local_time(micros: int) -> str:
    """Return a time in microseconds since the Unix epoch, in local time; "" for a negative one."""
    from datetime import datetime  # loading it takes longer than printing most lists

    return datetime.fromtimestamp(micros / 1e6).isoformat(" ", "seconds") if micros >= 0 else ""


def ranges(numbers: Iterable[int], between: str = ",") -> str:
    """Return whole numbers in order as ranges, such as 0-2,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return between.join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _on_one_line(text: str) -> str:
    """Escape line feeds and tabs of an external text, so that it cannot imitate lines of Kant."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def fitted(widths: list[int], room: int, whole: Sequence[bool]) -> list[int]:
    """Fit column widths to a line: the widest shrinks first, down to 1. Columns marked in `whole` keep their width."""
    widths = list(widths)
    gives = [at for at, keeps in enumerate(whole) if not keeps]
    while sum(widths) > room and (widest := max(gives, key=widths.__getitem__, default=-1)) >= 0 < widths[widest] - 1:
        widths[widest] -= 1
    return widths


def folded(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text in a column: broken between words, or within words that are too long."""
    for line in text.split("\n"):
        rest = line.expandtabs()
        while cells_of(rest) > width:
            end = _longest(rest, width)
            space = rest.rfind(" ", 0, end + 1)
            if space > 0 and rest[:space].strip():
                yield rest[:space].rstrip()
                rest = rest[space + 1 :]
            else:
                yield rest[:end]
                rest = rest[end:]
        yield rest


def cells_of(text: str) -> int:
    """Return the terminal columns of a text: two for each wide East Asian character."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(ch) else 2 if east_asian_width(ch) in "WF" else 1 for ch in text)


def _longest(text: str, width: int) -> int:
    """Return how many characters of a text fit in a column; at least one."""
    end = min(len(text), width)
    while end > 1 and cells_of(text[:end]) > width:
        end -= 1
    return max(end, 1)


def _aligned(text: str, width: int, right: bool) -> str:
    pad = " " * (width - cells_of(text))
    return pad + text if right else text + pad


def _room(columns: int) -> int:
    """Return the width of a line for its columns; unlimited if neither a terminal nor COLUMNS gives one."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        wide = int(given)
    elif sys.stdout.isatty():
        wide = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    else:
        return 1 << 30
    return max(wide - len(BETWEEN) * (columns - 1), columns)


def _styled(text: str, style: str) -> str:
    if not style or not text or not (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        return text
    if os.environ.get("TERM") in ("dumb", "unknown") or (style == "cyan" and os.environ.get("NO_COLOR")):
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"
