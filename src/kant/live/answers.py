"""Answers about how things stand, as objects for `--json` and for the API: why, when, who uses what, what is free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import J_MILLI, J_QUEUE, J_SINCE, J_STARTED
from kant.cluster.lending import lent
from kant.cluster.state import ClusterState
from kant.live.sentences import public, publicly
from kant.model.decision import Reason, sentence
from kant.model.placement import NODE
from kant.model.status import JobStatus, NodeStatus
from kant.model.units import GPU
from kant.placement.wait_or_place import Choice
from kant.scheduler.answers import Learned, expecting
from kant.scheduler.choice import choosing
from kant.scheduler.cycle import Scheduler
from kant.scheduler.eta import renewed
from kant.scheduler.evidence import fact, remedy
from kant.scheduler.explain import Explanation, is_final
from kant.scheduler.inquiry import Inquiry
from kant.scheduler.steps import Steps, at_once


def as_json(found: Explanation) -> dict[str, Any]:
    """What explains a wait, as one object."""
    early, late = found.expected
    return {
        "reason": found.reason,
        "sentence": sentence(found.reason) if found.reason is not None else "",
        "facts": [{"fact": each, "sentence": fact(each)} for each in found.facts],
        "remedies": [{"remedy": each, "sentence": remedy(each)} for each in found.remedies],
        "among_rivals": {"rank": found.among_rivals.rank, "of": found.among_rivals.of},
        "in_queue": {"rank": found.in_queue.rank, "of": found.in_queue.of},
        "wait_or_place": either(found.choice),
        "expected_us": {"p50": early, "p90": late, "never": is_final(found.reason)},
        "earlier": found.earlier,
    }


def known(found: Explanation) -> Explanation:
    """The same with the ids by which people know jobs: for a Kant that runs, whose jobs may come more than once."""
    return replace(
        found,
        job=public(found.job),
        reason=publicly(found.reason) if found.reason is not None else None,
        facts=tuple(publicly(each) for each in found.facts),
        remedies=tuple(publicly(each) for each in found.remedies),
    )


def either(choice: Choice | None) -> dict[str, Any] | None:
    """What a gang has to choose between, for `--json`."""
    return None if choice is None else {"wait": choice.wait, "sentence": str(choice)}


def expectations(
    scheduler: Scheduler,
    now: int,
    job: str | None = None,
    learned: Learned = None,
    words: Callable[[Reason], str] = sentence,
) -> list[dict[str, Any]]:
    """When the waiting jobs (or one of them) are expected to start, first in order first. `words` says reasons."""
    return at_once(expecting_rows(scheduler, now, job, learned, words))


def expecting_rows(
    scheduler: Scheduler,
    now: int,
    job: str | None = None,
    learned: Learned = None,
    words: Callable[[Reason], str] = sentence,
) -> Steps[list[dict[str, Any]]]:
    """The same, in steps."""
    state = scheduler.state
    starts = yield from expecting(scheduler, learned, now, only=job or "")
    waits = yield from choosing(scheduler, now, only=job or "")
    inquiry = Inquiry(scheduler, now)
    rows: list[dict[str, Any]] = []
    for place, (name, answer) in enumerate(starts.items(), start=1):
        row = state.rows[name]
        if (job is not None and name != job) or row not in state.pending:
            continue
        reason = inquiry.why(row)
        rows.append(
            {
                "job": name,
                "queue": state.live[row].queue,
                "gpus": int(state.jobs[row, J_MILLI]) / GPU,
                "since_us": int(state.jobs[row, J_SINCE]),
                "place": place,
                "of": len(starts) if job is None else len(state.pending),
                "why": "ready" if reason is None else reason.__struct_config__.tag,
                "sentence": "" if reason is None else words(reason),
                "expected_us": {"p50": answer.p50, "p90": answer.p90, "never": is_final(reason)},
                "earlier": answer.earlier,
                "wait_or_place": either(waits.get(name)),
            }
        )
        if (yield):
            inquiry = renewed(inquiry)
    return rows


def queue_rows(state: ClusterState) -> list[dict[str, Any]]:
    """One row for each queue and each GPU model of its quotas, parents before children; other queues at the end.

    `borrowed_gpus` is how far it is beyond its quota, `lent_gpus` what others use of that (`cluster/lending.py`).
    """
    counts: dict[str, list[int]] = {}
    names = list(state.queues)
    for place, rows in ((0, state.running), (1, state.pending)):
        for row in rows:
            count = counts.setdefault(names[int(state.jobs[row, c.J_QUEUE])], [0, 0, 0])
            count[place] += 1
            count[2] += int(state.jobs[row, c.J_MILLI]) if place else 0

    def line(name: str, model: str, amounts: tuple[int, int, int, int] | None) -> dict[str, Any]:
        running, waiting, milli = counts.get(name, (0, 0, 0))
        quota = {
            key: None if amounts is None else value / GPU for key, value in zip(keys, amounts or keys, strict=True)
        }
        return (
            {"queue": name, "model": model}
            | quota
            | {"running": running, "waiting": waiting, "waiting_gpus": milli / GPU}
        )

    keys: Any = ("nominal_gpus", "used_gpus", "borrowed_gpus", "lent_gpus")
    found = []
    tree = state.holdings.tree
    declared = tree.queues if tree is not None else ()
    lends: dict[int, list[int]] = {}
    for queue, own in enumerate(declared):
        assert tree is not None
        gpus = [(key, model) for key, (model, resource) in enumerate(tree.keys) if resource == "gpu"]
        for key, model in gpus:
            if key not in lends:
                lends[key] = lent(tree, key)
            borrowed = tree.borrowed(queue, key)
            amounts = tree.nominal(queue, key), tree.usage(queue, key), borrowed, lends[key][queue]
            found.append(line(own.name, model or "any", amounts))
        if not gpus:
            found.append(line(own.name, "", None))
    known = {queue.name for queue in declared}
    return found + [line(name, "", None) for name in sorted(counts) if name not in known]


def pool_rows(state: ClusterState) -> list[dict[str, Any]]:
    """GPUs in service, allocated and on wholly idle nodes, with GAR and GFR, of each pool that has GPUs."""

    table = state.table
    idle = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (table[:, c.IDLE] == table[:, c.GPUS])
    whole = np.bincount(table[idle, c.POOL], table[idle, c.GPUS], len(state.pools)).astype(int).tolist()
    waits = [0] * len(state.pools)
    for row in state.pending:
        for pool in state.shape_of(row).pools:
            waits[pool] += int(state.jobs[row, c.J_MILLI])
    rows = []
    for pool, (nodes, capacity, allocated, fragmented) in enumerate(state.pools.tolist()):
        if capacity or waits[pool]:
            rows.append(
                {
                    "pool": state.shapes.pool_name(pool),
                    "nodes": nodes,
                    "gpus": capacity / GPU,
                    "allocated": allocated / GPU,
                    "gar": allocated / capacity if capacity else None,
                    "gfr": fragmented / nodes if nodes else None,
                    "idle_node_gpus": whole[pool],
                    "waiting_gpus": waits[pool] / GPU,
                }
            )
    return rows


def job_facts(state: ClusterState, job: str, now: int) -> dict[str, Any]:
    """What is known of a job, wherever it stands."""
    row = state.rows[job]
    own = state.jobs[row]
    return {
        "job": job,
        "time_us": now,
        "status": JobStatus(int(own[c.J_STATUS])).name.lower(),
        "queue": list(state.queues)[int(own[c.J_QUEUE])],
        "priority": int(own[c.J_PRIORITY]),
        "pods": int(own[c.J_PODS]),
        "gpus": int(own[c.J_MILLI]) / GPU,
        "submitted_us": int(own[c.J_SUBMIT]),
        "since_us": int(own[c.J_SINCE]),
        "started_us": int(own[c.J_STARTED]),
        "bad_nodes": [state.spec.nodes[node].name for node in state.health.bad.get(row, ())],
    }


def job_rows(state: ClusterState, now: int) -> list[dict[str, Any]]:
    """The jobs that run, the largest first."""
    names = list(state.queues)
    largest = sorted(state.running, key=lambda row: (-int(state.jobs[row, J_MILLI]), state.ids[row]))
    return [
        {
            "job": state.ids[row],
            "queue": names[int(state.jobs[row, J_QUEUE])],
            "gpus": int(state.jobs[row, J_MILLI]) / GPU,
            "nodes": len(set(state.running[row][:, NODE].tolist())),
            "running_us": now - int(state.jobs[row, J_STARTED]),
        }
        for row in largest
    ]
