"""Shared parts of Slurm's commands: their options, the jobs that they name, and the format of times."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

from kant.cli.srun import SrunUsageError, hostnames

Row = dict[str, Any]
STATES = {
    "held": ("PD", "PENDING"), "blocked": ("PD", "PENDING"), "waiting": ("PD", "PENDING"),
    "running": ("R", "RUNNING"), "stopping": ("CG", "COMPLETING"), "finished": ("CD", "COMPLETED"),
    "failed": ("F", "FAILED"), "cancelled": ("CA", "CANCELLED"), "rejected": ("F", "FAILED"),
}  # fmt: skip


def options(arguments: list[str], valued: dict[str, str], alone: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Parse a line: return its options by name (`valued` ones take a value), and other words. Raises SrunUsageError."""
    found, rest, at = dict[str, str](), list[str](), 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        name, equals, value = word.partition("=")
        if word == "--":
            return found, rest + arguments[at:]
        if not word.startswith("-") or word == "-":
            rest.append(word)
        elif name in valued:
            if not equals:
                if at == len(arguments):
                    raise SrunUsageError(f"{name}: expected a value after it")
                value = arguments[at]
                at += 1
            found[valued[name]] = value
        elif word in alone:
            found[alone[word]] = "1"
        elif not word.startswith("--") and word[:2] in valued:  # -uann
            found[valued[word[:2]]] = word[2:].removeprefix("=")
        elif not word.startswith("--") and all(f"-{letter}" in alone for letter in word[1:]):  # -hl
            found |= dict.fromkeys((alone[f"-{letter}"] for letter in word[1:]), "1")
        else:
            raise SrunUsageError(f"{word}: expected an option that Kant knows")
    return found, rest


def client() -> Any:
    from kant.service.client import ServiceClient, home_of

    return ServiceClient(home_of(None))


def job_of(name: str) -> str:
    """Return Kant's id of a job: the current job for its SLURM_JOB_ID; the job of a step for a step such as 12.0."""
    own = os.environ.get("KANT_JOB_ID")
    if own and name == os.environ.get("SLURM_JOB_ID"):
        return own
    return name.partition(".")[0]


def jobs_of(text: str) -> list[str]:
    """Parse the ids in a list such as 12,14_[1-3]."""
    return [job_of(name) for name in hostnames(text)]


def rows(states: str, user: str = "", queue: str = "") -> list[Row]:
    """Return the jobs, earliest first."""
    kant, found, before = client(), list[Row](), None
    while True:
        page = kant.get("/v1/jobs", state=states, user=user, queue=queue, limit=1000, before=before)
        found += page["jobs"]
        before = page["next"]
        if before is None:
            return found[::-1]


def me() -> str:
    import getpass

    return getpass.getuser()


def clock(seconds: float) -> str:
    """Format seconds as D-HH:MM:SS like squeue, without days and hours that are zero."""
    days, rest = divmod(int(max(seconds, 0)), 86400)
    hours, minutes, left = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def moment(micros: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(micros / 1e6)) if micros >= 0 else "Unknown"


def reason(row: Row) -> str:
    words = row["waits"] or row["reason"]
    if row["phase"] == "held":
        return "JobHeldUser"
    if row["phase"] == "blocked":
        return "BeginTime" if "before" in words else "Dependency"
    return "Resources" if row["phase"] == "waiting" else words or "None"


def nodes_of(row: Row) -> str:
    if row["phase"] not in ("running", "stopping"):
        return ""
    return ",".join(detail(row)["place"])


def detail(row: Row) -> Row:
    """Return all details of a job."""
    kant = client()
    found: Row = kant.get(kant.job(row["id"]))
    return found


def limit(row: Row) -> str:
    """Return the limit of a job in Slurm's form."""
    found = detail(row)["time_s"]
    return clock(found) if found is not None else "UNLIMITED"


def formatted(pattern: str, row: Row, columns: dict[str, tuple[str, Callable[[Row], object]]], head: bool) -> str:
    """Format a line by a pattern such as `%.18i %.9P`. Raises SrunUsageError for a letter that Kant does not know."""

    def cell(part: re.Match[str]) -> str:
        right, width, letter = part[1], part[2], part[3]
        if letter == "%":
            return "%"
        if letter not in columns:
            raise SrunUsageError(f"%{letter}: expected one of the columns that Kant has ({', '.join(sorted(columns))})")
        title, value = columns[letter]
        text = title if head else str(value(row))
        if not width:
            return text
        return text[: int(width)].rjust(int(width)) if right else text[: int(width)].ljust(int(width))

    return re.sub(r"%(\.?)(\d*)([a-zA-Z%])", cell, pattern)
