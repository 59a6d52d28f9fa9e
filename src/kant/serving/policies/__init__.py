"""The scheduling policies of an engine, each in its own file, and their names."""

from __future__ import annotations

from collections.abc import Callable

from kant.model.errors import InputError
from kant.serving.policies.aggressive import Aggressive
from kant.serving.policies.atlas import Atlas
from kant.serving.policies.conservative import Conservative
from kant.serving.policies.layered_priority import LayeredPriority
from kant.serving.policies.mlfq import Mlfq
from kant.serving.policies.past_future import PastFuture
from kant.serving.policies.plas import Plas
from kant.serving.policies.preemptive_priority import PreemptivePriority
from kant.serving.policies.priority import Priority
from kant.serving.policies.ranked import Ranked
from kant.serving.policies.ranked_bounded import RankedBounded
from kant.serving.policies.ranked_preemptive import RankedPreemptive
from kant.serving.policies.remaining_first import RemainingFirst
from kant.serving.policy import Policy

POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": Policy,
    "priority": Priority,
    "preemptive-priority": PreemptivePriority,
    "layered-priority": LayeredPriority,
    "ranked": Ranked,
    "ranked-bounded": RankedBounded,
    "ranked-preemptive": RankedPreemptive,
    "srpt": RemainingFirst,
    "mlfq": Mlfq,
    "plas": Plas,
    "atlas": Atlas,
    "conservative": Conservative,
    "aggressive": Aggressive,
    "past-future": PastFuture,
}


def policy_named(name: str) -> Policy:
    """Return a new policy of that name; raises InputError listing those that exist."""
    if name not in POLICIES:
        raise InputError("--policy", f"one of {', '.join(POLICIES)}", name)
    return POLICIES[name]()
