"""A Match selects the jobs to which a part of a profile applies."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kant.model.job import Job
from kant.model.units import GPU

Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class Match(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs of these `queues` and `users`, with these `names` and within these bounds; omitted fields admit all.

    A list entry that ends in `*` matches all names with that prefix. GPUs and pods are those of the whole gang; shares
    of a GPU count as fractions.
    """

    queues: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    gpus_at_least: Count = 0
    gpus_at_most: Count | None = None
    pods_at_least: Count = 0
    pods_at_most: Count | None = None
    priority_at_least: int | None = None
    preemptible: bool | None = None

    def admits(self, job: Job) -> bool:
        """Return whether `job` matches."""
        return (
            _listed(job.queue, self.queues)
            and _listed(job.user, self.users)
            and _listed(job.name, self.names)
            and self.gpus_at_least * GPU <= job.gpu_milli
            and (self.gpus_at_most is None or job.gpu_milli <= self.gpus_at_most * GPU)
            and self.pods_at_least <= job.pods
            and (self.pods_at_most is None or job.pods <= self.pods_at_most)
            and (self.priority_at_least is None or job.priority >= self.priority_at_least)
            and (self.preemptible is None or job.preemptible == self.preemptible)
        )


def _listed(name: str, entries: tuple[str, ...]) -> bool:
    return not entries or any(
        name.startswith(entry[:-1]) if entry.endswith("*") else name == entry for entry in entries
    )
