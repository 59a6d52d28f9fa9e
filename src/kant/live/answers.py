"""Answers about a state, as objects for `--json` and for the API: why a job waits, when it starts, what queues use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import J_MILLI, J_QUEUE, J_SINCE, J_STARTED
from kant.cluster.lending import lent
from kant.cluster.state import ClusterState
from kant.insight.cooperative import Task, cooperative
from kant.insight.diagnosis import Diagnosis
from kant.insight.domain_choice import domain_choices
from kant.insight.eta import renewed
from kant.insight.eta_calibrator import Learned, calibrated_starts
from kant.insight.explanation import Explanation, is_final
from kant.insight.facts import fact_sentence
from kant.insight.suggestions import suggestion_sentence
from kant.live.sentences import public_id, with_public_ids
from kant.model.decision import Reason, sentence
from kant.model.placement import NODE
from kant.model.status import JobStatus, NodeStatus
from kant.model.units import GPU
from kant.placement.cost.wait_or_place import Choice
from kant.scheduler.cycle import Scheduler


def as_json(found: Explanation) -> dict[str, Any]:
    """What explains a wait, as one object."""
    early, late = found.expected
    return {
        "reason": found.reason,
        "sentence": sentence(found.reason) if found.reason is not None else "",
        "facts": [{"fact": each, "sentence": fact_sentence(each)} for each in found.facts],
        "remedies": [{"remedy": each, "sentence": suggestion_sentence(each)} for each in found.suggestions],
        "among_rivals": {"rank": found.among_competitors.rank, "of": found.among_competitors.of},
        "in_queue": {"rank": found.in_queue.rank, "of": found.in_queue.of},
        "wait_or_place": either(found.choice),
        "expected_us": {"p50": early, "p90": late, "never": is_final(found.reason)},
        "earlier": found.earlier,
    }


def known(found: Explanation) -> Explanation:
    """The explanation with public job ids: in a live run a job may be submitted to the core more than once."""
    return replace(
        found,
        job=public_id(found.job),
        reason=with_public_ids(found.reason) if found.reason is not None else None,
        facts=tuple(with_public_ids(each) for each in found.facts),
        suggestions=tuple(with_public_ids(each) for each in found.suggestions),
    )


def either(choice: Choice | None) -> dict[str, Any] | None:
    """What a gang has to choose between, for `--json`."""
    return None if choice is None else {"wait": choice.wait, "sentence": str(choice)}


@cooperative
def expectations(
    scheduler: Scheduler,
    now: int,
    job: str | None = None,
    learned: Learned = None,
    words: Callable[[Reason], str] = sentence,
) -> Task[list[dict[str, Any]]]:
    """When the waiting jobs (or one of them) are expected to start, first in order first. `words` says reasons."""
    state = scheduler.state
    starts = yield from calibrated_starts.task(scheduler, learned, now, only=job or "")
    waits = yield from domain_choices.task(scheduler, now, only=job or "")
    diagnosis = Diagnosis(scheduler, now)
    rows: list[dict[str, Any]] = []
    for place, (name, answer) in enumerate(starts.items(), start=1):
        row = state.rows[name]
        if (job is not None and name != job) or row not in state.pending:
            continue
        reason = diagnosis.why(row)
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
            diagnosis = renewed(diagnosis)
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
    tree = state.quota_usage.tree
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
    """What is known of a job, in any status."""
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
