"""What can go wrong: with what a person gave us, and with what a driver told the core."""

from __future__ import annotations

DISTRIBUTION = "kant-scheduler"
"""What pip calls Kant. The distribution `kant` of the public index is another project."""


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


def install_command(extra: str) -> str:
    """The command that installs Kant with `extra`, as sentences quote it."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(extra: str) -> InputError:
    """The error of an installation without `extra`; its sentence says how to install it."""
    return InputError("this installation", f"the extra `{extra}` ({install_command(extra)})")


class StateError(AssertionError):
    """An event that contradicts the state, or an invariant that does not hold: a fault in a driver or in Kant."""


def shown(value: object, width: int = 60) -> str:
    """`value` as it may stand inside a sentence: on one line and never long."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 1] + "…"
