"""Reads the plain command lines of `submit`, `jobs` and `why` in no time.

`verbs` has the whole language of the command line, with its help and its errors, and takes longer to load than these
verbs to run. What stands here is the part that people and scripts use all day. Any other line, wrong ones too, is left
to `verbs`, so the two never disagree: a line is either read as `verbs` reads it, or not at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Kind = Callable[[str], Any]
NUMBER = re.compile("[0-9]{1,9}([.][0-9]{1,9})?")
WHOLE = re.compile("-?[0-9]{1,18}")


def _number(text: str) -> float | None:
    return float(text) if NUMBER.fullmatch(text) else None


def _whole(text: str) -> int | None:
    return int(text) if WHOLE.fullmatch(text) else None


FLAG, UNSET = (lambda _: True), (lambda _: False)
NAMES = {"--no-preemptible": "preemptible", "--after-any": "after", "--from": "lines"}
"""Parameters that are not named as their options."""
MANY = ("--after", "--after-any", "--after-ok", "--after-not-ok", "--env", "--webhook", "--on-event")
"""Options that may be repeated."""
HERE: dict[str, Kind] = {"--home": Path, "--json": FLAG}
OPTIONS: dict[str, dict[str, Kind]] = {
    "submit": {
        "--gpus": _number, "--cpus": _number, "--memory": str, "--time": str, "--name": str, "--queue": str,
        "--priority": _whole, "--array": str, "--begin": str, "--retries": _whole, "--warn": str, "--grace": str,
        "--reservation": str, "--training": str, "--output": str, "--error": str, "--events": str,
        "--from": Path, "--workdir": Path, "--singleton": FLAG, "--hold": FLAG, "--preemptible": FLAG,
        "--no-preemptible": UNSET, "--wait": FLAG, "--terminal": FLAG, "--slurm": FLAG,
        **dict.fromkeys(MANY, str), **HERE,
    },
    "jobs": {
        "--all": FLAG, "--queue": str, "--state": str, "--user": str, "--limit": _whole, "--before": _whole, **HERE,
    },
    "why": HERE,
}  # fmt: skip
"""The options of each verb, and what makes a value of the text that follows them; None where `verbs` shall."""


def quick(arguments: list[str]) -> Callable[[], int] | None:
    """What a plain line of one of these verbs does; None for any other line."""
    if not arguments or arguments[0] not in OPTIONS or os.environ.get("KANT_KUBE"):
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
    """The words and the options of a plain line, options as the parameters of the verb; None for another line."""
    known, found = OPTIONS[arguments[0]], dict[str, Any]()
    at, end = 1, len(arguments)
    while at < end and arguments[at].startswith("-") and arguments[at] != "--":
        option, equals, text = arguments[at].partition("=")
        kind = known.get(option)
        if kind is None or (equals and kind in (FLAG, UNSET)):
            return None
        if kind not in (FLAG, UNSET) and not equals:
            at += 1
            text = arguments[at] if at < end else ""
        value = kind(text)
        name = NAMES.get(option) or option[2:].replace("-", "_")
        if value is None or (kind not in (FLAG, UNSET) and (not text or (text[0] == "-" and text != "-"))):
            return None
        if option in MANY:
            found[name] = (*found.get(name, ()), value)
        elif name in found:
            return None
        else:
            found[name] = value
        at += 1
    if arguments[at : at + 1] == ["--"]:
        return tuple(arguments[at + 1 :]), found
    return None if any(word.startswith("-") for word in arguments[at:]) else (tuple(arguments[at:]), found)
