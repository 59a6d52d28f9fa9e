"""What it is worth to know which engine has which prompts: time to first token of every router, simulated, in seconds.

Four loads after published statistics, on engines with Llama-3-8B on an A100: questions about documents, as many of
whose tokens repeat as of Mooncake's synthetic trace, and three in which nothing repeats: conversations and code as long
as Azure's, and conversations beyond what the engines bear. The rival is the best of the rules that know no prefixes.

`python -m benchmarks.prefix [FILE …] [--engines 8] [--requests 4000]` shows the whole table, of request files instead
where some are named.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Figure
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.generate import Draw, arrivals, conversation_lengths, lognormal
from kant.serving.latency import kv_tokens, latency_model
from kant.serving.read import read_requests
from kant.serving.requests import Requests
from kant.serving.routers import router_named

RULES = ("round-robin", "two-choices", "shortest-queue", "least-tokens", "llumnix", "lmetric")
SETTINGS = EngineSettings(
    latency_model("llama-3-8b", "a100")[0], kv_tokens("llama-3-8b", "a100", 1) // 16 + 1, prefix_cache=True
)
GRAIN = 512
"""Tokens of a hash, as Mooncake's."""


def documents(draw: Draw, count: int = 4000) -> Requests:
    """Four of five requests ask about one of 400 documents, of which half grow by what was asked; others are alone."""
    rate = 3.91 * np.exp(0.35 * draw.standard_normal(count // 200 + 8))  # a minute's, which is bursty
    when = np.sort(np.concatenate([60 * (m + draw.random(draw.poisson(60 * r))) for m, r in enumerate(rate)]))[:count]
    chance = 1 / np.arange(1, 401) ** 0.6
    which = draw.choice(draw.permutation(400), len(when), p=chance / chance.sum())
    known = {
        d: [d * GRAIN + k for k in range(n)]
        for d, n in enumerate(lognormal(draw, 400, 15000, 0.75, 1200, 90000) // GRAIN)
    }
    own, alone = lognormal(draw, len(when), 900, 1.0, 16, 20000), lognormal(draw, len(when), 9000, 1.0, 64, 60000)
    hashes, prompts, fresh = [], [], 10**7
    for i, d in enumerate(which.tolist()):
        begins = known[d] if draw.random() < 0.8 else []
        tokens = GRAIN * len(begins) + int(own[i] if begins else alone[i])
        blocks = [*begins, *range(fresh, fresh + -(-tokens // GRAIN) - len(begins))]
        fresh += len(blocks)
        if begins and draw.random() < 0.5 and tokens < 100_000:
            known[d] = blocks[: tokens // GRAIN]
        hashes.append(np.array(blocks))
        prompts.append(tokens)
    output = lognormal(draw, len(when), 149, 1.2, 1, 1500)
    return Requests("documents", when, np.array(prompts), output, hashes=tuple(hashes), grain=GRAIN)


def conversation(draw: Draw, count: int = 4000, rate: float = 5.5) -> Requests:
    return Requests("conversation", arrivals(draw, count, rate), *conversation_lengths(draw, count))


def code(draw: Draw, count: int = 4000) -> Requests:
    """As bursty and as long as Azure's completions of code: log-normal mixtures fitted to the trace of 2023."""
    few, short = draw.random(count) < 0.31, draw.random(count) < 0.66
    prompt = np.where(few, draw.lognormal(5.52, 1.31, count), draw.lognormal(7.65, 0.73, count)).clip(3, 7437)
    output = np.where(short, draw.lognormal(2.37, 0.39, count), draw.lognormal(3.61, 0.9, count)).clip(1, 1899)
    return Requests("code", arrivals(draw, count, 2.57, 2.1), prompt.astype(np.int64), output.astype(np.int64))


LOADS: dict[str, tuple[Callable[[Draw], Requests], int]] = {
    "documents": (documents, 8),
    "conversation": (conversation, 4),
    "code": (code, 4),
    "overload": (lambda draw: conversation(draw, rate=80.0), 8),
}
"""Each load, and the engines before which it comes."""


def waits(requests: Requests, engines: int, router: str) -> tuple[float, float, float]:
    """Mean and P99 of the time to first token, and the share of tokens looked up that the caches had."""
    served = simulate(requests, SETTINGS, engines, router=router_named(router))
    first = served.first - requests.arrival
    return float(first.mean()), float(np.percentile(first, 99)), served.hits / max(served.looked_up, 1)


def measure() -> Iterator[Figure]:
    for name, (load, engines) in LOADS.items():
        requests = load(np.random.Generator(np.random.PCG64(0)))
        found = {rule: waits(requests, engines, rule) for rule in (*RULES, "prefix")}
        for k, what in enumerate(("mean", "p99")):
            best = min(RULES, key=lambda rule: found[rule][k])
            ratio = found[best][k] / found["prefix"][k]
            yield Figure(f"prefix-{name}-{what}", found["prefix"][k], "s", ratio, best, "the engines")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    draw = np.random.Generator(np.random.PCG64(0))
    if options.files:
        read = (read_requests(path, count=options.requests) for path in options.files)
        loads = [(r if options.rate is None else r.at_rate(options.rate), options.engines) for r in read]
    else:
        loads = [(load(draw), engines) for load, engines in LOADS.values()]
    print("| requests | engines | router | mean, s | P99, s | cached |\n|---|---:|---|---:|---:|---:|")
    for requests, engines in loads:
        for rule in (*RULES, "prefix"):
            mean, p99, cached = waits(requests, engines, rule)
            print(
                f"| {requests.name} | {engines} | `{rule}` | {mean:.3f} | {p99:.3f} | {100 * cached:.0f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
