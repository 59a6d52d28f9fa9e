"""How far from the best possible: batches on a small cluster against the exact optimum, by CP-SAT.

`python -m benchmarks.studies.optimum`, with the extra `optimize`. Writes docs/studies/optimum.md and its plot.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from benchmarks.studies.sharing import Estimate, bars
from kant.cluster import columns as c
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.event import JobStarted, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.placement import NODE
from kant.optimize.solvers import deterministic
from kant.placement.placer import Placer
from kant.scheduler.profile import builtin_profile

NODES, GPUS, LEAF = 16, 8, 4
SIZES = (1, 2, 4, 8, 16, 32)
WEIGHTS = (0.35, 0.2, 0.15, 0.15, 0.1, 0.05)
SEEDS = range(40)
LOADS = {"light": 0.8, "heavy": 1.3}
POLICIES = ("worst-fit", "first-fit", "best-fit", "fgd", "consolidated", "e-binpack", "kant")
LIMIT = 30.0
"""Of one solve, in CP-SAT's deterministic seconds."""

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "optimum.md"


@dataclass(frozen=True, slots=True)
class Outcome:
    """GPUs placed, nodes of which a part is taken, and leaves that gangs use beyond one each."""

    gpus: int
    fragmented: int
    leaves: int


@dataclass(frozen=True, slots=True)
class Instance:
    """GPUs free on each node, and the GPUs of each job of the batch in the order of arrival."""

    free: tuple[int, ...]
    batch: tuple[int, ...]


def job(name: str, gpus: int) -> Job:
    """One pod up to a node; whole nodes, best in one leaf, beyond."""
    return Job(name, 0, (PodGroup(max(gpus // GPUS, 1), Demand(min(gpus, GPUS))),), within="leaf" if gpus > 8 else "")


def draw(seed: int, load: float) -> Instance:
    """Nodes that jobs have come to and gone from at random, and a batch that asks for `load` of what is free."""
    rng = np.random.default_rng(seed)
    free = np.full(NODES, GPUS)
    held: list[tuple[int, int]] = []
    while free.sum() > 0.3 * NODES * GPUS:
        gpus, node = int(rng.choice(SIZES[:4])), int(rng.integers(NODES))
        if free[node] >= gpus:
            free[node] -= gpus
            held.append((node, gpus))
    for i in rng.permutation(len(held))[: len(held) * 2 // 3]:
        free[held[i][0]] += held[i][1]
    batch: list[int] = []
    while sum(batch) < load * free.sum():
        batch.append(int(rng.choice(SIZES, p=WEIGHTS)))
    return Instance(tuple(free.tolist()), tuple(batch))


def placed(instance: Instance, policy: str, mix: Counter[int]) -> Outcome:
    """What one policy makes of it, job by job; who does not fit is passed."""
    nodes = tuple(Node(f"n{i}", GPUS, leaf=f"leaf-{i // LEAF}") for i in range(NODES))
    state = ClusterState(ClusterSpec("small", nodes))
    state.given_pods = np.array([(0, min(gpus, GPUS), 1000, 1, n) for gpus, n in sorted(mix.items())], dtype=np.int64)
    for node, free in enumerate(instance.free):
        if free < GPUS:
            taken = GPUS - free
            state.apply(JobSubmitted(0, job(f"held-{node}", taken)))
            piece = [[node, 1, (1 << taken) - 1, 1000, 0, 0, taken]]
            state.apply(JobStarted(0, f"held-{node}", np.array(piece, dtype=np.int64)))
    snapshot = Snapshot(state)
    placer = Placer(snapshot, builtin_profile(policy).placement, 0)
    gpus = leaves = 0
    for i, size in enumerate(instance.batch):
        found = placer.place(state.shapes.of(job(f"j{i}", size)), i)
        if not isinstance(found, NoFit):
            gpus += size
            leaves += len({int(node) // LEAF for node in found[:, NODE]}) - 1
    free_now = snapshot.table[:, c.FREE]
    return Outcome(gpus, int(((free_now > 0) & (free_now < GPUS * 1000)).sum()), leaves)


def optimum(instance: Instance) -> tuple[Outcome, bool]:
    """The most GPUs; with these the fewest broken nodes; with these the fewest leaves. And whether all is proven."""
    model = cp_model.CpModel()
    counts = Counter(instance.batch)
    small = {
        (size, n): model.new_int_var(0, min(counts[size], instance.free[n] // size), "")
        for size in counts if size <= GPUS for n in range(NODES)
    }  # fmt: skip
    gangs = [(i, size // GPUS) for i, size in enumerate(instance.batch) if size > GPUS]
    runs = {i: model.new_bool_var("") for i, _ in gangs}
    on = {(i, n): model.new_bool_var("") for i, _ in gangs for n in range(NODES) if instance.free[n] == GPUS}
    for size in counts:
        if size <= GPUS:
            model.add(sum(small[size, n] for n in range(NODES)) <= counts[size])
    for i, pods in gangs:
        model.add(sum(on[i, n] for n in range(NODES) if (i, n) in on) == pods * runs[i])
    fragmented: list[Any] = []
    for n in range(NODES):
        new = sum(size * small[size, n] for size in counts if size <= GPUS)
        new += GPUS * sum(on[i, n] for i, _ in gangs if (i, n) in on)
        model.add(new <= instance.free[n])
        full, empty = model.new_bool_var(""), model.new_bool_var("")
        model.add(new >= instance.free[n]).only_enforce_if(full)
        model.add(new == 0).only_enforce_if(empty)
        if instance.free[n] < GPUS:
            model.add(empty == 0)
        fragmented.append(1 - full - empty)
        model.add(full + empty <= 1)
    used = {}
    for i, _ in gangs:
        for leaf in range(NODES // LEAF):
            used[i, leaf] = model.new_bool_var("")
            for n in range(leaf * LEAF, (leaf + 1) * LEAF):
                if (i, n) in on:
                    model.add_implication(on[i, n], used[i, leaf])
    goals = (
        -sum(size * small[size, n] for size, n in small) - sum(pods * GPUS * runs[i] for i, pods in gangs),
        sum(fragmented),
        sum(used.values()) - sum(runs.values()),
    )
    values: list[int] = []
    proven = True
    for goal in goals:
        solver = deterministic(LIMIT)
        if isinstance(goal, int):  # there is nothing to choose
            values.append(goal)
            continue
        model.minimize(goal)
        proven &= solver.solve(model) == cp_model.OPTIMAL
        values.append(round(solver.objective_value))
        model.add(goal == values[-1])
    return Outcome(-values[0], values[1], values[2]), proven


Row = dict[str, Outcome]


def run_one(task: tuple[str, int]) -> tuple[str, int, Outcome, bool, Row]:
    """One instance: its optimum, whether that is proven, and what the policies make of it."""
    load, seed = task
    instance = draw(seed, LOADS[load])
    mix = Counter(dict(zip(SIZES, (round(100 * weight) for weight in WEIGHTS), strict=True)))
    best, proven = optimum(instance)
    return load, seed, best, proven, {policy: placed(instance, policy, mix) for policy in POLICIES}


def interval(values: list[float]) -> Estimate:
    """Mean and 95 % interval (normal: there are dozens)."""
    if len(values) < 2:
        return Estimate(math.nan, math.nan)
    return Estimate(float(np.mean(values)), 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values)))


def shown(found: Estimate, digits: int) -> str:
    return "-" if math.isnan(found.mean) else f"{found.mean:.{digits}f} ± {found.half:.{digits}f}"


def lines(results: list[tuple[str, int, Outcome, bool, Row]], load: str) -> Iterator[str]:
    """The table of one load."""
    yield "| policy | GPUs placed, % of the optimum | at the optimum | broken nodes above it | leaves above it |"
    yield "|---|---|---|---|---|"
    own = [result for result in results if result[0] == load]
    for policy in POLICIES:
        share = [100 * row[policy].gpus / best.gpus for _, _, best, _, row in own]
        level = [(best, row[policy]) for _, _, best, _, row in own if row[policy].gpus == best.gpus]
        broken = interval([float(mine.fragmented - best.fragmented) for best, mine in level])
        leaves = interval([float(mine.leaves - best.leaves) for best, mine in level])
        yield (
            f"| `{policy}` | {shown(interval(share), 1)} | {len(level)} of {len(own)} |"
            f" {shown(broken, 2)} | {shown(leaves, 2)} |"
        )


def page(results: list[tuple[str, int, Outcome, bool, Row]]) -> Iterator[str]:
    yield "# How far from the best\n"
    yield "Made by `python -m benchmarks.studies.optimum`, which needs OR-Tools (the extra `optimize`).\n"
    yield f"""\
{NODES} nodes of {GPUS} GPUs in leaves of {LEAF}. Jobs have come to random nodes and gone, so that about three quarters
of the GPUs are free; then a batch arrives that asks for {LOADS["light"]:.0%} (light) or {LOADS["heavy"]:.0%} (heavy)
of them: {", ".join(f"{w:.0%} of {s}" for s, w in zip(SIZES, WEIGHTS, strict=True))} GPUs. Jobs of more than {GPUS} are
gangs of whole nodes that prefer one leaf. A policy places job by job in the order of arrival, and skips jobs that do
not fit. The optimum sees the whole batch: the most GPUs, then the fewest broken nodes, then the fewest leaves (CP-SAT,
one worker, {LIMIT:g} deterministic seconds a goal). {len(SEEDS)} instances each; intervals are 95 %.

Partly used nodes and leaves are compared on instances on which a policy places as many GPUs as the optimum; of
these the better policies have more, and the harder ones.
"""
    for load in LOADS:
        own = [result for result in results if result[0] == load]
        proven = sum(result[3] for result in own)
        yield f"## {load.capitalize()}\n"
        rest = "" if proven == len(own) else "; on the others it is the best that was found"
        yield f"The optimum is proven on {proven} of {len(own)}{rest}.\n"
        yield from lines(results, load)
        yield ""
    yield "![GPUs that the optimum places and a policy does not, under the heavy batch](optimum.svg)"


def main() -> None:
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(run_one, [(load, seed) for load in LOADS for seed in SEEDS]))
    PAGE.write_text("\n".join(page(results)) + "\n", encoding="utf-8")
    heavy = [(best, row) for load, _, best, _, row in results if load == "heavy"]
    found = [
        (policy, interval([100 - 100 * row[policy].gpus / best.gpus for best, row in heavy])) for policy in POLICIES
    ]
    plot = bars("GPUs that the optimum places and the policy does not (heavy)", found, "%")
    PAGE.with_suffix(".svg").write_text(plot, encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
