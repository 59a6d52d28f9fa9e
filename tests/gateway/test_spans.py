"""What an OpenTelemetry collector hears of requests: a span of each, below its caller's and above its engine's."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import grpc
import pytest
from tests.cli.command import kant
from tests.collector import Collector, collecting
from tests.gateway.engines import STREAM, TOKEN, FakeEngine, answer, chunk, engines
from tests.gateway.rig import dispatcher, routing
from tests.gateway.test_picker import ENDPOINTS, URLS, Envoy, body_of, picked
from tests.gateway.test_shadow import shadowed
from tests.patience import until

from kant.gateway.dispatch import Dispatcher
from kant.gateway.spans import RequestSpans
from kant.live import otlp

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-"


def values(of: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in of["attributes"]}


def events(span: dict[str, Any]) -> list[str]:
    """The names of its events; all are within the span, in order."""
    times = [int(event["timeUnixNano"]) for event in span["events"]]
    times = [int(span["startTimeUnixNano"]), *times, int(span["endTimeUnixNano"])]
    assert times == sorted(times)
    return [event["name"] for event in span["events"]]


def heard(engine: FakeEngine) -> list[str]:
    """The `traceparent` of each request that an engine has had; one that has none has \"\"."""
    found = []
    for head in engine.heads:
        lines = [line.partition(b": ") for line in head.lower().split(b"\r\n")]
        (*said,) = [value.decode() for name, _, value in lines if name == b"traceparent"]
        assert len(said) <= 1
        found.append(said[0] if said else "")
    return found


def test_a_request_is_a_span_between_its_callers_and_its_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "PAUSE", 0.01)
    go = asyncio.Event()

    async def behave(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        if len(engine.asked) == 1:  # it leaves the second one without a place
            await go.wait()
            writer.write(STREAM + chunk(TOKEN) + chunk(TOKEN) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        else:
            writer.write(answer(200, b'{"usage":{"prompt_tokens":11,"completion_tokens":3}}'))

    async def run(collector: Collector) -> tuple[FakeEngine, str]:
        spans = RequestSpans(f"http://127.0.0.1:{collector.server.server_port}/v1/traces", "kant-router")
        async with engines(behave) as ((engine,), urls), aiohttp.ClientSession() as session:
            chosen = dispatcher(urls, in_flight=1)
            async with routing(chosen, spans=spans) as (_, url):

                async def ask(traceparent: str, body: bytes = b'{"prompt": [1, 2]}') -> int:
                    headers = {"traceparent": traceparent} if traceparent else {}
                    async with session.post(url + "/v1/completions", data=body, headers=headers) as found:
                        await found.read()
                        return found.status

                first = asyncio.create_task(ask(PARENT + "01"))
                await until(lambda: engine.asked)
                second = asyncio.create_task(ask(""))
                await until(lambda: chosen.waiting)
                go.set()
                assert [await first, await second, await ask(PARENT + "00"), await ask("nonsense", b"[")] == [
                    200, 200, 200, 400,
                ]  # fmt: skip
        return engine, urls[0]

    with collecting() as collector:
        engine, url = asyncio.run(run(collector))
    assert len(collector.spans) == 3, "one per sampled request, the last of them sent when the router ends"
    by_parent = {span["parentSpanId"]: span for span in collector.spans if span["events"]}
    below, alone = by_parent["cd" * 8], by_parent[""]
    refused = next(span for span in collector.spans if not span["events"])
    assert below["traceId"] == "ab" * 16 != alone["traceId"] and below["name"] == "POST /v1/completions"
    assert len({span["spanId"] for span in collector.spans}) == len({span["traceId"] for span in collector.spans}) == 3
    sampled = [f"00-{span['traceId']}-{span['spanId']}-01" for span in (below, alone)]
    assert heard(engine) == [*sampled, PARENT + "00"], "who does not sample is passed on as it is"
    assert events(below) == ["decided", "first token"] and events(alone) == ["held", "decided", "first token"]
    assert values(refused)["http.response.status_code"] == "400"
    assert values(below["events"][0]) == {"kant.backend": "0", "url.full": url}
    assert values(below) | {"kant.request.id": ""} == {
        "http.request.method": "POST", "url.path": "/v1/completions", "http.response.status_code": "200",
        "kant.tenant": "default", "kant.request.id": "", "kant.attempts": "1",
        "gen_ai.usage.output_tokens": "2",
    }  # fmt: skip
    assert values(alone)["gen_ai.usage.input_tokens"] == "11" and values(alone)["gen_ai.usage.output_tokens"] == "3"


def test_an_envoy_without_an_engine_fails_its_span() -> None:
    """A pick ends with the head of the answer, and says where it may go."""
    spans = RequestSpans("http://127.0.0.1:1/v1/traces", "kant-picker")

    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        exchange = Envoy(channel)
        await exchange.request(body_of(10, model="m"), tenant="ann")
        await exchange.respond(TOKEN, TOKEN, b"data: [DONE]\n\n")
        await exchange.call.done_writing()
        for backend in chosen.backends:
            backend.up = False
        await Envoy(channel).request(body_of(10))
        await until(lambda: len(spans.waiting) == 2)

    picked(play, shadowed(URLS, "round-robin", "least-tokens"), spans=spans)
    served, failed = spans.waiting
    assert events(served) == ["decided", "first token"] and events(failed) == []
    decided = values(served["events"][0])
    assert decided["kant.endpoints"].split(",")[0] == ENDPOINTS[0] and decided["kant.shadow.later_s"] == 0.0
    assert decided["kant.shadow.backend"] in ("0", "1", "2")
    said = values(served)
    assert said["http.response.status_code"] == "200" and served["status"] == {}
    assert (said["gen_ai.request.model"], said["kant.tenant"]) == ("m", "ann")
    assert values(failed)["http.response.status_code"] == "503" and failed["status"] == {"code": 2}


def test_many_spans_are_sent_without_pauses_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "PAUSE", 0.01)

    async def run(collector: Collector) -> None:
        spans = RequestSpans(f"http://127.0.0.1:{collector.server.server_port}/v1/traces", "kant-router")
        span = spans.begin("", "POST", "/v1/completions", 0.0)
        assert span is not None
        for _ in range(1000):
            spans.end(span, 499, None)
        sending = asyncio.create_task(spans.run())
        await asyncio.sleep(0)
        monkeypatch.setattr(otlp, "PAUSE", 86400.0)
        await until(lambda: len(collector.spans) == 1000)
        sending.cancel()

    with collecting() as collector:
        asyncio.run(run(collector))
    assert len(collector.asked) == 2


@pytest.mark.parametrize("verb", ["route", "pick"])
def test_no_address_of_a_collector_is_refused(verb: str) -> None:
    said = kant("serve", verb, "--backends", URLS[0], "--otlp", "collector:4318").refusal()
    assert "--otlp: expected the address of a collector" in said
