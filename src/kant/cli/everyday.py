"""Implements `kant submit`, `jobs` and `why`, independent of option parsing.

These verbs are called often and by scripts, so they load only the parts of the standard library that they need, and
nothing of the scheduler core (tests/cli/test_thin.py lists what is loaded).
"""

from __future__ import annotations

import sys
from math import isfinite
from typing import TYPE_CHECKING, Any

from kant.cli.amounts import mebibytes, moment, most_at_once, pair, parse_array
from kant.cli.output import Reply, printable, watched
from kant.cli.place import EXPORT, LIVE, Filter, Wanted
from kant.cli.places import place_of, questions_of
from kant.model.errors import InputError
from kant.model.job_request import OPTIONS
from kant.model.units import SECOND, parse_limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kant.cli.kube_options import Kube, KubeSubmission

REJECTED = 1


def submit_job(
    command: tuple[str, ...],
    *,
    home: Path | None = None,
    json: bool = False,
    wait: bool = False,
    test_only: bool = False,
    graph: Path | None = None,
    lines: Path | None = None,
    there: KubeSubmission | None = None,
    **options: Any,
) -> int:
    """Queue a command; `options` are the job options that `wanted` reads."""
    if test_only and (graph is not None or lines is not None or wait):
        other = "--wait" if wait else "--graph" if graph is not None else "--from"
        raise InputError("--test-only", "a single job that is only tested, not submitted", other)
    if there is not None and not there:
        _refuse_options_of_kubernetes(there)
    if lines is not None:
        from kant.cli.submit_lines import submit_lines

        return submit_lines(lines, command, graph, options, wait, home, json, there)
    asked = wanted(command, **options)
    if graph is not None:
        from kant.cli.submit_graph import submit_graph

        return submit_graph(graph, asked, wait, home, json, there)
    if test_only:
        return place_of(home, there).trial(asked).print(json)
    done = place_of(home, there).submit(asked)
    jobs, rejected = done.jobs, {"rejected": done.rejected} if done.rejected else {}
    whole = jobs[0].partition("_")[0] if "array" in asked else jobs[0]
    Reply({"jobs": jobs} | rejected, lambda: print(whole)).print(json)
    if rejected:
        print(f"kant: job {jobs[0]} is rejected: {printable(done.rejected)}", file=sys.stderr)
        return REJECTED
    if wait:
        from kant.cli.wait import wait_for

        return wait_for(home, there, (whole,))
    return 0


def _refuse_options_of_kubernetes(there: KubeSubmission) -> None:
    """Raise InputError if an option for Kubernetes is given: on this machine it would be ignored."""
    from dataclasses import fields

    from kant.cli.kube_options import Kube

    for option in fields(there)[len(fields(Kube)) :]:
        value = getattr(there, option.name)
        if value != option.default:
            raise InputError(f"--{option.name.replace('_', '-')}", "--kube as well", value)


def wanted(command: tuple[str, ...], **options: Any) -> Wanted:
    """Return the request for these options of `kant submit`, given by parameter name. Raises InputError."""
    if command and command[0].startswith("-"):
        raise _unknown(command[0].partition("=")[0])
    found: Wanted = {"command": command}
    for name, value in options.items():
        field, option, flags, default = OPTIONS[name]
        if value != default and option.reads:
            read = READERS.get(option.reads)
            found[field] = read(value, flags[0]) if read is not None else value
            if isinstance(value, float) and not isfinite(value):
                raise InputError(flags[0], "a number", value)
    if options.get("export") is not None:
        found[EXPORT] = options["export"]
    if "array" in found:
        found["array_most"] = most_at_once(options["array"])
    if notices := _notices(options.get("webhook", ()), options.get("on_event", ()), options.get("events")):
        found["notices"] = notices
    return found


def _unknown(option: str) -> InputError:
    """Return the error for a word before the command that looks like an option; it suggests the closest option."""
    from difflib import get_close_matches  # loaded on demand

    near = get_close_matches(option, [flag for said in OPTIONS.values() for flag in said.flags], 1)
    such = f", such as {near[0]}," if near else ""
    return InputError(option, f"an option of `kant submit`{such} or a program after --")


def _notices(webhooks: tuple[str, ...], commands: tuple[str, ...], events: str | None) -> list[dict[str, Any]]:
    """Return the notices of the job, each in the form of `Notice` in `model/submission.py`."""
    if events is not None and not (webhooks or commands):
        raise InputError("--events", "--webhook or --on-event as well", events)
    on = {"on": tuple(part for part in events.split(",") if part)} if events is not None else {}
    notices: list[dict[str, Any]] = [{"webhook": each} for each in webhooks]
    return [each | on for each in [*notices, *({"command": ("sh", "-c", each)} for each in commands)]]


def _terminal(wanted: bool, _: str) -> dict[str, int | bool]:
    """Return a terminal for a job, with the size of the current terminal."""
    from kant.cli.terminal import window

    return {"pty": True, **window()}


def _words_of(training: str, option: str) -> str:
    """Return the description of a training run, from a file or from the option itself. Raises InputError."""
    from pathlib import Path

    from kant.workload.training_text import parse_training, read_training, training_text

    if not training:
        return ""
    if training.endswith(".toml") or Path(training).is_file():
        return training_text(read_training(Path(training)))
    return training_text(parse_training(option, training))


def _contract(file: str | None, option: str) -> dict[str, Any] | None:
    """Read the contract of an elastic job from a TOML file. Raises InputError that names the field."""
    if file is None:
        return None
    from pathlib import Path

    from msgspec import to_builtins

    from kant.model.elastic import Contract
    from kant.toml_file import read_toml

    found: dict[str, Any] = to_builtins(read_toml(Path(file), Contract))
    return found


def _time_of(begin: str, option: str) -> float:
    from datetime import datetime

    return moment(begin, datetime.now(), option)


def _starts(jobs: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Parse jobs that have to start first, each with a delay in seconds: 12+30m becomes 12+1800."""
    found = []
    for job in jobs:
        name, plus, delay = job.partition("+")
        found.append(f"{name}+{parse_limit(delay, option) // SECOND}" if plus else name)
    return tuple(found)


READERS: dict[str, Callable[[Any, str], Any]] = {
    "memory": lambda text, _: mebibytes(text),
    "limit": lambda text, option: parse_limit(text, option) / SECOND,
    "array": lambda text, _: tuple(parse_array(text.partition("%")[0])),
    "moment": _time_of,
    "pairs": lambda texts, _: dict(map(pair, texts)),
    "terminal": _terminal,
    "training": _words_of,
    "contract": _contract,
    "starts": _starts,
    "signal": lambda text, _: text.upper().removeprefix("SIG"),
}
"""Converters of option texts to values, by `Option.reads`; other texts are used unchanged."""


ORDERS = ("latest", "queue")


def list_jobs(
    *,
    all: bool = False,
    queue: str = "",
    state: str = "",
    user: str = "",
    name: str = "",
    order: str = "latest",
    format: str | None = None,
    watch: bool = False,
    limit: int = 50,
    before: int | None = None,
    home: Path | None = None,
    json: bool = False,
    there: Kube | None = None,
) -> int:
    """List jobs, the latest first or in scheduling order."""
    from kant.cli.job_table import columns_of

    if order not in ORDERS:
        raise InputError("--order", f"one of {', '.join(ORDERS)}", order)
    states = state or ("" if all else LIVE)
    chosen = Filter(states, queue, user, limit, before, name, order == "queue", columns_of(format))
    place = place_of(home, there)
    return watched(lambda: place.jobs(chosen), watch, json)


def say_why(
    job: str,
    journal: Path | None = None,
    *,
    at: str | None = None,
    learn: bool = True,
    home: Path | None = None,
    json: bool = False,
    there: Kube | None = None,
) -> int:
    """Print why a job waits."""
    return questions_of(home, there, journal, at, learn).why(job).print(json)
