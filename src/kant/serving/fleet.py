"""Simulates engines behind a router. Requests arrive at their times, or when other requests have finished."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.clients import Patience
from kant.serving.columns import FOREVER, Table, Times
from kant.serving.engine import Engine, EngineSettings
from kant.serving.layers import interrupt
from kant.serving.policy import Job, Policy
from kant.serving.prefix_index import block_tokens
from kant.serving.requests import Requests
from kant.serving.routers.round_robin import RoundRobin
from kant.serving.routing import HOLD, TICK_S, Incoming, Overtaking, Router, decide
from kant.serving.sglang import new_engine
from kant.serving.site import EngineSite, ObservedSite, Site
from kant.serving.summary import Served

SAMPLES = 400
"""The approximate number of times at which the series has values."""

After = Callable[[int, float], Sequence[tuple[float, int]]]
"""Returns the requests that follow a finished request: (arrival, request) for each request that it releases."""


@dataclass(slots=True)
class Fleet:
    """The engines, and the requests of each engine, by the numbers that the engine gives them."""

    requests: Requests
    engines: list[Engine]
    origin: list[list[int]]
    where: Table
    number: Table
    policy: Policy
    router: Router
    draw: np.random.Generator
    sizes: list[float] = field(default_factory=list)
    """The sum of prompt and predicted output of each request."""
    predicted: list[Times] = field(default_factory=list)
    """By engine: the predicted outputs of its requests, by the engine's own numbers."""
    cached: list[Table] = field(default_factory=list)
    """By engine: the tokens of each request that the router assumes to be in the engine's cache."""
    observed: list[ObservedSite] = field(default_factory=list)
    held: deque[int] = field(default_factory=deque)
    """Requests that the router holds, in order."""
    asked: int = 0
    """How many requests had ended when the router was last asked about held ones."""

    def sites(self) -> list[Site]:
        """Return the engines as the router sees them."""
        if self.observed:
            return list(self.observed)

        def predicted(k: int) -> Callable[[], Times]:
            return lambda: self.predicted[k]

        def cached(k: int) -> Callable[[], Table] | None:
            return (lambda: self.cached[k]) if self.router.prefixes else None

        return [EngineSite(engine, predicted(k), k, cached(k)) for k, engine in enumerate(self.engines)]

    def come(self, i: int, now: float, sites: Sequence[Site]) -> None:
        """Route request `i` now, unless it may not overtake a held request or the router holds it."""
        overtaking = Overtaking(self.router)
        for held in self.held:
            overtaking.held(self.sizes[held])
        if not (overtaking.may_ask(self.sizes[i]) and self.route(i, now, sites)):
            self.held.append(i)

    def ask_again(self, now: float, sites: Sequence[Site]) -> None:
        """Route held requests in order. Those that may not overtake a request that stays held are left out."""
        overtaking = Overtaking(self.router)
        self.asked = self.over()
        for i in list(self.held):
            if overtaking.may_ask(self.sizes[i]) and self.route(i, now, sites):
                self.held.remove(i)
            else:
                overtaking.held(self.sizes[i])

    def route(self, i: int, now: float, sites: Sequence[Site]) -> bool:
        """Route a request; return False if the router holds it."""
        if len(sites) == 1 and not self.router.holds:
            self.add(i, now, sites[0].number)
            return True
        self._observe()
        request = self.incoming(i, now)
        k = decide(self.router, request, sites, self.draw)
        if k != HOLD:
            self.add(i, now, sites[k].number, self.router.sent(request, sites[k]))
        return k != HOLD

    def over(self) -> int:
        """Return how many requests have ended."""
        return sum(engine.count - int(engine.state[[c.RUNS, c.WAITS, c.LOADS]].sum()) for engine in self.engines)

    def incoming(self, i: int, now: float) -> Incoming:
        """Return request `i` as a router sees it."""
        requests, settings = self.requests, self.engines[0].settings
        blocks: list[int] = []
        per = block_tokens(settings.block_size)
        if self.router.prefixes and settings.prefix_cache:
            each = per // settings.block_size
            blocks = requests.contents(i, settings.block_size)[each - 1 :: each].tolist()
        return Incoming(
            now, int(requests.prompt[i]), float(requests.predicted[i]), int(requests.program[i]), blocks, per
        )

    def _observe(self) -> None:
        """Update the observed sites with the tokens that their engines have produced."""
        for k, site in enumerate(self.observed):
            rows = self.engines[k].requests
            for i in list(site.live):
                row = rows[self.number[i]]
                if row[c.STATE] == c.FINISHED:
                    site.end(i)
                else:
                    site.said(i, int(row[c.DONE]))

    def add(self, i: int, now: float, k: int, cached: int = 0) -> None:
        """Send request `i` to engine `k`, which is assumed to have `cached` tokens of its prompt."""
        requests = self.requests
        prompt, predicted, program = int(requests.prompt[i]), float(requests.predicted[i]), int(requests.program[i])
        engine = self.engines[k]
        contents: Table | tuple[()] = ()
        if engine.settings.prefix_cache:
            contents = requests.contents(i, engine.settings.block_size)
        job = Job(prompt, predicted, float(requests.priority[i]), program, now)
        priority = self.policy.arrived(engine, job, engine.count)
        self.origin[k].append(i)
        if len(self.origin[k]) > len(self.predicted[k]):
            self.predicted[k] = np.concatenate([self.predicted[k], np.zeros(len(self.predicted[k]) + 16)])
            self.cached[k] = np.concatenate([self.cached[k], np.zeros(len(self.cached[k]) + 16, dtype=np.int64)])
        self.predicted[k][len(self.origin[k]) - 1] = predicted
        self.cached[k][len(self.origin[k]) - 1] = cached
        self.where[i] = k
        remote_s = None if np.isnan(requests.remote_s[i]) else float(requests.remote_s[i])
        self.number[i] = engine.add(
            now, prompt, int(requests.output[i]), priority, contents, most=int(requests.most[i]), remote_s=remote_s
        )
        if self.observed:
            comes = remote_s is not None and engine.settings.kv_role == "kv_consumer"
            self.observed[k].send(i, prompt, predicted, prompt if comes else cached)
        if self.policy.layers and engine.state[c.PLANNED]:
            interrupt(engine, int(self.number[i]), now, self.policy.layers)

    def drive(self, engine: Engine, until: float) -> None:
        """Run one engine until a time, and call its policy before every step."""
        if not self.policy.by_step:
            engine.run(until)
            return
        while True:
            if self.end_step(engine, until) != c.STOPPED:
                return
            self.policy.before_step(engine)
            engine.run(np.nextafter(engine.now, FOREVER), steps=1)

    def end_step(self, engine: Engine, until: float) -> int:
        """End the current step if it ends by `until`, and tell the policy; return STOPPED if another may start."""
        steps, began = int(engine.state[c.STEPS]), engine.now
        why = engine.run(until, steps=0)
        if self.policy.by_step and engine.state[c.STEPS] > steps:
            self.policy.after_step(engine, engine.now - began)
            for r in engine.take_ended():
                self.policy.finished(engine, r)
        return why


def settings_under(settings: EngineSettings, policy: Policy) -> EngineSettings:
    """Return the engine settings for a policy. If the policy acts within a step, asynchronous scheduling is turned off.

    Raises InputError if the engine has its own order, or has host memory and the policy preempts.
    """
    if settings.engine != "vllm":
        if policy.by_priority or policy.preemptive or policy.by_step or policy.limits or policy.layers:
            raise InputError("--policy", "fcfs with SGLang, which has its own order", type(policy).__name__)
        return settings
    if settings.host_blocks and policy.preemptive:
        raise InputError("--policy", "a policy that does not preempt, with host memory", type(policy).__name__)
    return replace(
        settings,
        policy="priority" if policy.by_priority else settings.policy,
        preemptive=settings.preemptive or policy.preemptive,
        async_scheduling=settings.async_scheduling and not policy.layers,
    )


def new_fleet(
    requests: Requests,
    settings: EngineSettings,
    engines: int,
    policy: Policy | None = None,
    router: Router | None = None,
    seed: int = 0,
    observed: bool = False,
) -> Fleet:
    """Create a fleet of idle engines for these requests; raises InputError as `simulate` does."""
    if not 1 <= engines <= 10_000:
        raise InputError("--engines", "a number of engines from 1 to 10000", engines)
    requests.check(settings.block_size, settings.tokens, settings.prefix_cache)
    policy = policy or Policy()
    settings = settings_under(settings, policy)
    count = len(requests)
    requests = replace(requests, arrival=requests.arrival.copy())  # a request gets its arrival time at its release
    return Fleet(
        requests,
        [new_engine(settings, max(count // engines, 16)) for _ in range(engines)],
        [[] for _ in range(engines)],
        np.full(count, -1, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        policy,
        router or RoundRobin(),
        np.random.Generator(np.random.PCG64(seed)),
        (requests.prompt + requests.predicted).tolist(),
        [np.zeros(0) for _ in range(engines)],
        [np.zeros(0, dtype=np.int64) for _ in range(engines)],
        [ObservedSite(settings, k) for k in range(engines)] if observed else [],
    )


def simulate(
    requests: Requests,
    settings: EngineSettings,
    engines: int = 1,
    policy: Policy | None = None,
    router: Router | None = None,
    seed: int = 0,
    after: After | None = None,
    begin: Sequence[int] | None = None,
    observed: bool = False,
    patience: Patience | None = None,
) -> Served:
    """Run all requests to their end.

    With `observed`, the router sees what it would see of real engines: the requests sent, and their tokens so far.
    Without `after`, every request arrives at its time. With `after`, only the requests in `begin` do, and each finished
    request releases the requests that `after` returns; with `patience`, abandoned requests do so, too. Raises
    InputError if a request can never be served.
    """
    fleet = new_fleet(requests, settings, engines, policy, router, seed, observed)
    series = _by_clock(fleet) if after is None else by_release(fleet, after, begin or range(len(requests)), patience)
    return served_by(fleet, series)


def sample(fleet: Fleet, now: float) -> list[tuple[float, ...]]:
    """Return the rows of `Served.series` for a time: one for each engine."""
    usable = fleet.engines[0].settings.num_blocks - 1
    return [
        (now, k, float(e.state[c.RUNS]), float(e.state[c.WAITS]), 1 - float(e.state[c.FREE]) / usable)
        for k, e in enumerate(fleet.engines)
    ]


def _by_clock(fleet: Fleet) -> list[tuple[float, ...]]:
    """Simulate with every request at its arrival time. The engines run between arrivals."""
    arrival = fleet.requests.arrival
    every = max(float(arrival[-1] - arrival[0]) / SAMPLES, 1e-3)
    sites = fleet.sites()
    series: list[tuple[float, ...]] = []
    look = float(arrival[0])

    def reach(until: float) -> None:
        for engine in fleet.engines:
            fleet.drive(engine, until)

    tick = float(arrival[0])

    def ticks(until: float) -> None:
        """Ask the router again about held requests, every TICK_S."""
        nonlocal tick
        while tick + TICK_S < until:
            if not fleet.held:
                tick += TICK_S * ((until - tick) // TICK_S)
                return
            tick += TICK_S
            reach(tick)
            if fleet.over() > fleet.asked:
                fleet.ask_again(tick, sites)

    for i, now in enumerate(arrival.tolist()):
        while look < now:
            ticks(look)
            reach(look)
            series += sample(fleet, look)
            look += every
        ticks(now)
        reach(now)
        fleet.come(i, now, sites)
    while fleet.held or any(engine.next_event < FOREVER for engine in fleet.engines):
        ticks(look)
        reach(look)
        series += sample(fleet, look)
        every *= 1.05  # the rest may take long
        look += every
    return series


def by_release(
    fleet: Fleet, after: After, begin: Sequence[int], patience: Patience | None = None,
    beside: Callable[[float], bool] | None = None,
) -> list[tuple[float, ...]]:  # fmt: skip
    """Simulate with requests that finished ones release. The engines advance event by event, in order of time.

    `beside` simulates other things until the given time of the next event. It returns whether that has added events.
    """
    coming = [(float(fleet.requests.arrival[i]), int(i)) for i in begin]
    heapq.heapify(coming)
    sites = fleet.sites()
    series: list[tuple[float, ...]] = []
    look = clock = 0.0
    while True:
        due = coming[0][0] if coming else FOREVER
        again = clock + TICK_S if fleet.held else FOREVER
        k = min(range(len(fleet.engines)), key=lambda k: fleet.engines[k].next_event)
        engine = fleet.engines[k]
        event = engine.next_event
        if beside is not None and beside(min(event, due, again)):
            continue
        if event == due == again == FOREVER:
            return series
        if again < min(event, due):
            clock = again
            if fleet.over() > fleet.asked:
                fleet.ask_again(clock, sites)
            continue
        clock = max(clock, min(event, due))
        if event > due or (event == due and engine.may_plan):
            now, i = heapq.heappop(coming)
            fleet.requests.arrival[i] = now
            fleet.come(i, now, sites)
            continue
        if event >= look:
            series += sample(fleet, event)
            look = event + max((event + 1) / SAMPLES, 1e-3)
        if engine.may_plan:
            fleet.policy.before_step(engine)
            engine.run(np.nextafter(engine.now, FOREVER), steps=1)
            continue
        steps, began = int(engine.state[c.STEPS]), engine.now
        engine.run(event, steps=0)
        if engine.state[c.STEPS] > steps:  # otherwise it has waited for a transfer
            fleet.policy.after_step(engine, engine.now - began)
        ended = engine.take_ended()
        for r in ended:
            fleet.policy.finished(engine, r)
        if patience is not None:
            vain = [r for r in ended if patience.in_vain(engine, np.array([r]))[0]]
            for r in patience.let_go(engine):
                engine.withdraw(r)
                vain.append(r)
                ended.append(r)
            for r in vain:
                patience.again(fleet.origin[k][r])
        for r in ended:
            for when, i in after(fleet.origin[k][r], engine.now):
                heapq.heappush(coming, (max(when, engine.now), i))


def served_by(fleet: Fleet, series: list[tuple[float, ...]]) -> Served:
    """Return the outcome of each request, after all have ended."""
    count = len(fleet.requests)
    times = np.full((count, c.TIMES_WIDTH), np.nan)
    rows = np.zeros((count, c.REQUEST_WIDTH), dtype=np.int64)
    for k, engine in enumerate(fleet.engines):
        mine = np.flatnonzero(fleet.where == k)
        times[mine], own = engine.times[fleet.number[mine]], engine.requests[fleet.number[mine]]
        rows[mine] = own[:, : c.REQUEST_WIDTH]
    clocks = np.array([engine.clock for engine in fleet.engines])
    states = np.array([engine.state for engine in fleet.engines])
    usable = fleet.engines[0].settings.num_blocks - 1
    busy = clocks[:, c.BUSY].sum()
    return Served(
        fleet.requests,
        fleet.where,
        times[:, c.FIRST],
        times[:, c.FINISH],
        times[:, c.GAP],
        rows[:, c.PREEMPTED],
        np.maximum(rows[:, c.CACHED], 0),
        int(states[:, c.STEPS].sum()),
        float(clocks[:, c.KV_SECONDS].sum() / busy / usable) if busy else 0.0,
        float(states[:, c.MOST_HELD].max() / usable),
        int(states[:, c.LOOKED_UP].sum()),
        int(states[:, c.HITS].sum()),
        int(states[:, c.HOST_HITS].sum()),
        np.array(series).reshape(-1, 5),
    )
