"""Replay applies nothing that a model would not, whatever has changed; and it learns from every task."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from threading import Barrier
from typing import Any

import msgspec
import pytest
from benchmarks.studies.memory_tasks import KINDS, Task, Watched, change, expert, should, task_of, world_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.ops.worlds import ORDERS, desk, small

from kant.model.errors import InputError
from kant.ops.facts import about, facts_of
from kant.ops.memory.replay import RunbookRun
from kant.ops.memory.runbooks import BookStep, Runbook, Runbooks, moment, read_runbook
from kant.ops.memory.slots import ASK, KnownFacts, UnknownError, explained, merged, slots_of, value_of
from kant.ops.memory.together import has_effects_of, run_together, waits_for
from kant.ops.memory.traces import (
    DONE,
    Answer,
    DeskTools,
    TaskTrace,
    TraceCall,
    TracedTools,
    TraceStep,
    read_traces,
    write_trace,
)
from kant.ops.orders import parse_orders
from kant.ops.rules import RoleLimit, RoleLimits
from kant.ops.text import untrusted

pytestmark = pytest.mark.long

TAUGHT = ("drain", "stop", "quota", "release", "priority")


class Around:
    """Tools with something around each call."""

    def __init__(self, tools: TracedTools, around: Callable[[TraceCall], Answer]) -> None:
        self.view = tools.view
        self.call = around


def watched(kind: str, seed: int, drift: float = 0.0) -> tuple[Task, Watched]:
    world = world_of(seed)
    task = task_of(kind, seed, world.view())
    return task, Watched(task, world, drift, random.Random(seed))


def teach(books: Runbooks, kind: str, seed: int, drift: float = 0.0) -> RunbookRun:
    """Do a task by runbook and expert, and learn from it."""
    task, tools = watched(kind, seed, drift)
    run = RunbookRun(task.text, tools, books, expert(task)).run()
    run.learn(tools.good(run.trace))
    return run


@cache
def busy() -> int:
    """A seed by which the node that is to be drained has jobs that may be stopped."""
    for seed in range(50):
        task, tools = watched("drain", seed)
        if (wanted := should(task, tools.view())) and wanted[0]["evict"]:
            return seed
    raise AssertionError


@cache
def _taught() -> Runbooks:
    books = Runbooks()
    for number in range(20):
        teach(books, TAUGHT[number % len(TAUGHT)], number)
    return books


def taught() -> Runbooks:
    """Runbooks of a few tasks of each kind."""
    return deepcopy(_taught())


# --- what is replayed is right ----------------------------------------------------------------------------------------


@settings(max_examples=examples(20))
@given(kind=st.sampled_from(TAUGHT), seed=st.integers(100, 10**6), drift=st.sampled_from([0.1, 0.4, 1.0]))
def test_whatever_changes_while_it_is_replayed_nothing_wrong_is_applied(kind: str, seed: int, drift: float) -> None:
    task, tools = watched(kind, seed, drift)
    run = RunbookRun(task.text, tools, taught(), expert(task)).run()
    assert not tools.wrong_by_runbook(run)


@pytest.mark.parametrize("changed", range(6))
def test_one_change_before_any_call_is_seen(changed: int) -> None:
    """A job that nobody may stop comes to the node, before each call in turn."""
    task, tools = watched("drain", busy())
    books = Runbooks()
    for seed in (0, 5, 10, 15, busy()):
        teach(books, "drain", seed)
    calls = 0

    def call(own: TraceCall) -> Answer:
        nonlocal calls
        calls += 1
        if calls == changed + 1:
            order = {"op": "submit", "gpus": 8, "time": "9h", "queue": task.names["queue"], "preemptible": False}
            tools.world.carry_out(parse_orders([order])[0], tools.desk.who)
            tools.world.settle()
        return tools.call(own)

    run = RunbookRun(task.text, Around(tools, call), books, expert(task)).run()
    assert not tools.wrong_by_runbook(run)
    assert tools.good(run.trace)


def test_what_was_learned_while_the_world_changed_is_not_wrong_either() -> None:
    books = Runbooks()
    for number in range(20):
        task, tools = watched(TAUGHT[number % len(TAUGHT)], 1000 + number, 0.3)
        run = RunbookRun(task.text, tools, books, expert(task)).run()
        run.learn(tools.good(run.trace))
        assert not tools.wrong_by_runbook(run)


def test_the_model_is_asked_so_often_and_no_more() -> None:
    books = Runbooks()
    asked = [teach(books, sorted(KINDS)[number % 10], number, 0.03).asked for number in range(40)]
    assert sum(asked[:20]) <= 47
    assert sum(asked[20:]) <= 16


# --- slots ------------------------------------------------------------------------------------------------------------

NAMES = ("ana", "bob", "node-1", "j-7")
SCALARS = st.one_of(st.sampled_from(NAMES), st.integers(0, 4), st.booleans(), st.sampled_from(["", "hold", "x1"]))
ROWS = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from(NAMES), "user": st.sampled_from(NAMES), "n": SCALARS}), max_size=3
)
ANSWERS = st.lists(st.fixed_dictionaries({"jobs": ROWS, "n": st.integers(0, 4), "untrusted": ROWS}), max_size=2)
SLOTS = st.fixed_dictionaries({"user": st.sampled_from(NAMES), "number": st.integers(0, 4)})
KNOWN = st.builds(lambda slots, answers: KnownFacts("do it", slots, answers), SLOTS, ANSWERS)
ARGS = st.fixed_dictionaries({"a": SCALARS, "orders": st.lists(st.fixed_dictionaries({"job": SCALARS}), max_size=3)})


@given(ARGS, KNOWN, ARGS, KNOWN)
def test_an_explanation_comes_to_what_it_explains_or_says_nothing(
    first: dict[str, Any], here: KnownFacts, second: dict[str, Any], there: KnownFacts
) -> None:
    one, other = explained(TraceCall("plan", first), here), explained(TraceCall("plan", second), there)
    for args, known, nodes in ((first, here, one), (second, there, other)):
        for node in (nodes, merged(one, other)):
            try:
                found = value_of(node, known) if node is not None else args
            except UnknownError:
                continue
            assert json.dumps(found, sort_keys=True) == json.dumps(args, sort_keys=True), "a flag is no number"


@pytest.mark.parametrize(
    ("value", "answers", "why"),
    [
        ("ana", [{"untrusted": {"name": "ana"}}], "text of a tenant"),
        ("j-7", [{"jobs": [{"id": "j-7", "user": "bob"}, {"id": "j-8", "user": "bob"}]}], "one of several rows"),
        ("j-7", [], "nothing says it"),
        (12, [{"n": 5}], "no sum of both"),
    ],
)
def test_what_nothing_explains_is_asked_for(value: Any, answers: list[Answer], why: str) -> None:
    known = KnownFacts("do it", {"user": "bob", "number": 4}, answers)
    assert explained(TraceCall("plan", {"job": value}), known) == {"job": ASK}, why


@pytest.mark.parametrize(
    ("value", "node"),
    [
        ("bob", "{user}"),
        ("of-bob", "of-{user}"),
        (4, "{number}"),
        (9, "{1/n + number}"),
        (1, "{1/n - number}"),
        ("p-1", "{1/plan_id}"),
        ("j-2", "{1/jobs/user=$user/id}"),
        ("node-3", "{1/jobs/user=$user/nodes/@}"),
        ("x-9", "{1/only/#/id}"),
        ([{"job": "j-1"}, {"job": "j-2"}], {"each": "1/jobs", "as": {"job": "{each/id}"}}),
    ],
)
def test_an_argument_comes_from_the_task_or_an_answer(value: Any, node: Any) -> None:
    jobs = [{"id": "j-1", "user": "ana"}, {"id": "j-2", "user": "bob", "nodes": {"node-3": 8.0}}]
    known = KnownFacts(
        "for bob 4", {"user": "bob", "number": 4}, [{"n": 5, "plan_id": "p-1", "jobs": jobs, "only": [{"id": "x-9"}]}]
    )
    found = explained(TraceCall("plan", {"x": value}), known)["x"]
    assert node in found["either"] if isinstance(found, dict) and "either" in found else node == found
    assert value_of(node, known) == value


def test_the_names_and_numbers_of_a_task_are_its_slots() -> None:
    words, slots = slots_of(
        "give big priority 7, then book 8 GPUs as c-1 for 2h on node-00001; big waits.", small().view()
    )
    assert (
        words == "give {job} priority {number}, then book {number2} GPUs as {word} for {time} on {node}; {job} waits."
    )
    assert slots == {"job": "big", "number": 7, "number2": 8, "word": "c-1", "time": "2h", "node": "node-00001"}


# --- faults -----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(5))
def test_a_killed_task_goes_on_with_at_most_one_call_made_again(tmp_path: Path, at: int, after: bool) -> None:
    task, tools = watched("drain", busy())
    made: list[str] = []

    def call(own: TraceCall) -> Answer:
        if len(made) == at and not after:
            made.append("killed")
            raise Killed
        found = tools.call(own)
        made.append(own.tool)
        if len(made) == at + 1 and after:
            made.append("killed")
            raise Killed
        return found

    with pytest.raises(Killed):
        RunbookRun(task.text, Around(tools, call), Runbooks(), expert(task), tmp_path).run()
    run = RunbookRun(task.text, Around(tools, call), Runbooks(), expert(task), tmp_path).run()
    assert tools.good(run.trace)
    assert len(tools.desk.audit.txns) == 1
    assert len(made) - 1 == len(run.trace.steps) + after
    assert read_traces(tmp_path) == [run.trace]


def test_a_tool_that_fails_is_called_once_more_and_then_the_model_decides() -> None:
    task, tools = watched("drain", busy())
    books = taught()
    failures = [OSError, OSError, OSError]

    def call(own: TraceCall) -> Answer:
        if own.tool == "plan" and failures:
            raise failures.pop()
        return tools.call(own)

    def model(trace: TaskTrace) -> TraceCall:
        done = [step for step in trace.steps if "error" not in (step.answer or {})]
        return expert(task)(TaskTrace(trace.task, trace.slots, done))

    run = RunbookRun(task.text, Around(tools, call), books, model).run()
    assert [step.call.tool for step in run.trace.steps if (step.answer or {}).get("error")] == ["plan"]
    assert tools.good(run.trace)
    assert run.made == len(run.trace.steps) + 2
    assert any(step.stale for step in books.books["drain {node} for repair"].step if step.tool == "plan")


# --- runbooks ---------------------------------------------------------------------------------------------------------


def simple(tools: DeskTools, books: Runbooks, orders: list[dict[str, Any]] | None, task: str = "hold t1") -> RunbookRun:
    """`hold t1` by a model that plans these orders, or by nobody."""

    def model(trace: TaskTrace) -> TraceCall | None:
        tool = trace.steps[-1].call.tool if trace.steps else ""
        if orders is None:
            return None
        if not tool:
            return TraceCall("plan", {"orders": orders})
        return (
            TraceCall("apply", {"plan_id": trace.last["plan_id"], "reason": "wanted"})
            if tool == "plan"
            else TraceCall(DONE)
        )

    return RunbookRun(task, tools, books, model).run()


def test_a_step_that_came_to_no_good_end_is_stale_until_it_is_good_again() -> None:
    books = Runbooks()
    hold = [{"op": "hold", "job": "t1"}]
    simple(DeskTools(desk()), books, hold).learn(True)
    again = simple(DeskTools(desk()), books, None, "hold t2")
    assert again.trace.ended and again.replayed == 3 and again.asked == 0
    again.learn(False)
    assert [bool(step.stale) for step in books.books["hold {job}"].step] == [True, True, False]
    stopped = simple(DeskTools(desk()), books, None)
    assert (stopped.replayed, stopped.stopped) == (0, "the task has not succeeded")
    simple(DeskTools(desk()), books, hold).learn(True)
    assert simple(DeskTools(desk()), books, None).trace.ended


def test_where_the_same_facts_led_to_two_calls_the_model_is_asked() -> None:
    books = Runbooks()
    simple(DeskTools(desk()), books, [{"op": "hold", "job": "t1"}]).learn(True)
    books.learn(simple(DeskTools(desk()), Runbooks(), [{"op": "priority", "job": "t1", "value": 3}]).trace)
    assert simple(DeskTools(desk()), books, None).stopped == "the facts do not determine the call"
    assert [bool(step.ask) for step in books.books["hold {job}"].step if step.tool == "plan"] == [True, True]


def test_a_plan_that_is_void_is_made_anew_and_not_applied(tmp_path: Path) -> None:
    books = Runbooks()
    simple(DeskTools(desk()), books, [{"op": "hold", "job": "t1"}]).learn(True)
    tools = DeskTools(desk())
    run = RunbookRun("hold t1", tools, books, lambda trace: None, tmp_path)
    assert run.step()
    tools.desk.world.carry_out(parse_orders([{"op": "priority", "job": "t2", "value": 7}])[0], tools.desk.who)
    run.run()
    assert [step.call.tool for step in run.before + run.trace.steps] == ["plan", "plan", "apply", "done"]
    assert [entry.what for entry in tools.desk.audit.entries if entry.what == "refused"] == []
    assert read_traces(tmp_path) == [run.trace], "what was begun before is not gone on with later"


def test_a_plan_that_costs_more_than_ever_is_not_applied_by_a_runbook() -> None:
    books = Runbooks()
    early, late = small(), small()
    late.step(late.now() + 30 * 60 * 10**6)
    for each in (early, late):
        assert each.view().jobs["big"].phase == "running"
    stop = [{"op": "preempt", "job": "big"}]
    simple(DeskTools(desk(early)), books, stop, "stop big").learn(True)
    found = simple(DeskTools(desk(late)), books, None, "stop big")
    assert found.stopped == "gpu_hours_lost is larger than in every plan that was learned"
    assert [step.call.tool for step in found.trace.steps] == ["plan"]
    assert simple(DeskTools(desk(small())), books, None, "stop big").trace.ended


def test_an_exact_replay_knows_only_the_task_itself() -> None:
    books = Runbooks(exact=True)
    simple(DeskTools(desk()), books, [{"op": "hold", "job": "t1"}]).learn(True)
    assert simple(DeskTools(desk()), books, None).trace.ended
    assert simple(DeskTools(desk()), books, None, "hold t2").replayed == 0


@settings(max_examples=examples(15))
@given(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 10**6), at=st.integers(0, 3), before=st.integers(0, 9))
def test_a_choice_is_made_again_in_the_very_same_state_and_in_no_other(
    kind: str, seed: int, at: int, before: int
) -> None:
    books = Runbooks()
    for each in (before, before + 1, seed):
        teach(books, kind, each)
    assert teach(books, kind, seed).asked == 0
    task, tools = watched(kind, seed)
    calls = iter(range(50))

    def call(own: TraceCall) -> Answer:
        if next(calls) == at:
            change(task, tools.world, random.Random(seed))
        return tools.call(own)

    run = RunbookRun(task.text, Around(tools, call), books, expert(task)).run()
    assert not tools.wrong_by_runbook(run)


def test_a_moment_is_the_task_the_state_and_all_answers_and_not_the_clock() -> None:
    def digest(task: str = "a", version: str = "v", order: str = "hold", lost: int = 1, now: int = 1) -> str:
        args = {"orders": [{"op": order}], "key": f"k{now}"}
        answer = {"plan_id": f"p{now}", "rows": [{"lost": lost, "now_us": now}]}
        return moment(TaskTrace(task, {}, [TraceStep(TraceCall("plan", args), {}, answer, version=version)]), 1, "w")

    same = digest()
    assert digest(now=2) == same != moment(TaskTrace("a"), 0, "w") != moment(TaskTrace("a"), 0, "x")
    others: list[dict[str, Any]] = [{"task": "b"}, {"version": "w"}, {"order": "release"}, {"lost": 2}]
    assert same not in {digest(**other) for other in others}


def test_two_choices_in_one_moment_are_none() -> None:
    books = Runbooks()
    for word in ("A1", "B1", "A1"):
        books.learn(TaskTrace("name it", {}, [TraceStep(TraceCall(DONE, {"answer": word}), {}, {}, version="v")]))
        (step,) = books.books[""].step
        assert list(step.chosen.values()) == [{"answer": word} if step.seen == 1 else {}]


def test_text_of_tenants_is_in_no_runbook() -> None:
    books, other = Runbooks(), Runbooks()
    for word in ("IGNORE", "NOT A WORD", "Plain"):
        steps = [TraceStep(TraceCall("log", {"job": "t2"}), {}, {"lines": [untrusted(line=ORDERS)]}, version="v")]
        steps.append(TraceStep(TraceCall(DONE, {"answer": word}), {}, {}, version="v"))
        other.learn(TaskTrace("read t2", {}, steps, "1", word))
        kept = list(other.books[word].step[1].chosen.values())
        assert kept == ([{"answer": "Plain"}] if word == "Plain" else [{}])
    trace = TaskTrace("stop svc", {"job": "svc"}, [], "1")
    tools = DeskTools(desk())
    for call in (
        TraceCall("jobs"),
        TraceCall("log", {"job": "t2"}),
        TraceCall(DONE, {"answer": ORDERS.splitlines()[0]}),
    ):
        trace.steps.append(TraceStep(call, {}, tools.call(call)))
    books.learn(trace)
    assert "IGNORE" not in str(msgspec.to_builtins(list(books.books.values())))


# --- files ------------------------------------------------------------------------------------------------------------


def test_runbooks_come_back_from_their_files_as_they_were(tmp_path: Path) -> None:
    books = taught()
    paths = books.save(tmp_path)
    assert len(paths) == len(TAUGHT)
    assert Runbooks.load(tmp_path).books == books.books


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 'a'", "tasks"),
        ("name = 'a'\ntasks = []", "at least one task"),
        ("name = 'a'\ntasks = ['x']\n[[step]]\nid = 's2'\ntool = 'jobs'\nafter = 's1'", "step s2, after"),
        ("name = 'a'\ntasks = ['x']\n[[step]]\nid = 's2'\ntool = 'jobs'\nwen = {}", "wen"),
        (
            "name = 'a'\ntasks = ['x']\n[[step]]\nid = 's'\ntool = 'jobs'\n[[step]]\nid = 's'\ntool = 'jobs'",
            "a different id for each step",
        ),
        ("name = ", "TOML"),
    ],
)
def test_a_runbook_that_is_none_is_refused_by_its_field(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_runbook(tmp_path / "a.toml")


def test_two_runbooks_for_the_same_words_are_refused(tmp_path: Path) -> None:
    books = Runbooks()
    books.books = {"x": Runbook("a", ["x"], [BookStep("s1", "jobs")]), "y": Runbook("b", ["x"])}
    books.save(tmp_path)
    with pytest.raises(InputError, match="no other runbook"):
        Runbooks.load(tmp_path)


def test_a_trace_that_is_none_is_refused_by_its_file(tmp_path: Path) -> None:
    write_trace(tmp_path, TaskTrace("hold t1", {"job": "t1"}, [], "one"))
    (tmp_path / "two.json").write_text("{")
    with pytest.raises(InputError, match=r"two\.json"):
        read_traces(tmp_path)
    with pytest.raises(InputError, match="a folder of traces"):
        read_traces(tmp_path / "absent")


# --- several at once --------------------------------------------------------------------------------------------------


def planner(orders: list[dict[str, Any]], meet: Barrier | None = None) -> Callable[[TaskTrace], TraceCall]:
    """Looks, plans these orders, and applies them; with `meet` it first thinks about its plan until the others do."""
    meets = [meet] if meet is not None else []

    def model(trace: TaskTrace) -> TraceCall:
        if trace.steps and trace.steps[-1].call.tool == "plan" and meets:
            meets.pop().wait(timeout=60)
        calls = {
            "": TraceCall("jobs"),
            "jobs": TraceCall("plan", {"orders": orders}),
            "apply": TraceCall(DONE),
            "plan": TraceCall("apply"),
        }
        call = calls[trace.steps[-1].call.tool if trace.steps else ""]
        return (
            TraceCall("apply", {"plan_id": trace.last["plan_id"], "reason": "wanted"}) if call.tool == "apply" else call
        )

    return model


def test_tasks_about_different_things_are_thought_about_at_once_and_all_are_done() -> None:
    orders: dict[str, list[dict[str, Any]]] = {
        "hold t1": [{"op": "hold", "job": "t1"}],
        "drain node-00003": [{"op": "drain", "node": "node-00003"}],
        "give t2 priority 4": [{"op": "priority", "job": "t2", "value": 4}],
    }
    tools, meet = DeskTools(desk()), Barrier(3)
    runs = run_together(
        list(orders), tools, lambda task, own: RunbookRun(task, own, Runbooks(), planner(orders[task], meet))
    )
    assert all(run.trace.ended and run.trace.steps[-2].answer["state"] == "applied" for run in runs)  # type: ignore[index]
    view = tools.view()
    assert (view.jobs["t1"].phase, view.jobs["t2"].priority) == ("held", 4)
    assert view.nodes[3].status != "in service"
    (apply,) = (entry for entry in tools.desk.audit.entries if entry.what == "apply")
    assert (apply.reason, len(apply.orders)) == ("wanted", 3), "plans that are ready together are one"
    tools.desk.undo(apply.txn, "none of it")
    assert tools.view().version == small().view().version


def test_where_one_plan_would_do_more_the_first_is_applied_and_the_others_begin_again() -> None:
    orders = {f"hold {job}": [{"op": "hold", "job": job}] for job in ("t1", "t2")}
    tools, meet = DeskTools(desk(limits=RoleLimits(operator=RoleLimit(jobs=1)))), Barrier(2)
    runs = run_together(
        list(orders), tools, lambda task, own: RunbookRun(task, own, Runbooks(), planner(orders[task], meet))
    )
    assert [run.trace.ended for run in runs] == [True, True]
    assert "person" not in {entry.code for entry in tools.desk.audit.entries}, "it is not tried"
    done = [entry.orders for entry in tools.desk.audit.entries if entry.what == "apply"]
    assert [[kind.job for kind in each] for each in done] == [["t1"], ["t2"]], "in the order of the tasks"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "other",
    [
        {"version": "w"}, {"can_be_applied": False}, {"asks_a_person": ["2 jobs"]}, {"gpu_hours_lost": 3.1},
        {"blast_radius": {"jobs_later": 3}}, {"effects": {"stop": ["a"]}}, {"effects": {"stop": ["a", "b", "c"]}},
        {"effects": {"stop": ["a", "b"], "move": ["d"]}}, {"effects": {"stop": ["a", "b"], "start_now": ["d"]}},
        {"effects": {"stop": ["a", "b"], "not_foretold": "why"}},
    ],
)  # fmt: skip
def test_a_plan_for_several_does_what_theirs_do(other: dict[str, Any]) -> None:
    def plan(stop: str, **fields: Any) -> dict[str, Any]:
        base = {"plan_id": "p", "version": "v", "can_be_applied": True, "asks_a_person": [], "gpu_hours_lost": 1.5}
        return base | {"effects": {"stop": [*stop]}, "blast_radius": {"jobs_later": 1}} | fields

    theirs = [plan("a"), plan("b")]
    both = plan("ab", gpu_hours_lost=3.0, blast_radius={"jobs_later": 2})
    assert has_effects_of(both, theirs) and not has_effects_of(both | other, theirs)


def test_a_task_waits_for_one_that_is_about_the_same_thing_and_is_not_begun_where_that_one_stopped() -> None:
    tasks = ["hold t1", "release t1", "hold t2", "hold every job of train"]
    assert waits_for(tasks, small().view()) == [[], [0], [], [0, 1, 2]]
    hold, release = [{"op": "hold", "job": "t1"}], [{"op": "release", "job": "t1"}]
    tools = DeskTools(desk())
    models = {"hold t1": planner(hold), "release t1": planner(release)}
    runs = run_together(tasks[:2], tools, lambda task, own: RunbookRun(task, own, Runbooks(), models[task]))
    assert [run.trace.ended for run in runs] == [True, True]
    assert tools.view().jobs["t1"].phase == "waiting"
    runs = run_together(tasks[:2], tools, lambda task, own: RunbookRun(task, own, Runbooks(), lambda trace: None))
    assert runs[1].stopped == "it depends on `hold t1`, which has not ended"


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("t1", {"job t1"}),
        ("big", {"job big", "node node-00000", "node node-00001"}),
        ("node-00002", {"node node-00002", "job t3", "job svc"}),
        ("infer", {"queue infer any", "job svc"}),
        ("bob", {"job t2"}),
    ],
)
def test_a_task_is_about_what_it_names_and_what_hangs_on_that(name: str, keys: set[str]) -> None:
    assert about(small().view(), [name]).keys() == keys


def test_facts_say_what_decides_about_a_thing() -> None:
    names = ["t1", "t3", "node-00002", "node-00003", "train", "ana", "nothing"]
    assert facts_of(small().view(), names) == {
        "t1": "job: waiting",
        "t3": "job: running, nobody may stop it",
        "node-00002": "node: in service, a job that nobody may stop",
        "node-00003": "node: in service, empty",
        "train": "queue: some wait",
        "ana": "user: it is there",
    }
