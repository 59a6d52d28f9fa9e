"""The events of a job and the decisions about it, as sentences with their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kant.model import decision as d
from kant.model import event as ev
from kant.model.job import Job
from kant.model.placement import MASK, MILLI, NODE, Allocation
from kant.model.units import GPU, clock, show_duration

KEPT = 60
"""Number of sentences kept per job: the first ten, and the latest."""
FIRST = 10
MOST_NAMED = 4

Sentence = tuple[int, str, str]
S = TypeVar("S", bound=Struct)


class JobSentences:
    """The sentences of each job, by its row in the record."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = nodes
        self._sentences: dict[int, list[Sentence]] = {}

    def note(self, row: int, time: int, what: str, text: str) -> None:
        """Record a sentence. `what` is one word for its kind."""
        sentences = self._sentences.setdefault(row, [])
        sentences.append((time, what, text))
        if len(sentences) > 1 and time < sentences[-2][0]:
            sentences.sort(key=lambda each: each[0])
        if len(sentences) > KEPT:
            del sentences[FIRST]

    def happened(self, row: int, event: ev.Event, ahead: int = 0) -> None:
        """Record the sentence of an event, if the event has one. `ahead` is added to the event's time."""
        text = self._event(event)
        if text:
            self.note(row, event.time + ahead, event.__struct_config__.tag, text)  # type: ignore[arg-type]

    def decided(self, row: int, time: int, decision: d.Decision) -> None:
        """Record the sentence of a decision, unless an event will report the decision."""
        text = ""
        match decision:
            case d.Hold(reason=reason):
                text = f"it waits: {public_sentence(reason)}"
            case d.Preempt(moved=moved, by=by, why=why):
                how = "it will move to other GPUs" if moved else "it will be stopped"
                text = how + (f", for job {public_id(by)}" if by else "") + (f" ({why})" if why else "")
            case d.Expire():
                text = "it has reached its time limit and will be stopped"
        if text:
            self.note(row, time, decision.__struct_config__.tag, text)  # type: ignore[arg-type]

    def of(self, row: int) -> list[dict[str, Any]]:
        """Return the sentences of a job, in order."""
        return [{"time_us": time, "what": what, "sentence": text} for time, what, text in self._sentences.get(row, ())]

    def move(self, by: int) -> None:
        """Add `by` microseconds to all times, for another clock."""
        self._sentences = {
            row: [(time + by, what, text) for time, what, text in own] for row, own in self._sentences.items()
        }  # fmt: skip

    def keep(self, rows: dict[int, int]) -> None:
        """Drop the sentences of all jobs but those in `rows`, which maps their old rows to new ones."""
        self._sentences = {rows[row]: sentences for row, sentences in self._sentences.items() if row in rows}

    def _event(self, event: ev.Event) -> str:
        match event:
            case ev.JobSubmitted(job=job):
                return f"it arrived in queue {job.queue}"
            case ev.JobStarted(allocation=place):
                return f"it started on {self.place(place)}"
            case ev.JobGrown(allocation=place):
                return f"it grew by {self.place(place)}"
            case ev.JobShrunk(allocation=place, by=by):
                return f"it gave back {self.place(place)}" + (f", for job {public_id(by)}" if by else "")
            case ev.JobScaled(groups=groups):
                least, most = sum(group.least for group in groups), sum(group.count for group in groups)
                return f"it now has {least} to {most} pods" if least < most else f"it now has {most} pods"
            case ev.JobFinished():
                return "it finished"
            case ev.JobPreempted(moved=moved, by=by):
                return "it moved" if moved else "it was stopped" + (f" for job {public_id(by)}" if by else "")
            case ev.JobEvicted(reason=reason, node=node):
                return f"it lost its GPUs: {reason}" + (f" (node {node})" if node else "")
            case ev.JobRefused(reason=reason):
                return f"it could not be started: {reason}"
            case ev.JobFailed(reason=reason):
                return f"it failed: {reason}"
            case ev.JobReserved(start=start, allocation=place):
                return f"it has a reservation of {self.place(place)} from {clock(start)}"
            case ev.JobReleased():
                return "its reservation is withdrawn"
            case ev.JobRejected(reason=reason):
                return f"it was rejected: {reason}"
            case ev.JobCancelled():
                return "it left its queue"
            case ev.JobDemoted(level=level):
                return f"it moved to level {level} of its queue"
            case ev.JobProtected(by=by):
                return f"it may not be stopped: {by}" if by else "it may be stopped again"
            case ev.JobPriced(price=price) if price >= 0:
                return f"stopping it now costs {price / GPU:,.0f} GPU-seconds"
            case ev.JobPriced():
                return "stopping it costs the work that it would lose"
            case ev.JobAwaitsNode(awaits=awaits):
                return "an autoscaler may add a node for it" if awaits else "no autoscaler adds a node for it"
            case ev.JobLimited(limit=limit):
                return f"its time limit is now {show_duration(limit)}"
        return ""

    def place(self, place: Allocation) -> str:
        """Return an allocation as text: how many GPUs on which nodes."""
        milli = sum(int(piece[MASK]).bit_count() * int(piece[MILLI]) for piece in place)
        indices = dict.fromkeys(place[:, NODE].tolist())
        names = [self.nodes[node] for node in list(indices)[:MOST_NAMED]]
        more = f" and {len(indices) - MOST_NAMED} more nodes" if len(indices) > MOST_NAMED else ""
        gpus = f"{milli / GPU:g} GPU{'s' * (milli != GPU)} of " if milli else ""
        return f"{gpus}{', '.join(names)}{more}"


def public_id(job: str) -> str:
    """Return the id that users know; the core's id differs if the job was submitted again (`Core.fresh_id`)."""
    return job.partition("~")[0]


def with_public_ids(found: S) -> S:
    """Return a reason, fact, remedy or other struct that names jobs, with public job ids."""
    changed: dict[str, Any] = {}
    for name in found.__struct_fields__:
        value = getattr(found, name)
        if name == "job":
            changed[name] = public_id(value)
        elif name == "jobs" and isinstance(value, tuple):  # in other structs `jobs` is the number of jobs
            changed[name] = tuple(public_id(job) for job in value)
        elif isinstance(value, Struct):
            changed[name] = with_public_ids(value)
    return replace(found, **changed) if changed else found


def size_sentence(job: Job, pods: int) -> str:
    """Return a job's number of pods, and its range: `runs with 3 of 2 to 6 pods`."""
    least = sum(group.least for group in job.groups)
    return f"runs with {pods} of {least} to {job.pods} pods" if least < job.pods else f"runs with {pods} pods"


def public_sentence(reason: d.Reason) -> str:
    """Return a reason for people, with public job ids."""
    return d.sentence(with_public_ids(reason))
