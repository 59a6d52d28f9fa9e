"""How many requests may run at once: `python -m benchmarks.studies.serving_past_future`, two minutes.

Past-Future's own simulator beside its published figures, then the same rules on the engine with clients in a closed
loop. Writes docs/studies/serving-past-future.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.studies.topology import interval
from kant.serving import columns as c
from kant.serving.columns import Table
from kant.serving.engine import Engine, EngineSettings
from kant.serving.fleet import closed_loop, simulate
from kant.serving.generate import generate
from kant.serving.latency import latency_model
from kant.serving.memory_only import Aggressive, Conservative, FromThePast, Optimum, Outcome, Rule, run_batch
from kant.serving.policies.past_future import Aggressive as AggressivePolicy
from kant.serving.policies.past_future import Conservative as ConservativePolicy
from kant.serving.policies.past_future import PastFuture, _Limited, peaks, tokens_of
from kant.serving.policy import Policy

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "serving-past-future.md"
SEEDS = range(3)
MEMORY = 120_000
LENGTHS = {
    "Dist-1, decode heavy": ((32, 4096), (2048, 4096)),
    "Dist-2, balanced": ((3000, 5000), (3000, 5000)),
    "Dist-3, prefill heavy": ((2048, 4096), (32, 4096)),
}
PUBLISHED = {
    "Dist-1, decode heavy": ((287_220, 94.2), (480_740, 0), (297_920, 7.5), (294_850, 0)),
    "Dist-2, balanced": ((613_970, 90.7), (843_300, 0), (656_490, 7.3), (647_210, 0)),
    "Dist-3, prefill heavy": ((235_740, 34.8), (371_960, 0), (245_600, 3.5), (234_540, 0)),
}
"""Decode steps and evictions, in percent of the finished, of one run of the artifact's scripts, which draw unseeded."""
RULES = ("aggressive", "conservative", "Past-Future", "optimum")
CLIENTS, REQUESTS = (20, 40), 200
TTFT_S, GAP_S = 10.0, 1.5


class TrueOutputs(_Limited):
    """Admits while the peak of the true outputs fits, which nobody knows."""

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        rows = list(running)
        for k, r in enumerate(waiting):
            rows.append(r)
            left: Table = engine.requests[rows, c.OUTPUT] - engine.requests[rows, c.DONE]
            if peaks(tokens_of(engine, rows), left[None])[0] >= engine.settings.tokens:
                return k
        return len(waiting)


def artifact(rule: str, lengths: tuple[tuple[int, int], tuple[int, int]], seed: int) -> Outcome:
    """One run of the memory-only simulator: 3,000 requests."""
    draw = np.random.Generator(np.random.PCG64(seed))
    prompts = draw.integers(*lengths[0], 3000, endpoint=True)
    outputs = draw.integers(*lengths[1], 3000, endpoint=True)
    made: Rule
    match rule:
        case "aggressive":
            made = Aggressive(MEMORY)
        case "conservative":
            made = Conservative(MEMORY)
        case "optimum":
            made = Optimum(MEMORY)
        case _:
            made = FromThePast(MEMORY, draw)
    return run_batch(made, prompts, outputs, MEMORY)


def on_engine(policy: Policy, kind: str, clients: int) -> tuple[float, float, float, float]:
    """Goodput and throughput in tokens a second, evictions a request, and the share of requests within objectives."""
    requests = generate(kind, REQUESTS, 1000.0, 1)
    settings = EngineSettings(
        latency_model("llama-2-7b", "a100")[0], MEMORY // 16 + 1, max_num_seqs=1000, max_num_batched_tokens=8192
    )
    begin, after = closed_loop(len(requests), clients)
    served = simulate(requests, settings, policy=policy, begin=begin, after=after)
    good = (served.first - served.requests.arrival < TTFT_S) & (served.gap < GAP_S)
    span = served.finish.max() - served.requests.arrival[0]
    return (
        float(requests.output[good].sum() / span),
        float(requests.output.sum() / span),
        float(served.preempted.mean()),
        float(good.mean()),
    )


def page() -> Iterator[str]:
    yield "# How many requests may run at once\n"
    yield "Made by `python -m benchmarks.studies.serving_past_future`.\n"
    yield f"""\
[Past-Future](https://arxiv.org/abs/2507.10150) admits a request while the peak of the KV that the past foretells fits
(`past-future` of [`kant serve`](../serving.md#policies)). First its artifact's simulator, which has memory and no time:
3,000 requests, {MEMORY:,} tokens. On equal draws Kant's version of it counts what the artifact's loop counts, step for
step (`tests/serving/test_memory_only.py`). The published figures are of one unseeded draw; ours are means of
{len(SEEDS)} draws, and the interval is 95 % of the mean.
"""
    yield "| requests | rule | decode steps | published | ours / published | evicted | published | memory used |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for name, lengths in LENGTHS.items():
        for rule, (steps, evicted) in zip(RULES, PUBLISHED[name], strict=True):
            runs = [artifact(rule, lengths, seed) for seed in SEEDS]
            steps_found = interval([float(run.steps) for run in runs])
            yield (
                f"| {name} | {rule} | {steps_found.mean:,.0f} ± {steps_found.half:,.0f} | {steps:,}"
                f" | {steps_found.mean / steps:.3f}"
                f" | {100 * np.mean([run.evicted for run in runs]):.1f} % | {evicted} %"
                f" | {100 * np.mean([run.use for run in runs]):.1f} % |"
            )
    yield f"""
## With time

The same rules on the engine: Llama-2-7B on one A100, {MEMORY:,} tokens of KV, {REQUESTS} requests, clients that send
the next request when they have their answer. Goodput counts the tokens of requests with their first token within
{TTFT_S:g} s and no gap between tokens above {GAP_S:g} s.
"""
    yield "| requests | clients | rule | goodput, tokens/s | throughput, tokens/s | within both | evictions a request |"
    yield "|---|---:|---|---:|---:|---:|---:|"
    for kind in ("decode-heavy", "prefill-heavy"):
        for clients in CLIENTS:
            rules = (Policy(), AggressivePolicy(), ConservativePolicy(), PastFuture(), TrueOutputs())
            for rule, policy in zip(("vLLM's own", *RULES), rules, strict=True):
                good, all_of_it, evictions, share = on_engine(policy, kind, clients)
                yield (
                    f"| {kind} | {clients} | {rule} | {good:,.0f} | {all_of_it:,.0f} | {100 * share:.0f} %"
                    f" | {evictions:.2f} |"
                )
    yield """
The conservative rule leaves two fifths of the memory idle, and its clients wait for seats. Past-Future preempts a third
as often as the aggressive rule at the same throughput; its gain over it is in evictions, not in tokens a second, since
an engine computes a prompt again faster than it decodes. The published two to three times the goodput of the
aggressive rule are not met on this engine. In the artifact's own goodput runs a server aborts a request that misses its
objective, and the client sends it again; here nobody gives up.
"""


def main() -> None:
    text = "\n".join(page())
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
