"""Answers about a state, as objects for `--json` and for the API: when jobs start, what queues use, what runs.

A leader (the replica that schedules) loads this module when the first question arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from kant.cluster import columns as c
from kant.cluster.lending import lent
from kant.cluster.over_budget import ALL_USERS
from kant.cluster.state import ClusterState
from kant.insight.expected_start import Basis, ExpectedStart, StartForecast, WaitOrPlace, basis_sentence, is_final
from kant.live.sentences import public_id, with_public_ids
from kant.model.decision import Reason, sentence
from kant.model.placement import NODE
from kant.model.status import JobStatus, NodeStatus
from kant.model.units import FOREVER, GPU, HOUR
from kant.optimize.answers import Optimality, Startable


def either(choice: WaitOrPlace | None) -> dict[str, Any] | None:
    """Return, for `--json`, whether a gang should wait for one domain; None if it has no choice."""
    return None if choice is None else {"wait": choice.wait, "sentence": choice.sentence}


def start_json(start: ExpectedStart, reason: Reason | None) -> dict[str, Any]:
    """Return an expected start, its basis, and how accurate such answers have been, for `--json`."""
    return {
        "expected_us": {"p50": start.p50, "p90": start.p90, "never": is_final(reason)},
        "rests_on": None if start.basis is None else rests_on(start.basis),
        "earlier": start.earlier,
    }


def rests_on(basis: Basis) -> dict[str, Any]:
    """Return the basis of a start (what makes it possible), with public job ids."""
    known = with_public_ids(basis)
    return {
        "how": known.how,
        "at_us": known.at,
        "jobs": list(known.jobs),
        "more": known.more,
        "queue": known.queue,
        "ran_us": known.ran,
        "futures": known.futures,
        "of": known.of,
        "sentence": basis_sentence(known),
    }


def expectations(forecast: StartForecast, words: Callable[[Reason], str] = sentence) -> list[dict[str, Any]]:
    """Return when the waiting jobs are expected to start, in order. `words` formats reasons."""
    return [
        {
            "job": name,
            "queue": job.queue,
            "gpus": job.gpus / GPU,
            "since_us": job.since,
            "place": job.place,
            "of": forecast.of,
            "why": "ready" if job.reason is None else job.reason.__struct_config__.tag,
            "sentence": "" if job.reason is None else words(job.reason),
            "wait_or_place": either(job.choice),
        }
        | start_json(job.start, job.reason)
        for name, job in forecast.jobs.items()
    ]


def budgets_json(forecast: StartForecast, name: Callable[[str], str] = str) -> list[dict[str, Any]]:
    """Return when budgets are expected to be used up, the earliest first. `name` formats job ids."""
    return [
        {
            "queue": one.queue,
            "user": one.user,
            "limit": one.limit,
            "expected_us": {"p50": one.p50, "p10": one.p10},
            "until_us": one.until,
            "jobs": list(map(name, one.jobs)),
        }
        for one in sorted(forecast.budgets, key=lambda one: (one.p50 or FOREVER, one.queue, one.user, one.limit))
    ]


def queue_rows(state: ClusterState) -> list[dict[str, Any]]:
    """Return one row for each queue and each GPU model of its quotas, parents before children; other queues at the end.

    `state` is the queue's state, or if that is open, the first other state among its ancestors. `borrowed_gpus` is its
    use beyond its quota, `lent_gpus` what other queues use of its quota (`cluster/lending.py`).
    """
    counts: dict[str, list[int]] = {}
    names = list(state.queues)
    for place, rows in ((0, state.running), (1, state.pending)):
        for row in rows:
            count = counts.setdefault(names[int(state.jobs[row, c.J_QUEUE])], [0, 0, 0])
            count[place] += 1
            count[2] += int(state.jobs[row, c.J_MILLI]) if place else 0

    def line(name: str, model: str, amounts: tuple[int, int, int, int] | None, parent: str = "") -> dict[str, Any]:
        running, waiting, milli = counts.get(name, (0, 0, 0))
        quota = {
            key: None if amounts is None else value / GPU for key, value in zip(keys, amounts or keys, strict=True)
        }
        return (
            {"queue": name, "parent": parent, "model": model, "state": states.get(name, "open")}
            | quota
            | {"running": running, "waiting": waiting, "waiting_gpus": milli / GPU}
        )

    keys: Any = ("nominal_gpus", "used_gpus", "borrowed_gpus", "lent_gpus")
    found = []
    tree = state.quota_usage.tree
    declared = tree.queues if tree is not None else ()
    states = dict[str, str]()
    for path in tree.paths if tree is not None else ():
        above = [declared[queue].state for queue in path]
        states[declared[path[0]].name] = next((each for each in above if each != "open"), "open")
    lends: dict[int, list[int]] = {}
    for queue, own in enumerate(declared):
        assert tree is not None
        gpus = [(key, model) for key, (model, resource) in enumerate(tree.keys) if resource == "gpu"]
        for key, model in gpus:
            if key not in lends:
                lends[key] = lent(tree, key)
            borrowed = tree.borrowed(queue, key)
            amounts = tree.nominal(queue, key), tree.usage(queue, key), borrowed, lends[key][queue]
            found.append(line(own.name, model or "any", amounts, own.parent))
        if not gpus:
            found.append(line(own.name, "", None, own.parent))
    known = {queue.name for queue in declared}
    return found + [line(name, "", None) for name in sorted(counts) if name not in known]


def budget_rows(state: ClusterState, now: int) -> list[dict[str, Any]]:
    """Return each budget's use and limits, in GPU-hours of the month that ends at `until_us`; `user` "": a whole queue.

    `state` is `hard` or `soft` if that limit is used up, otherwise "".
    """
    usage = state.quota_usage
    if usage.budgets is None or usage.tree is None:
        return []
    found, users, over = [], list(state.users), usage.over_budget(now)
    for scope, use in usage.budgets.scopes(usage.tree, usage.node_of, now).items():
        hours = {"used": use.used / HOUR / GPU, "soft": use.soft / GPU, "hard": use.hard / GPU}
        found.append(
            {"queue": usage.tree.queues[scope[0]].name, "user": "" if scope[1] == ALL_USERS else users[scope[1]]}
            | {f"{name}_gpu_hours": None if amount < 0 else amount for name, amount in hours.items()}
            | {"state": "hard" if over and scope in over.hard else "soft" if over and scope in over.soft else ""}
            | {"until_us": usage.budgets.end}
        )
    return sorted(found, key=lambda row: (row["queue"], row["user"]))


def pool_rows(state: ClusterState) -> list[dict[str, Any]]:
    """Return for each pool the GPUs in service, allocated and on idle nodes, with GAR and GFR (docs/metrics.md)."""
    table = state.table
    idle = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (table[:, c.IDLE] == table[:, c.GPUS])
    whole = np.bincount(table[idle, c.POOL], table[idle, c.GPUS], len(state.pools)).astype(int).tolist()
    waits = [0] * len(state.pools)
    for row in state.pending:
        for pool in state.shape_of(row).pools:
            waits[pool] += int(state.jobs[row, c.J_MILLI])
    rows = []
    for pool, (nodes, capacity, allocated, fragmented) in enumerate(state.pools[:, :4].tolist()):
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
    """Return the known facts of a job, in any status."""
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
        "bad_nodes": [state.nodes[node].name for node in state.health.bad.get(row, ())],
    }


def job_rows(state: ClusterState, now: int) -> list[dict[str, Any]]:
    """Return the running jobs, the largest first."""
    names = list(state.queues)
    largest = sorted(state.running, key=lambda row: (-int(state.jobs[row, c.J_MILLI]), state.ids[row]))
    return [
        {
            "job": state.ids[row],
            "queue": names[int(state.jobs[row, c.J_QUEUE])],
            "gpus": int(state.jobs[row, c.J_MILLI]) / GPU,
            "nodes": len(set(state.running[row][:, NODE].tolist())),
            "running_us": now - int(state.jobs[row, c.J_STARTED]),
        }
        for row in largest
    ]


def status_json(state: ClusterState, now: int, zero: int = 0) -> dict[str, Any]:
    """Return the cluster's pools and the numbers of running and waiting jobs, as one object."""
    return {
        "time_us": now,
        "zero_us": zero,
        "running": len(state.running),
        "waiting": len(state.pending),
        "waiting_gpus": state.waiting_milli / GPU,
        "pools": pool_rows(state),
    }


def optimality_json(found: Optimality) -> dict[str, Any]:
    """Return for `--json` how far the present use is from the optimum, with public job ids."""
    return {
        "as_of_us": found.time,
        "waiting": found.waiting,
        "waiting_gpus": found.waiting_milli / GPU,
        "held_back": found.held_back,
        "startable": {"in_place": _startable(found.in_place), "with_moves": _startable(found.with_moves)},
        "gangs": [msgspec.to_builtins(gang) for gang in found.gangs],
        "stranded_gpus": found.stranded_milli / GPU,
        "stranded": [
            {
                "queue": one.queue,
                "gpus": one.gpu_milli / GPU,
                "jobs": [{"job": public_id(job), "gpus": milli / GPU} for job, milli in one.jobs],
            }
            for one in found.stranded
        ],
        "left_out": found.left_out,
        "limit_s": found.limit_s,
    }


def _startable(found: Startable) -> dict[str, Any]:
    return {
        "jobs": [public_id(job) for job in found.jobs],
        "gpus": found.gpu_milli / GPU,
        "share": found.share,
        "moves": [public_id(job) for job in found.moves],
        "proven": found.proven,
    }
