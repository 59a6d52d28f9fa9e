"""The Python client: what is generated is of the document of today, and jobs are asked from programs and notebooks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.up import Up

from kant.client import AsyncKant, Kant
from kant.client.generate import OUTPUT, document, generated
from kant.client.generated import Api, AsyncApi, JobRow
from kant.client.shown import MOST_ROWS, table_html
from kant.model.errors import InputError
from kant.service.roles import Role
from kant.service.tokens import TOKENS, change_keys, fresh_token, make_key

STREAMS = {"attach", "shell", "events"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A virtual cluster of two nodes of four GPUs."""
    with Up(tmp_path_factory.mktemp("up") / "home", listen="127.0.0.1:0") as up:
        yield up


def test_what_is_generated_is_what_stands_in_the_file() -> None:
    """After a change of the service: `python -m kant.client.generate`."""
    assert generated() == OUTPUT.read_text(encoding="utf-8")
    routes = {route["operationId"] for methods in document()["paths"].values() for route in methods.values()}
    for api in (Api, AsyncApi):
        assert {name for name in vars(api) if not name.startswith("_")} == routes - STREAMS


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
    with pytest.raises(InputError, match="what `Submission` has"):
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
    with pytest.raises(InputError, match="one of role tenant"):
        kant.submit("true")


def test_a_long_table_says_how_much_more_there_is() -> None:
    given = dict.fromkeys(JobRow.__struct_fields__, 0)
    texts = dict.fromkeys(("id", "phase", "name", "queue", "user", "reason", "waits"), "x")
    row = JobRow(**(given | texts))
    html = table_html([row] * (MOST_ROWS + 5))
    assert html.count("<tr>") == MOST_ROWS + 1 and "and 5 more" in html
    assert json.dumps(table_html([])) == '"<p>none</p>"'
