"""A Match says which jobs a part of a profile is about."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kant.model.job import Job
from kant.model.units import GPU

Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class Match(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs of these `queues` and `users`, with these `names` and within these bounds; what is left out admits all.

    An entry of a list that ends in `*` stands for all that begin so. GPUs and pods are those of the whole gang,
    shares of a GPU counted as what they are.
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
        """Whether `job` is one of them."""
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
