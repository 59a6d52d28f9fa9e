"""The errors: invalid input of users, and invalid events of drivers."""

from __future__ import annotations

from collections.abc import Sequence

DISTRIBUTION = "kant-scheduler"
"""The name of Kant for pip. The distribution `kant` of the public index is another project."""


class InputError(Exception):
    """Invalid input, described in one sentence.

    `where` names the file, line or field; `expected` says what is valid; `got` what was found.
    The command line prints the sentence and exits with 2.
    """

    def __init__(self, where: str, expected: str, got: object = None) -> None:
        self.where = where
        self.expected = expected
        self.got = got
        found = "" if got is None else f", got {shown(got)}"
        super().__init__(f"{where}: expected {expected}{found}")


class SentenceError(InputError):
    """Invalid input that a rule or another program has described in a sentence of its own: it is shown unchanged."""

    def __init__(self, sentence: str) -> None:
        super().__init__("", "")
        self.args = (sentence,)


def together(faults: Sequence[InputError], where: str = "") -> InputError:
    """Return one error with the sentences of all `faults`, in their order; the common `where` appears only once."""
    first, *others = faults
    rest = "".join(f"; {str(fault).removeprefix(f'{where}, ')}" for fault in others)
    return InputError(first.where, str(first).partition("expected ")[2] + rest) if rest else first


def install_command(extra: str) -> str:
    """Return the command that installs Kant with `extra`, for messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(extra: str) -> InputError:
    """Return the error of an installation without `extra`; it says how to install it."""
    return InputError("this installation", f"the extra `{extra}` ({install_command(extra)})")


class StateError(AssertionError):
    """An event that contradicts the state, or a violated invariant: a bug in a driver or in Kant."""


def shown(value: object, width: int = 60) -> str:
    """Return `value` for use in a sentence: on one line and at most `width` characters; 9.0 as 9."""
    text = repr(value).removesuffix(".0") if isinstance(value, float) else repr(value)
    return text if len(text) <= width else text[: width - 1] + "…"
