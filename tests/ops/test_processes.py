"""`kant mcp` and `kant ops` as processes, over standard input, HTTP and a Kant that runs."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import KANT, kant
from tests.local.up import Up, eventually

pytest.importorskip("mcp")

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

from kant.service.roles import Role
from kant.service.tokens import change_keys, fresh_token, make_key

SCENARIO = """cluster = "2x8"
now = "10m"

[[job]]
id = "first"
gpus = 8
pods = 2
time = "2h"
user = "ana"

[[job]]
id = "second"
gpus = 8
time = "1h"
user = "bob"
at = "1m"
"""


async def call(client: Client, name: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(name, given)
    assert not result.is_error, result
    found = result.structured_content or json.loads(result.content[0].text)  # type: ignore[union-attr]
    return dict(found.get("result", found))


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "lab.toml"
    path.write_text(SCENARIO)
    return path


def test_an_assistant_by_standard_input_and_a_person_in_the_terminal(scenario: Path) -> None:
    """The server is killed after the plan; the person applies it, and the next server sees that."""
    started = StdioServerParameters(command=str(KANT), args=["mcp", "--scenario", str(scenario)])

    async def first() -> str:
        async with Client(started) as client:
            assert (await call(client, "whoami"))["world"] == "simulated"
            plan = await call(client, "plan", orders=[{"op": "hold", "job": "second"}])
            return str(plan["plan_id"])

    async def second() -> None:
        async with Client(started) as client:
            assert (await call(client, "jobs", phase="held"))["jobs"][0]["id"] == "second"
            rows = (await call(client, "audit"))["entries"]
            assert {row["via"] for row in rows} == {"mcp", "terminal"}

    plan = asyncio.run(first())
    done = kant("ops", "apply", plan, "--reason", "it waits for data", "--scenario", str(scenario), "--json").json()
    assert done["state"] == "applied"
    asyncio.run(second())
    undone = kant("ops", "undo", done["txn"], "--reason", "it is there", "--scenario", str(scenario), "--json").json()
    assert undone["state"] == "applied"


def test_the_terminal_refuses_in_one_sentence(scenario: Path) -> None:
    where = ("--scenario", str(scenario))
    refused = kant("ops", "apply", "p1-00000000", "--reason", "a test", *where)
    assert refused.code == 1 and refused.err.count("\n") == 1
    assert "kant ops plan --help" in kant("ops", "plan", *where).refusal()
    assert "got 'hold second'" in kant("ops", "plan", "hold", "second", *where).refusal()
    assert "--priority" in kant("ops", "plan", "--priority", "second", *where).refusal()
    assert "`colour`" in kant("ops", "plan", "--submit", "gpus=1,time=1h,colour=red", *where).refusal()
    assert "only one of" in kant("ops", "plan", "--hold", "second", "--journal", "x.jsonl", *where).refusal()
    plan = kant("ops", "plan", "--hold", "nobody", *where)
    assert plan.code == 1 and "no waiting or running job has the id nobody" in plan.out
    small = scenario.parent / "limits.toml"
    small.write_text("[operator]\njobs = 0\n")
    held = kant("ops", "plan", "--hold", "second", *where, "--json").json()["plan_id"]
    asks = ("ops", "apply", held, "--reason", "a test", "--limits", str(small), *where)
    assert kant(*asks).code == 1
    assert kant(*asks, "--yes").code == 0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("up") / "home", listen="127.0.0.1:0") as found:
        found.submit("sleep 600", gpus=8, time_s=3600)
        assert eventually(lambda: found.phase("1") == "running")
        found.submit("sleep 600", gpus=4, time_s=600)
        assert eventually(lambda: found.phase("2") == "waiting")
        yield found
        for job in ("1", "2"):
            found.client.post(found.client.job(job, "cancel"))


def test_over_http_each_token_has_its_role(up: Up) -> None:
    tokens = {role: fresh_token() for role in Role}
    keys = tuple(
        make_key(token, str(role), role, ("default",) * (role is Role.TENANT)) for role, token in tokens.items()
    )
    change_keys(up.home / "tokens.toml", lambda old: keys)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "kant", "mcp", "--home", str(up.home), "--http", address], stderr=subprocess.DEVNULL
    )

    async def rank(client: Client) -> tuple[str, list[str]]:
        who = await call(client, "whoami")
        plan = await call(client, "plan", orders=[{"op": "priority", "job": "2", "value": 3}])
        done = await call(client, "apply", plan_id=plan["plan_id"], reason="a test")
        rules = [each["rule"] for each in plan["violations"]]
        return f"{who['role']} {done.get('state', done.get('refused'))}", rules

    def status(token: str) -> int:
        """What a request without MCP around it is answered."""
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        body = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
        own = http.client.HTTPConnection(address)
        own.request("POST", "/mcp", body, headers)
        return own.getresponse().status

    try:
        assert eventually(lambda: listens(port) or server.poll() is not None) and server.poll() is None
        assert over_http(address, tokens[Role.VIEWER], rank) == ("viewer violations", ["role"])
        assert up.job("2")["job"]["priority"] == 0
        assert over_http(address, tokens[Role.TENANT], rank) == ("tenant applied", [])
        assert up.job("2")["job"]["priority"] == 3
        assert [status(bad) for bad in ("", "nonsense", fresh_token())] == [401] * 3
        assert status(tokens[Role.OPERATOR]) != 401
        change_keys(up.home / "tokens.toml", lambda old: ())
        assert status(tokens[Role.OPERATOR]) == 401, "a token that is revoked is worth nothing at once"
    finally:
        server.terminate()
        server.wait()


def over_http(address: str, token: str, act: Callable[[Client], Awaitable[Any]]) -> Any:
    """Let a client talk to a server with a token."""

    async def inside() -> Any:
        sender = create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
        async with sender, Client(streamable_http_client(f"http://{address}/mcp", http_client=sender)) as client:
            return await act(client)

    return asyncio.run(inside())


def listens(port: int) -> bool:
    with socket.socket() as own:
        return own.connect_ex(("127.0.0.1", port)) == 0


def test_without_the_extra_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, scenario: Path) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.delitem(sys.modules, "kant.ops.mcp_server", raising=False)
    assert "kant-scheduler[mcp]" in kant("mcp", "--scenario", str(scenario)).refusal()
