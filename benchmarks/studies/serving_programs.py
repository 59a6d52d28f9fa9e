"""Whose call goes first: `python -m benchmarks.studies.serving_programs`, two minutes.

Autellix's policies beside first come, first served, on programs drawn from its published statistics. Writes
docs/studies/serving-engine.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.studies.parts import write_part
from benchmarks.studies.programs import KINDS, Programs, draw_programs
from benchmarks.studies.topology import interval
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.latency import latency_model
from kant.serving.policies.atlas import Atlas
from kant.serving.policies.mlfq import Mlfq
from kant.serving.policies.plas import Plas
from kant.serving.policy import Job, Policy

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "serving-engine.md"
PROGRAMS, KV_BLOCKS = 120, 25_225
SEEDS = range(3)
RATES = (0.6, 1.0, 1.4, 1.8)
TARGETS = (20.0, 30.0, 40.0)


class Rest(Policy):
    """The program with the fewest tokens to come, by a prediction of its total that errs by a log-normal factor.

    A program that has had more than was predicted is taken to be half way.
    """

    by_priority = preemptive = True

    def __init__(self, programs: Programs, error: float) -> None:
        draw = np.random.Generator(np.random.PCG64(7))
        outputs = programs.requests.output
        totals = np.array([outputs[list(p.calls)].sum() for p in programs.programs], dtype=np.float64)
        self.predicted = totals * np.exp(error * draw.standard_normal(len(totals)))
        self.had = np.zeros(len(totals))

    def arrived(self, engine: object, job: Job, number: int) -> float:
        left = self.predicted[job.program] - self.had[job.program]
        return float(left if left > 0 else self.had[job.program])


@dataclass(frozen=True, slots=True)
class Case:
    """A policy for these programs, and how the engine is set up for it."""

    policy: Callable[[Programs], Policy]
    cache: bool = True
    swap: bool = True


CASES = {
    "first come, no prefix cache": Case(lambda _: Policy(), cache=False, swap=False),
    "first come": Case(lambda _: Policy(), swap=False),
    "MLFQ": Case(lambda _: Mlfq()),
    "PLAS": Case(lambda _: Plas()),
    "ATLAS": Case(lambda _: Atlas()),
    "predicted rest, error 0.8": Case(lambda programs: Rest(programs, 0.8)),
    "true rest": Case(lambda programs: Rest(programs, 0.0)),
}


def run(case: Case, kinds: tuple[str, ...], rate: float, seed: int, pause_s: float = 0.0) -> float:
    """Mean over programs of milliseconds a generated token."""
    programs = draw_programs(kinds, PROGRAMS, rate, seed)
    policy = case.policy(programs)
    settings = EngineSettings(
        latency_model("llama-3-8b", "a100")[0], KV_BLOCKS, 16, 64, 2048, prefix_cache=case.cache, swap=case.swap
    )
    follows = programs.after(pause_s)

    def after(i: int, now: float) -> list[tuple[float, int]]:
        if isinstance(policy, Rest):
            policy.had[programs.requests.program[i]] += programs.requests.output[i]
        return list(follows(i, now))

    served = simulate(programs.requests, settings, policy=policy, after=after, begin=programs.begin())
    return 1e3 * float(programs.latency_per_token(served).mean())


def carried(latencies: list[float], target: float) -> float:
    """The rate at which the mean latency reaches a target, between the rates that were run; NaN outside."""
    above = [k for k, value in enumerate(latencies) if value > target]
    if not above or above[0] == 0:
        return float("nan")
    k = above[0]
    part = (target - latencies[k - 1]) / (latencies[k] - latencies[k - 1])
    return RATES[k - 1] + part * (RATES[k] - RATES[k - 1])


def table(
    title: str, kinds: tuple[str, ...], pause_s: float, rates: tuple[float, ...], names: Iterable[str]
) -> tuple[list[str], dict[str, list[float]]]:
    """Lines of a table, and the mean of each policy at each rate."""
    lines = [f"## {title}\n", "| policy | " + " | ".join(f"{rate:g}/s" for rate in rates) + " |"]
    lines.append("|---|" + "---:|" * len(rates))
    means: dict[str, list[float]] = {}
    for name in names:
        runs = [interval([run(CASES[name], kinds, rate, seed, pause_s) for seed in SEEDS]) for rate in rates]
        means[name] = [found.mean for found in runs]
        lines.append(f"| {name} | " + " | ".join(f"{found.mean:.1f} ± {found.half:.1f}" for found in runs) + " |")
    return [*lines, ""], means


def page() -> Iterator[str]:
    yield "# Whose call goes first\n"
    yield "Made by `python -m benchmarks.studies.serving_programs`.\n"
    yield f"""\
[Autellix](https://arxiv.org/abs/2502.13965) orders calls by the service that their program has received: `plas` for
programs that call one after the other, `atlas` for those that call in parallel; `mlfq` knows calls only
([policies](../serving.md#policies)). {PROGRAMS} programs, drawn after the statistics of the paper: conversations,
agents and searches with equal chance. One engine: Llama-3-8B on an A100, 64 sequences. The number is milliseconds from
a program's arrival to its last answer for each token generated, the mean over programs; {len(SEEDS)} seeds, 95 %
intervals. The preempted keep their KV in host memory. Edges of the queues are not in the paper; ours are 64 to 8,192
tokens.

`predicted rest` goes beyond them with a prior: it predicts the tokens of a whole program, here with an error of 0.8
(the standard deviation of the logarithm), and runs the program with the fewest to come. `true rest` knows what nobody
can.
"""
    lines, mixed = table("All kinds", KINDS, 0.0, RATES, CASES)
    yield from lines
    yield "The rate that each carries at equal mean latency, as a multiple of what first come carries:\n"
    yield "| policy | " + " | ".join(f"{target:g} ms a token" for target in TARGETS) + " |"
    yield "|---|" + "---:|" * len(TARGETS)
    for name in ("PLAS", "ATLAS", "predicted rest, error 0.8", "true rest"):
        cells = []
        for target in TARGETS:
            ours, base = carried(mixed[name], target), carried(mixed["first come"], target)
            most = RATES[-1] / base
            cells.append(f"more than {most:.2f}" if np.isnan(ours) else f"{ours / base:.2f}")
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""
    yield from table("All kinds, a tool works for two seconds between calls", KINDS, 2.0, (1.0, 1.8), CASES)[0]
    yield from table("Searches alone", ("search",), 0.0, (0.3, 0.5), ("first come", "MLFQ", "PLAS", "ATLAS"))[0]
    yield """\
The paper has 1.5 to 4 times the throughput of an engine with prefix cache at equal latency, and up to 15 times of one
without. In its table MLFQ is worse than first come on searches, as here: nearly equal calls take turns, and
the cache loses what they share. On all kinds together that is so only at the lower rates, and beyond them MLFQ is the
better one by less than the intervals. Between programs that differ, what a program has had says more than any order of
calls. A prior that errs by a factor of two in the mean is better still.
"""


if __name__ == "__main__":
    print(write_part(PAGE, "serving_programs", page()))
