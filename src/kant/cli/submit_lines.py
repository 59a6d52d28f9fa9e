"""`kant submit --from`: one submission per line of a file or of standard input, all of them or none.

A line has the words that follow `kant submit` on the command line: options, and a command. Options on the command line
itself apply to every line that does not override them. Empty lines and comments (`#`) are skipped.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kant.cli.everyday import wanted
from kant.cli.output import Reply
from kant.cli.place import Wanted
from kant.cli.places import place_of
from kant.cli.quick import parsed
from kant.cli.scripts import command_at, expanded
from kant.model.errors import InputError, SentenceError
from kant.model.job_request import OPTIONS

if TYPE_CHECKING:
    from kant.cli.kube_options import KubeSubmission

MOST = 10_000
ONCE = ("wait", "test_only", "json", "home", "graph", "lines", "there")
"""Options that apply to all lines together."""


def submit_lines(
    path: Path, command: tuple[str, ...], graph: Path | None, options: dict[str, Any], wait: bool, home: Path | None,
    json: bool, there: KubeSubmission | None,
) -> int:  # fmt: skip
    """Queue the jobs of the lines and print the id of each; return the exit code."""
    if command or graph is not None:
        raise InputError("--from", "no command and no --graph with it", command[0] if command else str(graph))
    source = "standard input" if str(path) == "-" else str(path)
    lines = [(number, _of_line(f"{source}, line {number}", text, options)) for number, text in _lines(path, source)]
    if not 1 <= len(lines) <= MOST:
        raise InputError(source, f"from 1 to {MOST:,} lines with a submission", len(lines))
    try:
        jobs = place_of(home, there).submit_batch(lines).jobs
    except InputError as error:
        raise SentenceError(f"{source}, {error}" if str(error).startswith("line ") else str(error)) from None
    whole = list(dict.fromkeys(job.partition("_")[0] for job in jobs))
    Reply({"jobs": jobs}, lambda: print("\n".join(whole))).print(json)
    if wait:
        from kant.cli.wait import wait_for

        return wait_for(home, there, tuple(whole))
    return 0


def _lines(path: Path, source: str) -> list[tuple[int, str]]:
    """Return the lines that are neither empty nor comments, with their numbers."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(source, f"text in UTF-8 ({error})") from None
    lines = enumerate(text.splitlines(), start=1)
    return [(number, line) for number, line in lines if line.strip() and not line.lstrip().startswith("#")]


def _of_line(place: str, text: str, base: dict[str, Any]) -> Wanted:
    """Parse the request of a line. Raises InputError that names the line."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InputError(place, f"words in shell syntax ({error})", text) from None
    if command_at(["submit", *words]) is None:
        raise InputError(place, "options and a command, such as --gpus 1 -- python train.py", text)
    arguments = expanded(["submit", *words])
    read = parsed(arguments) or _by_verbs(arguments, place)
    command, own = read
    for name in ONCE:
        if own.get(name):
            option = {"lines": "--from", "there": "--kube"}.get(name, f"--{name}")
            raise InputError(place, "the options of one job; options for all lines belong on the command line", option)
    own = {name: value for name, value in own.items() if name not in ONCE}
    together = {name: (*base.get(name, ()), *own[name]) for name in own if OPTIONS[name].option.many}
    try:
        return wanted(command, **base | own | together)
    except InputError as error:
        raise InputError(f"{place}, {error.where}", error.expected, error.got) from None


def _by_verbs(arguments: list[str], place: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Parse a line that `quick` does not handle, with the command line library."""
    from cyclopts import CycloptsError

    from kant.cli.verbs import app_of

    try:
        _, bound, _ = app_of("submit").parse_args(arguments, exit_on_error=False, print_error=False)
    except (CycloptsError, InputError) as error:
        raise InputError(place, f"arguments of `kant submit` ({' '.join(str(error).split())})") from None
    own = dict(bound.arguments)
    return own.pop("command", ()), own
