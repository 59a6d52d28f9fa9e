"""Programs that call a model many times: chains of calls and searches, drawn from published statistics.

The statistics are Autellix's (arXiv 2502.13965): a ShareGPT conversation has 6.66 calls on average, at most 80, each
with 277 output tokens; a BFCL agent 10.75 calls (70) with 34; a search over HotpotQA (LATS) 159.7 calls of 467 and 72.6
tokens, many in parallel. The prompt of a chain is the whole conversation so far and something new; the calls of a
search share the first part of their prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from kant.model.errors import InputError
from kant.serving.columns import Table, Times
from kant.serving.fleet import After
from kant.serving.requests import Requests
from kant.serving.summary import Served

WIDTH = 8
"""Calls of a search that run in parallel."""

LONGEST_PROMPT = 7000
SEARCH_PROMPT, SEARCH_SHARED = 467, 400
KINDS = ("conversation", "agent", "search")


@dataclass(frozen=True, slots=True)
class Program:
    """The calls of a program in order, as positions among the requests; at most `width` run in parallel."""

    arrival: float
    calls: range
    width: int


@dataclass(slots=True)
class Programs:
    """Programs, their requests, and their progress."""

    requests: Requests
    programs: list[Program]
    sent: list[int] = field(init=False)
    answered: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sent = [min(program.width, len(program.calls)) for program in self.programs]
        self.answered = [0] * len(self.programs)

    def begin(self) -> list[int]:
        """Return the first calls of all programs."""
        return [program.calls[k] for program, sent in zip(self.programs, self.sent, strict=True) for k in range(sent)]

    def after(self, pause_s: float = 0.0) -> After:
        """Return a function that gives the call after an answer, `pause_s` seconds later (a tool runs)."""

        def follows(i: int, now: float) -> list[tuple[float, int]]:
            p = int(self.requests.program[i])
            program = self.programs[p]
            self.answered[p] += 1
            if self.sent[p] == len(program.calls):
                return []
            self.sent[p] += 1
            return [(now + pause_s, program.calls[self.sent[p] - 1])]

        return follows

    def over(self, program: int) -> bool:
        """Whether a program has all its answers."""
        return self.answered[program] == len(self.programs[program].calls)

    def latency_per_token(self, served: Served) -> Times:
        """Return for each program: seconds from arrival to the last answer, divided by all its output tokens."""
        return np.array(
            [
                (served.finish[list(p.calls)].max() - p.arrival) / self.requests.output[list(p.calls)].sum()
                for p in self.programs
            ]
        )


def _mean(draw: np.random.Generator, mean: float, sigma: float, least: int, most: int) -> int:
    """Draw a whole number from a log-normal distribution of about this mean, within bounds."""
    return int(min(most, max(least, draw.lognormal(math.log(mean) - sigma * sigma / 2, sigma))))


def draw_programs(kinds: tuple[str, ...], count: int, rate: float, seed: int) -> Programs:
    """Draw `count` programs, each of one of the kinds with equal chance, that arrive at `rate` a second (Poisson)."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InputError("kind of program", f"one of {', '.join(KINDS)}", unknown[0])
    draw = np.random.Generator(np.random.PCG64(seed))
    programs: list[Program] = []
    rows: list[tuple[float, int, int, int, int]] = []  # arrival, prompt, output, program, tokens shared in the program
    now = 0.0
    for p in range(count):
        now += float(draw.exponential(1 / rate))
        first = len(rows)
        kind = kinds[int(draw.integers(len(kinds)))]
        if kind == "search":
            for _ in range(_mean(draw, 159.7, 0.6, 8, 400)):
                rows.append((now, SEARCH_PROMPT, _mean(draw, 72.6, 0.5, 4, 1500), p, SEARCH_SHARED))
        else:
            talk = kind == "conversation"
            said = 0
            for k in range(_mean(draw, 6.66, 1.0, 1, 80) if talk else _mean(draw, 10.75, 0.75, 1, 70)):
                new = _mean(draw, 100, 0.9, 8, 2000) if talk else (600 if k == 0 else 60)
                output = _mean(draw, 277, 0.9, 8, 1500) if talk else _mean(draw, 34, 0.8, 4, 1500)
                prompt = min(said + new, LONGEST_PROMPT)
                said = prompt + output
                rows.append((now, prompt, output, p, said))
        programs.append(Program(now, range(first, len(rows)), WIDTH if kind == "search" else 1))
    columns: list[Table] = [np.array(column) for column in zip(*rows, strict=True)]
    arrival, prompt_of, output_of, program_of, own = columns
    requests = Requests(
        "+".join(kinds),
        arrival.astype(np.float64),
        prompt_of,
        output_of,
        program=program_of,
        group=program_of,
        prefix=own,
    )
    return Programs(requests, programs)
