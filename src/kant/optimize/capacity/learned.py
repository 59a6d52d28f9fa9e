"""A learned order of insertion: each step chooses a process by a weighted sum of its features."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from kant.optimize.capacity.arrays import Numbers, TaskArrays
from kant.optimize.capacity.kernels import Profile, insert_chosen
from kant.optimize.capacity.planning import Planning


@dataclass(frozen=True, slots=True)
class LearnedInsertion:
    """The process with the highest score is inserted next, each of its tasks at the start that adds least to the peaks.

    The score is the sum of these fields, except `allowance`, each multiplied by its feature. Work, slack and length are
    relative to the means of the instance. Choosing processes step by step by a learned score is the idea of iScheduler
    (arXiv 2602.06064); its network is left out, and the features are ours. The study
    `benchmarks.studies.capacity_learned` found the defaults.
    """

    crowd: float = 0.3398
    """The present use of its resources in its window, as a share of the targets."""
    pressure: float = 1.0882
    """`crowd` multiplied by the work."""
    work: float = 0.5732
    """The resource use of its tasks over time, at the costs of the resources."""
    slack: float = -0.1009
    """The total slack of its tasks."""
    length: float = -0.2284
    """The time from its release to its deadline."""
    release: float = 0.9155
    """Its release, as a share of the horizon."""
    rivals: float = 0.6978
    """The mean work of all processes in its window, relative to their mean over the horizon."""
    tallest: float = -0.1223
    """The largest use of one of its tasks at one time, relative to the largest of all."""
    allowance: float = -0.1264
    """How far above the bounds the targets begin, as a share of the bounds: use below the targets costs no overload."""

    def insert(self, planning: Planning) -> None:
        """Insert the movable processes around those already there."""
        movable = np.flatnonzero(planning.movable).astype(np.int64)
        windows, known, shares = features(planning.tasks, planning.horizon)
        weights = np.array(astuple(self)[:-1], np.float64)
        start = np.ceil(np.maximum(planning.bounds * (1 + self.allowance), 0)).astype(np.int64)
        target = np.maximum(start, planning.peaks)
        insert_chosen(planning.tasks, movable, windows, known, shares, weights, planning.starts, planning.usage, target)


def features(tasks: TaskArrays, horizon: int) -> tuple[Numbers, Profile, Profile]:
    """Return for each process its window, its features (`work` and the following), and the shares of the resources in
    its cost."""
    count, width = len(tasks.tasks_from) - 1, max(horizon, 1)
    windows = np.tile(np.array([0, 1], np.int64), (count, 1))
    known, shares = np.zeros((count, 6)), np.zeros((count, len(tasks.cost)))
    busy = np.zeros(width + 1)
    heights = tasks.demand @ tasks.cost
    for p, (a, b) in enumerate(zip(tasks.tasks_from, tasks.tasks_from[1:], strict=False)):
        if a == b:
            continue
        begin = min(int(tasks.earliest[a:b].min()), width - 1)  # a task without duration may be at the horizon
        end = max(int((tasks.latest[a:b] + tasks.duration[a:b]).max()), begin + 1)
        costs = tasks.duration[a:b] @ tasks.demand[a:b] * tasks.cost
        work = float(costs.sum())
        windows[p] = begin, end
        shares[p] = costs / max(work, 1.0)
        slack = float((tasks.latest[a:b] - tasks.earliest[a:b]).sum())
        known[p] = work, slack, end - begin, begin / width, 0.0, heights[a:b].max()
        busy[begin] += work / (end - begin)
        busy[end] -= work / (end - begin)
    busy = np.concatenate([[0.0], np.cumsum(np.cumsum(busy[:-1]))])
    known[:, 4] = (busy[windows[:, 1]] - busy[windows[:, 0]]) / (windows[:, 1] - windows[:, 0])
    known[:, 4] *= width / max(busy[-1], 1.0)
    for k in (0, 1, 2):
        known[:, k] /= max(known[:, k].mean(), 1e-9)
    known[:, 5] /= max(known[:, 5].max(), 1.0)
    return windows, known, shares
