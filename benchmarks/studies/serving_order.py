"""Shortest first, and urgent first: `python -m benchmarks.studies.serving_order`, three minutes.

Learning to Rank's schedulers on predictions of given quality, and what of priority makes urgent requests fast. Writes
docs/studies/serving-engine.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.studies.parts import write_part
from benchmarks.studies.topology import interval
from kant.serving.columns import Times
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.generate import arrivals, lognormal
from kant.serving.latency import LatencyModel, latency_model
from kant.serving.policies.layered_priority import LayeredPriority
from kant.serving.policies.preemptive_priority import PreemptivePriority
from kant.serving.policies.priority import Priority
from kant.serving.policies.ranked import Ranked
from kant.serving.policies.ranked_bounded import RankedBounded
from kant.serving.policies.ranked_preemptive import RankedPreemptive
from kant.serving.policies.remaining_first import RemainingFirst
from kant.serving.policy import Policy
from kant.serving.requests import Requests

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "serving-engine.md"
SEEDS = range(3)
SPAN_S = 60
RATES = (16.0, 32.0, 64.0)
RANKED = EngineSettings(latency_model("llama-3-8b", "a100-40")[0], 136_000 // 16 + 1, 16, 256, 2048, swap=True)


@dataclass(frozen=True, slots=True)
class Case:
    """A policy, and the error of the predictions: the standard deviation of the logarithm."""

    policy: Callable[[], Policy]
    error: float = 0.8


CASES = {
    "first come": Case(Policy),
    "rank, not preemptive": Case(Ranked),
    "rank, not preemptive, bounded to 120 s": Case(RankedBounded),
    "rank, preemptive": Case(RankedPreemptive),
    "rank, preemptive, starved 200, period 10": Case(lambda: RankedPreemptive(200, 10)),
    "rank, preemptive, starved 2000, period 100": Case(lambda: RankedPreemptive(2000, 100)),
    "rank, not preemptive, better predictions": Case(Ranked, 0.4),
    "true length, not preemptive": Case(Ranked, 0.0),
    "true rest, preemptive": Case(RemainingFirst, 0.0),
}


def tau(first: Times, second: Times) -> float:
    """Kendall's rank correlation of two columns, over a sample of pairs."""
    draw = np.random.Generator(np.random.PCG64(1))
    a, b = draw.integers(0, len(first), (2, 40_000))
    signs = np.sign(first[a] - first[b]) * np.sign(second[a] - second[b])
    return float(signs.sum() / np.count_nonzero(signs))


def chats(rate: float, seed: int, error: float, span_s: float = SPAN_S) -> Requests:
    """A minute of chats, 256 and 280 tokens long in the mean."""
    draw = np.random.Generator(np.random.PCG64(seed))
    count = int(rate * span_s)
    when = arrivals(draw, count, rate)
    prompt, output = lognormal(draw, count, 256, 1.0, 8, 2000), lognormal(draw, count, 280, 0.9, 4, 1500)
    predicted = output * np.exp(error * draw.standard_normal(count))
    return Requests("chats", when, prompt, output, predicted=predicted)


def ranked() -> Iterator[str]:
    taus = {error: tau(chats(64, 0, error).output.astype(float), chats(64, 0, error).predicted) for error in (0.8, 0.4)}
    yield "## Shortest first\n"
    yield f"""\
[Learning to Rank](https://arxiv.org/abs/2408.15792) runs the requests whose answers are predicted to be short:
Llama-3-8B on an A100 of 40 GB, 256 sequences, chats of 256 and 280 tokens for a minute. Predictions err by a log-normal
factor of 0.8, a Kendall's tau of {taus[0.8]:.2f}, as the paper's predictor has on ShareGPT; better ones by 0.4, tau
{taus[0.4]:.2f}. The number is the mean latency a token of first come over that of the policy; {len(SEEDS)} seeds, 95 %
intervals.
"""
    yield (
        "| policy | "
        + " | ".join(f"{rate:g}/s" for rate in RATES)
        + " | longest gap, P99 at 64/s | first token, P99 and longest wait at 64/s |"
    )
    yield "|---|" + "---:|" * (len(RATES) + 2)
    base: dict[tuple[float, int], float] = {}
    for name, case in CASES.items():
        cells, gaps, waits, longest = [], [], [], []
        for rate in RATES:
            gains = []
            for seed in SEEDS:
                served = simulate(chats(rate, seed, case.error), RANKED, policy=case.policy())
                requests = served.requests
                latency = float(((served.finish - requests.arrival) / requests.output).mean())
                base.setdefault((rate, seed), latency)
                gains.append(base[rate, seed] / latency)
                if rate == RATES[-1]:
                    gaps.append(float(np.percentile(served.gap, 99)))
                    waits.append(float(np.percentile(served.first - requests.arrival, 99)))
                    longest.append(float((served.first - requests.arrival).max()))
            found = interval(gains)
            cells.append(f"{found.mean:.2f} ± {found.half:.2f}")
        yield (
            f"| {name} | "
            + " | ".join(cells)
            + f" | {np.mean(gaps):.1f} s | {np.mean(waits):.0f} s, {np.mean(longest):.0f} s |"
        )
    yield """
The paper has 2.8 with preemption and without control of starvation. Preemption gains nothing, and
pays with gaps of a minute and more in answers that have begun; the published control of starvation costs most of the
gain. `ranked` is the better one, and a stock vLLM can do it: `priority` is the rank.
"""


BOUNDED: dict[str, Callable[[], Policy]] = {
    "first come": Policy,
    "rank": Ranked,
    "rank, bounded to 120 s": RankedBounded,
    "rank, bounded to 60 s": lambda: RankedBounded(60.0),
    "rank, bounded to 30 s": lambda: RankedBounded(30.0),
}
LONG_S, LONG_RATE = 300.0, 36.0


def bounded() -> Iterator[str]:
    """How long somebody is overtaken while an overload lasts."""
    yield f"""\
## Who is never short

While an overload lasts, a request that is predicted to be long waits for all later ones. `ranked-bounded` gives each
second of waiting so much weight that no request goes before one that came more than that many seconds earlier. Here
are five minutes of chats at {LONG_RATE:g} a second, more than the engine bears; {len(SEEDS)} seeds, 95 % intervals,
and of waits and of overtaking the worst.
"""
    yield "| policy | gain in latency a token | longest wait for a first token | overtaken by who came later by |"
    yield "|---|---:|---:|---:|"
    base: list[float] = []
    for name, policy in BOUNDED.items():
        latencies, waits, overtaken = [], [], []
        for seed in SEEDS:
            served = simulate(chats(LONG_RATE, seed, 0.8, LONG_S), RANKED, policy=policy())
            arrival = served.requests.arrival
            latencies.append(float(((served.finish - arrival) / served.requests.output).mean()))
            waits.append(float((served.first - arrival).max()))
            order = np.argsort(served.first, kind="stable")
            overtaken.append(float((np.maximum.accumulate(arrival[order]) - arrival[order]).max()))
        base = base or latencies
        gain = interval([b / mine for b, mine in zip(base, latencies, strict=True)])
        yield f"| {name} | {gain.mean:.2f} ± {gain.half:.2f} | {max(waits):.0f} s | {max(overtaken):.0f} s |"
    yield """
The bound holds, at a cost: of the gain in a minute of overload, the paper's setting, nearly all stays, of that in
five minutes a quarter. The longest wait is first come's again.
"""


MODERN = LatencyModel(14.0, 0.06, 8.0, 8e-5, 1e-6)
SLOW = LatencyModel(320.0, 0.35, 300.0, 2e-4, 1e-6, 10.0)
URGENT = 0.2


def mixed(rate: float, count: int, mean: float, seed: int) -> Requests:
    """Requests of which a fifth is urgent."""
    draw = np.random.Generator(np.random.PCG64(seed))
    when = arrivals(draw, count, rate)
    prompt, output = lognormal(draw, count, 200, 1.0, 8, 1500), lognormal(draw, count, mean, 0.9, 4, 800)
    priority = np.where(draw.random(count) < URGENT, 0.0, 1.0)
    return Requests("urgent", when, prompt, output, priority=priority)


URGENTLY: dict[str, Callable[[], Policy]] = {
    "first come": Policy,
    "priority at admission": Priority,
    "priority between steps": PreemptivePriority,
    "priority between layers": LayeredPriority,
}
SLOW_RATES = (0.9, 1.2, 1.6, 2.4, 3.6, 7.0)
PROMISED_S = 3.0
"""The paper's objective: ten of its decode steps to an urgent first token."""


def of_urgent(latency: LatencyModel, rate: float, count: int, mean: float) -> dict[str, list[float]]:
    """By policy: seconds to an urgent first token, to an urgent end, to another end; share of urgent ones in time."""
    settings = EngineSettings(latency, 625_001, 16, 32, 2048, swap=True)
    found: dict[str, list[float]] = {}
    for name, policy in URGENTLY.items():
        rows = []
        for seed in SEEDS:
            served = simulate(mixed(rate, count, mean, seed), settings, policy=policy())
            requests = served.requests
            now = requests.priority == 0
            first, whole = served.first - requests.arrival, served.finish - requests.arrival
            rows.append([first[now].mean(), whole[now].mean(), whole[~now].mean(), (first[now] <= PROMISED_S).mean()])
        found[name] = np.mean(rows, axis=0).tolist()
    return found


def urgent() -> Iterator[str]:
    yield "## Urgent first\n"
    yield """\
[QLLM](https://arxiv.org/abs/2503.09304) serves a mixture of experts with a batch of 32, a fifth of the requests urgent,
compared with an engine without priorities. Here is what priority at admission does, what preemption between two steps
adds, and what preemption between two of 32 layers adds to that: on an engine of today (16 ms a step) and on one as slow
as the paper's (330 ms), both overloaded. Times to the first token are means; in brackets how many times shorter than
first come.
"""
    yield "| engine | policy | urgent: first token | urgent: end to end | others: end to end |"
    yield "|---|---|---:|---:|---:|"
    for label, latency, rate, count, mean in (
        ("16 ms a step, 12/s", MODERN, 12.0, 1500, 200.0),
        ("330 ms a step, 1.2/s", SLOW, 1.2, 400, 100.0),
    ):
        said = of_urgent(latency, rate, count, mean)
        base = said["first come"]
        for name, found in said.items():
            yield (
                f"| {label} | {name} | {1e3 * found[0]:,.0f} ms (x {base[0] / found[0]:,.1f}) | {found[1]:.1f} s"
                f" (x {base[1] / found[1]:.1f}) | {found[2]:.1f} s (x {base[2] / found[2]:.2f}) |"
            )
    yield f"""
How many times it is depends on how far beyond its capacity the engine is, since that alone decides how long first come
waits. The slow engine, 400 requests at each rate; in brackets the urgent requests with a first token within the paper's
{PROMISED_S:g} s.
"""
    yield f"| requests a second | {' | '.join(URGENTLY)} |"
    yield "|---:|---:|---:|---:|---:|"
    for rate in SLOW_RATES:
        said = of_urgent(SLOW, rate, 400, 100.0)
        base = said["first come"]
        cells = [f"x {base[0] / found[0]:,.0f} ({100 * found[3]:.0f} %)" for found in list(said.values())[1:]]
        yield f"| {rate:g} | {base[0]:.1f} s ({100 * base[3]:.0f} %) | {' | '.join(cells)} |"
    yield """
The paper has 65 times in the mean of its rates, 102 at most, and its engine preempts between layers. Priority does it,
at admission and then between steps: from 1.3 to 3.6 requests a second it is more than 65 on the slow engine too, with
a wait of about two steps. Between layers there is less than one step to gain, since after a preemption between two
steps an urgent request waits for the step under way and no longer, and the interrupted step takes longer for all
others. At 7 a second, up to which the paper keeps its objective, the urgent requests alone are more than this engine
bears with answers of 100 tokens; its answers must have been shorter.
"""


def page() -> Iterator[str]:
    yield "# Shortest first, and urgent first\n"
    yield "Made by `python -m benchmarks.studies.serving_order`.\n"
    yield from ranked()
    yield from bounded()
    yield from urgent()


if __name__ == "__main__":
    print(write_part(PAGE, "serving_order", page()))
