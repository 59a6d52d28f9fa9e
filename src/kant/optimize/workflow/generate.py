"""Random graphs from a seed, drawn as in H. Topcuoglu, S. Hariri, M.-Y. Wu (IEEE TPDS 13(3), 2002)."""

from __future__ import annotations

import math
import random

from kant.model.errors import InputError
from kant.optimize.workflow.graph import Graph, Stage

MEAN = 20
"""The mean duration of a stage, in ticks."""


def generate(
    stages: int,
    processors: int,
    seed: int = 0,
    shape: float = 1.0,
    degree: int = 3,
    ccr: float = 1.0,
    beta: float = 1.0,
) -> Graph:
    """A graph with a single first stage and a single last stage, and about sqrt(stages) / shape levels in between.

    Each other stage has up to `degree` successors in later levels. `ccr` is mean transfer time / mean duration. `beta`
    is how much processors differ: a duration is drawn from 1 - beta / 2 to 1 + beta / 2 times the stage's mean.
    """
    if not 1 <= stages <= 10_000 or not 1 <= processors <= 1_000:
        raise InputError("generate", "from 1 to 10,000 stages and from 1 to 1,000 processors", (stages, processors))
    if not 0 <= ccr <= 1_000:
        raise InputError("generate", "transfers from 0 to 1,000 mean durations", ccr)
    rng = random.Random(seed)
    inner = max(stages - 2, 0)
    levels = max(1, min(inner, round(math.sqrt(stages) / shape)))
    level = sorted([*range(levels), *(rng.randrange(levels) for _ in range(inner - levels))])[:inner]
    level = [0, *(1 + each for each in level), levels + 1][:stages]
    edges: set[tuple[int, int]] = set()
    for i, mine in enumerate(level[:-1]):
        later = [j for j in range(i + 1, stages) if level[j] > mine]
        for j in rng.sample(later, min(len(later), rng.randint(1, degree))):
            edges.add((i, j))
    for j in range(1, stages):
        if not any((i, j) in edges for i in range(j)):
            edges.add((rng.choice([i for i in range(j) if level[i] < level[j]]), j))
    found = []
    for j in range(stages):
        mean = rng.uniform(0, 2 * MEAN)
        durations = tuple(
            max(1, round(rng.uniform(mean * (1 - beta / 2), mean * (1 + beta / 2)))) for _ in range(processors)
        )
        before = tuple((i, round(rng.uniform(0, 2 * MEAN * ccr))) for i in range(j) if (i, j) in edges)
        found.append(Stage(f"n{j + 1}", durations, before))
    return Graph(tuple(f"P{p + 1}" for p in range(processors)), tuple(found))
