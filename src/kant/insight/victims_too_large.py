"""Victims that a waiting job could preempt but for `most`: those that suffice hold too many times its GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kant.cluster.shapes import Shape
from kant.insight.diagnosis import Diagnosis
from kant.queueing.preemption.policy import NO_VICTIMS, Preemption, allowed_victims, candidates_of
from kant.queueing.preemption.rules import PreemptionRules
from kant.queueing.preemption.search import search

UNLIMITED = 1 << 60


class TooLarge(NamedTuple):
    """The sufficient victims that hold the fewest milli-GPUs, and when all have run for their minimum (µs)."""

    rows: list[int]
    held: int
    asked: int
    at: int


def victims_too_large(diagnosis: Diagnosis, row: int) -> TooLarge | None:
    """Return the smallest victims that `most` forbids for a waiting job; None where `most` is not the obstacle."""
    policy, state = diagnosis.profile.preemption, diagnosis.state
    shape = state.shape_of(row)
    if policy is None or not shape.ask.preempts:
        return None
    found: list[TooLarge] = []
    for option in diagnosis.admission.options(row, shape) if diagnosis.uses_quotas else [shape]:
        rules = PreemptionRules(
            policy.entitlements(diagnosis.cycle), row, option, policy.reclaim != "off", policy.priority
        )
        for level in rules.levels():
            with diagnosis.rolled_back():
                one = _at_level(diagnosis, policy, rules, row, option, level)
            if one is not None and one.held <= int(policy.most * option.gpu_milli):
                return None
            found += [one] if one is not None else []
    return min(found, key=lambda one: (one.held, len(one.rows), one.rows), default=None)


def _at_level(
    diagnosis: Diagnosis, policy: Preemption, rules: PreemptionRules, row: int, shape: Shape, level: int
) -> TooLarge | None:
    """Return the smallest victims at one level; None where none suffice, or there are too many to search."""
    cycle, entitlements, own = diagnosis.cycle, rules.entitlements, allowed_victims(rules, level)
    if not own.rows:
        return None
    admits = rules.quota(level)
    # Lost work and rank do not matter here: the search key is then what the victims hold.
    whole = candidates_of(cycle, own.rows, passed=own.passed)
    whole = replace(whole, cost=np.zeros_like(whole.cost), ranks=whole.ranks[:, :0])
    within = not all(policy.forbids(cycle, rules, row, shape, own, NO_VICTIMS, admits))
    cap = int(policy.most * shape.gpu_milli) if within else UNLIMITED
    chosen, _ = search(diagnosis.placer, shape, row, whole, cap, admits)
    if chosen is None or not chosen[0]:
        return None
    rows, until = [who.row for who in chosen[0]], dict(zip(entitlements.rows, rules.protected_until(), strict=True))
    at = max(int(until[victim]) for victim in rows)
    return TooLarge(rows, sum(who.capped for who in chosen[0]), shape.gpu_milli, at if at > diagnosis.now else -1)
