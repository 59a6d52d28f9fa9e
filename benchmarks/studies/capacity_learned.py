"""Is a learned order of insertion better than the best of three: `python -m benchmarks.studies.capacity_learned`.

Trains the order on generated instances, then compares it with the fixed orders on instances of other seeds, before
repair and after it. Writes docs/studies/capacity.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import cpu_seconds
from benchmarks.studies.capacity_training import WEIGHTS, Generation, cost_by, train
from benchmarks.studies.judges import capacity_faults as faults
from benchmarks.studies.parts import write_part
from kant.metrics.paired import Interval, mean_interval
from kant.optimize.capacity.generate import generate
from kant.optimize.capacity.learned import LearnedInsertion
from kant.optimize.capacity.planning import planning_of
from kant.optimize.capacity.solve import insert_best, lower

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "capacity.md"
TRAINED_ON = (500, 2_500)
"""Tasks of the instances of training."""
SIZES = ((500, 40), (2_500, 30), (5_000, 20), (10_000, 10))
"""Tasks, and how many seeds, from 0 on."""
ROUNDS = 20
"""Rounds of repair after insertion, as many as a plan after a change gets."""
REPAIRED = ((500, 20), (2_500, 10), (5_000, 10))

ABOUT = """\
iScheduler (arXiv 2602.06064) plans process by process, and learns which process comes next. Kant's first plan is made
by insertion: the processes one by one, each task where it adds least to the peaks, in three fixed orders (most work,
least slack, as given) of which the cheapest is kept. `kant plan capacity --search learned` makes it in one order
instead that is chosen step by step: the process with the highest score is next, a weighted sum of its features
and of how full its window is by then. The paper's code and instances are not public, so its network is not rebuilt;
the features are ours.

The weights are found by the cross-entropy method on instances of {sizes} tasks of `kant plan generate`, of other
seeds than the comparison has. Cost is compared on each instance with that of the best of the three fixed orders;
intervals are of 95 % by Student's t. Times are CPU seconds of one core.
"""


def shown(found: Interval) -> str:
    return f"{100 * found.mean:+.2f} % ({100 * found.low:+.2f} to {100 * found.high:+.2f})"


def inserted(order: LearnedInsertion, spans: dict[str, list[Interval]]) -> Iterator[str]:
    yield "| tasks | seeds | learned beside the best of three | cheaper on | CPU s, best of three | CPU s, learned |"
    yield "|" + "---|" * 6
    for size, seeds in SIZES:
        changes, fixed_s, learned_s = [], 0.0, 0.0
        for seed in range(seeds):
            empty = planning_of(generate(size, seed=seed))
            spent, rival = cpu_seconds(lambda empty=empty: cost_by(insert_best, empty))
            fixed_s += spent
            spent, cost = cpu_seconds(lambda empty=empty: cost_by(order.insert, empty))
            learned_s += spent
            changes.append(cost / rival - 1)
        found = mean_interval(changes)
        spans["inserted"].append(found)
        yield (
            f"| {size:,} | {seeds} | {shown(found)} | {sum(change < 0 for change in changes)} "
            f"| {fixed_s / seeds:.3f} | {learned_s / seeds:.3f} |"
        )


def repaired(order: LearnedInsertion, spans: dict[str, list[Interval]]) -> Iterator[str]:
    yield "| tasks | seeds | learned beside the best of three | cheaper on |"
    yield "|---|---|---|---|"
    for size, seeds in REPAIRED:
        changes = []
        for seed in range(seeds):
            instance = generate(size, seed=seed)
            costs = []
            for insert in (insert_best, order.insert):
                planning = planning_of(instance)
                insert(planning)
                lower(planning, ROUNDS, seed)
                made = planning.plan()
                assert not faults(instance, made.starts)
                costs.append(made.cost)
            changes.append(costs[1] / costs[0] - 1)
        found = mean_interval(changes)
        spans["repaired"].append(found)
        yield f"| {size:,} | {seeds} | {shown(found)} | {sum(change < 0 for change in changes)} |"


def verdict(what: str, sizes: tuple[tuple[int, int], ...], spans: list[Interval]) -> str:
    """One sentence on the sizes at which the interval lies on one side of zero."""
    names: dict[str, list[str]] = {"cheaper": [], "dearer": [], "not shown to differ": []}
    for (size, _), each in zip(sizes, spans, strict=True):
        kind = "cheaper" if each.high < 0 else "dearer" if each.low > 0 else "not shown to differ"
        names[kind].append(f"{size:,}")
    parts = [f"{kind} at {', '.join(found)} tasks" for kind, found in names.items() if found]
    return f"{what} the learned order is {'; '.join(parts)}."


def page() -> Iterator[str]:
    trained: list[Generation] = []
    seconds, _ = cpu_seconds(lambda: trained.extend(train(TRAINED_ON)))
    order = trained[-1].order
    assert order == LearnedInsertion(), "the weights that Kant has are those that are found here"
    spans: dict[str, list[Interval]] = {"inserted": [], "repaired": []}
    tables = list(inserted(order, spans)), list(repaired(order, spans))
    yield "# Is a learned order of processes better?\n"
    yield "Made by `python -m benchmarks.studies.capacity_learned`.\n"
    yield ABOUT.format(sizes=" and ".join(f"{size:,}" for size in TRAINED_ON))
    yield "**In short.** " + verdict("After insertion alone", SIZES, spans["inserted"])
    yield verdict(f"After {ROUNDS} rounds of repair", REPAIRED, spans["repaired"])
    yield "\n## After insertion alone\n"
    yield from tables[0]
    yield f"\n## After {ROUNDS} rounds of repair\n"
    yield from tables[1]
    yield f"\n## Weights\n\n{len(trained)} generations, seed 0, {seconds:.0f} CPU seconds:\n"
    yield "| what | weight |\n|---|---|"
    yield from (f"| {name} | {getattr(order, name)} |" for name in WEIGHTS)


if __name__ == "__main__":
    write_part(PAGE, "capacity_learned", page())
