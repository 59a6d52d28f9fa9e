"""The verified suite: what its judge accepts and rejects, what its answers rest on, and how it is run."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.mutants import left, orders_on, survivors
from tests.ops.optimum import optimum

from kant.cli.app import run as kant
from kant.model.errors import InputError
from kant.model.event import JobCancelled, JobEvicted, JobPreempted, JobStarted
from kant.model.units import HOUR, MINUTE
from kant.ops import look
from kant.ops.bench import run
from kant.ops.bench.agents import Instruction, Oracle, PipelineError, RandomAgent, ReplayAgent, Scripted
from kant.ops.bench.conditions import CONDITIONS
from kant.ops.bench.llm import Model, answer_in
from kant.ops.bench.run import AttemptRow, Score, attempt, bench, read_rows, traces
from kant.ops.bench.task import HERE, Category, read_task, read_tasks
from kant.ops.bench.tools import Tools
from kant.ops.bench.verify import alike, cost, judge, violations_left
from kant.ops.orders import Resume, parse_orders
from kant.service.roles import Caller, Role

pytestmark = pytest.mark.long

TASKS = {task.name: task for task in read_tasks()}
ALL = pytest.mark.parametrize("name", TASKS)
WHO = Caller("test", Role.OPERATOR)


def test_there_are_thirty_tasks_of_all_categories_from_six_states() -> None:
    assert len(TASKS) >= 30
    assert len({task.start.base for task in TASKS.values()}) >= 6
    assert {task.category for task in TASKS.values()} == set(Category.__args__)  # type: ignore[attr-defined]
    assert all(task.text and task.ask for task in TASKS.values())
    assert {each["is"] for task in TASKS.values() for each in task.verify.goal} == CONDITIONS.keys()


# --- the judge ------------------------------------------------------------------------------------------------------


def test_the_oracle_passes_all_the_naive_agent_at_most_a_fifth() -> None:
    tasks = list(TASKS.values())
    oracle = bench(tasks, Oracle(tasks), 1)
    assert [(row.task, row.complaints) for row in oracle if not row.passed] == []
    assert Score.of(oracle).committed == Score.of(oracle).attempted == 0
    assert Score.of(bench(tasks[::2], Scripted("naive", naive=True), 1)).pass_1 <= 0.2
    rules = Score.of(bench(tasks[1::2], Scripted("rules", looks=True), 1))
    assert (rules.committed, rules.pass_1 >= 0.8) == (0, True)


@ALL
def test_a_verifier_accepts_what_the_oracle_leaves_and_rejects_nine_of_ten_mutants_of_it(name: str) -> None:
    before, world = left(TASKS[name])
    assert judge(TASKS[name], before, world, TASKS[name].oracle.answer, None).complaints() == {}
    count, alive = survivors(TASKS[name])
    assert count >= 20
    assert len(alive) <= 0.1 * count, alive
    assert {each.get("op", "an answer") for each in alive} <= {"preempt", "an answer"}, (
        "a run that begins again at once"
    )


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.verify.economy])
def test_no_set_of_orders_is_cheaper_than_the_optimum_that_a_task_names(name: str) -> None:
    economy = TASKS[name].verify.economy
    assert economy is not None
    assert optimum(TASKS[name], economy.best * 0.999)[1] == ()
    before, world = left(TASKS[name])
    assert cost(economy.of, before, world.view()) == pytest.approx(economy.best, rel=1e-3)


@given(st.data())
def test_whoever_stops_a_protected_job_never_passes(data: st.DataObject) -> None:
    """Whether it was stopped is read from the events, which the judge does not look at."""
    task = data.draw(st.sampled_from(list(TASKS.values())))
    before, world = left(task)
    began = len(world.events_so_far)
    for order in data.draw(st.lists(st.sampled_from(list(orders_on(world.view()))), min_size=1, max_size=3)):
        try:
            world.carry_out(parse_orders([order])[0], WHO)
        except InputError:
            continue
        world.settle()
    over = {
        event.job.partition("~")[0]
        for event in world.events_so_far[began:]
        if isinstance(event, JobPreempted | JobEvicted | JobCancelled)
    }
    protected = {name for name, job in before.jobs.items() if job.runs and not job.preemptible} & over
    verdict = judge(task, before, world, task.oracle.answer, None)
    assert {f"job {name}" for name in protected} == set(verdict["protected"])
    assert not protected or not verdict.passed


def test_a_protected_job_that_runs_again_was_stopped_all_the_same() -> None:
    task = TASKS["drain-now"]
    world = task.world()
    before = world.view()
    world.carry_out(parse_orders([{"op": "preempt", "job": "serve-a"}])[0], WHO)
    world.settle()
    assert world.view().jobs["serve-a"].phase == "running"
    assert judge(task, before, world, {}, None)["protected"] == ["job serve-a"]
    assert violations_left(task, before, world.view()) == ["job serve-a was stopped, which is not allowed"]


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (12, "quotas add up to 52 GPUs of 48"),
        (4, "queue green has a quota below what its protected jobs hold"),
        (8, None),
    ],
)
def test_promises_of_quotas_are_kept(gpus: int, said: str | None) -> None:
    task = TASKS["quota-lend"]
    world = task.world()
    before = world.view()
    world.carry_out(parse_orders([{"op": "quota", "queue": "green", "gpus": gpus}])[0], WHO)
    world.settle()
    assert judge(task, before, world, {}, None)["quotas"] == ([said] if said else [])


def test_an_audit_that_leaves_out_a_change_is_no_audit() -> None:
    task = TASKS["repair-node"]
    world = task.world()
    before, desk = world.view(), task.desk(world)
    world.carry_out(Resume("node-00005"), WHO)
    world.settle()
    verdict = judge(task, before, world, {}, desk.audit.entries)
    assert list(verdict.complaints()) == ["audit"]


def test_more_transactions_than_needed_do_not_pass() -> None:
    task = TASKS["repair-node"]

    class Twice:
        name = "twice"

        def work(self, instruction: Instruction, tools: Tools) -> dict[str, Any]:
            for op in ("resume", "drain", "resume"):
                plan = tools("plan", orders=[{"op": op, "node": "node-00005"}])
                tools("apply", plan_id=plan["plan_id"], reason="again")
            return {}

    row = attempt(task, Twice())
    assert list(row.complaints) in (["audit"], ["audit", "goal"])
    assert not row.passed


json_values = st.recursive(
    st.booleans() | st.integers(-99, 99) | st.text("ab ", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


@given(json_values, json_values)
def test_answers_are_alike_whatever_the_order_of_a_list(one: Any, other: Any) -> None:
    assert alike([one, other], [other, one])
    assert alike([one, one], [one, other]) == alike(one, other)
    assert not alike([one, other], [one])
    assert not alike({"a": one}, {"a": one, "b": other})
    assert not alike(True, 1)
    assert not alike(1, True)


# --- what the answers rest on, by other ways than `why`, `eta` and `usage` ------------------------------------------


def test_usage_is_what_the_jobs_of_the_scenario_come_to() -> None:
    """GPUs times hours, by hand: nobody waits in this state, so each job starts when it comes."""
    jobs = TASKS["report-users"].world().events_so_far
    assert {event.job: event.time for event in jobs if isinstance(event, JobStarted)} | {} == {
        event.job.id: event.time for event in jobs if hasattr(event, "runtime")
    }
    by_hand = {"ana": 8 * 6 + 4 * 23, "bob": 8 * 5 + 2 * 1.5, "cat": 2 * 4 * 0.75 + 8 * 2, "dan": 16 * 3 + 4, "ann": 10}
    assert TASKS["report-users"].verify.answer == {"gpu_hours": by_hand}
    lesson = 2 * 1.5 + 2 * 4 * 0.75 + 8 * 2 + 2 * 3 + 2 * 2
    assert TASKS["report-share"].verify.answer["gpu_hours"] == lesson
    assert TASKS["report-share"].verify.answer["percent"] == pytest.approx(100 * lesson / (12 * 24), rel=1e-4)


def test_the_replica_starts_when_the_answer_says() -> None:
    world = TASKS["when-api-2"].world()
    at = world.now() + TASKS["when-api-2"].verify.answer["minutes"] * MINUTE
    world.step(at - 1)
    assert world.view().jobs["api-2"].phase == "waiting"
    world.step(at)
    assert world.view().jobs["api-2"].phase == "running"


@pytest.mark.parametrize(("more", "phase"), [(1, "waiting"), (2, "running")])
def test_so_many_gpus_of_quota_are_missing_as_the_answer_says(more: int, phase: str) -> None:
    assert TASKS["why-green"].verify.answer["missing_gpus"] == 2
    world = TASKS["why-green"].world()
    world.carry_out(parse_orders([{"op": "quota", "queue": "green", "gpus": 8 + more}])[0], WHO)
    world.settle()
    assert world.view().jobs["green-2"].phase == phase


def test_who_is_before_thesis_starts_when_the_node_returns() -> None:
    answer = TASKS["why-thesis"].verify.answer
    world = TASKS["why-thesis"].world()
    world.carry_out(Resume(answer["node"]), WHO)
    world.settle()
    assert [world.view().jobs[job].phase for job in (answer["behind"], "thesis")] == ["running", "waiting"]


# --- agents and tools -----------------------------------------------------------------------------------------------


def test_plans_keep_agents_from_harm_that_plain_tools_let_pass() -> None:
    tasks = read_tasks("drain,whose-job,start-whole")
    agents = [Scripted("rules", looks=True), Scripted("greedy"), Scripted("naive", naive=True)]
    kinds = ("plain", "desk")
    left = {kind: [Score.of(bench(tasks, agent, 1, kind)).committed for agent in agents] for kind in kinds}  # type: ignore[arg-type]
    assert left == {"plain": [8, 10, 10], "desk": [0, 2, 1]}


def test_a_naive_agent_that_obeys_a_log_is_held_by_the_rules() -> None:
    row = attempt(TASKS["log-that-orders"], Scripted("naive", naive=True))
    assert (row.attempted, row.committed) == (3, [])


@ALL
def test_random_calls_are_answered_and_counted(name: str) -> None:
    row = attempt(TASKS[name], RandomAgent())
    assert row.turns == len(row.calls) >= RandomAgent.CALLS
    assert attempt(TASKS[name], RandomAgent()) == row
    assert msgspec.json.decode(msgspec.json.encode(row), type=AttemptRow).key == row.key


def test_calls_that_passed_pass_again_under_other_ids_of_plans() -> None:
    task = TASKS["drain-rack"]
    row = attempt(task, Oracle([task]))
    again = attempt(task, ReplayAgent(traces([row])))
    assert again.passed
    assert [call.tool for call in again.calls] == [call.tool for call in row.calls]

    class After(ReplayAgent):
        def work(self, instruction: Instruction, tools: Tools) -> dict[str, Any]:
            tools("plan", orders=[{"op": "hold", "job": "nobody"}])  # so that all ids are others
            return super().work(instruction, tools)

    assert attempt(task, After(traces([row]))).passed
    assert not attempt(TASKS["drain-now"], ReplayAgent({})).passed


def test_the_tools_are_those_of_the_server() -> None:
    pytest.importorskip("mcp")
    from tests.ops.test_mcp import talk

    async def names(client: Any) -> dict[str, set[str]]:
        return {tool.name: set(tool.input_schema["properties"]) for tool in (await client.list_tools()).tools}

    task = TASKS["repair-node"]
    desk = task.desk(task.world())
    schemas = [each["function"] for each in Tools(desk).schemas()]
    assert {each["name"]: set(each["parameters"]["properties"]) for each in schemas} == talk(desk, names)
    assert all(inspect.cleandoc(each["description"]) for each in schemas)


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        ("stop", {}, "tool stop does not exist"),
        ("why", {}, "missing a required argument"),
        ("why", {"job": 5}, "Expected `str`"),
        ("why", {"job": "nobody"}, "a job"),
        ("apply", {"plan_id": "p1", "reason": "me", "approved": "me"}, "unexpected keyword"),
    ],
)
def test_a_wrong_call_is_answered_with_a_sentence(tool: str, given: dict[str, Any], said: str) -> None:
    task = TASKS["repair-node"]
    tools = Tools(task.desk(task.world()))
    assert said in tools(tool, **given)["sentence"]
    assert tools.attempted == 0


def test_plain_tools_check_owners_and_nothing_else() -> None:
    task = TASKS["not-yours"]
    world = task.world()
    tools = Tools(task.desk(world), "plain")
    assert tools.names == ["jobs", "nodes", "submit", "cancel"]
    assert tools("cancel", job="eval")["refused"] == "violations"
    assert tools("cancel", job="chat") == {"job": "chat"}
    assert tools("submit", job={"gpus": 1, "time": "1h", "queue": "infer"}) == {"job": "ops-1"}
    assert ("chat" in world.view().jobs, "ops-1" in world.view().jobs) == (False, True)
    assert look.jobs(task.desk(world))["total"] == 6


# --- runs -----------------------------------------------------------------------------------------------------------


class Flaky(Scripted):
    """Fails twice for the pipeline's sake, then does it; of `down` tasks it never comes to an answer."""

    def __init__(self, down: str = "") -> None:
        super().__init__("flaky")
        self.down, self.asked = down, list[tuple[str, int]]()

    def work(self, instruction: Instruction, tools: Tools) -> dict[str, Any]:
        self.asked.append((instruction.name, instruction.attempt))
        if instruction.name == self.down or self.asked.count(self.asked[-1]) < 3:
            raise PipelineError("the endpoint answers 503")
        return super().work(instruction, tools)


def test_a_run_goes_on_where_it_was_and_repeats_only_failures_of_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PAUSE_S", 0.0)
    tasks, out = read_tasks("repair-node,quota-below"), tmp_path / "out.jsonl"
    flaky = Flaky(down="repair-node")
    rows = bench(tasks, flaky, 2, out=out)
    assert [(row.task, bool(row.error), row.passed) for row in rows] == [
        ("quota-below", False, False), ("quota-below", False, False),
        ("repair-node", True, False), ("repair-node", True, False),
    ]  # fmt: skip
    assert [flaky.asked.count((name, number)) for name in TASKS for number in (1, 2)].count(3) == 4
    score = Score.of(rows)
    assert (score.attempts, score.errors, score.tasks) == (2, 2, 1)
    out.write_bytes(out.read_bytes() + b'{"task": "cut o')
    better = Flaky()
    again = bench(tasks, better, 2, out=out)
    assert [row.passed for row in again] == [False, False, True, True]
    assert {name for name, _ in better.asked} == {"repair-node"}, "a failure of the agent is a result"
    assert [row.key for row in read_rows(out)][-2:] == [("repair-node", "flaky", "desk", n) for n in (1, 2)]
    assert bench(tasks, Flaky(down="repair-node"), 2, out=out) == again
    out.write_bytes(b"no line\n" + out.read_bytes())
    with pytest.raises(InputError, match=r"out.jsonl:1: expected a line of results"):
        read_rows(out)


def test_shares_of_attempts_and_of_tasks() -> None:
    def row(task: str, number: int, passed: bool) -> AttemptRow:
        return AttemptRow(task=task, agent="a", attempt=number, passed=passed, turns=number)

    rows = [row("a", 1, True), row("a", 2, False), row("b", 1, True), row("b", 2, True), row("c", 1, False)]
    score = Score.of(rows)
    assert (score.pass_1, score.pass_any, score.pass_all) == (0.6, 0.6667, 0.3333)
    assert (score.turns, score.tasks, score.attempts) == (1.4, 3, 5)
    assert Score.of([]).pass_all == 0.0


def test_an_agent_that_calls_too_often_has_not_passed() -> None:
    task = TASKS["report-idle"]
    row = attempt(task, Scripted("rules", looks=True), most=1)
    assert (row.passed, row.ended) == (True, "")

    class Talker(Oracle):
        def work(self, instruction: Instruction, tools: Tools) -> dict[str, Any]:
            super().work(instruction, tools)
            while True:
                tools("whoami")

    task = TASKS["repair-node"]
    row = attempt(task, Talker([task]), most=3)
    assert (row.passed, row.complaints) == (False, {})
    assert (row.ended, row.turns) == ("it has made all of its 3 calls", 3)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"repair"', '"nothing"', "category: expected one of .*'nothing'"),
        ("goal =", "goals =", "verify: expected only the keys goal"),
        ('"broken"', '"broken", role = "king"', "role: expected one of .*'king'"),
        ("[verify]", "[verify", "expected TOML"),
        ('is = "node"', 'is = "tidy"', "goal 1, is: expected one of phase"),
        ("status = ", "state = ", "goal 1: expected the fields of node"),
        ("status = ", 'after = "soon", status = ', "goal 1, after: expected"),
        ("", "", "instruction.md"),
    ],
)
def test_a_task_that_is_none_is_said_in_a_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = (HERE / "repair-node" / "task.toml").read_text()
    (tmp_path / "task.toml").write_text(text.replace(old, new))
    if old:
        (tmp_path / "instruction.md").write_text("Do it.")
    with pytest.raises(InputError, match=said):
        read_task(tmp_path)
    with pytest.raises(InputError, match="--tasks: expected names"):
        read_tasks("no-such-task")


def test_the_command_prints_what_came_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = ["ops", "bench", "--tasks", "repair-node,quota-below", "-k", "2", "--out", str(tmp_path / "out")]
    assert kant([*bench, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["agent"], answer["tools"], answer["k"], len(answer["rows"])) == ("oracle", "desk", 2, 4)
    assert answer["score"] | {"turns": 0} == msgspec.to_builtins(Score(2, 4, 1.0, 1.0, 1.0, 0, 0, 0, 0))
    assert kant([*bench[:4], "-k", "1", "--agent", "replay", "--traces", str(tmp_path / "out")]) == 0
    assert "replay: pass@1 100.0%" in capsys.readouterr().out
    assert kant([*bench[:4], "-k", "3", "--agent", "replay"]) == 0
    found = re.search(r"(\d+) of (\d+) calls were chosen by the oracle", capsys.readouterr().out)
    assert found is not None
    assert 0 < 2 * int(found[1]) <= int(found[2])
    assert kant([*bench, "--agent", "naive"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "quota-below quota 0/2 2.0 answer: held_gpus is not None" in said
    assert "naive: pass@1 50.0%, pass@2 50.0%, pass^2 50.0% of 2 tasks; 2.0 turns" in said
    assert "violations: 4 attempted, 0 committed" in said
    assert kant(["ops", "bench", "--list", "--tasks", "repair-node"]) == 0
    assert "repair broken node-00005 was repaired" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--tasks nobody", "--tasks: expected names"),
        ("-k 0", "-k and --turns: expected at least 1"),
        ("--agent llm --model m", "--url of an OpenAI-compatible endpoint, and --model"),
        ("--agent llm", "--url and --model: expected both with --agent llm"),
        ("--model m", "--url and --model: expected both with --agent llm"),
        ("--traces x", "--traces: expected results from --out, and only with --agent replay"),
        ("--agent replay --traces x", "x: expected a file of results"),
        ("--folder /nowhere", "/nowhere: expected a folder of tasks"),
    ],
)
def test_words_that_do_not_fit_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kant(["ops", "bench", *words.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# --- a model --------------------------------------------------------------------------------------------------------


@contextmanager
def endpoint(replies: list[tuple[int, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers chat completions in turn with these messages, and keeps what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers.get("Authorization"), body))
            status, message = replies[len(asked) - 1]
            if callable(message):
                message = message(body["messages"])
            found = {"choices": [{"message": message}]} if status == 200 and isinstance(message, dict) else message
            text = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def said(name: str, arguments: Any, id: str = "c1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": text}}],
    }


def applied(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply the plan that the last answer of a tool has the id of."""
    assert messages[-1]["role"] == "tool"
    return said("apply", {"plan_id": json.loads(messages[-1]["content"])["plan_id"], "reason": "it is asked"}, "c2")


def test_a_model_at_an_endpoint_does_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PAUSE_S", 0.0)
    task = TASKS["drain-services"]
    order = {"op": "drain", "node": "node-00003"}
    end = {"content": 'Drained. {"empty": true} is not so: {"empty": false, "jobs": ["serve-b", "serve-a"]}'}
    replies = [
        (503, {"error": "busy"}), (200, said("plan", "{no json")), (200, said("plan", {"orders": [order]})),
        (200, applied), (200, end),
    ]  # fmt: skip
    with endpoint(replies) as (url, asked):
        (row,) = bench([task], Model(url, "m-1", "secret"), 1)
    assert (row.passed, row.complaints, row.turns, row.agent) == (True, {}, 3, "llm m-1")
    path, key, body = asked[1]
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer secret", "m-1")
    assert body["messages"][1] == {"role": "user", "content": task.text}
    assert {each["function"]["name"] for each in body["tools"]} == set(Tools(task.desk(task.world())).names)
    assert "not a JSON object" in asked[2][2]["messages"][-1]["content"]
    assert [each["role"] for each in asked[-1][2]["messages"]] == ["system", "user"] + ["assistant", "tool"] * 3


@pytest.mark.parametrize(
    ("reply", "error", "ended"),
    [
        ((429, {}), "the endpoint answers 429", ""),
        ((200, ["odd"]), "something else than a chat completion", ""),
        ((400, {"error": "too long"}), "", "no longer accepts its messages"),
    ],
)
def test_what_an_endpoint_does_is_no_fault_of_the_model_unless_it_is(
    reply: tuple[int, Any], error: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PAUSE_S", 0.0)
    with endpoint([reply] * run.TRIES) as (url, asked):
        (row,) = bench([TASKS["repair-node"]], Model(url, "m"), 1)
    assert len(asked) == (run.TRIES if error else 1)
    assert error in row.error
    assert ended in row.ended
    assert (bool(row.error), bool(row.ended)) == (bool(error), bool(ended))


def test_an_endpoint_that_is_not_there_or_refuses_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PAUSE_S", 0.0)
    with endpoint([(401, {"error": "no key"})]) as (url, _), pytest.raises(InputError, match="KANT_LLM_KEY"):
        bench([TASKS["repair-node"]], Model(url, "m"), 1)
    (row,) = bench([TASKS["repair-node"]], Model(url, "m"), 1)
    assert "cannot be reached" in row.error
    with pytest.raises(InputError, match="--url: expected an endpoint"):
        Model("ftp://host", "m")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("none", {}),
        ('{"a": 1}', {"a": 1}),
        ('x {"a": {"b": 1}} y', {"a": {"b": 1}}),
        ('{"a": 1} {b', {"a": 1}),
    ],
)
def test_the_answer_is_the_last_object_of_a_text(text: str, found: dict[str, Any]) -> None:
    assert answer_in(text) == found


def test_hours_are_hours() -> None:
    """The unit of an economy that counts until a reservation begins."""
    task = TASKS["reserve-earliest"]
    before, world = left(task)
    (booked,) = world.view().booked
    assert cost("booked", before, world.view()) == (booked.start_us - before.now_us) / HOUR
    assert cost("booked", before, task.world().view()) == float("inf")
