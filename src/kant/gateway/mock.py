"""A mock engine without a GPU: an OpenAI-compatible server that responds at the times of the simulator.

It runs `kant.serving.engine` by the machine's clock, or by an external clock (`conducted`): `POST /clock {"until":
SECONDS}` advances it to that time, and responds once all tokens until then are sent. Each token is the word `tok`; an
output has `max_tokens` tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from kant.compiled import compiling_ahead
from kant.gateway.ask import Ask, RefusedError, read_ask
from kant.gateway.mock_forms import FORMS, MockAnswer
from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.columns import FOREVER
from kant.serving.engine import Engine, EngineSettings
from kant.serving.policy import Job, Policy
from kant.serving.prefix_index import chain

CONTENTS = (1 << 62) - 1
"""A bit mask that makes the numbers of blocks non-negative."""

OUTPUT = 16
"""The output tokens of a request without `max_tokens`; OpenAI's default."""


@dataclass(slots=True)
class _Call:
    """A request being served: its tokens go through a queue to its handler."""

    row: int
    ask: Ask
    prompt: int
    output: int
    progress: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    said: int = 0


class MockEngine:
    """The simulated engine and its HTTP handlers."""

    def __init__(self, settings: EngineSettings, policy: Policy, model: str, conducted: bool, speed: float) -> None:
        if not 0 < speed <= 1e6:
            raise InputError("--speed", "a number above 0", speed)
        with compiling_ahead():  # otherwise the first requests and all scrapes would wait for it
            trial = Engine(settings)
            trial.add(0.0, 1, 1)
            trial.run()
        self.engine = Engine(settings)
        self.policy, self.model, self.conducted, self.speed = policy, model, conducted, speed
        self.calls: dict[int, _Call] = {}
        self.leaving: set[int] = set()
        self.came = asyncio.Event()
        self.count = 0
        self.time = 0.0
        self.latest: dict[str, Any] = {}

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(
            [
                *(web.post(path, self.generate) for path in FORMS),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/metrics", self.metrics),
                web.post("/clock", self.set_clock),
                web.get("/clock", self.clock),
            ]
        )
        return app

    # --- the engine -------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the engine's time in seconds."""
        return self.time if self.conducted else asyncio.get_running_loop().time() * self.speed

    async def run(self) -> None:
        """Run steps by the clock, forever."""
        loop = asyncio.get_running_loop()
        while True:
            if self.engine.next_event == FOREVER:
                self.came.clear()
                await self.came.wait()
            self.advance(self.now())
            due = self.engine.next_event
            if due < FOREVER:
                await asyncio.sleep(max(due / self.speed - loop.time(), 0))

    def advance(self, until: float) -> None:
        """End the steps that end by `until`, and start those that may start before."""
        engine = self.engine
        while True:
            steps, began = int(engine.state[c.STEPS]), engine.now
            why = engine.run(until, steps=0)
            if engine.state[c.STEPS] > steps:
                self.policy.after_step(engine, engine.now - began)
                self._tell(engine)
            if why != c.STOPPED:
                return
            if self.policy.by_step:
                self.policy.before_step(engine)
            engine.run(np.nextafter(engine.now, FOREVER), steps=1)

    def _tell(self, engine: Engine) -> None:
        """Deliver the tokens of the step that has ended, and drop requests whose client has disconnected."""
        for r in engine.ran().tolist():
            call = self.calls.get(r)
            done = int(engine.requests[r, c.DONE])
            if call is not None and done > call.said:
                call.said = done
                call.progress.put_nowait(done)
        for r in engine.take_ended():
            self.policy.finished(engine, r)
        for r in list(self.leaving):
            if engine.withdraw(r):
                self.leaving.discard(r)
                if engine.requests[r, c.STATE] == c.WITHDRAWN:
                    self.policy.finished(engine, r)

    def _add(self, ask: Ask) -> _Call:
        engine = self.engine
        prompt, output = ask.prompt(4.0), ask.most or OUTPUT
        now = self.now()
        if not self.conducted:
            self.advance(now)
        try:
            engine.settings.check(prompt, output)
        except InputError as error:
            raise RefusedError(400, str(error), "BadRequestError") from None
        priority = self.policy.arrived(engine, Job(prompt, float(output), ask.priority, -1, now), engine.count)
        call = _Call(engine.add(now, prompt, output, priority, self._contents(ask)), ask, prompt, output)
        self.calls[call.row] = call
        self.latest = ask.fields
        self.count += 1
        self.came.set()
        return call

    def _contents(self, ask: Ask) -> list[int]:
        """Return a number for each full block of a prompt: as in vLLM, it depends on all preceding tokens."""
        size = self.engine.settings.block_size
        tokens = ask.fields.get("prompt")
        return [
            block & CONTENTS
            for block in (chain(tokens, "", size) if isinstance(tokens, list) else chain(ask.text, "", 4 * size))
        ]

    def _leave(self, call: _Call) -> None:
        """End a call: its response is complete, or its client has disconnected."""
        del self.calls[call.row]
        if call.said < call.output:
            if self.engine.withdraw(call.row):
                self.policy.finished(self.engine, call.row)
            else:
                self.leaving.add(call.row)

    # --- the handlers -----------------------------------------------------------------------------------------------

    async def generate(self, request: web.Request) -> web.StreamResponse:
        try:
            ask = read_ask(request.path, await request.read())
            if ask.model and ask.model != self.model:
                raise RefusedError(404, f"The model `{ask.model[:100]}` does not exist.", "NotFoundError")
            call = self._add(ask)
        except RefusedError as error:
            return web.Response(body=error.body(request.path), status=error.status, content_type="application/json")
        try:
            return await (self._streamed(request, call) if ask.stream else self._whole(call))
        finally:
            self._leave(call)

    async def _streamed(self, request: web.Request, call: _Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        form, said, sent = FORMS[call.ask.path], self._said(call), 0
        event = form.token(said)
        while sent < call.output:
            done = await call.progress.get()
            if sent == 0:
                await response.prepare(request)
                await response.write(form.opening(said))
            await response.write(event * (done - sent))
            sent = done
        options = call.ask.fields.get("stream_options")
        await response.write(form.closing(said, isinstance(options, dict) and bool(options.get("include_usage"))))
        await response.write_eof()
        return response

    async def _whole(self, call: _Call) -> web.Response:
        while call.said < call.output:
            await call.progress.get()
        answer = FORMS[call.ask.path].whole(self._said(call))
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    def _said(self, call: _Call) -> MockAnswer:
        return MockAnswer(f"mock-{call.row}", self.model, call.prompt, call.output)

    async def models(self, _: web.Request) -> web.Response:
        rows = [{"id": self.model, "object": "model", "owned_by": "kant"}]
        return web.json_response({"object": "list", "data": rows})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def metrics(self, _: web.Request) -> web.Response:
        """Return metrics with vLLM's names (0.32)."""
        engine, state, settings = self.engine, self.engine.state, self.engine.settings
        ended = engine.count - int(state[c.RUNS] + state[c.WAITS])
        usable = settings.num_blocks - 1
        label = f'{{engine="0",model_name="{self.model}"}}'
        lines = [
            f"vllm:num_requests_running{label} {state[c.RUNS]}",
            f"vllm:num_requests_waiting{label} {state[c.WAITS]}",
            f"vllm:kv_cache_usage_perc{label} {1 - state[c.FREE] / usable}",
            f"vllm:generation_tokens_total{label} {engine.requests[: engine.count, c.DONE].sum()}",
            f'vllm:request_success_total{{engine="0",model_name="{self.model}",finished_reason="length"}} {ended}',
            f"vllm:num_preemptions_total{label} {state[c.PREEMPTIONS]}",
            f"vllm:prefix_cache_queries_total{label} {state[c.LOOKED_UP]}",
            f"vllm:prefix_cache_hits_total{label} {state[c.HITS]}",
            f'vllm:cache_config_info{{block_size="{settings.block_size}",num_gpu_blocks="{settings.num_blocks}"}} 1',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def clock(self, _: web.Request) -> web.Response:
        """Return the counts of requests, tokens and live requests; the time; and two fields of the latest request."""
        state = self.engine.state
        said = int(self.engine.requests[: self.engine.count, c.DONE].sum())
        live = int(state[c.RUNS] + state[c.WAITS])
        latest = {name: self.latest.get(name) for name in ("priority", "vllm_xargs")}
        found = {"requests": self.count, "tokens": said, "live": live, "now": self.now(), "latest": latest}
        return web.json_response(found)

    async def set_clock(self, request: web.Request) -> web.Response:
        if not self.conducted:
            return web.json_response({"error": "this engine has a clock of its own"}, status=409)
        asked = await request.json()
        if asked.get("reset"):
            self.engine = Engine(self.engine.settings)
            self.calls, self.leaving, self.count, self.time = {}, set(), 0, 0.0
        self.time = max(self.time, float(asked["until"]))
        self.advance(self.time)
        return await self.clock(request)


async def serve(mock: MockEngine, host: str, port: int, ready: asyncio.Future[int] | None = None) -> None:
    """Serve until cancelled. The future `ready` gets the port."""
    runner = web.AppRunner(mock.application(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    driver: asyncio.Task[None] | None = None
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=4096).start()
        except OSError as error:
            raise InputError("--listen", f"an address that is free ({error.strerror or error})", port) from None
        if not mock.conducted:
            driver = asyncio.create_task(mock.run())
        if ready is not None:
            ready.set_result(int(runner.addresses[0][1]))
        await asyncio.Event().wait()
    finally:
        if driver is not None:
            driver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await driver
        await runner.cleanup()
