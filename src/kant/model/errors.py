"""What goes wrong because of what a person gave us."""

from __future__ import annotations


class InputError(Exception):
    """Input that cannot be used, said in one sentence.

    `where` names the file, line or field; `expected` says what would have been right; `got` what was there.
    The command line prints the sentence and exits with 2.
    """

    def __init__(self, where: str, expected: str, got: object = None) -> None:
        self.where = where
        self.expected = expected
        self.got = got
        found = "" if got is None else f", got {shown(got)}"
        super().__init__(f"{where}: expected {expected}{found}")


def shown(value: object, width: int = 60) -> str:
    """`value` as it may stand inside a sentence: on one line and never long."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 1] + "…"
