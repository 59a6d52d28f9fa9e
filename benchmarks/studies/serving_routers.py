"""Which engine gets a request: `python -m benchmarks.studies.serving_routers`, two minutes.

Block beside the rules that it is compared with, on twelve engines at rates around saturation. Writes
docs/studies/serving-routers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.studies.parts import write_part
from benchmarks.studies.topology import interval
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.generate import arrivals, sharegpt_lengths
from kant.serving.latency import latency_model
from kant.serving.requests import Requests
from kant.serving.routers.block import Block
from kant.serving.routers.dodoor import Dodoor
from kant.serving.routers.least_tokens import LeastTokens
from kant.serving.routers.llumnix import Llumnix
from kant.serving.routers.lmetric import Lmetric
from kant.serving.routers.round_robin import RoundRobin
from kant.serving.routers.shortest_queue import ShortestQueue
from kant.serving.routers.two_choices import TwoChoices
from kant.serving.routing import Router

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "serving-routers.md"
ENGINES, REQUESTS, KV_TOKENS = 12, 1200, 13_500
RATES = (16.0, 20.0, 24.0, 28.0, 32.0)
SEEDS = range(4)
SETTINGS = EngineSettings(
    latency_model("llama-2-7b", "a30")[0], KV_TOKENS // 16 + 1, max_num_seqs=48, max_num_batched_tokens=512
)


@dataclass(frozen=True, slots=True)
class Case:
    """A router, and the standard deviation of the logarithm of predicted over true outputs."""

    router: Callable[[], Router]
    error: float = 0.0


CASES = {
    "round robin": Case(RoundRobin),
    "two choices": Case(TwoChoices),
    "Dodoor's score": Case(Dodoor),
    "shortest queue": Case(ShortestQueue),
    "LMetric": Case(Lmetric),
    "Llumnix's load": Case(Llumnix),
    "least tokens": Case(LeastTokens),
    "Block, true outputs": Case(Block),
    "Block, error 0.2": Case(Block, 0.2),
    "Block, error 0.8": Case(Block, 0.8),
    "Block of two, error 0.2": Case(lambda: Block(candidates=2), 0.2),
}
RULES = ("round robin", "two choices", "Dodoor's score", "shortest queue", "LMetric", "Llumnix's load", "least tokens")


def requests(rate: float, seed: int, error: float) -> Requests:
    """Conversations as ShareGPT's, with predictions that err by a log-normal factor."""
    draw = np.random.Generator(np.random.PCG64(seed))
    when = arrivals(draw, REQUESTS, rate)
    prompt, output = sharegpt_lengths(draw, REQUESTS)
    predicted = np.maximum(1.0, output * np.exp(error * draw.standard_normal(REQUESTS)))
    return Requests("sharegpt", when, prompt, output, predicted=predicted)


def measured(case: Case, rate: float) -> tuple[list[float], list[float], list[float]]:
    """P99 and mean of the time to first token, and mean of end to end, for each seed."""
    p99, mean, whole = [], [], []
    for seed in SEEDS:
        served = simulate(requests(rate, seed, case.error), SETTINGS, ENGINES, router=case.router(), seed=seed)
        wait = served.first - served.requests.arrival
        p99.append(float(np.percentile(wait, 99)))
        mean.append(float(wait.mean()))
        whole.append(float((served.finish - served.requests.arrival).mean()))
    return p99, mean, whole


def page() -> Iterator[str]:
    yield "# Which engine gets a request\n"
    yield "Made by `python -m benchmarks.studies.serving_routers`.\n"
    yield f"""\
{ENGINES} engines with Llama-2-7B on an A30 ({KV_TOKENS:,} tokens of KV, 48 sequences, 512 tokens a step), as in
[Block](https://arxiv.org/abs/2508.03611). {REQUESTS:,} requests as long as ShareGPT's, at rates up to and beyond what
the engines can bear; {len(SEEDS)} seeds, 95 % intervals. Block runs each engine forward from its state, with predicted
outputs for what runs there, and takes the engine with the earliest first token of the new request. `error` is the
standard deviation of the logarithm of predicted over true output: 0.2 is 15 % in the mean, what Block's own predictor
is said to have; 0.8 is a rank correlation (Kendall's tau) of about a half.
"""
    found = {(name, rate): measured(case, rate) for name, case in CASES.items() for rate in RATES}
    for title, k in (("P99 time to first token, s", 0), ("Mean time to first token, s", 1), ("Mean end to end, s", 2)):
        yield f"## {title}\n"
        yield "| router | " + " | ".join(f"{rate:g}/s" for rate in RATES) + " |"
        yield "|---|" + "---:|" * len(RATES)
        for name in CASES:
            cells = [interval(found[name, rate][k]) for rate in RATES]
            yield f"| {name} | " + " | ".join(f"{cell.mean:.2f} ± {cell.half:.2f}" for cell in cells) + " |"
        yield ""
    ahead = []
    for rate in RATES:
        best = min(RULES, key=lambda name: float(np.mean(found[name, rate][0])))
        ratio = float(np.mean(found[best, rate][0])) / float(np.mean(found["Block, error 0.2", rate][0]))
        ahead.append(f"{ratio:.2f} at {rate:g}/s ({best})")
    yield "## What it says\n"
    yield f"""\
P99 of the best rule that does not predict, over that of Block with an error of 0.2: {", ".join(ahead)}. Below
saturation the rules that count tokens do nearly what a prediction does. Beyond it a prediction sees how long each queue
will take, where counts see only how long it is; the whole time of a request is then the engines' to give, and routers
hardly change its mean. Block's artifact reports 31.6 requests a second against 31.5
for Llumnix's load within an objective of ten seconds: there prediction costs up to 80 ms a request, and two candidates
are asked. Here all twelve are asked, and a prediction is free.
"""


if __name__ == "__main__":
    print(write_part(PAGE, "serving_routers", page()))
