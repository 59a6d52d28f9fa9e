"""What to do: a closed union. A cycle's Plan is a list of these; drivers carry it out or refuse."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

# --- Reasons: why a job waits or leaves. Each carries the numbers behind it. ---------------------------------


class _Reason(Struct, frozen=True, omit_defaults=True, tag_field="why"):
    pass


class NoFit(_Reason, frozen=True, tag="no-fit"):
    """`fits` of the `pods` that group `group` needs could be placed now."""

    group: int
    pods: int
    fits: int


class NeverFits(_Reason, frozen=True, tag="never-fits"):
    """Even the empty cluster takes only `fits` of the `pods` that group `group` needs."""

    group: int
    pods: int
    fits: int


class Behind(_Reason, frozen=True, tag="behind"):
    """Another job stands before it where the order forbids to pass."""

    job: str


Reason = NoFit | NeverFits | Behind


def sentence(reason: Reason) -> str:
    """`reason` for people."""
    match reason:
        case NoFit(pods=pods, fits=fits):
            return f"not enough free capacity: {fits} of {pods} pods fit now"
        case NeverFits(pods=pods, fits=fits):
            return f"it can never fit: the empty cluster takes {fits} of {pods} pods"
        case Behind(job=job):
            return f"job {job} is before it and its queue lets nobody pass"


# --- Decisions ------------------------------------------------------------------------------------------------


class _Decision(Struct, frozen=True, omit_defaults=True, tag_field="do"):
    job: str


class Start(_Decision, frozen=True, tag="start"):
    """Bind the whole gang as `allocation` says (columns of `model.placement`)."""

    allocation: np.ndarray


class Preempt(_Decision, frozen=True, tag="preempt"):
    """Stop a running job; `moved` when the same plan starts it again elsewhere."""

    moved: bool = False


class Reject(_Decision, frozen=True, tag="reject"):
    """Give the job back to its owner."""

    reason: Reason


class Hold(_Decision, frozen=True, tag="hold"):
    """The job was tried and waits on. Said when it is first held back, not in every cycle."""

    reason: Reason


class Demote(_Decision, frozen=True, tag="demote"):
    """Move the job to a lower level of its multi-level queue."""

    level: int


class Reorder(Struct, frozen=True, tag="reorder", tag_field="do"):
    """The live jobs in their new order, for orders that remember it."""

    jobs: tuple[str, ...]


Decision = Start | Preempt | Reject | Hold | Demote | Reorder


class Plan(Struct, tag="planned", tag_field="event", omit_defaults=True):
    """The outcome of one cycle: decisions in the order in which to carry them out.

    `review_at` is the time at which the plan may change although nothing happened (-1: never).
    """

    time: int
    decisions: list[Decision]
    review_at: int = -1
