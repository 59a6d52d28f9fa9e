"""How many calls of a model does replay save? `python -m benchmarks.studies.memory [SEEDS [TASKS]]`.

Generated tasks on simulated clusters that change while they are done. Writes docs/studies/memory.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from msgspec import Struct

from benchmarks.studies.memory_tasks import KINDS, WHO, Watched, expert, task_of, world_of
from kant.metrics.paired import mean_interval
from kant.ops.bench.agents import Oracle
from kant.ops.bench.remembering import Remembering
from kant.ops.bench.run import Score, bench
from kant.ops.bench.task import read_tasks
from kant.ops.desk import Desk
from kant.ops.memory.replay import Run
from kant.ops.memory.runbooks import BookStep, Runbooks
from kant.ops.memory.together import run_together, waits_for
from kant.ops.memory.traces import DONE, Call, DeskTools, Tools, Trace
from kant.ops.view import View

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "memory.md"
SEEDS, TASKS, DRIFT = 3, 400, 0.03
MODEL_S, TOOL_S, CHECK_S = 4.0, 0.2, 0.05
"""Seconds that are counted for a call of a model, a call of a tool, and a look at the pre-conditions."""
GROUPS, TOGETHER = 40, 4
ATTEMPTS = 8


class Unchecked(Runbooks):
    """Replay without pre-conditions: always the branch that was seen most."""

    def changed(self, trace: Trace, view: View) -> bool:
        return False

    def _holds(self, step: BookStep, trace: Trace, call: Call | None, view: View) -> bool:
        book = self.of(trace)
        assert book is not None
        return step is max(book.children(step.after), key=lambda each: each.seen)

    def _unfit(self, step: BookStep, trace: Trace) -> str:
        return ""


MODES: dict[str, Callable[[], Runbooks | None]] = {
    "a model alone": lambda: None,
    "exact": lambda: Runbooks(exact=True),
    "slots": Runbooks,
    "slots, nothing checked": Unchecked,
}


class Sum(Struct):
    """What a row of tasks came to. `wrong` tasks have applied what they should not have, `by_book` without a model."""

    tasks: int = 0
    asked: int = 0
    steps: int = 0
    good: int = 0
    wrong: int = 0
    by_book: int = 0
    changes: int = 0
    late: int = 0

    @property
    def seconds(self) -> float:
        return self.asked * MODEL_S + self.steps * CHECK_S + (self.steps - self.tasks) * TOOL_S


def one(mode: str, power: bool, seed: int, count: int) -> Sum:
    """So many tasks, one after the other; what was learned of one serves those after it."""
    rng = random.Random(f"tasks {seed}")
    weights = [(n + 1) ** -1.2 if power else 1.0 for n in range(len(KINDS))]
    books, total = MODES[mode](), Sum()
    for number in range(count):
        world = world_of(seed * 100_000 + number)
        (kind,) = rng.choices(list(KINDS), weights)
        task = task_of(kind, seed * 100_000 + number, world.view(), power)
        tools = Watched(task, world, DRIFT, random.Random(f"drift {seed} {number}"))
        run = Run(task.text, tools, books if books is not None else Runbooks(), expert(task)).run()
        good = tools.good(run.trace)
        run.learn(good)
        total.tasks += 1
        total.asked += run.asked
        total.late += run.asked * (number >= count // 2)
        total.steps += len(run.before) + len(run.trace.steps)
        total.good += good
        total.wrong += bool(tools.wrong)
        total.by_book += bool(tools.wrong_by_runbook(run))
        total.changes += tools.changes
    return total


# --- several at once --------------------------------------------------------------------------------------------------


def together(seed: int, model: bool) -> tuple[float, float, bool]:
    """Counted seconds of some tasks on one world, one after the other and at once, and whether both did the same.

    With `model` each call is chosen by a model, else by runbooks.
    """
    rng = random.Random(f"group {seed}")
    view = world_of(seed).view()
    kinds = [kind for kind in KINDS if kind != "cancel"]
    tasks = [task_of(rng.choice(kinds), seed * 10 + n, view) for n in range(TOGETHER)]
    by_text = {task.text: task for task in tasks}
    books = Runbooks() if model else _taught()
    ends = []
    found: list[list[Run]] = []
    for at_once in (False, True):
        tools = DeskTools(Desk(world_of(seed), WHO))

        def begin(text: str, own: Tools) -> Run:
            return Run(text, own, books, expert(by_text[text]))

        texts = list(by_text)
        found.append(run_together(texts, tools, begin) if at_once else [begin(text, tools).run() for text in texts])
        ends.append(tools.view().facts())
    waits = waits_for(list(by_text), view)
    return sum(_spent(run) for run in found[0]), makespan(found[1], waits), ends[0] == ends[1]


_BOOKS: list[Runbooks] = []


def _taught() -> Runbooks:
    if not _BOOKS:
        books = Runbooks()
        for number in range(150):
            world = world_of(9_000_000 + number)
            task = task_of(list(KINDS)[number % len(KINDS)], 9_000_000 + number, world.view())
            tools = Watched(task, world, 0.0, random.Random(number))
            run = Run(task.text, tools, books, expert(task)).run()
            run.learn(tools.good(run.trace))
        _BOOKS.append(books)
    return _BOOKS[0]


def _parts(run: Run) -> list[tuple[float, str]]:
    """The seconds of all that it does in turn: to find the next call (`think`), and then of its tool."""
    found: list[tuple[float, str]] = []
    for step in [*run.before, *run.trace.steps]:
        found.append((CHECK_S + MODEL_S * (step.by == "model"), "think"))
        found.append((TOOL_S if step.call.tool != DONE else 0.0, step.call.tool))
    return found


def _spent(run: Run) -> float:
    return sum(seconds for seconds, _ in _parts(run))


def makespan(runs: Sequence[Run], waits: Sequence[Sequence[int]]) -> float:
    """Counted seconds until all are over: they overlap, but from a plan to the call after it one is alone."""
    left = [_parts(run) for run in runs]
    at: list[float | None] = [None] * len(runs)
    ends: dict[int, float] = {}
    free = 0.0
    while len(ends) < len(runs):
        for n, before in enumerate(waits):
            if at[n] is None and all(m in ends for m in before):
                at[n] = max((ends[m] for m in before), default=0.0)
        now, n = min((each, n) for n, each in enumerate(at) if each is not None and n not in ends)
        if not left[n]:
            ends[n] = now
            continue
        alone = left[n][0][1] == "plan"
        now = max(now, free) if alone else now
        while left[n]:
            seconds, tool = left[n].pop(0)
            now += seconds
            if not alone or tool not in ("plan", "think"):
                break
        free = now if alone else free
        at[n] = now
    return max(ends.values())


# --- the page ---------------------------------------------------------------------------------------------------------

ABOUT = """Tasks as operators have them, on clusters of six nodes, each with a world of its own (`memory_tasks.py`).
Before {drift:.0%} of all calls somebody else changes what the task is about: drains its node, cancels or holds its job,
changes its queue. The *model* is an expert that sees answers alone; a call of it is counted where replay does not know
the next step. A task is good if the one right thing was applied, or nothing where nothing is right; *wrong* is a plan
that should not have been applied as things stood at that moment, as a rule says that looks at the cluster itself.

*Exact* replay knows a task by all its words, *slots* by its words without names and numbers
([runbooks](../ops.md#runbooks)). *Nothing checked* takes the branch that was seen most, as a cache of actions does
that does not look. Mixed evenly all ten kinds of tasks are as frequent; by a power law the first kinds and nodes are
far more frequent. Time is counted, not measured: {model:g} s for a call of a model, {tool:g} s of a tool, {check:g} s
for a look at the pre-conditions. {seeds} seeds of {tasks} tasks; intervals are 95 % of the mean by Student's t.
"""


def page(seeds: int, tasks: int) -> Iterator[str]:
    yield "# How many calls of a model replay saves\n"
    yield "Made by `python -m benchmarks.studies.memory`.\n"
    yield ABOUT.format(drift=DRIFT, model=MODEL_S, tool=TOOL_S, check=CHECK_S, seeds=seeds, tasks=tasks)
    yield "## One task after the other\n"
    yield (
        "| mix | replay | model calls a step | fewer calls | in the second half | good | wrong | of these by replay "
        "| counted time, times faster |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    rows = [(False, mode) for mode in MODES] + [(True, mode) for mode in list(MODES)[:3]]
    jobs = [(mode, power, seed, tasks) for power, mode in rows for seed in range(1, seeds + 1)]
    with ProcessPoolExecutor(2) as pool:
        done = dict(zip(jobs, pool.map(one, *zip(*jobs, strict=True)), strict=True))
    for power, mode in rows:
        own = [done[mode, power, seed, tasks] for seed in range(1, seeds + 1)]
        base = [done["a model alone", power, seed, tasks] for seed in range(1, seeds + 1)]
        fewer = [b.asked / o.asked for b, o in zip(base, own, strict=True)]
        late = [b.late / max(o.late, 1) for b, o in zip(base, own, strict=True)]
        faster = [b.seconds / o.seconds for b, o in zip(base, own, strict=True)]
        every = sum(o.tasks for o in own)
        mix, share = "power law" if power else "even", mean_interval([o.asked / o.steps for o in own]).mean
        good, wrong, by_book = (sum(getattr(o, name) for o in own) for name in ("good", "wrong", "by_book"))
        yield (
            f"| {mix} | {mode} | {share:.3f} | {shown(fewer)} | {shown(late)} | {good / every:.2%} | {wrong} "
            f"| {by_book} | {shown(faster)} |"
        )
    yield (
        "\nWrong plans are counted over all seeds. What is neither good nor wrong was answered wrongly, or not done.\n"
    )
    yield "## Several tasks at once\n"
    yield (
        f"{GROUPS} groups of {TOGETHER} tasks on one cluster, nothing drifts. From a plan to its apply one task is "
        "alone, since a plan is void once anything has changed; looks and the model's thinking overlap, and a task "
        "waits for one before it that is about the same thing. They run in threads; the seconds are counted.\n"
    )
    yield "| each call chosen by | counted seconds, one after the other | at once | times faster | ends alike |"
    yield "|---|---|---|---|---|"
    for model in (True, False):
        groups = [together(seed, model) for seed in range(GROUPS)]
        before, after = sum(each[0] for each in groups), sum(each[1] for each in groups)
        ratio = shown([each[0] / each[1] for each in groups])
        same = sum(each[2] for each in groups)
        who = "a model" if model else "a runbook"
        yield f"| {who} | {before / GROUPS:.1f} | {after / GROUPS:.1f} | {ratio} | {same} of {GROUPS} |"
    yield ""
    yield from suite()
    yield WHERE


def suite(attempts: int = ATTEMPTS) -> Iterator[str]:
    """The verified suite, each task several times from the same state."""
    tasks = read_tasks("*")
    yield "## On the suite\n"
    yield (
        f"The {len(tasks)} tasks of [the suite](../ops-bench.md), {attempts} attempts at each from the same state. "
        "The oracle is the model: `kant ops bench --agent replay -k 8`.\n"
    )
    yield "| replay | calls | chosen by the model | times fewer | passed |"
    yield "|---|---|---|---|---|"
    for mode in ("exact", "slots"):
        books = MODES[mode]()
        assert books is not None
        agent = Remembering(Oracle(tasks), books)
        score = Score.of(bench(tasks, agent, attempts, seen=agent.seen))
        fewer = agent.steps / agent.asked
        yield f"| {mode} | {agent.steps} | {agent.asked} | {fewer:.2f} | {score.pass_1:.1%} |"
    yield ""


WHERE = """## Where the paper does not hold

MOBIMEM (arXiv 2512.15784) names up to nine times less time and a look-up of habits in 23.83 ms. Of the paper only the
abstract was to be had, and the code of its authors; what follows is about the idea, not about their measurements.

- The factor is one of slots. Exact replay of actions saves a third to a half of the calls, where tasks name the same
  things again.
- On the suite, where each attempt begins in the same state, it is the other way round: exact replay makes the whole
  way again, and slots ask wherever the model chose among several jobs, since nothing in the task explains whom.
- Replay that does not look at pre-conditions saves more calls, and applies what it should not.
- What needs thought each time (cancel the job with the lowest priority) is never replayed: that is the floor, together
  with what drifts and what has not been met before.
- Tasks at once are at most about twice as fast, not as many times as there are: a plan is void once anything has
  changed, so plans and applies stand in line. Where runbooks choose every call, little else is left. Ends differ where
  one task has consequences for what another is about, though both name different things.
- Exact replay applies wrong plans even though it looks at facts: it repeats whom the model chose, and not why.
- The words of a task are its key. Who says the same in other words is not understood until a person adds the phrase to
  the file, or a model has done it once.
- The model is scripted here and makes no mistakes of its own; one that is wrong teaches what is wrong until a task
  comes to no good end. Facts outside of the vocabulary (a threshold on free GPUs) are not seen.
- Habits: `python -m benchmarks habits` asks 10,000 facts, beside the full-text search of SQLite.
"""


def shown(values: Sequence[float]) -> str:
    found = mean_interval(values)
    return f"{found.mean:.2f} ± {found.half:.2f}" if len(values) > 1 else f"{found.mean:.2f}"


def main(words: Sequence[str]) -> None:
    seeds, tasks = [*map(int, words), *(SEEDS, TASKS)[len(words) :]]
    PAGE.write_text("\n".join(page(seeds, tasks)).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
