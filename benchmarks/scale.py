"""From 1,000 to 100,000 GPUs: single GPUs, a gang over 512 nodes, a verdict, and a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks import rivals
from benchmarks.measure import Figure, cpu_seconds
from benchmarks.placement import filled
from kant.cluster.journal import Header, Journal, read_lines
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import Hold, NoFit
from kant.model.event import JobStarted, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.placement.placer import Placer
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile

SIZES = (125, 1_250, 12_500)
LARGEST = SIZES[-1]
LEAF, SPINE = 32, 1_024
KINDS = (1, 2, 4, 8)


def measure() -> Iterator[Figure]:
    yield from single_gpus()
    yield from gang()
    yield verdict()
    yield restart()


def cluster(nodes: int) -> ClusterSpec:
    """Nodes of eight GPUs, 32 to a leaf and 1,024 to a spine."""
    return ClusterSpec(
        "scale", tuple(Node(f"n{i}", 8, leaf=f"leaf-{i // LEAF}", spine=f"spine-{i // SPINE}") for i in range(nodes))
    )


def occupied(nodes: int, share: float) -> ClusterState:
    """The cluster filled at random, and typical pods for those who measure fragmentation."""
    state, _ = filled(nodes, share, spec=cluster(nodes))
    state.given_pods = np.array([(0, gpus, 1000, 1, 1) for gpus in KINDS], dtype=np.int64)
    return state


def single_gpus() -> Iterator[Figure]:
    """Pods of one GPU, each placed for good, with all of Kant's scoring, beside what is written in an afternoon."""
    demand = Job("x", 0, (PodGroup(1, Demand(1)),))
    for nodes in SIZES:
        pods = min(nodes, 5_000)
        state = occupied(nodes, 0.7)
        placer = Placer(Snapshot(state), builtin_profile("kant").placement, 0)
        shape = state.shapes.of(demand)
        placer.place(shape)
        ours, _ = cpu_seconds(lambda placer=placer, shape=shape, pods=pods: [placer.place(shape) for _ in range(pods)])
        free = state.table[:, 4] // 1000

        def best_fit(free: rivals.Ints = free, pods: int = pods) -> None:
            for _ in range(pods):
                free[rivals.best_fit(free, 1)] -= 1

        theirs, _ = cpu_seconds(best_fit)
        yield Figure(
            f"single-gpus-{nodes}", pods / ours, "pods/s", theirs / ours, f"NumPy argmin over {nodes:,} nodes",
            "the calls into compiled code, and one node of the index brought up to date for each pod",
        )  # fmt: skip
    fgd = rivals.NumpyFgd(np.full(LARGEST, 1 << 40), np.full(LARGEST, 8), state.typical_pods)
    few = 20
    theirs, _ = cpu_seconds(lambda: [fgd.place(0, 1, 1000) for _ in range(few)])
    yield Figure(
        "single-gpus-fgd", pods / ours, "pods/s", theirs / few / (ours / pods), "FGD in NumPy over 12,500 nodes",
        "the same",
    )  # fmt: skip


def gang() -> Iterator[Figure]:
    """512 whole nodes that must lie in one spine: the first of its kind, which looks at every node, and the next."""
    wanted = Job("gang", 0, (PodGroup(512, Demand(8)),), within="spine", within_required=True)
    policy = builtin_profile("kant").placement
    warm = Placer(Snapshot(occupied(SPINE * 2, 0.25)), policy, 0)  # compiles
    warm.place(warm.snapshot.state.shapes.of(wanted))
    state = occupied(LARGEST, 0.25)
    placer = Placer(Snapshot(state), policy, 0)
    placer.place(state.shapes.of(Job("x", 0, (PodGroup(1, Demand(1)),))))
    shape = state.shapes.of(wanted)
    first, _ = cpu_seconds(partial(placer.place, shape))
    following, placed = cpu_seconds(partial(placer.place, shape))
    assert not isinstance(placed, NoFit)
    idle = state.table[:, 3] == 8

    def rival() -> list[int]:
        """The spine with the fewest idle nodes that suffice, and its fullest leaves."""
        by_leaf = np.add.reduceat(idle, np.arange(0, LARGEST, LEAF))
        by_spine = np.add.reduceat(idle, np.arange(0, LARGEST, SPINE))
        spine = int(np.argmin(np.where(by_spine >= 512, by_spine, 1 << 40)))
        leaves = np.arange(spine * SPINE // LEAF, min((spine + 1) * SPINE // LEAF, len(by_leaf)))
        chosen: list[int] = []
        for leaf in leaves[np.argsort(-by_leaf[leaves], kind="stable")].tolist():
            nodes = np.flatnonzero(idle[leaf * LEAF : (leaf + 1) * LEAF]) + leaf * LEAF
            chosen += nodes[: 512 - len(chosen)].tolist()
        return chosen

    theirs, chosen = cpu_seconds(rival, 3)
    assert len(chosen) == 512
    bound = "512 nodes taken one by one, device by device, and the row that says so for each"
    rival_name = "NumPy sums by leaf and spine"
    yield Figure("gang-512-first", 1e3 * first, "ms", theirs / first, rival_name, "a look at every node; then as below")
    yield Figure("gang-512", 1e3 * following, "ms", theirs / following, rival_name, bound)


def verdict() -> Figure:
    """A whole cycle that says why a gang of 1,000 nodes cannot start in one spine, just after its submission."""
    state = occupied(LARGEST, 0.7)
    scheduler = Scheduler(state, builtin_profile("kant"))
    for i, gpus in enumerate((8, 1)):
        state.apply(JobSubmitted(i, Job(f"w{i}", i, (PodGroup(2, Demand(gpus)),), within="leaf", within_required=True)))
        scheduler.cycle(i)
    wanted = Job("gang", 2, (PodGroup(1_000, Demand(8)),), within="spine", within_required=True)
    state.apply(JobSubmitted(2, wanted))
    seconds, plan = cpu_seconds(partial(scheduler.cycle, 2))
    assert any(isinstance(d, Hold) and d.job == "gang" and isinstance(d.reason, NoFit) for d in plan.decisions)
    return Figure(
        "verdict", 1e3 * seconds, "ms", None, "",
        "whether it could ever fit, which looks at the empty cluster once, and the search for victims",
    )  # fmt: skip


def restart() -> Figure:
    """140,000 running pods on 5,000 nodes read from a journal, each line checked and applied, and the first cycle."""
    lines: list[bytes] = []
    journal = Journal(lines.append)
    journal.write(Header("0", "scale", "kant", 0, cluster(5_000)))
    for i in range(140_000):
        node, pod = i % 5_000, i // 5_000
        demand = Demand(1, 1000, 4000, 16_384) if pod < 7 else Demand(1, 40, 500, 1024)
        piece = [[node, 1, 1 << min(pod, 7), demand.milli, demand.cpu, demand.memory, 1 if pod < 7 else 0]]
        journal.write(
            JobSubmitted(i, Job(f"job-{i}", i, (PodGroup(1, demand),), queue=f"q{i % 20}", user=f"u{i % 99}"))
        )
        journal.write(JobStarted(i, f"job-{i}", np.array(piece, dtype=np.int64)))

    def again() -> ClusterState:
        read = read_lines(iter(lines), "journal")
        header = next(read)
        assert isinstance(header, Header)
        state = ClusterState(header.cluster)
        for line in read:
            state.apply(line)  # type: ignore[arg-type]
        Scheduler(state, builtin_profile("kant")).cycle(state.now)
        return state

    ours, state = cpu_seconds(again, 2)
    assert len(state.running) == 140_000
    theirs, _ = cpu_seconds(lambda: [json.loads(line) for line in lines])
    return Figure(
        "restart", ours, "s", theirs / ours, "json.loads of the same lines, and no more",
        "280,000 lines: a quarter of it to decode them, the rest to check and apply",
    )  # fmt: skip
