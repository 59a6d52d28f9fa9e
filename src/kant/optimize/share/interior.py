"""Linear programs of which it matters which optimum is found: the point to which an interior-point method converges.

Shares of time are seldom unique, and rounds depend on which optimal shares are used. The published results are from an
interior-point solver, whose solutions are inside the set of optima. This is the same method with the same steps: the
homogeneous self-dual embedding of Ye, Todd and Mizuno (1994) with the predictor and corrector of Mehrotra (1992), after
scaling rows and columns three times, as in ECOS (Domahidi, Chu and Boyd, ECC 2013).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

STEPS = 100
TOLERANCE = 1e-8
SCALINGS = 3
NEARLY = 0.99
"""The length of a step, as a share of the distance to the border of the feasible set."""
REGULAR = 7e-8
"""A small number added to systems that could be singular, as in ECOS."""


def inside(cost: ArrayLike, rows: ArrayLike, limits: ArrayLike) -> Floats:
    """A minimizer x of cost·x under rows·x <= limits, from inside the set of all minimizers.

    `rows` has shape (m, n). Raises ArithmeticError if there is no minimizer, or none is found in 100 steps.
    """
    c, a, b = (np.array(given, dtype=np.float64) for given in (cost, rows, limits))
    by_column, by_row = np.ones(a.shape[1]), np.ones(a.shape[0])
    for _ in range(SCALINGS):
        column, row = (_root(np.abs(a).max(axis=axis)) for axis in (0, 1))
        a, by_column, by_row = a / column / row[:, None], by_column * column, by_row * row
    return _Embedding(c / by_column, a, b / by_row).solve() / by_column


def _root(largest: Floats) -> Floats:
    root = np.sqrt(largest)
    return np.where(root < 1e-6, 1.0, root)


class _Embedding:
    """min c·x, a·x + s = b, s >= 0, with duals z, and tau and kappa of the embedding."""

    def __init__(self, c: Floats, a: Floats, b: Floats) -> None:
        self.c, self.a, self.b = c, a, b
        m, n = a.shape
        # Most rows have one or two variables. Their part of aᵀ·a is a few entries each.
        few = np.count_nonzero(a, axis=1) <= 2
        self.many, self.few = np.flatnonzero(~few), np.flatnonzero(few)
        self.pairs = np.argsort(a[self.few] == 0, axis=1, kind="stable")[:, :2]
        at = np.arange(len(self.few))[:, None]
        self.values = a[self.few][at, self.pairs]
        self.x, r = self._linear(np.ones(m), np.zeros(n), b)
        self.s = _shifted(-r)
        self.z = _shifted(self._linear(np.ones(m), -c, np.zeros(m))[1])
        self.tau = self.kappa = 1.0

    def _linear(self, weights: Floats, rx: Floats, rz: Floats) -> tuple[Floats, Floats]:
        """Solve for x and z with aᵀ·z = rx and a·x - weights·z = rz."""
        a, weights = self.a, weights + REGULAR
        dense = a[self.many]
        normal = (dense.T / weights[self.many]) @ dense
        over = self.values / weights[self.few][:, None]
        for i in range(self.pairs.shape[1]):
            for j in range(self.pairs.shape[1]):
                np.add.at(normal, (self.pairs[:, i], self.pairs[:, j]), over[:, i] * self.values[:, j])
        normal[np.diag_indices_from(normal)] += REGULAR
        x = np.asarray(np.linalg.solve(normal, rx + a.T @ (rz / weights)), dtype=np.float64)
        return x, (a @ x - rz) / weights

    def solve(self) -> Floats:
        try:
            for _ in range(STEPS):
                if self._good():
                    return self.x / self.tau
                self._step()
        except np.linalg.LinAlgError:
            pass
        raise ArithmeticError("no point was found")

    def _good(self) -> bool:
        a, b, c, tau = self.a, self.b, self.c, self.tau
        gap = float(self.s @ self.z) / tau**2
        primal = _norm(a @ self.x + self.s - b * tau) / (max(1.0, _norm(b)) + _norm(self.x) + _norm(self.s)) / tau
        dual = _norm(a.T @ self.z + c * tau) / (max(1.0, _norm(c)) + _norm(self.z)) / tau
        first, second = float(c @ self.x) / tau, float(-b @ self.z) / tau
        value = -first if first < 0 else second if second > 0 else 0.0
        return primal < TOLERANCE and dual < TOLERANCE and (gap < TOLERANCE or gap < TOLERANCE * value)

    def _step(self) -> None:
        s, z, tau, kappa = self.s, self.z, self.tau, self.kappa
        rx = self.a.T @ z + self.c * tau
        rz = self.a @ self.x + s - self.b * tau
        rt = kappa + float(self.c @ self.x + self.b @ z)
        middle = (float(s @ z) + kappa * tau) / (len(s) + 1)
        weights = s / z
        x1, z1 = self._linear(weights, -self.c, self.b)
        under = float(self.c @ x1 + self.b @ z1) - kappa / tau

        def direction(keep: float, target: Floats, last: float) -> tuple[Floats, Floats, Floats, float, float]:
            x2, z2 = self._linear(weights, -keep * rx, -keep * rz - target / z)
            dt = (-keep * rt - last / tau - float(self.c @ x2 + self.b @ z2)) / under
            dz = z2 + dt * z1
            return x2 + dt * x1, dz, (target - s * dz) / z, dt, (last - kappa * dt) / tau

        def length(dz: Floats, ds: Floats, dt: float, dk: float) -> float:
            steepest = max(float((-ds / s).max()), float((-dz / z).max()), -dt / tau, -dk / kappa)
            return 1.0 / steepest if steepest > 0 else 1e9

        _, dz, ds, dt, dk = direction(1.0, -s * z, -kappa * tau)
        centre = min(1.0, max(1e-4, (1 - min(1.0, max(1e-6, length(dz, ds, dt, dk)))) ** 3))
        target = centre * middle - s * z - ds * dz
        dx, dz, ds, dt, dk = direction(1.0 - centre, target, centre * middle - kappa * tau - dk * dt)
        far = min(0.999, max(1e-6, NEARLY * length(dz, ds, dt, dk)))
        self.x, self.z, self.s = self.x + far * dx, z + far * dz, s + far * ds
        self.tau, self.kappa = tau + far * dt, kappa + far * dk


def _norm(vector: Floats) -> float:
    return float(np.linalg.norm(vector))


def _shifted(point: Floats) -> Floats:
    """The point, moved inside the positive orthant."""
    worst = -float(point.min())
    return point if worst < 0 else point + 1 + worst
