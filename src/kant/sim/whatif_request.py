"""Parse the options of `kant whatif` into changes, or raise one sentence why not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, time
from typing import get_args

from kant.model.errors import InputError
from kant.model.event import JobSubmitted
from kant.model.tenant import Resource
from kant.model.units import DAY, FOREVER, HOUR, MINUTE, clock, parse_duration
from kant.scheduler.profile import Profile
from kant.sim.drains import Drain, nodes_called
from kant.sim.jobs import Arrivals, Gangs
from kant.sim.past import Past
from kant.sim.question import Question
from kant.sim.whatif_changes import AddedNodes, Changes, QuotaChange
from kant.workload.job_text import parse_jobs
from kant.workload.tenants_file import parse_amount

MOST_NODES = 100_000
EPOCH = date(1970, 1, 1).toordinal()


def changes_of(past: Past, asked: Question, profile: Profile | None) -> Changes:
    """Return all changes requested at the end of `past`. Raises InputError for the first invalid change.

    `profile` is the requested profile; None if it does not change.
    """
    asked.check()
    return Changes(
        tuple(_jobs(past, asked.submit)) if asked.submit else (),
        tuple(_drain(past, text, asked.evict) for text in asked.drain),
        tuple(_quota(text) for text in asked.quota),
        tuple(_nodes(text) for text in asked.nodes),
        profile,
        asked.cancel,
    )


def end_of_futures(past: Past, asked: Question) -> int:
    """Return when both futures stop (µs; FOREVER: no end given). Raises InputError for an invalid time."""
    return parse_time(asked.until, past, "--until") if asked.until else FOREVER


_DATE = re.compile(r"(?:(?P<date>\d{4}-\d\d-\d\d)T)?(?P<hour>\d\d):(?P<minute>\d\d)Z", re.ASCII)


def parse_time(text: str, past: Past, where: str) -> int:
    """Return a time on the run's clock, such as `1d3h`, or after `past.now` with a leading `+`. Raises InputError.

    In a journal of a live cluster also a date, `2026-01-31T22:00Z`, or the next `22:00Z`.
    """
    if text.startswith("+"):
        return past.now + parse_duration(text[1:], where)
    part = _DATE.fullmatch(text)
    return parse_duration(text, where) if part is None else _moment(part, past, where)


def _moment(part: re.Match[str], past: Past, where: str) -> int:
    zero = past.header.zero
    if not zero:
        raise InputError(where, "a time of the run, such as 1d3h, since its clock has no dates", part[0])
    try:
        day = date.fromisoformat(part["date"]).toordinal() - EPOCH if part["date"] else (zero + past.now) // DAY
        at = time(int(part["hour"]), int(part["minute"]))
    except ValueError:
        raise InputError(where, "a date such as 2026-01-31T22:00Z, or 22:00Z", part[0]) from None
    found = day * DAY + at.hour * HOUR + at.minute * MINUTE - zero
    return found + DAY if not part["date"] and found < past.now else found


def _jobs(past: Past, texts: Sequence[str]) -> list[JobSubmitted]:
    jobs = parse_jobs(texts, past.now, "--submit")
    gangs = Gangs(past.header.cluster, past.options.shape == "gpu")
    return list(Arrivals(jobs, gangs, past.options, past.header.seed))


def _drain(past: Past, text: str, evict: bool) -> Drain:
    name, at, times = text.rpartition("@") if "@" in text else (text, "", "")
    first, dots, last = times.partition("..")
    if (at and not (first or last)) or (dots and not last):
        raise InputError("--drain", "NAME, NAME@FROM, NAME@FROM..UNTIL or NAME@..UNTIL, such as leaf3@+2h..+8h", text)
    nodes = nodes_called(past.header.cluster, name, "--drain")
    start = parse_time(first, past, "--drain") if first else past.now
    end = parse_time(last, past, "--drain") if last else FOREVER
    if start < past.now:
        raise InputError("--drain", f"a time from {clock(past.now)} on, when both futures begin", text)
    if end <= start:
        raise InputError("--drain", "an end after the start", text)
    return Drain(name, nodes, start, end, evict)


_QUOTA = re.compile(r"(?P<queue>[^=]+?):(?P<resource>[^:=]+)(?::(?P<model>[^:=]+))?=(?P<sign>[+-]?)(?P<amount>.+)")


def _quota(text: str) -> QuotaChange:
    part = _QUOTA.fullmatch(text)
    if part is None:
        raise InputError("--quota", "QUEUE:gpu=+64 or QUEUE:gpu:MODEL=64, also with cpu or memory", text)
    resource: Resource | None = next((r for r in get_args(Resource) if r == part["resource"]), None)
    if resource is None:
        raise InputError("--quota", f"one of {', '.join(get_args(Resource))} after the queue", part["resource"])
    amount = parse_amount("--quota", resource, part["amount"])
    sign = -1 if part["sign"] == "-" else 1
    return QuotaChange(part["queue"], resource, part["model"] or "", sign * amount, bool(part["sign"]))


def _nodes(text: str) -> AddedNodes:
    part = re.fullmatch(r"([0-9]{1,9})(?:x(.+))?", text, re.ASCII)
    if part is None or not 1 <= int(part[1]) <= MOST_NODES:
        raise InputError("--nodes", f"1 to {MOST_NODES:,} nodes, such as 10, or 10xNAME for nodes like NAME", text)
    return AddedNodes(int(part[1]), part[2] or "")
