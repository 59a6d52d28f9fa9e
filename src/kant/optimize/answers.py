"""What solvers are asked, and what they answer: all that a driver has to know of one that works beside it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kant.scheduler.solvers import Defragment

Round = Literal["fallback", "defragment"]


class Learned(Struct, frozen=True):
    """What rounds have learned: of each pool the share of the time at which waiting jobs wanted more idle nodes, and
    that at which gangs wanted more of them in one leaf.
    """

    wanted: tuple[float, ...] = ()
    leaves: tuple[float, ...] = ()


class DefragmentOrder(Struct, frozen=True):
    """A round that somebody asks for, under `settings`; an idle node is taken to be wanted all the time.

    `nodes` are those that are looked at (None: all).
    """

    settings: Defragment
    nodes: frozenset[str] | None = None


class DefragmentMove(Struct, frozen=True):
    """A job that goes from one node to another, with its GPUs."""

    job: str
    source: str
    target: str
    pods: int
    gpus: int


class DefragmentPlan(Struct, frozen=True):
    """What a round would change. Moves of one step belong together, and steps do not depend on each other.

    `nodes` are looked at, of which so many are `fragmented`: in use, and not whole. `price` and `worth` are GPU time,
    milli-GPU-seconds: what the moves cost, and what the nodes that they empty give. `lodgers` jobs are on fragmented
    nodes, of which `staying` may not be moved.
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
    """Waiting jobs that a packing starts, with their milli-GPUs and their share of what all waiting jobs ask for.

    `moves` running jobs go elsewhere for that. `proven`: no packing starts more pods, the highest priority first.
    """

    jobs: tuple[str, ...] = ()
    gpu_milli: int = 0
    share: float = 0.0
    moves: tuple[str, ...] = ()
    proven: bool = True


class Gang(Struct, frozen=True):
    """GPUs on idle nodes of a pool, the largest gang of whole nodes: now, and `after_moves` of other jobs."""

    pool: str
    gpus: int
    after_moves: int
    moves: int


class Stranded(Struct, frozen=True):
    """Milli-GPUs that are free on nodes in use in part, by who is there, each in proportion to what it holds."""

    queue: str
    gpu_milli: int
    jobs: tuple[tuple[str, int], ...]


class Optimality(Struct, frozen=True):
    """How the cluster stands at `time`. `held_back` of the waiting jobs may not start, whatever is free."""

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
