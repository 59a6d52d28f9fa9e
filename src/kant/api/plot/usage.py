"""The cluster over time: GPUs allocated, and waiting jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.api.plot.figure import Figure
from kant.api.plot.style import legend, line_of, look, names_of, unit_of
from kant.api.result import Result
from kant.model.units import SECOND
from kant.report.series import bucket_means, last_moment, span

BUCKETS = 400
"""Number of equal parts of the time axis, each shown by its mean: more than a column of a paper can resolve."""


def usage(*results: Result, labels: Sequence[str] | None = None, size: tuple[float, float] = (4.6, 3.0)) -> Figure:
    """Plot GAR (GPUs allocated over GPUs in service) above, waiting jobs below, over time; a line for each result.

    Time is cut into 400 equal parts, each shown by its time-weighted mean. A line ends with its run.
    """
    names = names_of(labels, results)
    begin, end = span([one.inner for one in results])
    edges = np.linspace(begin, max(end, begin + 1), BUCKETS + 1)
    unit, word = unit_of((end - begin) / SECOND)
    with look():
        from matplotlib.figure import Figure as Inner

        inner = Inner(figsize=size)
        above, below = inner.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2), "hspace": 0.12})
        for number, (name, one) in enumerate(zip(names, results, strict=True)):
            series, last = one.inner.series, last_moment(one.inner)
            serving = series.in_service > 0
            gar = np.divide(series.allocated, series.in_service, out=np.full(len(serving), np.nan), where=serving)
            at = edges[:-1] / SECOND / unit
            for axes, values in ((above, 100 * gar), (below, series.waiting_jobs.astype(np.float64))):
                means = bucket_means(series, values, last, edges)
                axes.plot(at, means, drawstyle="steps-post", label=name, linewidth=1.1, **line_of(number))
        above.set_ylabel("GAR (%)")
        above.set_ylim(0, 103)
        below.set_ylabel("Waiting jobs")
        below.set_ylim(bottom=0)
        below.set_xlabel(f"Time ({word})")
        below.set_xlim(edges[0] / SECOND / unit, edges[-1] / SECOND / unit)
        inner.align_ylabels()
        legend(above, len(names))
    return Figure(inner, f"GAR and waiting jobs over time under {', '.join(names)}")
