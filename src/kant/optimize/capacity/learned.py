"""A learned order of insertion: at each step, a weighted sum of features chooses the next process."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from kant.optimize.capacity.arrays import Numbers, TaskArrays
from kant.optimize.capacity.kernels import Profile, insert_chosen
from kant.optimize.capacity.planning import Planning


@dataclass(frozen=True, slots=True)
class LearnedInsertion:
    """The process with the highest score is inserted next; each of its tasks starts where it adds least to the peaks.

    The score is the sum of the products of these fields, except `allowance`, and the features that they name. Work,
    slack and length are relative to the means of the instance. Choosing processes step by step by a learned score is
    the idea of iScheduler (arXiv 2602.06064); its neural network is left out, and the features are ours. The defaults
    are from the study `benchmarks.studies.capacity_learned`.
    """

    crowd: float = 0.3398
    """How much of the targets the inserted tasks already use, for the process's resources within its window."""
    pressure: float = 1.0882
    """The feature `crowd` multiplied by the feature `work`."""
    work: float = 0.5732
    """The sum of duration x demand x resource cost over the process's tasks."""
    slack: float = -0.1009
    """The sum of latest start minus earliest start over the process's tasks."""
    length: float = -0.2284
    """The time from the process's release to its deadline."""
    release: float = 0.9155
    """The process's release, as a share of the horizon."""
    rivals: float = 0.6978
    """The work per tick of all processes in this process's window, relative to that over the whole horizon."""
    tallest: float = -0.1223
    """The largest demand x resource cost of a task of the process, relative to the largest of all tasks."""
    allowance: float = -0.1264
    """How far the initial targets are above the lower bounds, as a share of the bounds. Use below a target is free."""

    def insert(self, planning: Planning) -> None:
        """Insert the movable processes around the tasks that are already planned."""
        movable = np.flatnonzero(planning.movable).astype(np.int64)
        windows, known, shares = features(planning.tasks, planning.horizon)
        weights = np.array(astuple(self)[:-1], np.float64)
        start = np.ceil(np.maximum(planning.bounds * (1 + self.allowance), 0)).astype(np.int64)
        target = np.maximum(start, planning.peaks)
        insert_chosen(planning.tasks, movable, windows, known, shares, weights, planning.starts, planning.usage, target)


def features(tasks: TaskArrays, horizon: int) -> tuple[Numbers, Profile, Profile]:
    """Return for each process its window, its features (`work` and the following fields), and the shares of the
    resources in its cost."""
    count, width = len(tasks.tasks_from) - 1, max(horizon, 1)
    windows = np.tile(np.array([0, 1], np.int64), (count, 1))
    known, shares = np.zeros((count, 6)), np.zeros((count, len(tasks.cost)))
    busy = np.zeros(width + 1)
    heights = tasks.demand @ tasks.cost
    for p, (a, b) in enumerate(zip(tasks.tasks_from, tasks.tasks_from[1:], strict=False)):
        if a == b:
            continue
        begin = min(int(tasks.earliest[a:b].min()), width - 1)  # one without duration may begin at the end
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
