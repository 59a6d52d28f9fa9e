"""Victims that `most` protects from a waiting job: those that would have to stop hold too many times the job's GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kant.cluster.shapes import Shape
from kant.insight.diagnosis import Diagnosis
from kant.queueing.evictable import PASSED
from kant.queueing.preemption.policy import Preemption, candidates_of, fits_without
from kant.queueing.preemption.rules import PreemptionRules
from kant.queueing.preemption.search import search

UNLIMITED = 1 << 60


class TooLarge(NamedTuple):
    """The sufficient victims that hold the fewest milli-GPUs; and when all have reached their minimum run time (µs)."""

    rows: list[int]
    held: int
    asked: int
    at: int


def victims_too_large(diagnosis: Diagnosis, row: int) -> TooLarge | None:
    """Return the victims with the fewest GPUs that `most` forbids to preempt. None if `most` is not the obstacle."""
    policy, state = diagnosis.profile.preemption, diagnosis.state
    shape = state.shape_of(row)
    if policy is None or not shape.ask.preempts:
        return None
    found: list[TooLarge] = []
    for option in diagnosis.admission.options(row, shape) if diagnosis.uses_quotas else [shape]:
        rules = policy.rules(diagnosis.cycle, row, option)
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
    """Return the victims with the fewest GPUs at one level. None if none suffice, or there are too many to search."""
    places, marks, until = rules.victims(level)
    if not len(places):
        return None
    rows, admits, cap = rules.entitlements.rows[places], rules.quota(level), int(policy.most * shape.gpu_milli)
    # Lost work and rank do not matter here: the search key is the GPUs that the victims hold.
    whole = candidates_of(diagnosis.cycle, rows, marks & PASSED)
    whole = replace(whole, cost=np.zeros_like(whole.cost), ranks=whole.ranks[:, :0])
    chosen, exact = search(diagnosis.placer, shape, row, whole, cap, admits)
    if chosen is None:
        light = rows[whole.capped <= cap].tolist()
        if exact or (not shape.order_dependent and not fits_without(rules.entitlements, light, row, shape)):
            chosen, _ = search(diagnosis.placer, shape, row, whole, UNLIMITED, admits)
    if chosen is None or not chosen[0]:
        return None
    victims = [who.row for who in chosen[0]]
    at = max(int(until[rows == victim][0]) for victim in victims)
    return TooLarge(victims, sum(who.capped for who in chosen[0]), shape.gpu_milli, at if at > diagnosis.now else -1)
