"""Facts: the properties of a job, node or the like that determine which actions are possible, as a text to compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from kant.ops.view import WorldView


def kind_in(view: WorldView, name: str) -> str:
    """Return what a name denotes in a view: `job`, `node`, `queue`, `reservation` or `user`; "" if nothing."""
    if name in view.jobs:
        return "job"
    for kind, names in (
        ("node", (each.node for each in view.nodes)),
        ("queue", (each.queue for each in view.queues)),
        ("reservation", (each.name for each in view.booked)),
        ("user", (each.user for each in view.jobs.values())),
    ):
        if name and name in names:
            return kind
    return ""


def fact_of(view: WorldView, name: str) -> str:
    """Return the relevant properties of a thing, as text that is equal if the same actions are possible."""
    kind = kind_in(view, name)
    if kind == "job":
        job = view.jobs[name]
        return f"job: {job.phase}" + ", nobody may stop it" * (not job.preemptible)
    if kind == "node":
        (node,) = (each for each in view.nodes if each.node == name)
        there = view.on_node(name)
        kept = any(not job.preemptible for job in there)
        return f"node: {node.status}, " + (("a job that nobody may stop" if kept else "jobs") if there else "empty")
    if kind == "queue":
        rows = [each for each in view.queues if each.queue == name]
        waits = "some wait" if any(each.waiting for each in rows) else "nobody waits"
        return f"queue: {waits}" + ", it borrows" * any(each.borrowed_gpus for each in rows)
    return f"{kind}: it is there" if kind else "not there"


def facts_of(view: WorldView, names: Iterable[str]) -> dict[str, str]:
    """Return the facts by name, for the `names` that denote something in this view; other texts are ignored."""
    return {name: fact_of(view, name) for name in dict.fromkeys(names) if kind_in(view, name)}


def about(view: WorldView, names: list[str]) -> dict[str, str]:
    """Return the facts that matter for a plan about these names and their dependents (jobs on a node or in a queue)."""
    named = set(names)
    keys = {f"{kind} {name}" for kind in ("job", "node", "reservation") for name in named}
    for job in view.jobs.values():
        if named & {job.id, job.queue, job.user, *job.nodes}:
            keys |= {f"job {job.id}", *(f"node {node}" for node in job.nodes if job.id in named)}
    return {k: v for k, v in view.facts().items() if k in keys or (k.startswith("queue ") and k.split()[1] in named)}


def scope_of(view: WorldView, names: list[str]) -> str:
    """Return a digest of the facts about these names (`about`): it changes only if a fact changes."""
    text = msgspec.json.encode(sorted(about(view, names).items()))
    return hashlib.blake2b(text, digest_size=8).hexdigest()
