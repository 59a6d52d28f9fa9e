"""Does a law of the rate let a training be resized and ended at will? `python -m benchmarks.studies.elastic [SEEDS]`.

A small character model is trained on the text of Python's standard library: with a constant rate and a tail, over
batches and lengths and rates; by a law that knows neither the length nor when the batch changes; and resized on the
way. Writes docs/studies/elastic.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import sysconfig
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.metrics.paired import mean_interval
from kant.metrics.rate_law import Cell, FittedLaw, cells_of, fit, loss_at
from kant.model.elastic import RateLaw

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "elastic.md"
SEEDS = 6
BATCHES, LENGTHS, TAIL = (32, 128, 512), (32_768, 131_072, 524_288), 0.1
RATES = tuple(2.0**e for e in range(-11, -2))
TUNED: Cell = (BATCHES[1], LENGTHS[1])
CONTEXT, HIDDEN, HELD_OUT = 6, 64, 4096
FILES = (
    "argparse.py", "typing.py", "inspect.py", "subprocess.py", "tarfile.py", "zipfile.py", "doctest.py", "pickle.py",
    "statistics.py", "decimal.py", "_pydecimal.py", "turtle.py", "ast.py", "smtplib.py", "ftplib.py",
)  # fmt: skip
Floats = NDArray[np.float32]


@cache
def text() -> tuple[NDArray[np.intp], int]:
    """The text as symbols, and how many there are of these; rare ones are one."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = "".join((folder / name).read_text() for name in FILES if (folder / name).exists())
    letters = sorted(set(found), key=lambda each: (-found.count(each), each))[:63]
    code = {each: at for at, each in enumerate(letters)}
    return np.array([code.get(each, 63) for each in found]), 64


class Model:
    """A perceptron that guesses the next character from those before it, trained by AdamW."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        symbols = text()[1]
        self.weights = [
            draw.normal(0, 0.3, (CONTEXT * symbols, HIDDEN)).astype(np.float32), np.zeros(HIDDEN, np.float32),
            draw.normal(0, 0.02, (HIDDEN, symbols)).astype(np.float32), np.zeros(symbols, np.float32),
        ]  # fmt: skip
        self.first = [np.zeros_like(each) for each in self.weights]
        self.second = [np.zeros_like(each) for each in self.weights]
        self.steps = 0

    def copy(self) -> Model:
        other = Model.__new__(Model)
        other.weights, other.first, other.second = (
            [each.copy() for each in part] for part in (self.weights, self.first, self.second)
        )
        other.steps = self.steps
        return other

    def _forward(self, at: NDArray[np.intp]) -> tuple[Floats, Floats, Floats, NDArray[np.intp]]:
        symbols, count = text()
        inputs = np.zeros((len(at), CONTEXT * count), np.float32)
        for back in range(CONTEXT):
            inputs[np.arange(len(at)), back * count + symbols[at - 1 - back]] = 1
        hidden = np.tanh(inputs @ self.weights[0] + self.weights[1])
        logits = hidden @ self.weights[2] + self.weights[3]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return inputs, hidden, odds / odds.sum(axis=1, keepdims=True), symbols[at]

    def loss(self, at: NDArray[np.intp]) -> float:
        """Nats a character."""
        _, _, odds, wanted = self._forward(at)
        return float(-np.log(np.maximum(odds[np.arange(len(at)), wanted], 1e-9)).mean())

    def step(self, at: NDArray[np.intp], rate: float) -> None:
        inputs, hidden, odds, wanted = self._forward(at)
        odds[np.arange(len(at)), wanted] -= 1
        odds /= len(at)
        inner = odds @ self.weights[2].T * (1 - hidden * hidden)
        self.steps += 1
        gradients = [inputs.T @ inner, inner.sum(axis=0), hidden.T @ odds, odds.sum(axis=0)]
        for weight, slope, first, second in zip(self.weights, gradients, self.first, self.second, strict=True):
            first += 0.1 * (slope - first)
            second += 0.05 * (slope * slope - second)
            own = first / (1 - 0.9**self.steps)
            weight -= np.float32(rate) * (own / (np.sqrt(second / (1 - 0.95**self.steps)) + 1e-8) + 0.01 * weight)


Rate = Callable[[int, int], float]
"""The rate of a step of a batch after so many tokens, without the tail."""


def train(
    batch: Callable[[int], int], rate: Rate, stops: Sequence[int], seed: int, marks: Sequence[int] = (), order: int = 0
) -> tuple[list[float], list[float]]:
    """The losses at the end of the tails that lead to these numbers of tokens, and along the stretch at the marks.

    All runs of a seed see the same characters in the same order; `order`: in another one."""
    draw = np.random.default_rng((seed, 1, order))
    size = len(text()[0]) * 9 // 10
    order_of = draw.integers(CONTEXT, size, max(stops))
    held_out = np.random.default_rng((seed, 2)).integers(size + CONTEXT, len(text()[0]), HELD_OUT)
    model, tokens, ends, along, left = Model(seed), 0, [], [], list(marks)
    warmup = LENGTHS[0] // 16
    for stop in stops:
        begin = int(stop * (1 - TAIL))
        while tokens < begin:
            while left and tokens >= left[0]:
                along.append(model.loss(held_out))
                left.pop(0)
            count = batch(tokens)
            model.step(
                order_of[tokens : tokens + count], rate(count, max(tokens, warmup)) * min(1, (tokens + count) / warmup)
            )
            tokens += count
        branch, at = model.copy(), tokens
        while at < stop:
            count = batch(at)
            branch.step(order_of[at : at + count], rate(count, at) * (stop - at) / (stop - tokens))
            at += count
        ends.append(branch.loss(held_out))
    return ends, along


def constant(batch: int, rate: float, seed: int) -> list[float]:
    """With one rate and a tail, at each length."""
    return train(lambda _: batch, lambda *_: rate, LENGTHS, seed)[0]


def by_law(batch: int, law: RateLaw, seed: int) -> list[float]:
    """One run that is ended at each length."""
    return train(lambda _: batch, law.rate, LENGTHS, seed)[0]


def resized(arm: str, law: RateLaw, seed: int) -> tuple[float, list[float]]:
    """A run that has a quarter of its batch from a third to two thirds of its way; the loss at its end and along it."""
    whole, part, total = BATCHES[1], BATCHES[0], LENGTHS[-1]
    begin, end = total // 3, 2 * total // 3

    def batch(tokens: int) -> int:
        return part if begin <= tokens < end and not arm.startswith("unbroken") else whole

    def rate(count: int, tokens: int) -> float:
        return law.rate(whole if arm == "rate as before" else count, tokens)

    ends, along = train(batch, rate, [total], seed, range(begin, int(total * (1 - TAIL)), MARK), int(arm == OTHER))
    return ends[0], along


UNBROKEN, OTHER = "unbroken", "unbroken, other order of the data"
ARMS = (UNBROKEN, OTHER, "resized, by the law", "rate as before", "rate in proportion")
MARK = 8192
PAPER = (1.0, -0.51)


def with_exponents(at: tuple[float, float], batch_power: float, token_power: float, peak: float) -> RateLaw:
    """A law through the best rate of the tuned cell, at the moment when the tail begins."""
    batch, tokens = TUNED
    amplitude = at[0] / (batch**batch_power * (tokens * (1 - TAIL)) ** token_power)
    return RateLaw(amplitude, batch_power, token_power, peak)


def measure(seeds: int, map: Callable[..., Any]) -> str:
    """The page."""
    jobs = [(batch, rate, seed) for seed in range(seeds) for batch in BATCHES for rate in RATES]
    rows = [
        (seed, batch, tokens, rate, loss)
        for (batch, rate, seed), losses in zip(jobs, map(constant, *zip(*jobs, strict=True)), strict=True)
        for tokens, loss in zip(LENGTHS, losses, strict=True)
    ]
    own = {seed: cells_of([row[1:] for row in rows if row[0] == seed]) for seed in range(seeds)}
    others = {seed: fit(cells_of([row[1:] for row in rows if row[0] != seed]), TAIL) for seed in range(seeds)}
    best = {seed: fit(own[seed], TAIL).best for seed in range(seeds)}
    regrets: dict[str, list[dict[Cell, float]]] = {}
    for seed in range(seeds):
        one = others[seed].best[TUNED]
        constants = {
            "WSD, one rate": lambda cell, one=one: one[0],
            "WSD, rate by the root of the batch": lambda cell, one=one: one[0] * (cell[0] / TUNED[0]) ** 0.5,
            "WSD, rate by the fitted law": lambda cell, law=others[seed].law: law.rate(cell[0], cell[1] * (1 - TAIL)),
        }
        for name, rate in constants.items():
            found = {cell: loss_at(own[seed][cell], rate(cell)) - best[seed][cell][1] for cell in own[seed]}
            regrets.setdefault(name, []).append(found)
    for name, law_of in LAWS.items():
        asked = [(batch, law_of(others[seed]), seed) for seed in range(seeds) for batch in BATCHES]
        found_by_seed: dict[int, dict[Cell, float]] = {}
        for (batch, _, seed), losses in zip(asked, map(by_law, *zip(*asked, strict=True)), strict=True):
            for tokens, loss in zip(LENGTHS, losses, strict=True):
                found_by_seed.setdefault(seed, {})[batch, tokens] = loss - best[seed][batch, tokens][1]
        regrets[name] = list(found_by_seed.values())
    whole = fit(cells_of([row[1:] for row in rows]), TAIL)
    asked_arms = [(arm, _of(arm, others[seed]), seed) for arm in ARMS for seed in range(seeds)]
    runs = dict(
        zip(((arm, seed) for arm, _, seed in asked_arms), map(resized, *zip(*asked_arms, strict=True)), strict=True)
    )
    return page(seeds, regrets, whole, runs)


LAWS_OWN = "by the law, one run a batch"
LAWS: dict[str, Callable[[FittedLaw], RateLaw]] = {
    LAWS_OWN: lambda own: own.law,
    "by the paper's exponents, one run a batch": lambda own: with_exponents(own.best[TUNED], *PAPER, own.law.peak),
}


def _of(arm: str, own: FittedLaw) -> RateLaw:
    return with_exponents(own.best[TUNED], *PAPER, own.law.peak) if arm == "rate in proportion" else own.law


def page(
    seeds: int, regrets: dict[str, list[dict[Cell, float]]], whole: FittedLaw, runs: dict[tuple[str, int], Any]
) -> str:
    lines = [HEAD.format(seeds=seeds, size=len(text()[0]), python=sys.version.split()[0]), ""]
    lines += [
        "| rate | mean regret | largest | "
        + " | ".join(f"{b}, {t // 1024}k" for b, t in regrets["WSD, one rate"][0])
        + " |"
    ]
    lines += ["|---|---|---|" + "---|" * len(regrets["WSD, one rate"][0])]
    for name, by_seed in regrets.items():
        each = [sum(one.values()) / len(one) for one in by_seed]
        cells = [sum(one[cell] for one in by_seed) / seeds for cell in by_seed[0]]
        largest = max(max(one.values()) for one in by_seed)
        lines.append(f"| {name} | {_pm(each)} | {largest:.3f} | " + " | ".join(f"{c:.3f}" for c in cells) + " |")
    law = whole.law
    one, own = ([np.mean(list(each.values())) for each in regrets[name]] for name in ("WSD, one rate", LAWS_OWN))
    third = [float(b / 3 - a) for a, b in zip(own, one, strict=True)]
    lines += ["", "A third of the regret of one tuned rate, less the schedule's regret, is"]
    surely = "surely above 0" if mean_interval(third).low > 0 else "not surely above 0"
    lines += [f"{_pm(third)}, {surely}. Fitted on all seeds the rate is"]
    lines += [f"{law.amplitude:.4g} · batch^({law.batch_power:.2f} ± {whole.batch_half:.2f}) · tokens^"
              f"({law.token_power:.2f} ± {whole.token_half:.2f}); the paper has batch^1 · tokens^-0.51."]  # fmt: skip
    lines += ["", RESIZED, ""]
    columns = ("run", "largest distance", "mean distance while it is small", "after that", "loss at the end, above it")
    lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    half = LENGTHS[-1] // 3 // MARK
    for arm in ARMS[1:]:
        both = [zip(runs[arm, s][1], runs[UNBROKEN, s][1], strict=False) for s in range(seeds)]  # a large step may
        apart = [np.array([mine - other for mine, other in pairs]) for pairs in both]  # leave the last mark out
        end = [runs[arm, s][0] - runs[UNBROKEN, s][0] for s in range(seeds)]
        figures = (
            [abs(a).max() for a in apart],
            [a[1:half].mean() for a in apart],
            [a[half + 1 :].mean() for a in apart],
            end,
        )
        lines.append(f"| {arm} | " + " | ".join(map(_pm, figures)) + " |")
    return "\n".join([*lines, "", END.strip(), ""])


def _pm(values: Sequence[float]) -> str:
    found = mean_interval(list(map(float, values)))
    return f"{found.mean:.3f} ± {(found.high - found.low) / 2:.3f}"


HEAD = """# A training that may be resized and ended at will

Made by `python -m benchmarks.studies.elastic`.

A perceptron of 29,000 weights guesses the next of 64 characters from the six before it, on {size:,} characters of
the standard library of Python {python}; AdamW, a warm-up of 2,048 characters, and a tail of a tenth in which the rate
falls to zero. WSD is a constant rate and a tail: nine cells of batch and length, nine rates in each, {seeds} seeds.
*Regret* is the loss on held-out text, in nats a character, above the best of the cell and seed (a parabola through its
measured rates). What is tuned or fitted for a seed is tuned on the other seeds. By a law there is one run for
each batch, which is ended at
three lengths and has never known them. Intervals are 95 % of the mean over seeds by Student's t.

## One schedule for all batches and lengths"""
RESIZED = f"""## Shrunk and grown

A run of batch {BATCHES[1]} over {LENGTHS[-1] // 1024}k characters has a batch of {BATCHES[0]}
from a third to two thirds of its way.
All runs of a seed see the same characters in the same order. Distances are those of the held-out loss from a run that
was not resized, measured every {MARK // 1024}k characters from the first change on; the first row is
the effect of another order of the data alone."""
END = """
By the law there is no kink: the largest distance is no larger than that of another order of the data. While it is
small the run is a little worse, because a smaller batch is noisier at any rate; that is gone once it has grown.

## Where the paper does not hold

Power Scheduler ([arXiv 2408.13359](https://arxiv.org/abs/2408.13359)) has rates in proportion to the batch and to
tokens^-0.51, for language models of 12M weights and more. Its claim, one setting for all batches and lengths, holds
here; its exponents do not. The best rate grows with less than the root of the batch, and hardly falls with length.
With the paper's exponents the schedule is worse than one constant rate, most of all at a large batch and a short
length, where its rate is too high. The strongest simple baseline is a constant rate that follows the root of the
batch: no worse than the fitted law, where lengths differ 16-fold. What the law adds is that a run needs no length.
The model is small: fit the law on your own (`kant elastic law`)."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="?", default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs) as pool:
        asked.out.write_text(measure(asked.seeds, pool.map))


if __name__ == "__main__":
    main()
