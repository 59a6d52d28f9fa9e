"""The Python client: it has every route that the service has, and jobs are asked from programs and notebooks."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.local.up import Up

from kant.client import AsyncKant, Kant
from kant.client.kant import Api, AsyncApi
from kant.model.errors import InputError
from kant.service import roles
from kant.service.roles import Role
from kant.service.route import Request
from kant.service.shown import MOST_ROWS, table_html
from kant.service.tokens import TOKENS, change_keys, fresh_token, make_key
from kant.service.views import JobIds, JobRow

STREAMS = {"attach", "shell", "events"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A virtual cluster of two nodes of four GPUs."""
    with Up(tmp_path_factory.mktemp("up") / "home", listen="127.0.0.1:0") as up:
        yield up


def test_every_route_of_the_document_is_a_method_that_asks_it() -> None:
    document = json.loads((Path(roles.__file__).parent / "openapi.json").read_text())
    routes = {
        route["operationId"]: (method.upper(), path, route)
        for path, methods in document["paths"].items()
        for method, route in methods.items()
    }
    for api in (Api, AsyncApi):
        assert {name for name in dir(api) if not name.startswith("_")} == routes.keys() - STREAMS
    sent: list[Request] = []
    api = Api(sent.append)
    for name in routes.keys() - STREAMS:
        method, path, route = routes[name]
        call = getattr(api, name)
        own = [each["name"] for each in route.get("parameters", []) if each["in"] == "query"]
        places = [each["name"] for each in route.get("parameters", []) if each["in"] == "path"]
        words = [*places, *(["body"] if "requestBody" in route else []), *own]
        assert (list(inspect.signature(call).parameters), call.__doc__) == (words, route["summary"])
        call(**{word: f"/{word}" for word in words})
        body = "/body" if "requestBody" in route else None
        asked = path.format(**{place: f"%2F{place}" for place in places})
        assert sent[-1][:4] == (method, asked, {each: f"/{each}" for each in own}, body)
        with pytest.raises(TypeError, match="unexpected keyword argument 'more'"):
            call(**dict.fromkeys([*words, "more"], "x"))
    api.jobs(user="ann", before=None)
    assert sent[-1].query == {"user": "ann"}, "what is not given is left to the service"


def test_an_answer_of_a_later_service_is_read() -> None:
    assert msgspec.json.decode(b'{"jobs": ["1"], "later": 1}', type=JobIds) == JobIds(["1"])


def test_the_client_loads_neither_the_service_nor_the_scheduler() -> None:
    """A program that asks a Kant is small: it has msgspec and the standard library."""
    code = "import kant.client, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"aiohttp", "numpy", "numba", "polars", "rich", "cyclopts", "sqlite3"}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("kant.")}
    assert rooms == {"client", "local", "model", "service", "sim"}
    assert not loaded & {"kant.service.http", "kant.service.server", "kant.sim.run", "kant.model.node"}


def test_a_job_from_its_submission_to_its_end(up: Up) -> None:
    kant = Kant(home=up.home)
    job = kant.submit("echo $CUDA_VISIBLE_DEVICES $MINE; exit 3", gpus=2, env={"MINE": "yes"})
    assert (job.wait().code, job.phase, job.output()) == (3, "failed", "0,1 yes\n")
    held = kant.submit(["echo", "<b>"], name="<script>", hold=True)
    assert [row.id for row in kant.jobs(state="held")] == [held.id]
    assert "it is held" in held.why().sentence
    for html in (kant.jobs(state="held")._repr_html_(), held._repr_html_(), held.detail()._repr_html_()):
        assert "&lt;script&gt;" in html and "<script>" not in html
    held.cancel()
    assert held.wait().phase == "cancelled"
    assert kant.usage(by="user").rows[0].failed >= 1
    assert kant.api.health().gpus == 8 and kant.api.queues()["queues"] is not None
    assert b"kant_jobs" in kant.api.metrics().encode()
    with pytest.raises(InputError, match="the id of a job"):
        kant.job("99999")
    with pytest.raises(InputError, match="the fields of `Submission`"):
        kant.submit("true", gpus="many")


def test_changes_come_as_they_happen(up: Up) -> None:
    kant = Kant(home=up.home)
    job = kant.submit("true", hold=True)
    changes = kant.events()
    job.cancel()
    assert next(row for row in changes if row.id == job.id).phase == "cancelled"


def test_the_same_for_those_who_await(up: Up) -> None:
    async def ask() -> tuple[str, list[int | None]]:
        kant = AsyncKant(home=up.home)
        jobs = await asyncio.gather(*(kant.submit(f"echo {i}; exit {i}") for i in range(3)))
        ended = await asyncio.gather(*(job.wait() for job in jobs))
        return await jobs[2].output(), [each.code for each in ended]

    assert asyncio.run(ask()) == ("2\n", [0, 1, 2])


def test_by_an_address_with_a_token(up: Up, tmp_path: Path) -> None:
    token = fresh_token()
    key = make_key(token, "ann", Role.VIEWER, ())
    change_keys(up.home / TOKENS, lambda keys: (*keys, key))
    kant = Kant(url=f"http://{up.client.get('/v1/whoami')['address']}", token=token)
    assert kant.api.whoami().user == "ann"
    with pytest.raises(InputError, match="role tenant or higher"):
        kant.submit("true")


def test_a_long_table_says_how_much_more_there_is() -> None:
    given = dict.fromkeys(JobRow.__struct_fields__, 0)
    texts = dict.fromkeys(("id", "phase", "name", "queue", "user", "reason", "waits"), "x")
    row = JobRow(**(given | texts))
    html = table_html([row] * (MOST_ROWS + 5))
    assert html.count("<tr>") == MOST_ROWS + 1 and "and 5 more" in html
    assert json.dumps(table_html([])) == '"<p>none</p>"'
