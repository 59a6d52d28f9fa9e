"""The requests to solvers, and the solvers' answers. They are all that a driver knows of a solver."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kant.scheduler.solvers import Defragment

Round = Literal["fallback", "defragment", "route"]


class LearnedShares(Struct, frozen=True):
    """What defragmentation rounds have measured: for each pool, the share of time in which waiting jobs needed more
    idle nodes, and the share in which gangs needed more idle nodes in one leaf.
    """

    wanted: tuple[float, ...] = ()
    leaves: tuple[float, ...] = ()


class DefragmentOrder(Struct, frozen=True):
    """A round requested by a person, under `settings`. It assumes that idle nodes are needed all the time.

    `nodes` restricts the round to these nodes (None: all).
    """

    settings: Defragment
    nodes: frozenset[str] | None = None


class DefragmentMove(Struct, frozen=True):
    """A job that moves from one node to another, with its GPUs."""

    job: str
    source: str
    target: str
    pods: int
    gpus: int


class DefragmentPlan(Struct, frozen=True):
    """The changes of a round. The moves of one step belong together; steps do not depend on each other.

    `nodes` nodes were examined, of which `fragmented` are partly in use. `price`, the cost of the moves, and `worth`,
    the gain from the emptied nodes, are GPU time in milli-GPU-seconds. `lodgers` counts the jobs on fragmented nodes,
    `staying` those among them that may not be moved.
    """

    steps: tuple[tuple[DefragmentMove, ...], ...] = ()
    emptied: tuple[str, ...] = ()
    nodes: int = 0
    fragmented: int = 0
    fragmented_after: int = 0
    price: int = 0
    worth: int = 0
    lodgers: int = 0
    staying: int = 0


class Startable(Struct, frozen=True):
    """Waiting jobs that a packing starts, with their milli-GPUs and their share of the requests of all waiting jobs.

    The packing moves the running jobs `moves`. `proven`: no packing starts more pods, the highest priority first.
    """

    jobs: tuple[str, ...] = ()
    gpu_milli: int = 0
    share: float = 0.0
    moves: tuple[str, ...] = ()
    proven: bool = True


class Gang(Struct, frozen=True):
    """The GPUs of the largest gang of whole nodes that fits on a pool's idle nodes: now, and after `moves` moves."""

    pool: str
    gpus: int
    after_moves: int
    moves: int


class Stranded(Struct, frozen=True):
    """Milli-GPUs that are free on partly used nodes, attributed to the jobs there in proportion to their size."""

    queue: str
    gpu_milli: int
    jobs: tuple[tuple[str, int], ...]


class Optimality(Struct, frozen=True):
    """The cluster at `time`. `held_back` counts the waiting jobs that may not start even if GPUs are free."""

    time: int
    waiting: int
    waiting_milli: int
    held_back: int
    in_place: Startable
    with_moves: Startable
    gangs: tuple[Gang, ...]
    stranded: tuple[Stranded, ...]
    stranded_milli: int
    left_out: int
    limit_s: float
