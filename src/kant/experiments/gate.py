"""The gate: whether a change of policy does harm, judged on pairs of the same jobs, with a stated rate of false alarms.

The sample is a slice of a trace, simulated under both policies from an empty cluster; several seeds of a slice are
averaged first, because they share its jobs. Each slice contributes log(new / old), so that all slices weigh
alike. Two one-sided tests ask whether its average is above the allowed regret: Wilcoxon's signed ranks for the
typical slice, the test least affected by chance, and Student's t for the mean, which a few bad slices affect. A policy
whose regret is within the allowed one is refused with a probability of at most 1 - confidence: the tests and all
metrics share it evenly (Bonferroni). If two policies differ only by chance, the first test has exactly its error rate,
since each slice could equally have the opposite result. The second has this rate as far as the mean is nearly normal.
docs/studies/gate.md measures how often the gate errs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from kant.experiments.design import PlannedRun
from kant.experiments.figures import SHARES, figure, is_better_higher, show
from kant.experiments.results import Results
from kant.metrics.paired import Interval, mean_interval, middle_interval
from kant.model.errors import InputError

FEWEST = 3
"""The minimum number of slices (each a sample of the trace) for which a regression can be reported."""

Outcome = Literal["pass", "unsure", "regression"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric: its values before and after, the regret relative to the value before, and the outcome.

    `old` and `new` are geometric means over the `slices` that count: those where either value is above `floor_of` the
    metric. `regret`, of the typical slice, and `mean_regret` are positive if the new policy is worse. Their ends are
    the allowed regrets at which the tests change their answer. `unsure`: a regression is neither shown nor excluded.
    """

    metric: str
    old: float
    new: float
    regret: Interval
    mean_regret: Interval
    allowed: float
    slices: int
    outcome: Outcome

    def __str__(self) -> str:
        shown = show(self.metric)
        if not self.slices:
            return f"{self.metric}: at most {shown(floor_of(self.metric))} on every slice, before and after"
        change = f"{self.metric}: {shown(self.old)} before, {shown(self.new)} after"
        over = f"{self.allowed:.1%} is allowed, over {self.slices} slice{'s' * (self.slices != 1)}"
        typical, mean = ends_text(self.regret), ends_text(self.mean_regret)
        return f"{change}; regret {typical} in the typical slice, {mean} in the mean; {over}"


def ends_text(regret: Interval) -> str:
    """A regret with its interval: `+1.2% (-0.3% to +2.9%)`."""
    ends = "no interval" if math.isinf(regret.high) else f"{regret.low:+.1%} to {regret.high:+.1%}"
    return f"{regret.mean:+.1%} ({ends})"


def floor_of(metric: str) -> float:
    """Return the negligible value of a metric: 60 s, a share of 0.001, a count of 1. It is added before dividing."""
    first = metric.partition(".")[0]
    if first.endswith("_s") or first == "wait_by_size":
        return 60.0
    return 0.001 if first in SHARES or first == "jtted" else 1.0


def judge(
    metric: str,
    old: ArrayLike,
    new: ArrayLike,
    *,
    allowed: float,
    confidence: float = 0.95,
    metrics: int = 1,
    floor: float | None = None,
) -> Comparison:
    """Judge pairs of a metric, one for each slice, as one of `metrics` metrics.

    `allowed` is the allowed regret, relative to the old value; `confidence` is 1 - the rate of false alarms of all
    metrics together. `floor` is the negligible value of the metric, by default that of `floor_of`.
    """
    a, b = np.asarray(old, dtype=float), np.asarray(new, dtype=float)
    floor = floor_of(metric) if floor is None else floor
    felt = np.maximum(a, b) > floor
    a, b = a[felt] + floor, b[felt] + floor
    n = len(a)
    if n == 0:
        none = Interval(0.0, 0.0, 0.0, 0)
        return Comparison(metric, 0.0, 0.0, none, none, allowed, 0, "pass")
    worse = np.log(a / b) if is_better_higher(metric) else np.log(b / a)
    both = 1 - (1 - confidence) / metrics  # two tests, each one-sided with half of the metric's error rate
    typical, mean = (_back(of(worse, both)) for of in (middle_interval, mean_interval))
    outcome: Outcome = "unsure"
    if n >= FEWEST and max(typical.low, mean.low) > allowed:
        outcome = "regression"
    elif (mean.high <= allowed and (typical.high <= allowed or math.isinf(typical.high))) or bool((worse == 0).all()):
        outcome = "pass"
    before, after = (float(np.exp(np.log(values).mean())) - floor for values in (a, b))
    return Comparison(metric, before, after, typical, mean, allowed, n, outcome)


def _back(logs: Interval) -> Interval:
    """Convert an interval of logarithms of ratios to one of regrets."""
    return Interval(_expm1(logs.mean), _expm1(logs.low), _expm1(logs.high), logs.samples)


def _expm1(value: float) -> float:
    return math.inf if value > 700 else math.expm1(value)


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The result of the gate: for each metric, and objections to the new policy that do not depend on metrics."""

    comparisons: tuple[Comparison, ...]
    slices: int
    objections: tuple[str, ...]
    alike: bool
    """Whether both policies make the same decisions on every slice."""

    def refuses(self, strict: bool = False) -> bool:
        """Whether the change must not pass; a strict gate also refuses it unless it is shown to do no harm."""
        bad = {"regression", "unsure"} if strict else {"regression"}
        return bool(self.objections) or any(comparison.outcome in bad for comparison in self.comparisons)


def verdict(all_results: Sequence[Results], metrics: Sequence[str], allowed: float, confidence: float) -> GateVerdict:
    """Judge the second profile of each of the results against the first; results of several traces count together.

    Raises InputError if the old policy fails on a slice, or too few slices have a metric.
    """
    old_runs, new_runs, objections = _paired(all_results)
    pairs = [(old, new) for old, new in zip(old_runs, new_runs, strict=True) if old and new]
    found = []
    for metric in metrics:
        table = [(_mean(old, metric), _mean(new, metric)) for old, new in pairs]
        known = [(a, b) for a, b in table if a is not None and b is not None]
        if not objections and len(known) < FEWEST:
            raise InputError("--slices", f"at least {FEWEST} slices with {metric}", len(known))
        if known:
            a, b = zip(*known, strict=True)
            found.append(judge(metric, a, b, allowed=allowed, confidence=confidence, metrics=len(metrics)))
    lost = sum(_sum(old) - _sum(new) for old, new in pairs if _sum(new) < _sum(old))
    if lost:
        objections.append(f"it leaves {lost:,.0f} jobs incomplete that the old policy completes")
    alike = not objections and all(_digests(old) == _digests(new) for old, new in pairs)
    return GateVerdict(tuple(found), len(pairs), tuple(objections), alike)


Summaries = list[dict[str, object]]


def _paired(all_results: Sequence[Results]) -> tuple[list[Summaries], list[Summaries], list[str]]:
    """The summaries of each slice, by seed, under both policies; and the objections to the new policy."""
    both: tuple[list[Summaries], list[Summaries]] = ([], [])
    objections: list[str] = []
    for results in all_results:
        names = list(results.experiment.profiles)
        for run in results.experiment.runs:
            if run.key not in results.failed:
                continue
            if run.profile == names[0]:
                raise InputError(f"profile {run.profile}", "one that can run each slice", results.failed[run.key])
            objections.append(f"it fails: {run}: {results.failed[run.key]}")
        parts = sorted({(run.workload, run.part) for run in results.finished})
        for side, name in zip(both, names, strict=True):
            side += [[results.summary(run) for run in results.finished if _is(run, name, part)] for part in parts]
    return *both, objections


def _is(run: PlannedRun, profile: str, part: tuple[str, int]) -> bool:
    return run.profile == profile and (run.workload, run.part) == part


def _mean(summaries: Summaries, metric: str) -> float | None:
    """The metric of one slice, over its seeds."""
    values = [value for summary in summaries if (value := figure(summary, metric)) is not None]
    return sum(values) / len(values) if values else None


def _sum(summaries: Summaries) -> float:
    return sum(figure(summary, "completed") or 0.0 for summary in summaries)


def _digests(summaries: Summaries) -> list[object]:
    return [summary["digest"] for summary in summaries]
