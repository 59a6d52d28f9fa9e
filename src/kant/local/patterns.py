"""File name patterns for a job's output, as in Slurm's `--output`: `out/%x-%j.log`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kant.model.errors import InputError

MEANT = "%A (array), %a (index), %j (job), %N (host), %u (user), %x (name) and %%; all but %% may have a width, as %4j"
PART = re.compile(r"%(\d{0,2})(.?)")
NAMES = frozenset("AajNux")


def check_pattern(text: str, where: str, array: bool) -> None:
    """Raise InputError for a pattern that Kant does not support, such as Slurm's `%t` of tasks."""
    if "\0" in text:
        raise InputError(where, "a text without a zero byte", text)
    for width, letter in PART.findall(text):
        if (letter not in NAMES and letter != "%") or (letter == "%" and width):
            raise InputError(where, MEANT, f"%{width}{letter}")
        if letter == "a" and not array:
            raise InputError(where, "%a only in a job array", f"%{width}a")


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return the pattern with its letters replaced. No value adds a folder; a width pads whole numbers with zeros."""

    def value(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter == "%":
            return "%"
        text = values[letter].replace("/", "_")
        return text.zfill(int(width or 0)) if text.isdigit() else text

    return PART.sub(value, text)
