"""Services with objectives on a Kant of real processes: replicas that grow and shrink, and are drained."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.gateway.rig import dispatcher
from tests.local.up import Up, eventually
from tests.patience import PATIENCE_S

from kant.cli import app
from kant.gateway.proxy import ProxyOptions
from kant.gateway.server import RouterServer, ServerOptions
from kant.gateway.tenants import single_tenant
from kant.model.errors import InputError
from kant.service.follow_services import ServiceFollower, alone
from kant.service.replicas import LocalReplicas
from kant.serving.live_services import LiveService, read_live_services

NOON = 1795348800.0  # 2026-11-22T12:00:00Z, a moment of the forecast
HOUR = 3600.0

ENGINE = """
import http.server, os, signal, sys, threading, time
class Engine(http.server.BaseHTTPRequestHandler):
    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        self.answer(b'{"data": []}' if self.path == "/v1/models" else b"")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        while os.path.exists("slow"):
            time.sleep(0.01)
        self.answer(b'{"choices": [{"text": "done"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}')
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Engine).serve_forever()
"""


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise AssertionError("no ports")


@contextmanager
def router(port: int, count: int) -> Iterator[tuple[str, str]]:
    """A router before replicas at these ports, whether they are there or not: its address, and its operators'."""
    told: list[Any] = []
    ready = threading.Event()

    async def serve() -> None:
        urls = [f"http://127.0.0.1:{port + k}" for k in range(count)]
        options = ServerOptions("127.0.0.1:0", "127.0.0.1:0", scrape_s=0.05, drain_s=PATIENCE_S)
        async with RouterServer(
            dispatcher(urls, router="shortest-queue"), single_tenant(), ProxyOptions(2), options
        ) as server:
            stop = asyncio.Event()
            told[:] = [server.port, server.operators_port, asyncio.get_running_loop(), stop]
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield f"http://127.0.0.1:{told[0]}", f"http://127.0.0.1:{told[1]}"
    finally:
        told[2].call_soon_threadsafe(told[3].set)
        thread.join()


def write_service(folder: Path, port: int, operators: str, more: str = "") -> Path:
    """Two replicas in the morning, four in the afternoon."""
    (folder / "engine.py").write_text(ENGINE)
    rows = "".join(f"{hour},{3.0 if hour >= 12 else 1.0}\n" for hour in range(24))
    (folder / "expected.csv").write_text("hour,rate\n" + rows)
    command = json.dumps([sys.executable, "-S", "engine.py", "{port}"])
    (folder / "services.toml").write_text(f"""
[[service]]
name = "chat"
model = "llama-3-8b"
gpu = "a100"
ttft_s = 2
tpot_s = 0.1
core = 1
most = 4
capacity = [[1, 0.5], [2, 1.0], [4, 3.0]]
forecast = "expected.csv"
begins = 2026-11-22T00:00:00Z
priority = 10
burst_priority = 5
drain_s = 3600
{f'operators = ["{operators}"]' if operators else ""}
{more}
[service.local]
command = {command}
port = {port}
""")
    return folder / "services.toml"


def read(file: Path) -> LiveService:
    (service,) = read_live_services(file, NOON, file.parent)
    return service


def replicas(kant: Up, phase: str = "running", of: str = "service-chat") -> dict[int, str]:
    """The jobs of a service in a phase, by their numbers."""
    rows = kant.client.get("/v1/jobs", state=phase)["jobs"]
    return {row["array_index"]: row["id"] for row in rows if row["name"] == of}


async def ask(front: str, count: int) -> list[int]:
    """Send so many requests at once; their statuses."""
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "a", "max_tokens": 1}
        answers = await asyncio.gather(*(session.post(front + "/v1/completions", json=body) for _ in range(count)))
        return [int(answer.status) for answer in answers]


MOCK = [sys.executable, "-m", "kant", "serve", "mock", "--listen", "127.0.0.1:{port}", "--model"]
MODELS = {"chat": "llama-3-8b", "code": "llama-2-7b"}


def write_two(folder: Path, ports: dict[str, int], operators: dict[str, str]) -> Path:
    """Two services of mock engines, for each of which one replica is forecast."""
    (folder / "expected.csv").write_text("hour,rate\n0,0.05\n")
    tables = [
        f"""
[[service]]
name = "{name}"
model = "{MODELS[name]}"
gpu = "a100"
ttft_s = 2
tpot_s = 0.1
core = 1
most = 2
capacity = [[1, 0.1], [2, 0.3]]
forecast = "expected.csv"
begins = 2026-11-22T00:00:00Z
burst_priority = 5
operators = ["{operators[name]}"]
[service.local]
command = {json.dumps([*MOCK, MODELS[name]])}
port = {port}
"""
        for name, port in ports.items()
    ]
    (folder / "services.toml").write_text("".join(tables))
    return folder / "services.toml"


def test_two_models_and_training_on_one_pool_where_traffic_triples_its_forecast(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kant.services")
    first = free_ports(4)
    ports = {"chat": first, "code": first + 2}
    with (
        Up(tmp_path / "home", "1x3") as kant,
        router(first, 2) as (chat, to_chat),
        router(first + 2, 2) as (code, to_code),
    ):
        training = [kant.submit("sleep 1000", gpus=1, name="training") for _ in range(3)]
        assert eventually(lambda: [kant.phase(job) for job in training] == ["running"] * 3)
        file = write_two(tmp_path, ports, {"chat": to_chat, "code": to_code})
        followers = [
            ServiceFollower(service, LocalReplicas(service, kant.client, tmp_path))
            for service in read_live_services(file, NOON, tmp_path)
        ]

        def turn(now: float) -> list[int]:
            for follower in followers:
                follower.turn(now)
                assert not follower.trouble
            return [follower.wanted for follower in followers]

        def stands(at_chat: int, at_code: int, train: int) -> bool:
            there = [sorted(replicas(kant, of=f"service-{name}")) for name in ports]
            phases = sorted(kant.phase(job) for job in training)
            return there == [list(range(at_chat)), list(range(at_code))] and phases.count("running") == train

        assert turn(NOON) == [1, 1]
        assert eventually(lambda: stands(1, 1, 1) and _rows(to_chat)[0]["up"] and _rows(to_code)[0]["up"])
        assert asyncio.run(ask(chat, 1)) == asyncio.run(ask(code, 1)) == [200]
        assert [_rows(at)[0]["models"] for at in (to_chat, to_code)] == [[model] for model in MODELS.values()]
        turn(NOON + 60)
        assert asyncio.run(ask(chat, 12)) == [200] * 12  # in the minute that follows: four times what is forecast
        caplog.clear()
        assert turn(NOON + 120) == [2, 1]  # three minutes before its time
        why = {"service": "chat", "had": 1, "wanted": 2, "gpus": 1, "expected": 0.05, "seen": 0.2}
        assert [vars(record)["fields"] for record in caplog.records if record.name == "kant.services"] == [why]
        assert eventually(lambda: stands(2, 1, 0))
        assert eventually(lambda: all(row["up"] for row in _rows(to_chat)))
        assert asyncio.run(ask(chat, 30)) == [200] * 30
        assert all(row["tokens"] == 0 for row in _rows(to_chat))
        assert turn(NOON + 20 * 60) == [1, 1]  # when it is over, training has its GPUs again
        turn(NOON + 20 * 60 + 5)
        assert eventually(lambda: stands(1, 1, 1))
        left = [*replicas(kant, of="service-chat").values(), *replicas(kant, of="service-code").values(), *training]
        for job in left:
            kant.client.post(kant.client.job(job, "cancel"))
        assert kant.over(*left) == ["cancelled"] * 5


def test_routers_that_are_away_leave_the_forecast(tmp_path: Path) -> None:
    port, morning = free_ports(4), NOON - 6 * HOUR
    with Up(tmp_path / "home", "1x4") as kant:
        with router(port, 4) as (_, operators):
            service = read(write_service(tmp_path, port, operators))
            follower = ServiceFollower(service, LocalReplicas(service, kant.client, tmp_path))
            follower.turn(morning)
            assert eventually(lambda: sorted(replicas(kant)) == [0, 1])
        follower.turn(morning + 6 * HOUR)  # nobody counts any more
        assert follower.wanted == 4 and "operators" in follower.trouble
        left = list(replicas(kant).values())
        for job in left:
            kant.client.post(kant.client.job(job, "cancel"))
        assert kant.over(*left) == ["cancelled"] * 2


def test_replicas_follow_the_forecast_through_the_queue_and_leave_when_they_are_drained(tmp_path: Path) -> None:
    port = free_ports(4)
    with router(port, 4) as (front, operators), Up(tmp_path / "home", "1x4") as kant:
        file = write_service(tmp_path, port, operators)
        places = LocalReplicas(read(file), kant.client, tmp_path)
        follower = ServiceFollower(read(file), places)
        training = [kant.submit("sleep 1000", gpus=1, name="training") for _ in range(4)]
        assert eventually(lambda: kant.phase(training[3]) == "running")

        # At noon it needs four, and training gives way: a guaranteed core, and bursts that may be stopped.
        follower.turn(NOON)
        assert eventually(lambda: sorted(replicas(kant)) == [0, 1, 2, 3]), kant.client.get("/v1/jobs")
        assert eventually(lambda: [kant.phase(job) for job in training] == ["waiting"] * 4)
        assert kant.job(replicas(kant)[0])["job"]["priority"] == 10
        follower.turn(NOON + 5)
        assert len(replicas(kant)) == 4  # nobody twice

        assert eventually(lambda: places.operators.known() and asyncio.run(ask(front, 1)) == [200])

        # At night it needs two: those that came last take no more requests, and end when they have none.
        (tmp_path / "slow").touch()
        assert eventually(lambda: all(row["up"] for row in _rows(operators)))
        result: list[list[int]] = []
        asking = threading.Thread(target=lambda: result.append(asyncio.run(ask(front, 4))))
        asking.start()
        assert eventually(lambda: [row["in_flight"] for row in _rows(operators)] == [1] * 4), _rows(operators)
        night = NOON + 12 * HOUR
        follower.turn(night)
        assert sorted(replicas(kant)) == [0, 1, 2, 3]
        assert [row["draining"] for row in _rows(operators)] == [False, False, True, True]
        # Whoever takes over after a crash goes on from what is there.
        follower = ServiceFollower(read(file), LocalReplicas(read(file), kant.client, tmp_path))
        follower.turn(night + 300)
        assert [row["draining"] for row in _rows(operators)] == [False, False, True, True]
        assert sorted(replicas(kant)) == [0, 1, 2, 3]
        (tmp_path / "slow").unlink()
        asking.join()
        assert result == [[200] * 4]
        assert eventually(lambda: not any(row["in_flight"] for row in _rows(operators)))
        follower.turn(night + 305)
        assert eventually(lambda: sorted(replicas(kant)) == [0, 1])
        assert eventually(lambda: [kant.phase(job) for job in training].count("running") == 2)  # lent again

        # A replica that dies is begun again.
        kant.client.post(kant.client.job(replicas(kant)[1], "cancel"))
        assert eventually(lambda: sorted(replicas(kant)) == [0])
        follower.turn(night + 310 + 600)
        assert eventually(lambda: len(replicas(kant)) == 2)
        left = [*replicas(kant).values(), *training]  # they would run on
        for job in left:
            kant.client.post(kant.client.job(job, "cancel"))
        assert kant.over(*left) == ["cancelled"] * 6


def _rows(operators: str) -> list[dict[str, Any]]:
    from kant.gateway.operators import Operators

    rows: list[dict[str, Any]] = json.loads(Operators._ask(operators, "GET", "/backends"))
    return rows


def test_a_service_that_cannot_be_on_this_machine_is_refused_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_ports(4)
    home = tmp_path / "home"

    def refused(file: Path, sentence: str) -> None:
        assert app.run(["serve", "run", str(file), "--home", str(home)]) != 0
        assert sentence in capsys.readouterr().err

    file = write_service(tmp_path, port, "")
    assert app.run(["serve", "run", str(file), "--home", str(home), "--plan", "2", "--json"]) == 0
    assert [len(row["hours"]) for row in json.loads(capsys.readouterr().out)["services"]] == [2]
    refused(write_service(tmp_path, port, "", 'user = "anna"'), "service chat: user: expected none")
    refused(
        write_service(tmp_path, port, "http://127.0.0.1:1"), "operators: expected the operators' address of a router"
    )
    refused(write_service(tmp_path, 65_000, "", "most = 4"), "TOML")
    text = write_service(tmp_path, port, "").read_text()
    file.write_text(text.partition("[service.local]")[0])
    refused(file, "service chat: local: expected a table [service.local]")
    with router(port, 3) as (_, operators):
        refused(write_service(tmp_path, port, operators), f"routers with the backend http://127.0.0.1:{port + 3}")
    with (
        alone(home / "services", ["chat"]),
        pytest.raises(InputError, match="no other process that scales it"),
        alone(home / "services", ["chat"]),
    ):
        pass
