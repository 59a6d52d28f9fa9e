"""How workflows are planned, one by one and in streams: `python -m benchmarks.studies.workflows`.

The ten tasks of Topcuoglu with their proven optimum, streams of them, an order that is trained on such streams, and
graphs that are drawn. Writes docs/studies/workflows.md. Needs the extra `optimize`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import cpu_seconds
from benchmarks.studies.judges import workflow_faults as faults
from benchmarks.studies.workflow_example import topcuoglu
from kant.metrics.paired import Interval, mean_interval
from kant.optimize.workflow.exact import shortest
from kant.optimize.workflow.generate import generate
from kant.optimize.workflow.graph import Graph, makespan
from kant.optimize.workflow.load import WorkflowStream
from kant.optimize.workflow.plan import plan
from kant.optimize.workflow.policies import POLICIES
from kant.optimize.workflow.policies.learned import LearnedRule
from kant.optimize.workflow.policies.rank import Rank
from kant.optimize.workflow.policy import WorkflowRule
from kant.optimize.workflow.train import Generation, train

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "workflows.md"
SEEDS = range(30)
UNTIL, MOST = 5_000, 3
RULES: dict[str, WorkflowRule] = {name: rule for name, rule in POLICIES.items() if name != "learned"}
STREAM_RULES = RULES | {"rank, blind": Rank(transfers=False)}
TRAINED = (0, 1)
"""Seeds of the training."""
POOL = tuple(generate(10, 3, seed) for seed in range(100, 110))
UNSEEN = tuple(generate(10, 3, seed) for seed in range(200, 210))


def ten_tasks() -> Iterator[str]:
    graph = topcuoglu()
    spent, best = cpu_seconds(lambda: shortest(graph, plan(graph, POLICIES["heft"])))
    assert best.proven and not faults([graph], best.runs)
    optimum = makespan(best.runs)
    yield "| policy | ends after | above the optimum |"
    yield "|---|---|---|"
    for name, rule in POLICIES.items():
        runs = plan(graph, rule)
        assert not faults([graph], runs)
        yield f"| `{name}` | {makespan(runs)} | {100 * (makespan(runs) / optimum - 1):.1f} % |"
    yield f"| `optimal` | {optimum} | proven in {spent:.2f} s of CPU |"


def latencies(load: WorkflowStream, rule: WorkflowRule) -> list[float]:
    """The mean latency of each seed. Every plan is checked."""
    found = []
    for seed in SEEDS:
        graphs, _ = load.draw(seed)
        made = load.under(rule, seed)
        assert not faults(graphs, made.runs, made.arrivals)
        found.append(made.latency)
    return found


def change(mine: Sequence[float], other: Sequence[float]) -> Interval:
    """By how much, in percent, pair by pair."""
    return mean_interval([100 * (a / b - 1) for a, b in zip(mine, other, strict=True)])


def shown(interval: Interval) -> str:
    return f"{interval.mean:+.1f} ± {interval.half:.1f} %"


def streams() -> Iterator[str]:
    loads = {every: WorkflowStream((topcuoglu(),), every, UNTIL, MOST, MOST) for every in (25, 50)}
    yield "| policy | scale 25 | beside HEFT_RT | scale 50 | beside HEFT_RT |"
    yield "|---|---|---|---|---|"
    base = {every: latencies(load, RULES["heft-rt"]) for every, load in loads.items()}
    bars = {"etf": -10.0, "rank": -4.0, "rank, blind": -4.0}
    said = []
    for name, rule in (STREAM_RULES | {"learned": POLICIES["learned"]}).items():
        cells = []
        for every, load in loads.items():
            mine = latencies(load, rule)
            beside = change(mine, base[every])
            cells.append(f"{mean_interval(mine).mean:.1f} | {shown(beside) if name != 'heft-rt' else ''}")
            if name in bars:
                met = "met by the whole interval" if beside.high < bars[name] else "missed"
                said.append(f"`{name}` at scale {every}, more than {-bars[name]:.0f} % below HEFT_RT: {met}")
        yield f"| `{name}` | {' | '.join(cells)} |"
    yield "\n" + ".\n".join(said) + "."


def last(loads: Sequence[WorkflowStream], seed: int) -> Generation:
    """The result of a training."""
    return list(train(loads, seed))[-1]


def learned(seeds: Sequence[int]) -> Iterator[str]:
    cases = {
        "ten tasks": ([WorkflowStream((topcuoglu(),), every, UNTIL, MOST, MOST) for every in (25, 50)],) * 2,
        "drawn graphs": tuple(
            [WorkflowStream(pool, every, UNTIL, MOST, MOST) for every in (40, 80)] for pool in (POOL, UNSEEN)
        ),
    }
    yield "| trained on | seed | CPU s | tested at | best rule | its latency | learned | beside it |"
    yield "|---|---|---|---|---|---|---|---|"
    verdicts = []
    for name, (known, unseen) in cases.items():
        for seed in seeds if name == "ten tasks" else seeds[:1]:
            spent, made = cpu_seconds(lambda known=known, seed=seed: last(known, seed))
            for load in unseen:
                rules = {each: latencies(load, rule) for each, rule in RULES.items()}
                best = min(rules, key=lambda each: (sum(rules[each]), each))
                mine = latencies(load, made.policy)
                beside = change(mine, rules[best])
                verdicts.append(beside.high <= 0)
                means = f"{mean_interval(rules[best]).mean:.1f} | {mean_interval(mine).mean:.1f}"
                yield f"| {name} | {seed} | {spent:.0f} | {load.every} | `{best}` | {means} | {shown(beside)} |"
            if name == "ten tasks" and seed == 0:
                default = (
                    "which are the default ones" if made.policy == LearnedRule() else "which are not the default ones"
                )
                weights = f"The weights of seed 0, {default}: {made.policy}."
    yield ""
    good = "in all of these cases" if all(verdicts) else f"in {sum(verdicts)} of these {len(verdicts)} cases"
    yield f"With its whole interval the learned order is at least as good as the best rule {good}.\n"
    yield weights


def drawn(count: int) -> Iterator[str]:
    yield "| stages | processors | graphs | optima proven | " + " | ".join(f"`{name}`" for name in POLICIES) + " |"
    yield "|---" * (4 + len(POLICIES)) + "|"
    for stages, processors in ((10, 3), (20, 3), (20, 8), (50, 8), (200, 16)):
        above: dict[str, list[float]] = {name: [] for name in POLICIES}
        proven = 0
        for seed in range(count):
            graph: Graph = generate(stages, processors, 1_000 + seed, ccr=(0.1, 1.0, 5.0)[seed % 3])
            plans = {name: plan(graph, rule) for name, rule in POLICIES.items()}
            assert not any(faults([graph], runs) for runs in plans.values())
            reference = min(map(makespan, plans.values()))
            if stages <= 20:
                best = shortest(graph, min(plans.values(), key=makespan), 2.0)
                assert not faults([graph], best.runs) and best.bound <= makespan(best.runs)
                proven += best.proven
                reference = makespan(best.runs)
            for name, runs in plans.items():
                above[name].append(makespan(runs) / reference - 1)
        cells = " | ".join(f"{100 * mean_interval(above[name]).mean:.1f} %" for name in POLICIES)
        of = str(proven) if stages <= 20 else "-"
        yield f"| {stages} | {processors} | {count} | {of} | {cells} |"


ABOUT = """\
The ten tasks on three processors are those with which H. Topcuoglu, S. Hariri and M.-Y. Wu showed HEFT and CPOP (IEEE
TPDS 13(3), 2002); they publish 80 and 86. The optimum is proven by CP-SAT. All plans on this page are checked by
`benchmarks/studies/judges.py`, which is independent of how they were made.
"""

STREAMS = """
## Streams

DeepSoCS (arXiv 2005.07666) lets this graph arrive over time on DS3: at exponential intervals with a mean of *scale*
ticks, at most three in progress, others lost, three at the start, 5,000 ticks. The metric is the mean time from
arrival to end. Its learned order is compared with HEFT_RT, and in the plot of its successor (SoCRATES, 2022) it is 4 %
faster than HEFT_RT: 111 beside 115.5; minimum execution time is at 102 there.
{seeds} seeds; intervals are 95 % by Student's t over pairs on the same stream. `rank, blind` differs from `heft-rt` in
its order alone: both choose a processor as if all data were there. It is what an order from the whole graph is worth,
without any learning; what a look at the data is worth comes on top (`rank`).
"""

LEARNED = """
## A learned order

A score of ten features of a ready stage, with weights from the cross-entropy method on streams by other
seeds, and of other graphs in the case of drawn ones (`kant plan train`). It begins at `etf`. It is tested on the same
{seeds} seeds as above. *Best rule* is the best of all seven on those very seeds, which favours the rule.
"""

DRAWN = """
## Drawn graphs, one by one

Graphs as in the paper of HEFT (`optimize/workflow/generate.py`), a third each with transfers of 0.1, 1 and 5 durations
on average. Means above the best plan that is known: CP-SAT's up to 20 stages, after 2 deterministic seconds; beyond,
the best of these rules.
"""


def page(seeds: Sequence[int], count: int) -> Iterator[str]:
    yield "# How workflows are planned, one by one and in streams\n"
    yield "Made by `python -m benchmarks.studies.workflows`.\n"
    yield ABOUT
    yield from ten_tasks()
    yield STREAMS.format(seeds=len(SEEDS))
    yield from streams()
    yield LEARNED.format(seeds=len(SEEDS))
    yield from learned(seeds)
    yield DRAWN
    yield from drawn(count)


def main() -> None:
    quick = "--quick" in sys.argv
    text = "\n".join(page(TRAINED[:1] if quick else TRAINED, 3 if quick else 30)) + "\n"
    if quick:
        sys.stdout.write(text)
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
