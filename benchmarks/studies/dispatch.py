"""Many schedulers of short tasks, with caches and with probes: `python -m benchmarks.studies.dispatch`.

Dodoor and those that it is compared with, on drawn tasks. Writes docs/studies/dispatch.md. Some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from kant.metrics.paired import Interval, mean_interval
from kant.optimize.dispatch.dispatchers import DISPATCHERS, Dispatched, TaskDispatcher, dispatch
from kant.optimize.dispatch.kernel import END
from kant.optimize.dispatch.tasks import MACHINES, TaskStream, draw_functions, draw_machines

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "dispatch.md"
SEEDS = range(10)
TASKS = 10_000
LOADS = (0.6, 0.8)
MIXES: dict[str, Callable[[int], TaskStream]] = {
    "virtual machines of up to 30 s": lambda seed: draw_machines(TASKS, seed, 30),
    "virtual machines of up to 300 s": lambda seed: draw_machines(TASKS, seed, 300),
    "functions of the smallest size": lambda seed: draw_functions(TASKS, seed),
    "functions of all three sizes": lambda seed: draw_functions(TASKS, seed, 3),
}
MAIN = "virtual machines of up to 30 s"
Runs = dict[str, list[Dispatched]]


def runs(mix: str, load: float, fifo: bool, dispatchers: dict[str, TaskDispatcher]) -> Runs:
    """What becomes of the tasks of each seed under each dispatcher."""
    loaded = [MIXES[mix](seed).at_load(load) for seed in SEEDS]
    return {
        name: [dispatch(tasks, by, seed, fifo=fifo) for seed, tasks in zip(SEEDS, loaded, strict=True)]
        for name, by in dispatchers.items()
    }


def change(mine: list[Dispatched], other: list[Dispatched], of: Callable[[Dispatched], float]) -> Interval:
    """By how much, in percent, seed by seed."""
    return mean_interval([100 * (of(a) / of(b) - 1) for a, b in zip(mine, other, strict=True)])


def mean(run: Dispatched) -> float:
    return run.mean_s


def p50(run: Dispatched) -> float:
    return run.quantile_s(0.5)


def p99(run: Dispatched) -> float:
    return run.quantile_s(0.99)


def rate(run: Dispatched) -> float:
    return len(run.latencies) / run.span


def shown(interval: Interval) -> str:
    return f"{interval.mean:+.1f} ± {interval.half:.1f} %"


def average(found: list[Dispatched], of: Callable[[Dispatched], float]) -> float:
    return sum(map(of, found)) / len(found)


def table(mix: str, fifo: bool) -> Iterator[str]:
    """All dispatchers at both loads."""
    yield "| load | scheduler | mean, s | compared with two choices | P50, s | P99, s | compared with two choices | messages of schedulers | all, one way |"  # noqa: E501
    yield "|---" * 9 + "|"
    for load in LOADS:
        found = runs(mix, load, fifo, DISPATCHERS)
        base = found["two-choices"]
        for name, mine in found.items():
            yield (
                f"| {load} | `{name}` | {average(mine, mean):.2f} | {shown(change(mine, base, mean))} "
                f"| {average(mine, p50):.2f} | {average(mine, p99):.2f} | {shown(change(mine, base, p99))} "
                f"| {average(mine, lambda run: run.sent):.3f} | {average(mine, lambda run: run.one_way):.2f} |"
            )


def summary() -> Iterator[str]:
    """Dodoor compared with two choices, and ours beside Dodoor and Sparrow, in every setting."""
    yield "| tasks | machines | load | Dodoor's mean | P99 | throughput | mean of `ends` beside Dodoor | P50 | P99 | throughput | mean of `ends` beside Sparrow | P99 |"  # noqa: E501
    yield "|---" * 12 + "|"
    three = {name: DISPATCHERS[name] for name in ("two-choices", "dodoor", "sparrow", "ends")}
    for mix in MIXES:
        for fifo in (False, True):
            for load in LOADS:
                found = runs(mix, load, fifo, three)
                base, dodoor, sparrow, ours = found.values()
                cells = [shown(change(dodoor, base, of)) for of in (mean, p99, rate)]
                cells += [shown(change(ours, dodoor, of)) for of in (mean, p50, p99, rate)]
                cells += [shown(change(ours, sparrow, of)) for of in (mean, p99)]
                yield f"| {mix} | {'in turn' if fifo else 'slots'} | {load} | {' | '.join(cells)} |"


def crossed() -> Iterator[str]:
    """The two-by-two table: what the score gives, and what the cache costs."""
    yield "| machines | load | probes, fewer tasks | probes, score | cache, fewer tasks | cache, score | by the score | by the cache |"  # noqa: E501
    yield "|---" * 8 + "|"
    names = ("two-choices", "two-choices-score", "two-choices-cached", "dodoor")
    for fifo in (False, True):
        for load in LOADS:
            found = runs(MAIN, load, fifo, {name: DISPATCHERS[name] for name in names})
            means = " | ".join(f"{average(found[name], mean):.2f} s" for name in names)
            score = change(found["two-choices-score"], found["two-choices"], mean)
            cache = change(found["dodoor"], found["two-choices-score"], mean)
            yield f"| {'in turn' if fifo else 'slots'} | {load} | {means} | {shown(score)} | {shown(cache)} |"


def by_slots() -> Iterator[str]:
    """Dodoor and ours compared with two choices, by the share of slots that tasks ask for."""
    yield "| load | of all slots | Dodoor's mean | P99 | mean of `ends` | P99 |"
    yield "|---" * 6 + "|"
    for load in (0.375, 0.5, 0.6, 0.7, 0.8):
        found = runs(MAIN, load, False, {name: DISPATCHERS[name] for name in ("two-choices", "dodoor", "ends")})
        base, *others = found.values()
        cells = " | ".join(shown(change(mine, base, of)) for mine in others for of in (mean, p99))
        yield f"| {load} | {100 * slots_asked(load):.0f} % | {cells} |"


VARIANTS: dict[str, dict[str, object]] = {
    "alpha 0, the loads alone": {"alpha": 0.0},
    "alpha 0.95": {"alpha": 0.95},
    "alpha 1, the durations alone": {"alpha": 1.0},
    "news after 10 decisions": {"batch": 10},
    "news after 400": {"batch": 400},
    "counts its own decisions": {"own": True},
    "answers to flushes as news": {"batch": 0},
    "both": {"batch": 0, "own": True},
    "both, four choices": {"batch": 0, "own": True, "choices": 4},
    "all that, and the end as score": {"batch": 0, "own": True, "choices": 4, "rule": END},
    "that, and drawn by cores": {"batch": 0, "own": True, "choices": 4, "rule": END, "weighted": True},
    "`ends`: that, and two ends a report": {
        "batch": 0, "own": True, "choices": 4, "rule": END, "weighted": True, "report": 2,
    },
}  # fmt: skip


def parts() -> Iterator[str]:
    """Dodoor with one thing changed, and what makes `ends` of it."""
    yield "| Dodoor with | slots, load 0.8: mean | P99 | in turn, load 0.8: mean | P99 | messages of schedulers | all |"
    yield "|---" * 7 + "|"
    base = DISPATCHERS["dodoor"]
    variants = {"": base} | {name: replace(base, **changes) for name, changes in VARIANTS.items()}  # type: ignore[arg-type]
    found = [runs(MAIN, 0.8, fifo, variants) for fifo in (False, True)]
    for name in VARIANTS:
        cells = [shown(change(each[name], each[""], of)) for each in found for of in (mean, p99)]
        sent, one_way = found[0][name][0].sent, found[0][name][0].one_way
        yield f"| {name} | {' | '.join(cells)} | {sent:.2f} | {one_way:.2f} |"


def slots_asked(load: float) -> float:
    """The share of all slots that the tasks ask for at a load."""
    tasks = MIXES[MAIN](0).at_load(load)
    return float(tasks.times[:, 0].sum() / tasks.arrivals[-1]) / sum(each.count * each.slots for each in MACHINES)


ABOUT = """\
# Many schedulers with cached loads

Made by `python -m benchmarks.studies.dispatch`.

Dodoor (arXiv 2510.12889) lets many schedulers place short tasks without asking the machines: each keeps what it last
heard of their loads, draws two machines and takes the one with the lower score. It publishes, on 101 machines: 55 to
66 % fewer messages, up to 33.2 % (virtual machines of Azure) and 21.5 % (FunctionBench) more throughput, a mean latency
lower by 12.1 % and 7.2 %, a tail lower by 21.9 % and 24.6 %.

Here are its 100 machines of four types and 1,334 cores, five schedulers, messages of 250 µs one way, and tasks that are
drawn after what it says of them (`optimize/dispatch/tasks.py`). Its rows have no licence and are not here;
`kant plan dispatch FILE` reads them. The load is the share of all cores that is asked for while tasks arrive. {seeds}
seeds with {tasks:,} tasks each; intervals are 95 % by Student's t over pairs on the same tasks and draws. Messages are
those of schedulers without answers, as its code counts them; *one way* has answers and the reports of machines, too.

What a machine does with its queue decides as much as the scheduler does. With *slots* it runs 3, 3, 5 or 8 tasks at
once, by its type, and starts the first that fits: nearly what the published code does. At load 0.6 tasks ask for
{slots:.0f} % of these slots, and at 0.8 for more than there are. *In turn* a machine has no slots, and nobody overtakes
another task.

```sh
kant plan dispatch --seeds 10
kant plan dispatch --seeds 10 --fifo
```

The same rule lets short jobs in at [the front ends of one machine](../up.md#front-ends-for-short-jobs).
"""

SAID = """\
- *Messages* of schedulers fall by 60.4 %, as published. With answers and the reports of machines it is 56.3 %.
- *The mean of virtual machines* falls by more than the 12.1 % that are published, in turn at both loads (15.8 and
  24.5 %) and with slots at load 0.6 (14.0 %). *With slots at load 0.8 the paper's figure does not hold for its own
  rule*: 7.6 %, not even 10 %. The cache is not why: the same score with probes gains 8.6 %, and Sparrow, which binds
  late, 10.0 %. Tasks ask there for 128 % of the slots, so queues grow as long as tasks arrive, wherever a task goes; at
  112 % it is 10.1 %, at 96 % 14.0 %. Where few slots are asked for there is little waiting to avoid. `ends` gains more
  at every load, at 0.8 with slots 11.3 %.
- *The P99 of virtual machines* falls by more than the published 21.9 % in turn, and by 20.1 and 20.5 % with slots.
- *Functions* of the smallest size gain less than published at load 0.6, in mean and P99; at 0.8 more in mean, and less
  in P99. Of those of all sizes the P99 is the run of the longest on the slowest machine, which no score by load avoids;
  `ends` looks at the duration of the task itself.
- *The score gives the latency, the cache saves the messages*: a cache without the score is no faster than probes, and
  costs 1 to 3 % with it.
- *Throughput*, tasks over the time until the last one ends, grows by less than published.
- *alpha* of 1, which the published scripts use for functions, is worse than two choices on virtual machines.
- *The strongest simple baseline is Sparrow.* With slots it is faster than Dodoor, at four messages a task.
- *`ends`*, ours, has a lower mean and P99 than Dodoor and than Sparrow in every setting, with fewer messages than
  either, and more throughput than Dodoor. Four choices of the cache are free, and most of what it gains. *It is not
  better on each figure*: its P50 is lower than Dodoor's in 14 of 16 settings, and with slots at load 0.8, on virtual
  machines, it is no better (+0.5 ± 1.4 %); there the P50 of both is higher than that of two choices that ask. Prequal
  has a lower mean than it on functions of the smallest size with slots at load 0.8, at four messages a task.

## Where jobs and requests go

[Front ends](../up.md#front-ends-for-short-jobs) of one `kant up` take short jobs, and start them in slots or hand them
over to the core in batches. Front ends of requests to a model are the [routers](../routing.md#several-routers), of
which any number share a port: each has cached loads (what it has sent itself, and what the others say in batches), and
asks nobody for a request. With `kant serve route --router dodoor --gossip` they choose by the score of this page, over
KV, seats and tokens to prefill; [on a published trace](serving-routers.md#front-ends-that-are-told-rarely) in which no
prompts repeat four of them have a lower mean time to first token than with any other rule. What a router adds to a
request, and two of them that share a port, is measured on [that page](../routing.md#what-it-costs): 0.33 and 0.34 ms at
the P50. A request holds no place in the cluster, so a batch through the core would add a turn of it to each, and decide
nothing more. The core decides how many replicas there are, and where.
"""


def main() -> None:
    lines = [ABOUT.format(seeds=len(SEEDS), tasks=TASKS, slots=100 * slots_asked(0.6))]
    lines += ["## Virtual machines of up to 30 s, slots\n", *table(MAIN, False)]
    lines += ["\n## The same, in turn\n", *table(MAIN, True)]
    lines += ["\n## Functions of the smallest size, slots\n", *table("functions of the smallest size", False)]
    lines += ["\n## Cache and score, two by two\n", "Mean latencies of the virtual machines.\n", *crossed()]
    lines += ["\n## By the share of slots\n", "Virtual machines, compared with two choices that ask.\n", *by_slots()]
    lines += [
        "\n## All settings\n",
        "Dodoor compared with two choices that ask; `ends` beside Dodoor and Sparrow.\n",
        *summary(),
    ]
    lines += ["\n## What is worth what\n", "Beside Dodoor, on the virtual machines.\n", *parts()]
    lines += ["\n## What holds\n", SAID]
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
