"""The interfaces through which verbs ask questions and give orders, wherever the jobs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from kant.cli.output import Printable, Reply

if TYPE_CHECKING:
    from kant.sim.past import Past


LIVE = "held,blocked,waiting,running,stopping"
"""The phases of jobs that have not ended."""


Wanted: TypeAlias = dict[str, Any]
"""The request of `kant submit`: the given fields of a `JobRequest`, in JSON form."""

EXPORT = "export"
"""A key of a request besides the fields: the variables of the caller's environment that a job gets; "none": few."""


class WantedStage(NamedTuple):
    """A stage of a workflow: its job, the positions of the stages that have to end (or succeed) first, and its facts.

    `facts` is a `StageOf` of `model/submission.py`.
    """

    wanted: Wanted
    after_ok: tuple[int, ...]
    after: tuple[int, ...]
    facts: dict[str, Any]


class Submitted(NamedTuple):
    """The ids of the submitted jobs, and why they can never start; "" if they may start."""

    jobs: list[str]
    rejected: str = ""


class Filter(NamedTuple):
    """Which jobs `kant jobs` lists, and how. Empty texts select all jobs; `states` are separated by commas.

    In `name`, `*` and `?` are wildcards. With `tried`, the waiting jobs are listed in the order in which they are
    scheduled. `columns` are those of the table (`job_table.py`); none: the usual ones.
    """

    states: str
    queue: str
    user: str
    limit: int
    before: int | None
    name: str = ""
    tried: bool = False
    columns: tuple[str, ...] = ()

    @property
    def is_of_all(self) -> bool:
        """Whether ended jobs are included."""
        return not self.states


class TrialReply(NamedTuple):
    """The expected start of a job that is not submitted; `never`: whether it can never start."""

    json: Any
    show: Callable[[], object]
    never: bool

    def print(self, json: bool) -> int:
        """Print the answer; return the exit code: 1 for a job that can never start."""
        Reply(self.json, self.show).print(json)
        return int(self.never)


class AnswerSource(Protocol):
    """A source of answers to questions. Each answer raises InputError for an unknown job."""

    def why(self, job: str) -> Printable:
        """Return why a job waits; for a job that does not wait, its phase."""
        ...

    def eta(self, job: str | None) -> Printable:
        """Return when the waiting jobs, or only `job`, are expected to start."""
        ...

    def status(self, optimality: bool) -> Reply:
        """Return the capacity, use and demand of the cluster, and how far its use is from the best possible."""
        ...

    def past(self) -> Past:
        """Return the recorded history of the cluster; simulated futures begin at its end."""
        ...


class Place(AnswerSource, Protocol):
    """A running Kant that jobs are submitted to."""

    def submit(self, wanted: Wanted) -> Submitted:
        """Queue a command."""
        ...

    def trial(self, wanted: Wanted) -> Printable:
        """Return when a command would start if it were queued now, without queueing it."""
        ...

    def submit_batch(self, lines: list[tuple[int, Wanted]]) -> Submitted:
        """Queue the jobs of numbered lines, all or none; return the ids in the order of the lines."""
        ...

    def submit_workflow(self, stages: list[WantedStage]) -> Submitted:
        """Queue the stages of a workflow, all or none; return the ids in the order of the stages."""
        ...

    def jobs(self, chosen: Filter) -> Reply:
        """Return the jobs, the latest first."""
        ...

    def logs(self, job: str, follow: bool, tail: int | None, write: Callable[[bytes], None], attempt: int = 0) -> None:
        """Write the output of a run of a job; `attempt` 0: the last run."""
        ...

    def order(self, verb: str, jobs: tuple[str, ...]) -> list[str]:
        """Cancel, hold or release jobs, by `verb`; return the ids of those that changed."""
        ...

    def cancel_all(self, chosen: Filter, name: str) -> list[str]:
        """Cancel the chosen jobs with this name (`*` and `?` are wildcards); return their ids."""
        ...

    def queues(self) -> Printable:
        """Return the queues, with their quotas and usage."""
        ...

    def top(self) -> Printable:
        """Return the capacity of the pools and nodes, and the largest running jobs."""
        ...
