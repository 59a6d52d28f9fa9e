"""Pictures: they show what the results say, in colours that colour-blind readers tell apart."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection

import kant
from kant.api.plot.distributions import cumulative
from kant.api.plot.gantt import offsets, rows_of
from kant.api.plot.style import COLOURS, DASHES, MARKERS, REST


@cache
def work() -> kant.Workload:
    return kant.Workload.generate("philly", gpus=16, load=1.3, days=1, tenants=3, seed=2)


@cache
def runs() -> tuple[kant.Result, ...]:
    """The same jobs under two profiles."""
    return tuple(kant.simulate(work(), "2x8", name) for name in ("fifo", "kant"))


PICTURES = {
    "waits": lambda: kant.plot.waits(*runs()),
    "completions": lambda: kant.plot.completions(*runs()),
    "usage": lambda: kant.plot.usage(*runs()),
    "gantt": lambda: kant.plot.gantt(runs()[0]),
    "fairness": lambda: kant.plot.fairness(*runs()),
}


FORMATS = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}
"""How files begin."""


def texts(figure: Any) -> list[str]:
    """Every text of a picture."""
    root = ElementTree.fromstring(figure.svg())
    return ["".join(part.itertext()) for part in root.iter("{http://www.w3.org/2000/svg}text")]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_svg_and_pdf_and_the_same_bytes_each_time(name: str, tmp_path: Path) -> None:
    for suffix, start in list(FORMATS.items())[: 3 if name == "waits" else 1]:
        pictures = [PICTURES[name]() for _ in range(2)]
        first, second = (each.save(tmp_path / f"{k}{suffix}").read_bytes() for k, each in enumerate(pictures))
        assert first.startswith(start) and first == second and b"CreationDate" not in first
    shown = pictures[0]._repr_mimebundle_()
    assert set(shown) == {"image/svg+xml", "text/plain"} and json.dumps(shown)
    assert ElementTree.fromstring(shown["image/svg+xml"]).tag.endswith("svg")
    assert shown["text/plain"].startswith("Figure(")


def test_every_picture_is_tried() -> None:
    assert set(PICTURES) == set(kant.plot.__all__) - {"Figure"}


def test_a_name_that_says_no_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(kant.InputError, match=r"expected a name that ends in .svg, .pdf, .png"):
        PICTURES["waits"]().save(tmp_path / "waits.docx")
    with pytest.raises(kant.InputError, match="expected a file that can be written"):
        PICTURES["waits"]().save(tmp_path / "nowhere" / "waits.svg")


@pytest.mark.long
def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    code = """
import kant
one = kant.simulate(kant.Workload.of({'submit_s': [0], 'runtime_s': [1], 'gpus': [1]}), '1x1', 'fifo')
try:
    kant.plot.waits(one)
except kant.InputError as error:
    print(error)
"""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "kant.plot: expected matplotlib to be installed: pip install 'kant-scheduler[plot]'\n"


# --- what they show --------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.5, np.inf]), max_size=12))
def test_a_cumulative_distribution_is_the_share_up_to_each_time(times: list[float]) -> None:
    at, share = cumulative(np.array(times))
    for value, part in zip(at, share, strict=True):
        assert part == sum(time <= value for time in times) / len(times)
    assert sorted(set(times) - {np.inf}) == at.tolist()


def test_lines_of_waits_are_those_of_the_jobs() -> None:
    axes = kant.plot.waits(*runs(), labels=["one", "two"]).inner.axes[0]
    for line, result in zip(axes.get_lines(), runs(), strict=True):
        waits = result.jobs["wait"].dt.total_microseconds().to_numpy() / 1e6
        x, y = line.get_data()
        for at, percent in zip(x, y, strict=True):
            assert percent == pytest.approx(100 * (waits <= at).mean())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "two"]


def test_a_job_that_never_started_keeps_its_line_below_all() -> None:
    jobs = kant.Workload.of({"submit_s": [0, 0, 0, 0], "runtime_s": [1000] * 4, "gpus": [1] * 4})
    result = kant.simulate(jobs, "1x2", "fifo", until="100s")
    assert kant.plot.waits(result).inner.axes[0].get_lines()[0].get_ydata()[-1] == 50
    assert kant.plot.completions(result).inner.axes[0].get_lines()[0].get_ydata()[-1] == 0


def test_lines_of_usage_have_the_mean_of_the_series() -> None:
    above, below = kant.plot.usage(*runs()).inner.axes
    for line, result in zip(above.get_lines(), runs(), strict=True):
        y = np.asarray(line.get_ydata())
        shown = np.nansum(y) / len(y) * (max(one.inner.end for one in runs()) / result.inner.end)
        assert shown == pytest.approx(100 * result.summary["gar"]["mean"], rel=0.02)
    assert len(below.get_lines()) == 2 and below.get_ylim()[0] == 0


def test_bars_of_a_gantt_chart_are_the_gpu_time_of_the_placements() -> None:
    for result in runs():
        axes = kant.plot.gantt(result).inner.axes[0]
        (bars,) = [part for part in axes.collections if isinstance(part, PolyCollection)]
        area = 0.0
        for path in bars.get_paths():
            low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
            area += (high[0] - low[0]) * (high[1] - low[1])
        unit = 3600 if "Time (h)" in texts(kant.plot.gantt(result)) else 86400
        pieces = result.placements
        held = (pieces["gpus"] * (pieces["end"] - pieces["start"]).dt.total_microseconds()).sum() / 1e6
        assert area * unit == pytest.approx(held, rel=1e-6)


@given(st.integers(0, (1 << 62) - 1))
def test_devices_are_drawn_in_the_fewest_rows(mask: int) -> None:
    runs = list(rows_of(mask))
    assert sum(((1 << count) - 1) << first for first, count in runs) == mask
    assert all(first + count < after for (first, count), (after, _) in itertools.pairwise(runs))


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.sampled_from([200, 250, 500])), max_size=12),
    st.booleans(),
)
def test_shares_of_one_gpu_lie_beside_each_other(wanted: list[tuple[int, int, int]], alike: bool) -> None:
    """Those that fit at all are taken; equal shares then never lie over each other, others at times."""
    rows: list[list[int]] = []
    for start, length, milli in sorted(wanted):
        share = 250 if alike else milli
        if sum(row[3] for row in rows if row[5] > start) + share <= 1000:
            rows.append([len(rows), 0, 1, share, start, start + length])
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    at = offsets(table)
    for (one, low), (other, beside) in itertools.combinations(zip(table.tolist(), at, strict=True), 2):
        assert 0 <= low <= 1 - one[3] / 1000 and 0 <= beside <= 1 - other[3] / 1000
        if alike and one[4] < other[5] and other[4] < one[5]:
            assert low + one[3] / 1000 <= beside or beside + other[3] / 1000 <= low
    assert offsets(np.array([[0, 0, 3, 1000, 0, 5]])) == [0.0]


def test_a_gantt_chart_shows_the_nodes_that_are_asked_for() -> None:
    names = [node.name for node in runs()[0].cluster.inner.nodes]
    assert set(names) <= set(texts(kant.plot.gantt(runs()[0])))
    one = kant.plot.gantt(runs()[0], nodes=[names[1]])
    assert names[1] in texts(one) and names[0] not in texts(one) and "1 more nodes are not shown" in repr(one)
    assert names[0] in texts(kant.plot.gantt(runs()[0], nodes=1))
    for wrong in (0, ["nowhere"]):
        with pytest.raises(kant.InputError, match="nodes: expected"):
            kant.plot.gantt(runs()[0], nodes=wrong)  # type: ignore[arg-type]


def test_marks_of_fairness_are_mean_waits_and_slowdowns_or_rho(tmp_path: Path) -> None:
    left, right = kant.plot.fairness(*runs()).inner.axes
    queues = [text.get_text().partition(" ")[0] for text in left.get_yticklabels()]
    assert sorted(queues) == sorted(runs()[0].summary["by_queue"])
    for mark, cost, result in zip(left.get_lines(), right.get_lines(), runs(), strict=True):
        own = [result.jobs.filter(queue=queue) for queue in queues]
        waits = [max(jobs["wait"].dt.total_microseconds().mean() / 1e6, 1) for jobs in own]  # type: ignore[operator, type-var]
        assert mark.get_xdata() == pytest.approx(waits)
        for jobs, shown in zip(own, cost.get_xdata(), strict=True):
            took, wait = (jobs[name].dt.total_microseconds() / 1e6 for name in ("completion", "wait"))
            slower = [max(t / max(t - w, 10), 1) for t, w in zip(took, wait, strict=True)]
            assert shown == pytest.approx(np.mean(slower))
    file = tmp_path / "queues.toml"
    file.write_text("".join(f'[[queue]]\nname = "{queue}"\ngpus = 4\n' for queue in queues))
    rated = kant.simulate(work(), "2x8", "kant", queues=file)
    right = kant.plot.fairness(rated).inner.axes[1]
    queues = [text.get_text().partition(" ")[0] for text in kant.plot.fairness(rated).inner.axes[0].get_yticklabels()]
    rho = [rated.summary["by_queue"][queue]["rho"] for queue in queues]
    assert right.get_lines()[0].get_xdata().tolist() == rho and "rho" in right.get_xlabel()


def test_results_are_told_apart_by_what_differs() -> None:
    other = kant.simulate(work(), "2x8", "fifo", seed=5)
    axes = kant.plot.waits(runs()[0], other).inner.axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["seed 0", "seed 5"]
    assert kant.plot.waits(runs()[0]).inner.axes[0].get_legend() is None
    with pytest.raises(kant.InputError, match="labels: expected a label for each of 2 results, got 1"):
        kant.plot.waits(*runs(), labels=["one"])
    with pytest.raises(kant.InputError, match="expected at least one result"):
        kant.plot.usage()


def test_names_of_queues_and_jobs_are_text_and_no_mathematics() -> None:
    jobs = kant.Workload.of(
        {"id": ["$x", "y_1"], "submit_s": [0, 0], "runtime_s": [9, 9], "gpus": [4, 4], "queue": ["$a$", "<b>&"]}
    )
    result = kant.simulate(jobs, "1x8", "fifo")
    assert {"$a$ (50 %)", "<b>& (50 %)"} <= set(texts(kant.plot.fairness(result, result)))
    assert {"$a$", "<b>&", "$x", "y_1"} <= set(texts(kant.plot.gantt(result)))


# --- colours ---------------------------------------------------------------------------------------------------------

# What each kind of eye makes of linear RGB: Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, severity 1.0.
EYES = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
APART = 15.0
"""The least distance (CIE 1976, where 2.3 is just seen) between two colours of one picture."""


def linear(colour: str) -> Any:
    parts = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: Any) -> Any:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ rgb / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, eye: str) -> float:
    seen = [lab(np.clip(EYES[eye] @ linear(colour), 0, 1)) for colour in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


@pytest.mark.parametrize("eye", EYES)
def test_any_two_colours_are_told_apart_by_every_eye(eye: str) -> None:
    for one, other in itertools.combinations((*COLOURS, REST, "#FFFFFF"), 2):
        assert distance(one, other, eye) > APART, (one, other)


def test_the_measure_of_colours_knows_red_and_green() -> None:
    assert distance("#D62728", "#6B7A00", "usual") > 40
    assert distance("#D62728", "#6B7A00", "deuteranopia") < APART


@given(count=st.integers(2, 35))
def test_as_many_results_as_colours_times_dashes_have_lines_of_their_own(count: int) -> None:
    from kant.api.plot.style import line_of, point_of

    assert len({str(line_of(number)) for number in range(count)}) == count
    assert len(COLOURS) * len(DASHES) == 35 and len(MARKERS) == len(COLOURS)
    assert len({str(point_of(number)) for number in range(min(count, 7))}) == min(count, 7)


def test_pictures_use_these_colours_alone() -> None:
    greys = {"#DDDDDD", "#F4F4F4", "#555555", "#262626", "#FFFFFF", "#000000"}
    for make in PICTURES.values():
        used = {colour.upper() for colour in re.findall(r"(?:fill|stroke): (#[0-9a-fA-F]{6})", make().svg())}
        assert used <= {*COLOURS, REST, *greys}
