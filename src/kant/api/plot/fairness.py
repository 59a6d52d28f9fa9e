"""The cost of sharing for each queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.api.plot.figure import Figure
from kant.api.plot.style import legend, log_times, look, names_of, point_of
from kant.api.result import Result
from kant.model.status import JobStatus
from kant.model.units import SECOND

QUEUES = 20
"""Number of queues shown, those with the most GPU time."""
SHORTEST = 10 * SECOND
"""The bound of bounded slowdown: D. G. Feitelson and L. Rudolph, JSSPP 1998."""


def fairness(*results: Result, labels: Sequence[str] | None = None, size: tuple[float, float] | None = None) -> Figure:
    """Plot for each queue the mean wait of its jobs, and its finish-time fairness; a mark for each result.

    On the right is rho: the time that its jobs took over the time on its nominal quota alone (docs/metrics.md). Above
    1, the queue would be better off alone. If no queue has a quota, it is the mean bounded slowdown of its finished
    jobs: completion time over run time, with run times below 10 s counted as 10 s. Each queue is labelled with its
    share of all GPU time under the first result; if there are many queues, the 20 with the largest shares are shown.
    """
    names = names_of(labels, results)
    tables = [one.summary["by_queue"] for one in results]
    hours = {queue: row["gpu_hours"] for table in reversed(tables) for queue, row in table.items()}
    queues = sorted(hours, key=lambda queue: (-hours[queue], queue))[:QUEUES]
    rated = any(row["rho"] is not None for table in tables for row in table.values())
    costs = [
        {queue: row["rho"] for queue, row in table.items()} if rated else slowdowns(one)
        for one, table in zip(results, tables, strict=True)
    ]
    waited = [{queue: row["wait_s"].get("mean") for queue, row in table.items()} for table in tables]
    with look():
        from matplotlib.figure import Figure as Inner

        inner = Inner(figsize=size or (5.6, 0.9 + 0.19 * len(queues)))
        left, right = inner.subplots(1, 2, sharey=True, gridspec_kw={"wspace": 0.1})
        largest = [1.0, 1.0]
        for number, name in enumerate(names):
            for side, (axes, values) in enumerate(((left, waited[number]), (right, costs[number]))):
                least = 0.0 if rated and side else 1.0
                known = ((values.get(queue), k) for k, queue in enumerate(queues))
                found = [(max(float(value), least), k) for value, k in known if value is not None]
                largest[side] = max([largest[side], *(value for value, _ in found)])
                axes.plot(
                    [value for value, _ in found], [k for _, k in found], label=name, linestyle="none", markersize=4.5,
                    alpha=0.9, clip_on=False, zorder=3, **point_of(number),
                )  # fmt: skip
        log_times(left, 1, largest[0] * 1.5)
        left.set_xlabel("Mean wait")
        if rated:
            right.set_xlim(0, largest[1] * 1.08)
            right.axvline(1, color="#555555", linewidth=0.8, linestyle=(0, (4, 2)))
            right.set_xlabel("Finish-time fairness rho")
        else:
            most = max(largest[1] * 1.3, 10)
            right.set_xscale("log")
            right.set_xlim(1, most)
            ticks = [part * 10**power for power in range(9) for part in (1, 2, 5) if part * 10**power <= most]
            right.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            right.minorticks_off()
            right.set_xlabel("Mean bounded slowdown")
        total = sum(row["gpu_hours"] for row in tables[0].values()) or 1.0
        parts = [100 * tables[0].get(queue, {"gpu_hours": 0.0})["gpu_hours"] / total for queue in queues]
        left.set_yticks(range(len(queues)), [f"{q} ({part:.0f} %)" for q, part in zip(queues, parts, strict=True)])
        left.set_ylim(len(queues) - 0.5, -0.5)
        for axes in (left, right):
            axes.tick_params(axis="y", length=0, pad=6)
        legend(left, len(names))
    what = "rho" if rated else "bounded slowdown"
    rest = f"; {len(hours) - len(queues)} smaller queues are not shown" if len(hours) > len(queues) else ""
    return Figure(inner, f"mean wait and {what} by queue under {', '.join(names)}{rest}")


def slowdowns(one: Result) -> dict[str, float | None]:
    """Return the mean bounded slowdown of each queue's finished jobs; None if it has none."""
    jobs = one.inner.jobs
    done = jobs.status == JobStatus.FINISHED
    took = jobs.end - jobs.submit
    slower = np.maximum(took / np.maximum(took - jobs.wait, SHORTEST), 1.0)
    own = {name: done & (jobs.queue == code) for code, name in enumerate(one.inner.queues)}
    return {name: float(slower[mask].mean()) if mask.any() else None for name, mask in own.items()}
