"""The style of pictures: colours that colour-blind readers can distinguish, with dashes and markers, and time axes.

The colours are those of M. Okabe and K. Ito, Color Universal Design, 2008, without yellow, which is too light for a
line on white. Lines differ in dash and points in marker too, so that a black-and-white print can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kant.model.errors import InputError, install_command

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
REST = "#C8C8C8"
"""The colour for everything after the last colour."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "os^Dv<>"

SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a picture is the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "text.parse_math": False,  # a name with two dollars in it is a name
    "svg.fonttype": "none",  # text stays text: it can be searched, and edited by a typesetter
    "svg.hashsalt": "kant",
    "pdf.fonttype": 42,
    "pdf.compression": 9,
}

TIMES = (
    (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (21600, "6 h"), (86400, "1 d"),
    (604800, "1 w"), (2592000, "30 d"), (31536000, "1 y"),
)  # fmt: skip
"""Ticks of a logarithmic axis of seconds."""

SPANS = ((7200, 60, "min"), (172_800, 3600, "h"), (float("inf"), 86400, "d"))
"""Units of a linear time axis: (maximum length, unit, name), in seconds."""


@contextmanager
def look() -> Iterator[None]:
    """Draw and write with these matplotlib settings inside the block. Raises InputError if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("kant.plot", f"matplotlib to be installed: {install_command('plot')}") from None
    with matplotlib.rc_context(SETTINGS):
        yield


def line_of(number: int) -> dict[str, Any]:
    """Return the colour and the dash of line `number`, from 0."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def point_of(number: int) -> dict[str, Any]:
    """Return the colour and the marker of the points of series `number`, from 0."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def tick_below(seconds: float) -> int:
    """Return the last of TIMES that is not above `seconds`, or the first."""
    return max((at for at, _ in TIMES if at <= seconds), default=TIMES[0][0])


def log_times(axes: Any, least: int, most: float) -> None:
    """Set a logarithmic time scale on the x axis from `least`, one of TIMES, at which all smaller times are shown."""
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    shown = [(at, f"≤{text}" if at == least else text) for at, text in TIMES if least <= at <= most]
    axes.set_xticks([at for at, _ in shown], [text for _, text in shown])
    axes.minorticks_off()


def unit_of(seconds: float) -> tuple[int, str]:
    """Return the unit of a linear axis of this length: its seconds and its name."""
    return next((unit, name) for most, unit, name in SPANS if seconds <= most)


def legend(axes: Any, count: int, **options: Any) -> None:
    """Add a legend above the axes, in one row where it fits, if there is more than one series."""
    if count > 1:
        columns = min(count, 4)
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2, handlelength=2.4, **options
        )


def names_of(labels: Sequence[str] | None, results: Sequence[Any]) -> list[str]:
    """Return the name of each result: `labels`, or its profile and other differences. Raises InputError."""
    if not results:
        raise InputError("kant.plot", "at least one result")
    if labels is not None:
        if len(labels) != len(results):
            raise InputError("labels", f"a label for each of {len(results)} results", len(labels))
        return [str(label) for label in labels]
    parts = [[one.profile.name, one.workload.name, one.cluster.name, f"seed {one.seed}"] for one in results]
    differ = [k for k in range(4) if len({part[k] for part in parts}) > 1] or [0]
    return [", ".join(part[k] for k in differ) for part in parts]
