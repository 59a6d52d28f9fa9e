"""How many calls of a model does replay save? `python -m benchmarks.studies.memory [SEEDS [TASKS]]`.

Generated tasks on simulated clusters that change while they are done. Writes docs/studies/memory.md.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from msgspec import Struct

from benchmarks.studies.memory_tasks import KINDS, WHO, Task, Watched, expert, task_of, world_of
from kant.metrics.paired import mean_interval
from kant.ops.bench.agents import Oracle
from kant.ops.bench.remembering import Remembering
from kant.ops.bench.run import Score, bench
from kant.ops.bench.task import read_tasks
from kant.ops.desk import Desk
from kant.ops.memory.replay import RunbookRun
from kant.ops.memory.runbooks import BookStep, Runbooks
from kant.ops.memory.together import run_together, waits_for
from kant.ops.memory.traces import DONE, Answer, DeskTools, TaskTrace, TraceCall, TracedTools
from kant.ops.view import WorldView

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "memory.md"
SEEDS, TASKS, DRIFT = 3, 400, 0.03
MODEL_S, TOOL_S, CHECK_S = 4.0, 0.2, 0.05
"""Seconds that are counted for a call of a model, a call of a tool, and a look at the pre-conditions."""
GROUPS, TOGETHER = 16, 4
SCALES = {True: 0.1, False: 0.5}
"""How much of these seconds is slept where tasks are done at once, by a model and by runbooks: Kant's own time is
little beside it."""
ATTEMPTS = 8


class Slots(Runbooks):
    """Runbooks that keep no choice of a moment."""

    def learn(self, trace: TaskTrace) -> None:
        super().learn(trace)
        for step in self.books[trace.words].step:
            step.chosen.clear()


class Unchecked(Runbooks):
    """Replay without pre-conditions: always the branch that was seen most."""

    def changed(self, trace: TaskTrace, view: WorldView) -> bool:
        return False

    def _holds(self, step: BookStep, trace: TaskTrace, call: TraceCall | None, view: WorldView) -> bool:
        book = self.of(trace)
        assert book is not None
        return step is max(book.children(step.after), key=lambda each: each.seen)

    def _unfit(self, step: BookStep, trace: TaskTrace) -> str:
        return ""


MODES: dict[str, Callable[[], Runbooks | None]] = {
    "a model alone": lambda: None,
    "exact": lambda: Runbooks(exact=True),
    "slots": Slots,
    "slots, and the very same moment": Runbooks,
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
        run = RunbookRun(task.text, tools, books if books is not None else Runbooks(), expert(task)).run()
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


class Slow:
    """Tools that take their time, `scale` of it."""

    def __init__(self, tools: TracedTools, scale: float) -> None:
        self.tools, self.view, self.scale = tools, tools.view, scale

    def call(self, call: TraceCall) -> Answer:
        time.sleep(self.scale * (CHECK_S + TOOL_S * (call.tool != DONE)))
        return self.tools.call(call)


def group(seed: int, apart: bool) -> dict[str, Task]:
    """Some tasks on one world, by their texts; with `apart` each is about other things than those before it."""
    rng = random.Random(f"group {seed}")
    view = world_of(seed).view()
    kinds = [kind for kind in KINDS if kind != "cancel"]
    found: dict[str, Task] = {}
    for number in range(100):
        task = task_of(rng.choice(kinds), seed * 100 + number, view)
        if len(found) < TOGETHER and not (apart and waits_for([*found, task.text], view)[-1]):
            found[task.text] = task
    return found


def together(seed: int, model: bool, apart: bool) -> tuple[float, float, bool, int]:
    """Seconds of a group, one after the other and at once, whether both did the same, and transactions of the second.

    With `model` each call is chosen by a model, else by runbooks as far as these say.
    """
    by_text, scale = group(seed, apart), SCALES[model]
    books = Runbooks() if model else _taught()
    took, ends, txns = [], [], 0

    def begin(text: str, own: TracedTools) -> RunbookRun:
        chosen = expert(by_text[text])

        def slowly(trace: TaskTrace) -> TraceCall:
            time.sleep(scale * MODEL_S)
            return chosen(trace)

        return RunbookRun(text, own, books, slowly)

    for at_once in (False, True):
        desk = Desk(world_of(seed), WHO)
        tools = Slow(DeskTools(desk), scale)
        began = time.perf_counter()
        if at_once:
            run_together(list(by_text), tools, begin)
        else:
            for text in by_text:
                begin(text, tools).run()
        took.append((time.perf_counter() - began) / scale)
        ends.append(desk.world.view().facts())
        txns = len(desk.audit.txns)
    return took[0], took[1], ends[0] == ends[1], txns


_BOOKS: list[Runbooks] = []


def _taught() -> Runbooks:
    if not _BOOKS:
        books = Runbooks()
        for number in range(150):
            world = world_of(9_000_000 + number)
            task = task_of(list(KINDS)[number % len(KINDS)], 9_000_000 + number, world.view())
            tools = Watched(task, world, 0.0, random.Random(number))
            run = RunbookRun(task.text, tools, books, expert(task)).run()
            run.learn(tools.good(run.trace))
        _BOOKS.append(books)
    return _BOOKS[0]


# --- the page ---------------------------------------------------------------------------------------------------------

ABOUT = """Typical tasks of operators, on clusters of six nodes, each in a world of its own (`memory_tasks.py`).
Before {drift:.0%} of all calls another person changes the object of the task: drains its node, cancels or holds its
job, changes its queue. The *model* is an expert that sees only answers; a call of it is counted if replay does not know
the next step. A task is good if the one right change was applied, or none if none is right; *wrong* is a plan
that should not have been applied in the state of that moment, by a rule that reads the cluster itself.

*Exact* replay knows a task by all its words, *slots* by its words without names and numbers. Runbooks
([as they are](../ops.md#runbooks)) have slots, and what no slot explains is chosen again in *the very same moment*: the
same task, in the same state of the cluster, after the same answers. *Nothing checked* takes the
most frequent branch, like a cache of actions without checks. Mixed evenly, all ten kinds of tasks are equally
frequent; by a power law the first kinds and nodes are far more frequent. Time is counted, not
measured: {model:g} s for a call of a model, {tool:g} s of a tool, {check:g} s for a look at the pre-conditions. {seeds}
seeds of {tasks} tasks; intervals are 95 % of the mean by Student's t.
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
    rows = [(False, mode) for mode in MODES] + [(True, mode) for mode in list(MODES)[:4]]
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
        "\nWrong plans are counted over all seeds. Tasks that are neither good nor wrong were answered wrongly, or not "
        "done.\n"
    )
    yield "## Several tasks at once\n"
    yield (
        f"{GROUPS} groups of {TOGETHER} tasks on one cluster, nothing drifts; measured, with threads that sleep for "
        f"{SCALES[False]:g} (runbooks) and {SCALES[True]:g} (a model) of the seconds above. Looks, the model's "
        "thinking and plans overlap. Plans that are ready together are applied as one, where that does what "
        "they do, and a task waits for one before it that is about the same thing. *Apart* are groups of tasks about "
        "different things; the others are drawn as they come.\n"
    )
    yield "| tasks | each call chosen by | seconds, in turn | at once | times faster | transactions | ends alike |"
    yield "|---|---|---|---|---|---|---|"
    for apart in (True, False):
        for model in (True, False):
            groups = [together(seed, model, apart) for seed in range(GROUPS)]
            before, after, same, txns = (sum(each[n] for each in groups) for n in range(4))
            ratio = shown([each[0] / each[1] for each in groups])
            yield (
                f"| {'apart' if apart else 'as they come'} | {'a model' if model else 'a runbook'} "
                f"| {before / GROUPS:.1f} | {after / GROUPS:.1f} | {ratio} | {txns / GROUPS:.1f} | {same} of {GROUPS} |"
            )
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
    for mode in list(MODES)[1:4]:
        books = MODES[mode]()
        assert books is not None
        agent = Remembering(Oracle(tasks), books)
        score = Score.of(bench(tasks, agent, attempts, seen=agent.seen))
        fewer = agent.steps / agent.asked
        yield f"| {mode} | {agent.steps} | {agent.asked} | {fewer:.2f} | {score.pass_1:.1%} |"
    yield ""


WHERE = """## Where the paper does not hold

MOBIMEM (arXiv 2512.15784) names up to nine times less time and a look-up of habits in 23.83 ms. Only the paper's
abstract and its authors' code were available; what follows is about the idea, not about their measurements.

- The factor is one of slots. Exact replay of actions saves a third to a half of the calls, where tasks name the same
  things again.
- On the suite, where each attempt begins in the same state, slots alone ask wherever the model chose among several
  jobs, since nothing in the task explains whom. What was chosen in the very same moment is chosen again, without exact
  replay's wrong plans: where anything has changed it is no such moment. Clusters that live seldom come to one twice.
- Replay that does not look at pre-conditions saves more calls, and applies what it should not.
- What needs a choice each time (cancel the job with the lowest priority) is never replayed: that is the floor, together
  with drift and tasks that were not seen before.
- Tasks at once are about twice as fast, not as many times as there are: some wait for others, the longest bounds all,
  and who changes something ends the plans of those who were not ready. Ends differ where one task has consequences for
  what another is about, though both name different things. Where runbooks say nothing the model is asked, and
  one such call is longer than all else of its group.
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
