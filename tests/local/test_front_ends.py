"""Front ends: what they let in, how they hand over, and that nothing they answered for is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.up import Up, asked, eventually

from kant.local.record import JobPhase, JobRecord
from kant.model.errors import InputError
from kant.model.submission import Submission, Terminal
from kant.service.client import FRONT_SOCKET, RefusedError, ServiceClient
from kant.service.front_end import FrontEnd
from kant.service.loads import LONGEST_WAIT_S, NodeLoad, loads_of, read_loads, short_fault, wait_s, write_loads
from kant.service.socket_http import exchange
from kant.workload.cluster_file import read_cluster

JOB = Submission(command=("true",), workdir="/", env={}, gpus=1.0, time_s=100.0)
MINUTE = 60_000_000


def job(**changes: Any) -> Submission:
    return msgspec.structs.replace(JOB, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"time_s": None}, {"time_s": 301.0}, {"array": (1,)}, {"after": ("1",)}, {"after_ok": ("1",)},
        {"after_not_ok": ("1",)}, {"after_started": ("1",)}, {"after_each": ("1",)}, {"nodes": 2, "gpus": 2.0},
        {"hold": True}, {"reservation": "r"}, {"terminal": Terminal()},
    ],
)  # fmt: skip
def test_what_is_no_short_job(changes: dict[str, Any]) -> None:
    assert short_fault(job(**changes)) and not short_fault(job(time_s=300.0, nodes=1))


def test_loads_are_what_runs_and_a_part_of_what_waits(tmp_path: Path) -> None:
    cluster = read_cluster("2x4")

    def record(phase: JobPhase, submission: Submission, place: list[list[int]]) -> JobRecord:
        return JobRecord(1, "1", submission, b"", "u", 0, phase, started=0, place=place)

    records = [
        record(JobPhase.RUNNING, job(gpus=2.0), [[1, 2, 3, 0, 0, 0, 0]]),
        record(JobPhase.WAITING, job(gpus=4.0, time_s=80.0), []),
        record(JobPhase.BLOCKED, job(gpus=1.0, time_s=None), []),
        record(JobPhase.HELD, job(), []),
        record(JobPhase.RUNNING, job(gpus=1.0, time_s=30.0), [[1, 1, 4, 0, 0, 0, 0]]),  # beyond its limit
    ]
    found = loads_of(records, cluster, MINUTE)
    waits = 80 / 2 + 3600 / 4 / 2
    node = min(piece[0] for each in records for piece in each.place)
    assert [each.held_gpus for each in found] == [0, 3] if node else [3, 0]
    assert sorted(each.pending_s for each in found) == [waits, waits + 40 * 2 / 4]
    write_loads(tmp_path, found)
    assert read_loads(tmp_path) == found


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0]), max_size=12), st.floats(0, 900))
def test_a_job_that_would_wait_long_is_not_let_in_and_others_are_counted(gpus: list[float], waits: float) -> None:
    nodes = [NodeLoad(4, 0, 4, 0, waits), NodeLoad(4, 0, 4, 0, 901)]
    before = msgspec.convert(msgspec.to_builtins(nodes), list[NodeLoad])
    found = wait_s(nodes, JOB, 1, 0)
    assert found == waits  # the lighter of the two
    if found > LONGEST_WAIT_S:
        assert nodes == before
    else:
        assert (nodes[0].held_gpus, nodes[0].pending_s) == (5, waits + 100 / 4)
    empty = [NodeLoad(4, 0), NodeLoad(4, 0)]
    for each in gpus:
        wait_s(empty, job(gpus=each), 0, 1)
    assert sum(node.held_gpus for node in empty) == sum(gpus)
    if len(gpus) >= 2:
        assert all(node.held_gpus for node in empty)  # what it let in before counts for the next


class Said:
    """A Kant that answers as it is told, and remembers what it was sent."""

    def __init__(self, *answers: Callable[[list[Any]], tuple[int, Any]]) -> None:
        self.answers, self.batches = list(answers), list[Any]()

    async def post(self, _: str, data: bytes) -> Any:
        lines = msgspec.json.decode(data)["lines"]
        self.batches.append([line["job"]["name"] for line in lines])
        status, body = self.answers.pop(0)(lines)

        class Reply:
            async def read(self) -> bytes:
                return json.dumps(body).encode()

        Reply.status = status  # type: ignore[attr-defined]
        return Reply()


def taken(lines: list[Any]) -> tuple[int, Any]:
    return 201, {"jobs": [f"id-{line['job']['name']}" for line in lines]}


def refused(sentence: str) -> Callable[[list[Any]], tuple[int, Any]]:
    return lambda _: (400, {"error": sentence})


def gone(_: list[Any]) -> tuple[int, Any]:
    raise aiohttp.ServerDisconnectedError


def handed(kant: Said, names: str) -> list[tuple[int, Any]]:
    """What those get who submit jobs of these names together."""

    async def run() -> list[tuple[int, Any]]:
        front = FrontEnd(Path("/nowhere"), random.Random(0))
        futures: list[asyncio.Future[web.Response]] = [asyncio.get_running_loop().create_future() for _ in names]
        batch = [(msgspec.json.encode(job(name=name)), each) for name, each in zip(names, futures, strict=True)]
        while batch:
            batch = await front._hand_over(kant, batch)  # type: ignore[arg-type]
        return [(each.result().status, json.loads(each.result().body)) for each in futures]  # type: ignore[arg-type]

    return asyncio.run(run())


def test_a_batch_is_one_request_and_a_line_that_is_refused_leaves_it() -> None:
    kant = Said(refused("line 1, gpus: expected less"), taken)
    found = handed(kant, "abc")
    assert kant.batches == [["a", "b", "c"], ["a", "c"]]
    assert found == [
        (201, {"jobs": ["id-a"]}), (400, {"error": "gpus: expected less"}), (201, {"jobs": ["id-c"]}),
    ]  # fmt: skip


def test_what_is_refused_without_a_line_is_found_one_by_one() -> None:
    kant = Said(refused("no"), taken, refused("no"), refused("no"), taken)
    assert [status for status, _ in handed(kant, "abc")] == [201, 400, 201]
    assert kant.batches == [["a", "b", "c"], ["a"], ["b", "c"], ["b"], ["c"]]


def test_nothing_is_sent_twice_where_kant_does_not_answer() -> None:
    kant = Said(gone)
    assert [status for status, _ in handed(kant, "ab")] == [502, 502]
    assert kant.batches == [["a", "b"]]


def test_what_is_not_let_in_is_answered_at_once(tmp_path: Path) -> None:
    write_loads(tmp_path, [NodeLoad(4, 0, 4, 0, 901.0)])

    def said(body: bytes, waiting: int = 0) -> tuple[int, str, str | None]:
        class Request:
            async def read(self) -> bytes:
                return body

        async def run() -> web.Response:
            front = FrontEnd(tmp_path, random.Random(0))
            front.waiting = [(b"", asyncio.get_running_loop().create_future())] * waiting
            return await asyncio.wait_for(front.submit(Request()), 0.1)  # type: ignore[arg-type]

        reply = asyncio.run(run())
        return reply.status, json.loads(reply.body)["error"], reply.headers.get("Retry-After")  # type: ignore[arg-type]

    encode = msgspec.json.encode
    assert said(encode(JOB)) == (
        503, "a front end: expected a wait of at most 600 s, got about 901 s; kant.sock accepts the job anyway", "302",
    )  # fmt: skip
    assert said(encode(job(time_s=None)))[:2] == (
        421, "a front end: expected a short job, with a time_s of at most 300; send others to kant.sock",
    )  # fmt: skip
    assert said(encode(JOB), 10_000)[::2] == (503, "1")
    assert said(b"{")[1].startswith("the request: expected JSON")
    assert said(b"{}")[:1] == (400,)
    write_loads(tmp_path, [NodeLoad(4, 0, 0, 0, 0.0)])
    with pytest.raises(TimeoutError):  # it is let in, and nobody hands it over here
        said(encode(JOB))


def children(pid: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = each.read_text().rpartition(")")[2].split()
            if int(rest[1]) == pid and b"front_end" in (each.parent / "cmdline").read_bytes():
                found.append(int(each.parent.name))
        except OSError:
            continue
    return found


def test_what_front_ends_answered_for_is_there_though_they_and_kant_are_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    wish = asked(home, "exit 0", gpus=0.5, time_s=20.0)

    def send(number: int) -> str | None:
        try:
            text = json.dumps(wish | {"name": f"n{number}"}).encode()
            reply = exchange(str(home / FRONT_SOCKET), "POST", "/v1/jobs", text, {"Content-Type": "application/json"})
            return str(json.loads(reply.read())["jobs"][0]) if reply.status == 201 else None
        except Exception:  # whom it was that died
            return None

    with ThreadPoolExecutor(24) as pool, Up(home, front_ends=1) as kant:
        kant.client.post("/v1/queues/pause", {"queues": []})
        told = [each for each in pool.map(send, range(60)) if each]
        assert len(told) == len(set(told)) == 60
        notes = [row["verb"] for row in kant.client.get("/v1/audit", limit=1000)["deeds"]]
        assert 0 < notes.count("batch") < 60
        (front,) = children(kant.pid)
        os.kill(front, signal.SIGKILL)
        assert eventually(lambda: children(kant.pid) not in ([], [front]))
        busy = [pool.submit(send, number) for number in range(60, 120)]
        assert eventually(lambda: sum(each.done() for each in busy) >= 10)
        kant.kill()
        told += [each for each in (each.result() for each in busy) if each]
        assert eventually(lambda: not children(kant.pid))
    with Up(home, front_ends=1) as kant:
        rows = kant.client.get("/v1/jobs", limit=1000)["jobs"]
        assert set(told) <= {row["id"] for row in rows}
        assert len({row["name"] for row in rows}) == len(rows)
        (home / FRONT_SOCKET).stat()
        kant.client.post("/v1/queues/resume", {"queues": []})
        done = verb("submit", "--gpus", "1", "--time", "20s", "--home", home, "--", "true")
        longer = verb("submit", "--gpus", "1", "--home", home, "--", "true")
        assert kant.over(done.out.strip(), longer.out.strip()) == ["finished", "finished"]
        verbs = [row["verb"] for row in kant.client.get("/v1/audit", limit=2)["deeds"]]
        assert verbs == ["submit", "batch"]
        with pytest.raises(RefusedError, match="gpus: expected at most 8"):
            ServiceClient(home).post_short("/v1/jobs", wish | {"gpus": 9.0})
    assert not (home / FRONT_SOCKET).exists()


def test_a_client_asks_kant_itself_where_no_front_end_is_there_and_sends_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / FRONT_SOCKET
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(path))
        with pytest.raises(InputError, match="the home of a running Kant"):  # nobody listens
            ServiceClient(tmp_path).post_short("/v1/jobs", {})
        own.listen()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: own.accept()[0].close())
            with pytest.raises(InputError, match="check whether the job exists"):
                ServiceClient(tmp_path).post_short("/v1/jobs", {})


def test_options_that_do_not_go_together() -> None:
    assert verb("up", "--front-ends", "65").refusal().startswith("kant: --front-ends: expected a number from 0 to 64")
    assert "--users" in verb("up", "--front-ends", "2", "--users", "staff").refusal()
