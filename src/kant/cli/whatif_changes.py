"""The options of `kant whatif` as changes, or one sentence why not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, get_args

from kant.model.errors import InputError
from kant.model.tenant import Resource
from kant.model.units import FOREVER, clock, parse_duration

if TYPE_CHECKING:
    from kant.model.event import JobSubmitted
    from kant.scheduler.profile import Profile
    from kant.sim.changes import Changes, MoreNodes, QuotaChange
    from kant.sim.drains import Drain
    from kant.sim.past import Past

MOST_NODES = 100_000


def changes_of(
    past: Past, submit: list[str], drain: list[str], evict: bool, quota: list[str], nodes: list[str],
    profile: Profile | None,
) -> Changes:  # fmt: skip
    """All changes that were asked for at the end of `past`. Raises InputError for the first that cannot be meant."""
    from kant.sim.changes import Changes

    return Changes(
        tuple(_jobs(past, submit)) if submit else (),
        tuple(_drain(past, text, evict) for text in drain),
        tuple(_quota(text) for text in quota),
        tuple(_nodes(text) for text in nodes),
        profile,
    )


def parse_time(text: str, now: int, where: str) -> int:
    """A moment on the run's clock, such as `1d3h`, or with a `+` so long after `now`. Raises InputError."""
    return now + parse_duration(text[1:], where) if text.startswith("+") else parse_duration(text, where)


def _jobs(past: Past, texts: list[str]) -> list[JobSubmitted]:
    from kant.sim.jobs import Gangs, arrivals
    from kant.workload.job_text import parse_jobs

    jobs = parse_jobs(texts, past.now, "--submit")
    gangs = Gangs(past.header.cluster, past.options.shape == "gpu")
    return list(arrivals(jobs, gangs, past.options, past.header.seed))


def _drain(past: Past, text: str, evict: bool) -> Drain:
    from kant.sim.drains import Drain, nodes_called

    name, at, times = text.rpartition("@") if "@" in text else (text, "", "")
    first, dots, last = times.partition("..")
    if (at and not (first or last)) or (dots and not last):
        raise InputError("--drain", "NAME, NAME@FROM, NAME@FROM..UNTIL or NAME@..UNTIL, such as leaf3@+2h..+8h", text)
    nodes = nodes_called(past.header.cluster, name, "--drain")
    start = parse_time(first, past.now, "--drain") if first else past.now
    end = parse_time(last, past.now, "--drain") if last else FOREVER
    if start < past.now:
        raise InputError("--drain", f"a time from {clock(past.now)} on, when the futures part", text)
    if end <= start:
        raise InputError("--drain", "an end after the start", text)
    return Drain(name, nodes, start, end, evict)


_QUOTA = re.compile(r"(?P<queue>[^=]+?):(?P<resource>[^:=]+)(?::(?P<model>[^:=]+))?=(?P<sign>[+-]?)(?P<amount>.+)")


def _quota(text: str) -> QuotaChange:
    from kant.sim.changes import QuotaChange
    from kant.workload.tenants_file import parse_amount

    part = _QUOTA.fullmatch(text)
    if part is None:
        raise InputError("--quota", "QUEUE:gpu=+64 or QUEUE:gpu:MODEL=64, also with cpu or memory", text)
    resource: Resource | None = next((r for r in get_args(Resource) if r == part["resource"]), None)
    if resource is None:
        raise InputError("--quota", f"one of {', '.join(get_args(Resource))} after the queue", part["resource"])
    amount = parse_amount("--quota", resource, part["amount"])
    sign = -1 if part["sign"] == "-" else 1
    return QuotaChange(part["queue"], resource, part["model"] or "", sign * amount, bool(part["sign"]))


def _nodes(text: str) -> MoreNodes:
    from kant.sim.changes import MoreNodes

    part = re.fullmatch(r"([0-9]{1,9})(?:x(.+))?", text, re.ASCII)
    if part is None or not 1 <= int(part[1]) <= MOST_NODES:
        raise InputError("--nodes", f"1 to {MOST_NODES:,} nodes, such as 10, or 10xNAME to have them like NAME", text)
    return MoreNodes(int(part[1]), part[2] or "")
