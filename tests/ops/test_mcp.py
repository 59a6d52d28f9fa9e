"""The MCP server, asked by the client of the SDK itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult
from tests.ops.worlds import OPERATOR, VIEWER, desk, small

from kant.ops.desk import Desk
from kant.ops.mcp_server import make_server
from kant.ops.memory.replay import RunbookRun
from kant.ops.memory.runbooks import Runbooks, texts_of
from kant.ops.memory.traces import DeskTools, read_traces
from kant.ops.orders import Cancel
from kant.ops.record import TraceRecorder
from kant.ops.rules import RoleLimit, RoleLimits

Talk = Callable[[Client], Awaitable[Any]]


def talk(own: Desk, act: Talk, **options: Any) -> Any:
    """Let a client talk to the server of a desk, in one process."""

    async def inside() -> Any:
        async with Client(make_server(lambda token: own), **options) as client:
            return await act(client)

    return asyncio.run(inside())


async def call(client: Client, name: str, **given: Any) -> dict[str, Any]:
    """The object that a tool answers with."""
    result = await client.call_tool(name, given)
    assert not result.is_error, result
    found = result.structured_content or json.loads(result.content[0].text)  # type: ignore[union-attr]
    return dict(found.get("result", found))


def test_the_tools_say_what_they_do() -> None:
    async def act(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        acts = {name for name, tool in tools.items() if tool.annotations and tool.annotations.destructive_hint}
        assert acts == {"apply", "undo"}
        looks = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
        assert looks == tools.keys() - {"plan", "apply", "undo", "submit"}
        assert all(tool.description for tool in tools.values())
        assert set(tools["apply"].input_schema["properties"]) == {"plan_id", "reason"}, "nobody agrees with themselves"
        assert "priority" in json.dumps(tools["plan"].input_schema)
        assert {str(each.uri) for each in (await client.list_resources()).resources} >= {"sched://audit"}
        assert len((await client.list_prompts()).prompts) == 3

    talk(desk(), act)


def test_an_assistant_looks_plans_applies_and_undoes() -> None:
    own = desk()

    async def act(client: Client) -> None:
        why = await call(client, "why", job="t2")
        assert why["phase"] == "waiting"
        plan = await call(client, "plan", orders=[{"op": "hold", "job": "t1"}])
        assert plan["can_be_applied"]
        done = await call(client, "apply", plan_id=plan["plan_id"], reason="its data is late")
        assert done["state"] == "applied"
        assert (await call(client, "jobs", phase="held"))["jobs"][0]["id"] == "t1"
        undone = await call(client, "undo", txn=done["txn"], reason="it is there")
        assert undone["state"] == "applied"
        log = json.loads((await client.read_resource("sched://audit")).contents[0].text)  # type: ignore[union-attr]
        assert [row["what"] for row in log["entries"]].count("applied") == 2

    talk(own, act)


def test_whoever_listens_is_told_of_what_was_planned_and_done() -> None:
    async def act(client: Client) -> None:
        async with client.listen(resource_subscriptions=["sched://audit"]) as heard:
            await call(client, "jobs")
            await call(client, "plan", orders=[{"op": "hold", "job": "t1"}])
            assert str((await anext(aiter(heard))).uri) == "sched://audit"  # type: ignore[union-attr]
        own = ["sched://job/t1", "sched://queue/train"]
        plan = (await call(client, "plan", orders=[{"op": "hold", "job": "t1"}]))["plan_id"]
        async with client.listen(resource_subscriptions=own) as heard:
            await call(client, "apply", plan_id=plan, reason="its data is late")
            news = aiter(heard)
            assert [str((await anext(news)).uri) for _ in own] == own  # type: ignore[union-attr]

    talk(desk(), act)


def test_resources_and_prompts() -> None:
    async def act(client: Client) -> None:
        async def read(uri: str) -> Any:
            return json.loads((await client.read_resource(f"sched://{uri}")).contents[0].text)  # type: ignore[union-attr]

        cluster = await read("cluster")
        assert ([row["queue"] for row in cluster["queues"]], len(cluster["nodes"])) == (["train", "infer"], 4)
        assert {row["id"] for row in (await read("queue/infer"))["jobs"]} == {"svc"}
        assert (await read("job/big"))["user"] == "dan"
        assert (await read("policy"))["role"] == "operator"
        prompts = {each.name: each for each in (await client.list_prompts()).prompts}
        assert prompts.keys() == {"triage-pending", "drain-node", "explain-fairness"}
        for name, prompt in prompts.items():
            (word,) = (each.name for each in prompt.arguments or ())
            (said,) = (await client.get_prompt(name, {word: "x\nIGNORE"})).messages
            assert "x IGNORE" in said.content.text, "on one line"  # type: ignore[union-attr]

    talk(desk(), act)


def test_a_refusal_is_an_answer_and_no_fault() -> None:
    async def act(client: Client) -> None:
        plan = await call(client, "plan", orders=[{"op": "cancel", "job": "svc"}])
        assert plan["violations"][0]["rule"] == "protected"
        assert (await call(client, "apply", plan_id=plan["plan_id"], reason="it is old"))["refused"] == "violations"
        assert (await call(client, "apply", plan_id="p0-0", reason="it is old"))["refused"] == "unknown"
        assert (await call(client, "job", job="nobody"))["refused"] == "input"

    talk(desk(), act)
    talk(desk(who=VIEWER), lambda client: _refused_viewer(client))


async def _refused_viewer(client: Client) -> None:
    plan = await call(client, "plan", orders=[{"op": "hold", "job": "t1"}])
    assert (await call(client, "apply", plan_id=plan["plan_id"], reason="I can"))["refused"] == "violations"
    assert (await call(client, "audit"))["refused"] == "role"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(("action", "agree"), [("accept", True), ("accept", False), ("decline", None)])
def test_beyond_the_limits_a_person_is_asked(mode: Any, action: Any, agree: bool | None) -> None:
    own = desk(limits=RoleLimits(operator=RoleLimit(jobs=0)))
    asked: list[str] = []

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action=action, content={"agree": agree} if agree is not None else None)

    async def act(client: Client) -> None:
        plan = await call(client, "plan", orders=[{"op": "hold", "job": "t1"}])
        assert plan["asks_a_person"]
        done = await call(client, "apply", plan_id=plan["plan_id"], reason="its data is late")
        assert done.get("state", done.get("refused")) == ("applied" if agree else "person")

    talk(own, act, elicitation_callback=person, mode=mode)
    assert len(asked) == 1 and "hold job t1" in asked[0]
    assert (own.world.view().jobs["t1"].phase == "held") is (agree is True)


def test_a_client_that_can_ask_nobody_does_not_get_past_the_limits() -> None:
    own = desk(limits=RoleLimits(operator=RoleLimit(jobs=0)))

    async def act(client: Client) -> None:
        plan = await call(client, "plan", orders=[{"op": "hold", "job": "t1"}])
        done = await call(client, "apply", plan_id=plan["plan_id"], reason="its data is late")
        assert done["refused"] == "person"

    talk(own, act)
    assert own.world.view().jobs["t1"].phase == "waiting"


def test_what_an_assistant_does_becomes_a_runbook_that_does_it_on_another_node(tmp_path: Path) -> None:
    async def act(client: Client) -> None:
        await call(client, "nodes")
        plan = await call(client, "plan", orders=[{"op": "drain", "node": "node-00003"}])
        await call(client, "apply", plan_id=plan["plan_id"], reason="drain node-00003 for repair")
        plan = await call(client, "plan", orders=[{"op": "hold", "job": "t1"}])
        done = await call(client, "apply", plan_id=plan["plan_id"], reason="hold t1")
        await call(client, "undo", txn=done["txn"], reason="a mistake")
        plan = await call(client, "plan", orders=[{"op": "hold", "job": "t2"}])
        await call(client, "apply", plan_id=plan["plan_id"], reason="hold t2")

    async def inside() -> None:
        own = desk()
        async with Client(make_server(lambda token: own, record=TraceRecorder(tmp_path).note)) as client:
            await act(client)

    asyncio.run(inside())
    trace, other = read_traces(tmp_path)
    assert (other.task, [step.call.tool for step in other.steps]) == ("hold t2", ["plan", "apply", "done"])
    assert [step.call.tool for step in trace.steps] == ["nodes", "plan", "apply", "done"]
    books = Runbooks()
    books.learn(trace)
    free = small()
    free.carry_out(Cancel("big"), OPERATOR)
    free.carry_out(Cancel("t1"), OPERATOR)
    free.carry_out(Cancel("t2"), OPERATOR)
    free.settle()
    run = RunbookRun("drain node-00000 for repair", DeskTools(desk(free)), books, lambda trace: None).run()
    assert run.trace.ended
    assert [node.status for node in free.view().nodes] == ["draining", "in service", "in service", "in service"]
    stopped = RunbookRun("drain node-00002 for repair", DeskTools(desk()), books, lambda trace: None).run()
    assert [step.call.tool for step in stopped.trace.steps] == ["nodes"], "a job runs there that nobody may stop"

    (path,) = books.save(tmp_path / "books")

    async def read() -> None:
        async with Client(make_server(lambda token: desk(), runbooks=texts_of(tmp_path / "books"))) as client:
            names = (await client.read_resource("sched://runbooks")).contents[0].text  # type: ignore[union-attr]
            (name,) = json.loads(names)["runbooks"]
            text = (await client.read_resource(f"sched://runbook/{name}")).contents[0].text  # type: ignore[union-attr]
            assert text == path.read_text() and 'tasks = ["drain' in text
            with pytest.raises(MCPError, match="expected one of"):
                await client.read_resource("sched://runbook/other")

    asyncio.run(read())
