"""Typed single changes that would end a job's wait, each with a sentence."""

from __future__ import annotations

from msgspec import Struct

from kant.insight.facts import of_model
from kant.model.decision import Reason, amount, sentence
from kant.model.units import clock, show_duration


class _Suggestion(Struct, frozen=True, tag_field="if"):
    pass


class JobsEnd(_Suggestion, frozen=True, tag="ends"):
    """The job fits once all of `jobs` have ended, if no other job takes their resources: at `at` (µs; -1: unknown).

    None of these jobs can be left out (with more than 64: not for this placement). `more` further jobs are not named.
    """

    jobs: tuple[str, ...]
    at: int
    more: int = 0


class MoreQuota(_Suggestion, frozen=True, tag="quota"):
    """The quota admits the job if `queue` gets `more` of a resource. `then`: what the job still lacks, or None."""

    queue: str
    model: str
    resource: str
    more: int
    limit: str
    then: Reason | None


class ShorterRuntime(_Suggestion, frozen=True, tag="shorter"):
    """The job starts now if it runs for at most `runtime` microseconds."""

    runtime: int


class JobStarts(_Suggestion, frozen=True, tag="starts"):
    """`job` starts or leaves the queue. `then` is what the waiting job would still lack (None: nothing)."""

    job: str
    then: Reason | None


class QueueOpens(_Suggestion, frozen=True, tag="opens"):
    """`queue` opens again. `then` is what the job would still lack in the current state (None: nothing)."""

    queue: str
    then: Reason | None


class BackOffEnds(_Suggestion, frozen=True, tag="time"):
    """The job's back-off ends at `at` (µs). `then` is what it would still lack in the current state (None: nothing)."""

    at: int
    then: Reason | None


class LargerMost(_Suggestion, frozen=True, tag="most"):
    """If the profile sets `most` to this value in `[preemption]`, the job preempts `jobs` running jobs, such as `job`.

    It may do so from `at` on (µs; -1: at once), when those jobs have reached their minimum run time.
    """

    most: int
    job: str
    jobs: int
    at: int = -1


Suggestion = JobsEnd | MoreQuota | ShorterRuntime | JobStarts | QueueOpens | BackOffEnds | LargerMost


def suggestion_sentence(found: Suggestion) -> str:
    """Return a suggestion as a sentence for people."""
    match found:
        case JobsEnd(jobs=jobs, at=at, more=more):
            names = ", ".join(jobs) + (f" and {more:,} other{'s' * (more > 1)}" if more else "")
            who = f"job {names} ends" if len(jobs) + more == 1 else f"jobs {names} end"
            when = f"expected at {clock(at)}" if at >= 0 else "at an unknown time"
            return f"{who} ({when}): then it fits"
        case MoreQuota(queue=queue, model=model, resource=resource, more=more, limit=limit, then=then):
            what = "as the limit of a user" if limit == "user" else "of quota"
            plus = amount(more, resource).replace(" ", " more ", 1)
            return f"{plus}{of_model(model)} {what} in queue {queue}: {_then(then)}"
        case ShorterRuntime(runtime=runtime):
            return f"it would start now if it ran for at most {show_duration(runtime)}"
        case JobStarts(job=job, then=then):
            return f"job {job} starts or leaves: {_then(then)}"
        case QueueOpens(queue=queue, then=then):
            return f"queue {queue} is opened: {_then(then)}"
        case LargerMost(most=most, job=job, jobs=jobs, at=at):
            who = f"job {job} stops" if jobs == 1 else f"job {job} and {jobs - 1:,} other{'s' * (jobs > 2)} stop"
            return f"[preemption] most = {most} in the profile: {who} for it{_from(at)}"
        case BackOffEnds(at=at, then=then):
            return f"it is tried again at {clock(at)}: {_then(then)}"


def _from(at: int) -> str:
    return f" from {clock(at)} on" if at >= 0 else ""


def _then(then: Reason | None) -> str:
    return "then it would start" if then is None else f"with everything else unchanged, this remains: {sentence(then)}"
