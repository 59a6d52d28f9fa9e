"""Distributions of durations: mixtures of log-normals, truncated at the longest run in the cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_GRID = 4096


@dataclass(frozen=True)
class Mixture:
    """A mixture of log-normals of seconds: parts (weight, mu, sigma) of log-seconds, with weights that sum to one.

    Durations beyond `longest` seconds are left out, not cut to `longest`. Durations below one second become one second.
    """

    parts: tuple[tuple[float, float, float], ...]
    longest: float

    @cached_property
    def _table(self) -> tuple[Floats, Floats]:
        """Return a grid of log-seconds, and the cumulative distribution at its points."""
        grid = np.linspace(0.0, math.log(self.longest), _GRID)
        law = np.zeros(_GRID)
        for weight, mu, sigma in self.parts:
            scaled = (grid - mu) / (sigma * math.sqrt(2))
            law += weight * np.array([0.5 * math.erfc(-x) for x in scaled.tolist()])
        return grid, law / law[-1]

    def log_quantile(self, part: Floats) -> Floats:
        """Return the log-seconds below which the share `part` of the durations lies."""
        grid, law = self._table
        return np.interp(part, law, grid)

    @property
    def mean(self) -> float:
        """Return the mean in seconds."""
        grid, law = self._table
        return float(law[0] + np.sum(np.diff(law) * np.exp((grid[1:] + grid[:-1]) / 2)))


def mixture(longest: float, *parts: tuple[float, float, float]) -> Mixture:
    """Return a mixture whose weights are scaled so that they sum to one."""
    total = sum(part[0] for part in parts)
    return Mixture(tuple((weight / total, mu, sigma) for weight, mu, sigma in parts), longest)
