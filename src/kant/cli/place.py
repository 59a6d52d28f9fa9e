"""What a verb can ask and order, wherever its jobs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from kant.cli.output import Printable, Reply

if TYPE_CHECKING:
    from kant.sim.past import Past


LIVE = "held,blocked,waiting,running,stopping"
"""The phases of jobs that are not over."""


Wanted: TypeAlias = dict[str, Any]
"""What `kant submit` is asked for: fields of a `JobRequest` as JSON has them, without those that nobody said."""

EXPORT = "export"
"""What is wanted and no field: which variables of the environment of now the job gets; "none": few of them."""


class WantedStage(NamedTuple):
    """A stage of a workflow: its job, the places of the stages that have to end (well) before, and what is known of it.

    `facts` is a `StageOf` of `model/submission.py`.
    """

    wanted: Wanted
    after_ok: tuple[int, ...]
    after: tuple[int, ...]
    facts: dict[str, Any]


class Submitted(NamedTuple):
    """The ids of the jobs of a submission, and why they can never start, "" if they may."""

    jobs: list[str]
    rejected: str = ""


class Filter(NamedTuple):
    """Which jobs `kant jobs` lists, and how. Empty texts exclude nothing; `states` are divided by commas.

    In `name`, `*` and `?` stand for other letters. With `tried` they are those that wait, in the order in which they
    are tried. `columns` are those of the table (`job_table.py`); none: the usual ones.
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
        """Whether jobs that are over are listed too."""
        return not self.states


class TrialReply(NamedTuple):
    """When a job would start that nobody has submitted; `never` where it cannot."""

    json: Any
    show: Callable[[], object]
    never: bool

    def print(self, json: bool) -> int:
        """Print it; returns the exit code: 1 for a job that can never start."""
        Reply(self.json, self.show).print(json)
        return int(self.never)


class Source(Protocol):
    """Where questions are answered. Each answer raises InputError for a job that is not there."""

    def why(self, job: str) -> Printable:
        """Why a job waits; of another job, its phase."""
        ...

    def eta(self, job: str | None) -> Printable:
        """When the waiting jobs are expected to start, or one of them."""
        ...

    def status(self, optimality: bool) -> Reply:
        """What the cluster has, runs and is waited for, and how far that is from the best."""
        ...

    def past(self) -> Past:
        """What has happened so far: futures begin at its end."""
        ...


class Place(Source, Protocol):
    """A Kant that runs."""

    def submit(self, wanted: Wanted) -> Submitted:
        """Queue a command."""
        ...

    def trial(self, wanted: Wanted) -> Printable:
        """When a command would start if it were queued now; it is not."""
        ...

    def submit_batch(self, lines: list[tuple[int, Wanted]]) -> Submitted:
        """Queue what the lines of a text ask for, each with its number, or nothing; the ids in their order."""
        ...

    def submit_workflow(self, stages: list[WantedStage]) -> Submitted:
        """Queue all stages of a workflow, or none; the ids in their order."""
        ...

    def jobs(self, chosen: Filter) -> Reply:
        """The jobs, the latest first."""
        ...

    def logs(self, job: str, follow: bool, tail: int | None, write: Callable[[bytes], None], attempt: int = 0) -> None:
        """Write what a run of a job has written; `attempt` 0: the last."""
        ...

    def order(self, verb: str, jobs: tuple[str, ...]) -> list[str]:
        """Cancel, hold or release jobs; returns the ids of those that this changed."""
        ...

    def cancel_all(self, chosen: Filter, name: str) -> list[str]:
        """Cancel the jobs that are chosen, of those with this name (`*` and `?` stand for others); the ids of them."""
        ...

    def queues(self) -> Printable:
        """The queues, with their quotas and what they use."""
        ...

    def top(self) -> Printable:
        """What the pools and nodes hold, and the largest jobs that run."""
        ...
