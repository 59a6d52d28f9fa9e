"""The API as its schema has it, asked by schemathesis: never a fault of Kant's own, every answer as the schema says.

Not asked: `/v1/stop`. The streams, which do not end by themselves, have tests of their own. KANT_EXAMPLES=20
asks twenty times as much.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from tests.docs.pages import ROOT
from tests.examples import examples
from tests.local.up import Up
from tests.patience import PATIENCE_S
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from kant.model.errors import InputError
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.service.views import Futures
from kant.service.whatif_process import answer_of
from kant.sim.past import read_past
from kant.sim.question import Question

SCHEMA = schemathesis.openapi.from_path(ROOT / "src/kant/service/openapi.json")
OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for operation in (found.ok() for found in SCHEMA.get_all_operations())
    if operation.path not in ("/v1/stop", "/v1/events")
}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
EXAMPLES = {"submit": 20, "jobs": 20, "whatif": 3, "health": 3, "schema": 3, "top": 3, "queues": 3}
JOBS = ("1", "2", "3", "3_0", "3_1", "9999999", "1~2", "..", "1 ", "-1")


class Connection(HTTPConnection):
    """A connection to the socket of a home."""

    path: Path

    def _new_conn(self) -> socket.socket:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own.settimeout(PATIENCE_S)
        own.connect(str(self.path))
        return own


class Adapter(requests.adapters.HTTPAdapter):
    """Lets `requests` talk to the socket of a home."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.pool = HTTPConnectionPool("localhost")
        self.pool.ConnectionCls = type("Here", (Connection,), {"path": path})

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        return self.pool


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A Kant with two queues; job 1 is over, 2 runs, and 3 is an array that is held."""
    queues = tuple(Queue(name, quotas=(Quota(nominal=4000),)) for name in ("default", "b"))
    with Up(tmp_path_factory.mktemp("up") / "home", queue_config=QueueConfig(queues)) as up:
        up.over(up.submit("echo here"))
        up.submit("sleep 600", gpus=2)
        up.submit("true", array=[0, 1], hold=True, queue="b")
        yield up
        up.client.post("/v1/jobs/2/cancel")


@pytest.fixture(scope="module")
def session(kant: Up) -> Iterator[requests.Session]:
    with requests.Session() as own:
        own.mount("http://", Adapter(kant.home / "kant.sock"))
        yield own


def harmless(case: Any) -> None:
    """Whatever was drawn, no program is run but `true`, nothing waits for ever, and jobs are known ones."""
    stages = case.body.get("stages") if isinstance(case.body, dict) else None
    stages = [each.get("job") for each in stages if isinstance(each, dict)] if isinstance(stages, list) else []
    for wish in (case.body, *stages):
        if isinstance(wish, dict) and isinstance(wish.get("command"), list) and wish["command"]:
            wish["command"][0] = "true" if isinstance(wish["command"][0], str) else wish["command"][0]
    if isinstance(case.query, dict) and case.query.get("follow") in (True, "true"):
        del case.query["follow"]
    if isinstance(case.query, dict) and str(case.query.get("wait", "")).isdigit():
        case.query["wait"] = min(int(case.query["wait"]), 1)


CASES = [
    (name, mode)
    for name, operation in OPERATIONS.items()
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or operation.body or operation.query  # else nothing could be wrong
]


@pytest.mark.parametrize(("name", "mode"), CASES, ids=[f"{name}-{mode.value}" for name, mode in CASES])
def test_every_answer_is_as_the_schema_says(
    name: str, mode: GenerationMode, kant: Up, session: requests.Session
) -> None:
    operation = OPERATIONS[name]

    @seed(6)
    @settings(
        max_examples=examples(EXAMPLES.get(name, 8)), deadline=None, database=None,
        phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(mode), job=st.sampled_from(JOBS))
    def ask(case: Any, job: str) -> None:
        harmless(case)
        if "job" in case.path_parameters and mode is GenerationMode.POSITIVE:
            case.path_parameters["job"] = job
        checks = [check for check in CHECKS if mode is GenerationMode.NEGATIVE or check is not negative_data_rejection]
        case.call_and_validate(base_url="http://kant", session=session, checks=checks)

    ask()
    assert kant.client.get("/v1/health")["trouble"] == ""


PROPER = SchemathesisConfig()
PROPER.projects.default.generation.modes = [GenerationMode.POSITIVE]
LINKED = schemathesis.openapi.from_path(ROOT / "src/kant/service/openapi.json", config=PROPER)


def takable(wish: dict[str, Any]) -> None:
    """Of what was drawn make a submission that Kant takes: what no schema can say of it is put right."""
    wish["command"], wish["workdir"] = ["true", *(word.replace("\0", "") for word in wish["command"][1:])], "/"
    wish["queue"], wish["hold"] = "default", wish.get("hold", True)
    wish["gpus"] = round(wish.get("gpus", 0)) % 9
    if "array" in wish:
        wish["array"] = sorted(set(wish["array"]))[:3]
    for name in ("env", "after", "after_ok", "after_not_ok", "begin"):
        wish.pop(name, None)


def test_what_is_submitted_can_be_asked_about_and_ordered(kant: Up, session: requests.Session) -> None:
    """Chains along the links of the schema: the routes of a job, after the order that gave its id.

    Where a chain begins with an id of its own, the last job that was submitted is meant."""
    met: Counter[tuple[str, bool]] = Counter()
    known = ["3_0", "3_1"]
    base: Any = LINKED.include(path_regex=r"^/v1/jobs").exclude(path_regex=r"/(attach|shell)$").as_state_machine()

    class Chain(base):  # type: ignore[misc]
        def before_call(self, case: Any) -> None:
            if isinstance(case.body, dict) and case.body.get("command"):
                takable(case.body)
            if "job" in case.path_parameters and case.path_parameters["job"] not in known:
                case.path_parameters["job"] = known[-1]
            harmless(case)

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"session": session, "base_url": "http://kant"}

        def after_call(self, response: Any, case: Any) -> None:
            name = case.operation.definition.raw["operationId"]
            met[name, response.status_code < 300] += 1
            if name == "submit" and response.status_code == 201:
                known.extend(response.json()["jobs"])

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            case.validate_response(response, checks=[each for each in CHECKS if each is not negative_data_rejection])

    chains = settings(
        max_examples=examples(40), stateful_step_count=10, deadline=None, database=None, derandomize=True,
        phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    Chain.run(settings=chains)
    assert all(met[name, True] for name in ("submit", "job", "hold", "release", "cancel", "why", "log", "history")), met
    assert kant.client.get("/v1/health")["trouble"] == ""


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(last=st.one_of(st.text(st.characters(min_codepoint=32, max_codepoint=126)), st.integers(-2, 1 << 70).map(str)))
def test_the_stream_of_events_begins_whatever_the_last_one_was(last: str, kant: Up, session: requests.Session) -> None:
    headers = {"Last-Event-ID": last.strip()}
    with session.get("http://kant/v1/events", headers=headers, stream=True, timeout=PATIENCE_S) as response:
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert next(response.iter_content(8)) == b": kant\n\n"


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(offset=st.integers(-(1 << 63), 1 << 63), limit=st.integers(-1, 1 << 25), follow=st.sampled_from(["true", "x"]))
def test_the_log_of_a_job_that_is_over_ends(
    offset: int, limit: int, follow: str, kant: Up, session: requests.Session
) -> None:
    asked = {"offset": str(offset), "limit": str(limit), "follow": follow}
    response = session.get("http://kant/v1/jobs/1/log", params=asked, timeout=PATIENCE_S)
    if response.status_code == 200:
        begin = int(response.headers["X-Kant-Offset"])
        assert response.content == b"here\n"[begin : None if follow == "true" else begin + limit]
    else:
        assert response.status_code == 400 and response.json()["error"].startswith(("offset: ", "limit: ", "follow: "))


PARTS = st.sampled_from(
    ["gpus=1", "time=1h", ",", "queue=b", "pods=2", "node-00000", "@", "+1h", "..", "23:00Z", "=", "+4", "-4", "b", ":",
     "gpu", "1", "x", "leaf-0", "cpu", "id=1", "within=leaf", "0", "\0", "default:gpu=-1", "2026-01-31T00:00Z"],
)  # fmt: skip
WORDS = st.one_of(st.lists(PARTS, min_size=1, max_size=6).map("".join), st.text(min_size=1, max_size=12))
MANY = st.lists(WORDS, max_size=2).map(tuple)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    question=st.builds(
        Question,
        submit=MANY,
        drain=MANY,
        evict=st.booleans(),
        quota=MANY,
        nodes=MANY,
        profile=st.sampled_from(["", "easy", "kant"]),
        until=st.one_of(st.just(""), WORDS),
    )
)
def test_whatever_is_asked_has_an_answer_or_a_sentence(question: Question, kant: Up) -> None:
    found = kant.client.get("/v1/health")
    try:
        answer = answer_of(read_past(Path(found["journal"]), today=found["now_us"]), question)
    except InputError as error:
        assert "expected" in str(error)
    else:
        assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(answer)), Futures).change


def test_a_whole_number_may_have_a_point_and_nothing_is_nested_too_deeply(session: requests.Session) -> None:
    def post(text: str) -> requests.Response:
        headers = {"Content-Type": "application/json"}
        return session.post("http://kant/v1/jobs", data=text, headers=headers, timeout=PATIENCE_S)

    wish = '{"command": ["true"], "workdir": "/", "hold": true, "retries": %s}'
    assert post(wish % "2.0").status_code == 201
    for wrong in ("2.5", "1e300", '"2"', "[" * 100_000 + "]" * 100_000):
        reply = post(wish % wrong)
        assert reply.status_code == 400 and "expected" in reply.json()["error"], reply.text


def test_a_flag_is_true_or_false(session: requests.Session) -> None:
    for path in ("/v1/jobs/1/log?follow=", "/v1/audit?refused="):
        for text in ("yes", "", "1", "True"):
            response = session.get(f"http://kant{path}{text}", timeout=PATIENCE_S)
            assert response.status_code == 400 and "expected true or false" in response.json()["error"]
