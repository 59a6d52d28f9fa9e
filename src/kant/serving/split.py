"""Simulates prefill engines (which compute prompts) beside decode engines, as with vLLM's KV connectors.

A prefill engine holds the blocks of a request until the request's decode engine has fetched their KV, for which that
engine needs free blocks. So the prefill engines advance event by event, and the decode engines follow up to each event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.columns import FOREVER
from kant.serving.engine import EngineSettings
from kant.serving.fleet import SAMPLES, Fleet, by_release, new_fleet, sample, served_by
from kant.serving.policies import policy_named
from kant.serving.requests import Requests
from kant.serving.routers import router_named
from kant.serving.summary import Served


@dataclass(slots=True)
class PrefillAndDecode:
    """The prefill engines, the decode engines, and the KV that decode engines have not fetched yet.

    `unfetched` has a dict for each decode engine. Its keys are the engine's own numbers of requests; its values are the
    prefill engine and the request's number on it.
    """

    prefill: Fleet
    decode: Fleet
    unfetched: list[dict[int, tuple[int, int]]]
    series: list[tuple[float, ...]]
    look: float = 0.0

    def computed(self, i: int, now: float) -> tuple[()]:
        """Send a request whose prompt has been computed to a decode engine."""
        self.decode.requests.arrival[i] = now
        self.decode.come(i, now, self.decode.sites())
        k, r = int(self.decode.where[i]), int(self.decode.number[i])
        self.unfetched[k][r] = int(self.prefill.where[i]), int(self.prefill.number[i])
        return ()

    def follow(self, until: float) -> bool:
        """Run the decode engines until a time. Returns True, early, once a waiting prefill engine may plan a step."""
        while True:
            waits = any(e.state[c.WAITS] and not (e.state[c.PLANNED] or e.may_plan) for e in self.prefill.engines)
            event = min(engine.next_event for engine in self.decode.engines)
            at = float(np.nextafter(event, FOREVER)) if waits and event < until else until
            for engine in self.decode.engines:
                self.decode.drive(engine, at)
            if self.look <= at < FOREVER:
                self.series += sample(self.decode, at)
                self.look = at + max((at + 1) / SAMPLES, 1e-3)
            fetched = self._fetched()
            if at == until or fetched:
                return at < until

    def _fetched(self) -> bool:
        """Tell the prefill engines which KV is being fetched. Returns whether any is."""
        found = False
        for engine, unfetched in zip(self.decode.engines, self.unfetched, strict=True):
            numbers = np.fromiter(unfetched, dtype=np.int64)
            rows = engine.requests[numbers]
            for r in numbers[(rows[:, c.STATE] == c.LOADING) | (rows[:, c.REMOTE] == 0)].tolist():
                k, there = unfetched.pop(r)
                self.prefill.engines[k].sent(there, float(engine.times[r, c.LOADED]))
                found = True
        return found


def simulate_apart(
    requests: Requests, settings: EngineSettings, engines: tuple[int, int], policy: str, router: str, kv_gb_s: float,
    seed: int,
) -> Served:  # fmt: skip
    """Run all requests to their end. `engines` has the numbers of prefill engines and of decode engines.

    The router chooses the prefill engine. The decode engine is the one with the fewest tokens, since decoding is short
    of KV. As with vLLM's connectors, the prefill engine's token is dropped: the decode engine computes the last prompt
    token again, and gives the first output token. Prefill engines with host memory hold no blocks for decode engines.
    Decode engines have no host memory, and do not search it for prompts whose KV comes from a prefill engine. Raises
    InputError for settings that do not allow this.
    """
    if settings.engine != "vllm":
        raise InputError("--split", "vLLM engines", settings.engine)
    if policy_named(policy).layers:
        raise InputError("--policy", "a policy that does not act within a step, with --split", policy)
    try:
        there = replace(settings, kv_role="kv_consumer", host_blocks=0)
    except InputError as why:
        raise InputError("--split", why.expected, why.got) from None
    here = settings if settings.host_blocks else replace(settings, kv_role="kv_producer")
    one = np.ones(len(requests), dtype=np.int64)
    prompts = replace(
        requests, output=one, predicted=one.astype(np.float64), most=one, remote_s=np.full(len(one), FOREVER)
    )
    moved = replace(requests, remote_s=requests.prompt * settings.latency.kv_bytes / (kv_gb_s * 1e9))
    first, second = engines
    pair = PrefillAndDecode(
        new_fleet(prompts, here, first, policy_named(policy), router_named(router), seed, observed=True),
        new_fleet(moved, there, second, policy_named(policy), router_named("least-tokens"), seed, observed=True),
        [{} for _ in range(second)],
        [],
    )
    series = by_release(pair.prefill, pair.computed, range(len(requests)), beside=pair.follow)
    computed, served = served_by(pair.prefill, series), served_by(pair.decode, pair.series)
    return replace(
        served,
        requests=requests,
        engine=served.engine + first,
        preempted=served.preempted + computed.preempted,
        cached=computed.cached,
        steps=served.steps + computed.steps,
        kv_use_max=max(served.kv_use_max, computed.kv_use_max),
        looked_up=computed.looked_up,
        hits=computed.hits,
        host_hits=computed.host_hits,
        series=np.concatenate([computed.series, served.series + np.array([0, first, 0, 0, 0])]),
    )
