"""The output of a verb: an object for `--json`, or text for the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

EVERY = 2.0  # seconds between two answers of `watched`
CLEAR = "\x1b[H\x1b[2J"


def printable(text: str) -> str:
    """Escape characters of an external text that could move the cursor of the terminal or change its colours."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() or ch in "\n\t" else ascii(ch)[1:-1] for ch in text)


class Printable(Protocol):
    """An answer from any source, which can be printed."""

    def print(self, json: bool) -> int:
        """Print the answer as JSON or for the terminal; return the exit code."""
        ...


class Reply(NamedTuple):
    """An answer: the object that `--json` prints, and the function that prints it for the terminal."""

    json: Any
    show: Callable[[], object]

    def print(self, json: bool) -> int:
        """Print the answer as JSON or for the terminal; return the exit code."""
        print_json(self.json) if json else self.show()
        return 0


def start_of_last(text: bytes, lines: int) -> int:
    """Return the offset, in bytes, of the last `lines` lines of a text; 0 if it has no more lines than that. A final
    line feed begins no new line.
    """
    at = len(text)
    if lines and text.endswith(b"\n"):
        at -= 1
    for _ in range(lines):
        at = text.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1 if lines else at


def watched(ask: Callable[[], Printable], again: bool, json: bool) -> int:
    """Print an answer; with `again`, a new one every two seconds until Ctrl-C, each time on a cleared terminal."""
    import sys
    import time

    if not again:
        return ask().print(json)
    try:
        while True:
            answer = ask()
            if sys.stdout.isatty() and not json:
                sys.stdout.write(CLEAR)
            answer.print(json)
            sys.stdout.flush()
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return 0


def print_json(value: object) -> None:
    """Print one JSON object on standard output, always in UTF-8."""
    import sys
    from contextlib import suppress
    from io import TextIOWrapper

    import msgspec

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    with suppress(BrokenPipeError):  # the reader has closed the pipe
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
