"""Checks whether objectives were met: by the capacity of the replicas, and by simulating a sample of minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kant.serving.capacity import CapacityCurve
from kant.serving.columns import Table, Times
from kant.serving.requests import Requests
from kant.serving.service import MINUTE_S, Service, kept_minutes, late

LOADS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.2)
"""The bounds between strata of minutes, as the rate of a minute over the capacity of its replicas."""


def by_capacity(counts: Times, replicas: Table, curve: CapacityCurve) -> np.ndarray:
    """Return in which minutes no more requests came than the replicas have capacity for."""
    bears = np.array([curve.at(n) for n in range(int(replicas.max(initial=0)) + 1)])
    within: np.ndarray = counts <= bears[replicas] * MINUTE_S
    return within


def by_engine(service: Service, counts: Times, replicas: Table, minute: int, seed: int) -> bool:
    """Simulate a minute, after the requests of the previous minute. Returns whether the objectives are met.

    The replicas of this minute serve both minutes. Requests arrive at random times within their minute, with lengths of
    the mix, drawn by the seed and the minute.
    """
    if counts[minute] == 0:
        return True
    if replicas[minute] == 0:
        return False
    draw = np.random.Generator(np.random.PCG64([seed, minute]))
    before, within = int(counts[minute - 1]) if minute else 0, int(counts[minute])
    when = [np.sort(draw.random(count)) * MINUTE_S for count in (before, within)]
    prompt, output = service.mix.lengths(draw, before + within)
    requests = Requests(service.mix.name, np.concatenate([when[0], when[1] + MINUTE_S]), prompt, output)
    served = service.serve(requests, int(replicas[minute]), seed)
    return bool(kept_minutes(requests.arrival, *late(served, service.objectives), range(1, 2))[0])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Estimates from a sample of minutes: the share that met the objectives, its standard error, the sample's size.

    `agree` is the share of the sample on which the capacity gives the same result.
    """

    share: float
    error: float
    judged: int
    agree: float


def judged(service: Service, curve: CapacityCurve, counts: Times, replicas: Table, sample: int, seed: int) -> Verdict:
    """Simulate about `sample` minutes, chosen evenly from strata of load. Strata are weighted by their size.

    Minutes near the capacity are few and uncertain, those far below it many and certain: a stratified sample is more
    precise than a uniform one of equal size (W. G. Cochran, Sampling Techniques, 1977, chapter 5).
    """
    bears = np.array([curve.at(n) for n in range(int(replicas.max(initial=0)) + 1)])[replicas] * MINUTE_S
    stratum = np.searchsorted(LOADS, counts / np.maximum(bears, 1e-9))
    within = by_capacity(counts, replicas, curve)
    draw = np.random.Generator(np.random.PCG64([seed, 0x1D]))
    groups: list[Sequence[int]] = [np.flatnonzero(stratum == k).tolist() for k in range(len(LOADS) + 1)]
    groups = [group for group in groups if group]
    share = variance = 0.0
    asked = agreed = 0
    for group in groups:
        chosen = draw.permutation(group)[: max(sample // len(groups), 2)].tolist()
        kept = [by_engine(service, counts, replicas, minute, seed) for minute in chosen]
        weight, n = len(group) / len(counts), len(chosen)
        mean = sum(kept) / n
        share += weight * mean
        if n < len(group):
            # Add one half-kept minute, so that the error is not 0 if all agree.
            smooth = (sum(kept) + 0.5) / (n + 1)
            variance += weight**2 * smooth * (1 - smooth) / n * (1 - n / len(group))
        asked += n
        agreed += sum(a == bool(within[minute]) for a, minute in zip(kept, chosen, strict=True))
    return Verdict(share, variance**0.5, asked, agreed / asked)
