"""The endpoint picker, asked by a client that plays Envoy: protocol 1.0.0 of the endpoint picker, over gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.gateway.rig import RUNNER, dispatcher
from tests.patience import PATIENCE_S

from kant.gateway.dispatch import Dispatcher
from kant.gateway.envoy import HealthCheckRequest, HealthCheckResponse, ProcessingRequest, ProcessingResponse
from kant.gateway.picker import (
    DESTINATION,
    FAIRNESS,
    OBJECTIVE,
    PIECE,
    SERVED,
    SERVICE,
    SPACE,
    SUBSET,
    SUBSET_SPACE,
    PickerServer,
)
from kant.gateway.proxy import DEADLINE
from kant.gateway.spans import RequestSpans

ENDPOINTS = ("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1")  # nobody answers a look
URLS = [f"http://{endpoint}" for endpoint in ENDPOINTS]


class Envoy:
    """One HTTP request as Envoy's ext_proc filter carries it, with bodies streamed both ways."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_stream(
            f"/{SERVICE}/Process", ProcessingRequest.SerializeToString, ProcessingResponse.FromString
        )()

    async def ask(self, *messages: Any, answers: int) -> list[Any]:
        for message in messages:
            await self.call.write(message)
        return [await self.call.read() for _ in range(answers)]

    async def request(
        self, body: bytes, subset: object = None, pieces: int = 2, path: str = "/v1/completions", shown: bool = True,
        tenant: str = "", objective: str = "", deadline_s: str = "",
    ) -> list[Any]:  # fmt: skip
        """Send head and body, and take answers until the body has come back whole, or one is immediate.

        `shown` says whether the body of the response will come.
        """
        headers = {":method": "POST", ":path": path, FAIRNESS: tenant, OBJECTIVE: objective, DEADLINE: deadline_s}
        head = ProcessingRequest(request_headers={"headers": _map(headers)})
        head.protocol_config.request_body_mode, head.protocol_config.response_body_mode = 4, 4 * shown
        if subset is not None:
            entry = head.metadata_context.filter_metadata.add(key=SUBSET_SPACE)
            entry.value.update({SUBSET: subset})
        cut = max(1, len(body) // pieces)
        parts = [body[k : k + cut] for k in range(0, len(body), cut)] or [b""]
        bodies = [
            ProcessingRequest(request_body={"body": part, "end_of_stream": k == len(parts) - 1})
            for k, part in enumerate(parts)
        ]
        answers = await self.ask(head, *bodies, answers=1)
        while not (answers[-1].HasField("immediate_response") or _streamed(answers[-1])[1]):
            answers += await self.ask(answers=1)
        return answers

    async def respond(self, *pieces: bytes, served: str = "", kind: str = "text/event-stream") -> bytes:
        """Send the response of an engine; returns what the client gets of its body."""
        head = ProcessingRequest(response_headers={"headers": _map({":status": "200", "content-type": kind})})
        if served:
            head.metadata_context.filter_metadata.add(key=SPACE).value.update({SERVED: served})
        (answer,) = await self.ask(head, answers=1)
        assert answer.HasField("response_headers")
        got = b""
        for k, piece in enumerate(pieces):
            last = k == len(pieces) - 1
            (answer,) = await self.ask(
                ProcessingRequest(response_body={"body": piece, "end_of_stream": last}), answers=1
            )
            body, end = _streamed(answer)
            got, _ = got + body, end
            assert end == last
        return got


def _map(headers: dict[str, str]) -> dict[str, Any]:
    return {"headers": [{"key": key, "raw_value": value.encode()} for key, value in headers.items()]}


def _streamed(answer: Any) -> tuple[bytes, bool]:
    body = answer.response_body if answer.HasField("response_body") else answer.request_body
    streamed = body.response.body_mutation.streamed_response
    return streamed.body, streamed.end_of_stream


def destination(answers: Sequence[Any]) -> list[str]:
    """The endpoints of an answer; header and metadata say the same."""
    head = answers[0]
    options = head.request_headers.response.header_mutation.set_headers
    said = {option.header.key: option.header.raw_value.decode() for option in options}
    assert said[DESTINATION] == head.dynamic_metadata[SPACE][DESTINATION]
    body = b"".join(_streamed(answer)[0] for answer in answers[1:])
    assert all(len(_streamed(answer)[0]) <= PIECE for answer in answers[1:])
    assert "content-length" not in said or int(said["content-length"]) == len(body)
    return said[DESTINATION].split(",")


def picked(
    play: Callable[[grpc.aio.Channel, Dispatcher], Awaitable[None]],
    chosen: Dispatcher,
    hold_s: float = 60.0,
    objectives: dict[str, int] | None = None,
    spans: RequestSpans | None = None,
) -> None:
    """Let an Envoy play with a picker."""

    async def run() -> None:
        server = PickerServer(chosen, "127.0.0.1:0", hold_s, 86400.0, objectives=objectives, spans=spans)
        async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await play(channel, chosen)

    RUNNER.run(run())


def body_of(prompt: int, **more: object) -> bytes:
    return json.dumps({"prompt": [1] * prompt, "max_tokens": 5, "stream": True, **more}).encode()


def test_it_decides_as_the_dispatcher_and_counts_what_comes_back() -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        flying, where = [], []
        for prompt in (50, 10, 10, 10, 5):
            tokens = [backend.site.tokens() for backend in chosen.backends]
            envoy = Envoy(channel)
            flying.append(envoy)
            answers = await envoy.request(body_of(prompt))
            endpoints = destination(answers)
            assert sorted(endpoints) == sorted(ENDPOINTS)
            where.append(ENDPOINTS.index(endpoints[0]))
            assert tokens[where[-1]] == min(tokens)
        first, second = chosen.backends[where[0]], chosen.backends[where[1]]
        had = second.site.tokens()
        assert sorted(backend.site.tokens() for backend in chosen.backends) == [15, 20, 50]
        event = b'data: {"choices":[{"text":" tok"}]}\n\n'
        got = await flying[0].respond(event, event + event[:9], event[9:], b"data: [DONE]\n\n")
        assert got == event * 3 + b"data: [DONE]\n\n"
        assert first.site.tokens() == 0
        head = {"headers": _map({":status": "200", "content-type": "text/event-stream"})}
        (answer,) = await flying[1].ask(ProcessingRequest(response_headers=head), answers=1)
        assert answer.HasField("response_headers")
        await flying[1].ask(ProcessingRequest(response_body={"body": event * 2}), answers=1)
        assert second.site.tokens() == had + 2
        flying[1].call.cancel()  # its client has gone
        async with asyncio.timeout(60):
            while second.site.tokens() != had - 10:
                await asyncio.sleep(0.001)
        for envoy in flying[2:]:
            envoy.call.cancel()

    picked(play, dispatcher(URLS, router="least-tokens"))


def test_it_says_to_prometheus_what_it_has_picked_and_refused() -> None:
    async def run() -> None:
        chosen = dispatcher(URLS, router="least-tokens")
        server = PickerServer(chosen, "127.0.0.1:0", 60.0, 86400.0, metrics="127.0.0.1:0")
        async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            answered, gone, refused = Envoy(channel), Envoy(channel), Envoy(channel)
            at = ENDPOINTS.index(destination(await answered.request(body_of(9)))[0])
            await answered.respond(b'data: {"choices":[{"text":" tok"}]}\n\n', b"data: [DONE]\n\n")
            answered.call.cancel()
            destination(await gone.request(body_of(9)))
            gone.call.cancel()
            for backend in chosen.backends:
                backend.up = False
            await refused.request(body_of(9))
            expected = {
                "arrivals_total": 3.0, f'requests_total{{backend="{at}",status="200"}}': 1.0,
                'refused_total{status="503"}': 1.0, "clients_gone_total": 1.0, 'backend_up{backend="0"}': 0.0,
            }  # fmt: skip
            found: dict[str, float] = {}
            async with asyncio.timeout(60), aiohttp.ClientSession() as session:
                while not expected.items() <= found.items():
                    async with session.get(f"http://127.0.0.1:{server.picker.metrics.port}/metrics") as answer:
                        lines = [line for line in (await answer.text()).splitlines() if line.startswith("kant_router_")]
                    found = {key: float(value) for key, value in (line[12:].rsplit(" ", 1) for line in lines)}
                async with session.get(f"http://127.0.0.1:{server.picker.metrics.port}/backends") as answer:
                    assert answer.status == 404

    RUNNER.run(run())


def test_a_retry_of_envoy_moves_the_request_to_the_endpoint_that_has_served() -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        envoy = Envoy(channel)
        assert destination(await envoy.request(body_of(9)))[0] == ENDPOINTS[0]
        head = ProcessingRequest(response_headers={"headers": _map({":status": "200"})})
        head.metadata_context.filter_metadata.add(key=SPACE).value.update({SERVED: ENDPOINTS[2]})
        await envoy.ask(head, answers=1)
        assert [len(backend.rows) for backend in chosen.backends] == [0, 0, 1]
        last = ProcessingRequest(response_body={"body": b'{"usage":{"completion_tokens":5}}', "end_of_stream": True})
        await envoy.ask(last, answers=1)
        assert not chosen.backends[2].rows and len(chosen.free) == chosen.limits.at_once

    picked(play, dispatcher(URLS))


@given(
    st.lists(st.sampled_from([*ENDPOINTS, "10.9.9.9:1", " "]), max_size=4),
    st.booleans(),
    st.sets(st.sampled_from([0, 1, 2]), max_size=3),
)
@settings(max_examples=examples(10))
def test_only_endpoints_of_the_subset_that_are_up_are_picked(subset: list[str], text: bool, down: set[int]) -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        for k in down:
            chosen.backends[k].up = False
        allowed = {e for k, e in enumerate(ENDPOINTS) if e in subset and k not in down}
        for path in ("/v1/completions", "/v1/models"):
            envoy = Envoy(channel)
            answers = await envoy.request(body_of(5), ",".join(subset) if text else subset, path=path)
            if allowed:
                assert set(destination(answers)) <= allowed
            else:
                assert answers[-1].immediate_response.status.code == 503

    picked(play, dispatcher(URLS))


def test_priorities_and_programs_are_written_into_long_bodies() -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        fields = {"prompt": "x" * 200_000, "priority": 3, "vllm_xargs": {"program_id": "p"}}
        answers = await Envoy(channel).request(json.dumps(fields).encode(), pieces=5)
        destination(answers)
        assert json.loads(b"".join(_streamed(answer)[0] for answer in answers[1:])) == fields

        fields["priority"] = -3  # no request is more urgent than others by its own word
        answers = await Envoy(channel).request(json.dumps(fields).encode())
        assert json.loads(b"".join(_streamed(answer)[0] for answer in answers[1:]))["priority"] == 0

    picked(play, dispatcher(URLS, policy="priority"))


@pytest.mark.parametrize("measured", [True, False])
def test_where_no_body_comes_back_a_request_lasts_until_the_metrics_say_that_it_is_over(measured: bool) -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        (backend,) = chosen.backends
        backend.measured, backend.health.failures = measured, 1
        for status in ("200", "404", None):  # None: the client leaves before the head
            envoy = Envoy(channel)
            await envoy.request(body_of(9), shown=False, tenant=str(status))
            async with asyncio.timeout(PATIENCE_S):
                while len(backend.rows) < 1 + (measured and status != "200"):
                    await asyncio.sleep(0.001)
                if status is None:
                    envoy.call.cancel()
                else:
                    head = {"headers": _map({":status": status})}
                    await envoy.ask(ProcessingRequest(response_headers=head), answers=1)
                    await envoy.call.done_writing()
                    assert await envoy.call.read() is grpc.aio.EOF
                while len(backend.rows) > measured:
                    await asyncio.sleep(0.001)
            assert backend.health.failures == 0  # the head of the first has judged it
        assert chosen.shares.had["404"] == chosen.shares.had["None"] == 9.0
        assert len(chosen.free) == chosen.limits.at_once - measured

    picked(play, dispatcher(URLS[:1]))


async def comes(channel: grpc.aio.Channel, chosen: Dispatcher, **said: str) -> asyncio.Task[list[Any]]:
    """A request that waits, or takes the place of one that waits."""
    waits, count = chosen.waiting, chosen.count
    task = asyncio.create_task(Envoy(channel).request(body_of(5), **said))  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        while chosen.count == count or (chosen.waiting == waits and waits < chosen.limits.held):
            await asyncio.sleep(0.001)
    return task


def test_of_equals_the_one_that_is_due_first_gets_a_place_first() -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        first = Envoy(channel)
        await first.request(body_of(5))
        patient, later, soon = [await comes(channel, chosen, deadline_s=s) for s in ("", "40", "20")]
        for next_one in (soon, later, patient):
            chosen.end(next(iter(chosen.backends[0].rows.values())), 1)
            assert destination(await next_one) == [ENDPOINTS[0]]

    picked(play, dispatcher(URLS[:1], in_flight=1))


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_requests_of_a_higher_objective_get_places_first_and_those_of_the_lowest_are_shed(policy: str) -> None:
    """Three wait for a place: the best goes first; where one too many waits, the worst is refused, whenever it came."""
    objectives = {"batch": -5, "urgent": 10}

    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        first = Envoy(channel)
        await first.request(body_of(5), objective="urgent")
        batch, unknown, known = [
            await comes(channel, chosen, objective=name) for name in ("batch", "nobody knows it", "urgent")
        ]
        other = await comes(channel, chosen)
        assert (await batch)[-1].immediate_response.status.code == 429
        await first.respond(b"data: [DONE]\n\n")
        answers = await known
        assert destination(answers) == [ENDPOINTS[0]] and not (unknown.done() or other.done())
        sent = json.loads(b"".join(_streamed(answer)[0] for answer in answers[1:]))
        assert sent.get("priority") == (-10 if policy == "priority" else None)
        objectives["urgent"] = -99  # it has changed since
        assert [p.level for p in chosen.backends[0].rows.values()] == [-10]

    picked(play, dispatcher(URLS[:1], policy, in_flight=1, held=3), objectives=objectives)


@pytest.mark.parametrize("shown", [True, False])
def test_an_endpoint_whose_answers_fail_is_ejected(shown: bool) -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        chosen.backends[1].draining = chosen.backends[2].draining = True
        for _ in range(3):
            envoy = Envoy(channel)
            assert destination(await envoy.request(body_of(5), shown=shown)) == [ENDPOINTS[0]]
            head = {"headers": _map({":status": "500"}), "end_of_stream": shown}
            await envoy.ask(ProcessingRequest(response_headers=head), answers=1)
        chosen.backends[1].draining = False
        assert chosen.backends[0].health.ejected
        for path in ("/v1/completions", "/v1/models"):
            assert destination(await Envoy(channel).request(body_of(5), path=path))[0] == ENDPOINTS[1]

    picked(play, dispatcher(URLS))


def test_what_is_too_much_is_shed_and_what_is_no_request_is_refused() -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        first = Envoy(channel)
        await first.request(body_of(5))
        for body, code in ((body_of(5), 429), (b"[]", 400), (body_of(5, model="other"), 404)):
            chosen.backends[0].models = frozenset({"m"}) if code == 404 else None
            answers = await Envoy(channel).request(body)
            immediate = answers[-1].immediate_response
            assert immediate.status.code == code and json.loads(immediate.body)["error"]["message"]
        await first.respond(b"data: [DONE]\n\n")
        assert destination(await Envoy(channel).request(body_of(5))) == [ENDPOINTS[0]]

    picked(play, dispatcher(URLS[:1], in_flight=1), hold_s=0.01)


@given(st.lists(st.binary(max_size=40), max_size=4))
@settings(max_examples=examples(8))
def test_whatever_is_sent_the_next_request_is_served(messages: list[bytes]) -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        call = channel.stream_stream(f"/{SERVICE}/Process")()
        for message in messages:
            try:
                await call.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                break
        await asyncio.sleep(0)
        call.cancel()
        assert destination(await Envoy(channel).request(body_of(5)))

    picked(play, dispatcher(URLS))


@pytest.mark.parametrize(
    ("service", "up", "down"), [("liveness", 1, 1), ("readiness", 1, 2), (SERVICE, 1, 2), ("x", 3, 3)]
)
def test_its_health_is_that_of_the_protocol(service: str, up: int, down: int) -> None:
    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )
        assert (await check(HealthCheckRequest(service=service))).status == up
        chosen.backends[0].up = False
        assert (await check(HealthCheckRequest(service=service))).status == down

    picked(play, dispatcher(URLS[:1]))
