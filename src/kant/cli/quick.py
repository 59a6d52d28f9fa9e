"""Fast parsing of plain command lines of `submit`, `jobs` and `why`.

`verbs` has the complete command line, with its help and its errors, but takes longer to load than these verbs run. This
module parses the commonly used options. Any other line, even an invalid one, is left to `verbs`, so the two never
disagree: a line is either parsed as in `verbs`, or not at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kant.model.job_request import OPTIONS

Kind = Callable[[str], Any]
NUMBER = re.compile("[0-9]{1,9}([.][0-9]{1,9})?")
WHOLE = re.compile("-?[0-9]{1,18}")


def _number(text: str) -> float | None:
    return float(text) if NUMBER.fullmatch(text) else None


def _whole(text: str) -> int | None:
    return int(text) if WHOLE.fullmatch(text) else None


FLAG, UNSET = (lambda _: True), (lambda _: False)
KINDS: dict[str, Kind] = {"number": _number, "whole": _whole, "flag": FLAG, "terminal": FLAG, "folder": Path}
"""Converters of the text after an option, by `Option.reads`; without a converter the text itself is the value."""
HERE: dict[str, tuple[str, Kind]] = {"--home": ("home", Path), "--json": ("json", FLAG)}


def _of_submit() -> dict[str, tuple[str, Kind]]:
    found = {
        flag: (name, KINDS.get(said.option.reads, str))
        for name, said in OPTIONS.items()
        for flag in said.flags
        if flag.startswith("--")
    }
    unset = {f"--no-{name}": (name, UNSET) for name, said in OPTIONS.items() if said.default is True}
    own: dict[str, tuple[str, Kind]] = {
        "--from": ("lines", Path), "--wait": ("wait", FLAG), "--test-only": ("test_only", FLAG),
    }  # fmt: skip
    return found | unset | own | HERE


KNOWN: dict[str, dict[str, tuple[str, Kind]]] = {
    "submit": _of_submit(),
    "jobs": {
        "--all": ("all", FLAG), "--queue": ("queue", str), "--state": ("state", str), "--user": ("user", str),
        "--limit": ("limit", _whole), "--before": ("before", _whole), **HERE,
    },
    "why": HERE,
}  # fmt: skip
"""The options of each verb: the parameter, and the converter of the following text, which returns None to leave the
line to `verbs`."""


def quick(arguments: list[str]) -> Callable[[], int] | None:
    """Return the action of a plain command line of these verbs; None for any other line."""
    if not arguments or arguments[0] not in KNOWN or os.environ.get("KANT_KUBE"):
        return None
    found = parsed(arguments)
    if found is None:
        return None
    words, options = found
    from kant.cli import everyday

    match arguments[0], words:
        case "submit", _ if words or "lines" in options:
            return lambda: everyday.submit_job(words, **options)
        case "jobs", ():
            return lambda: everyday.list_jobs(**options)
        case "why", (job,):
            return lambda: everyday.say_why(job, **options)
    return None


def parsed(arguments: list[str]) -> tuple[tuple[str, ...], dict[str, Any]] | None:
    """Return the words and the options, by parameter, of a plain line; None for another line."""
    known, found = KNOWN[arguments[0]], dict[str, Any]()
    at, end = 1, len(arguments)
    while at < end and arguments[at].startswith("-") and arguments[at] != "--":
        option, equals, text = arguments[at].partition("=")
        name, kind = known.get(option, ("", None))
        if kind is None or (equals and kind in (FLAG, UNSET)):
            return None
        if kind not in (FLAG, UNSET) and not equals:
            at += 1
            text = arguments[at] if at < end else ""
        value = kind(text)
        if value is None or (kind not in (FLAG, UNSET) and (not text or (text[0] == "-" and text != "-"))):
            return None
        if name in OPTIONS and OPTIONS[name].option.many:
            found[name] = (*found.get(name, ()), value)
        elif name in found:
            return None
        else:
            found[name] = value
        at += 1
    if arguments[at : at + 1] == ["--"]:
        return tuple(arguments[at + 1 :]), found
    return None if any(word.startswith("-") for word in arguments[at:]) else (tuple(arguments[at:]), found)
