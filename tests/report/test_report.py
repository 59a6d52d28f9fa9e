"""The report as a file: its data comes back as it went in, it needs nothing from outside, and it is small."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.cluster_runs import make_cluster, make_run

from kant.metrics.result import JobTable, RunResult, Series
from kant.model.node import ClusterSpec, Node
from kant.model.units import HOUR, SECOND
from kant.report import write_report
from kant.report.data import labels
from kant.report.fleet import clean_rows, frame_time, in_force, pack_fleet
from kant.report.pack import pack, pack_names, size
from kant.report.scoreboard import gain
from kant.report.series import BUCKETS, bucket_edges, bucket_means, last_moment, running_sor, span
from kant.report.summary import show
from kant.report.waits import EDGES, class_waits, job_classes
from kant.report.write import render

MAP_COLUMNS = ("job", "node", "mask_low", "mask_high", "milli", "start", "length")


@pytest.fixture(scope="module")
def pair() -> list[RunResult]:
    cluster = make_cluster(64)
    return [make_run("first", cluster, 1500, packed=False), make_run("second", cluster, 1500, seed=8)]


@pytest.fixture(scope="module")
def page(pair: list[RunResult]) -> str:
    return render(pair, "Two runs")


def unpack(blob: dict[str, Any]) -> Any:
    """What codec.js does, written for itself."""
    raw = zlib.decompress(base64.b64decode(blob["data"]))
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(blob["bytes"], blob["n"])
    values = sum((plane.astype(np.int64) << (8 * i) for i, plane in enumerate(planes)), np.zeros(blob["n"], int))
    if blob["zigzag"]:
        values = np.where(values % 2, -(values + 1) // 2, values // 2)
    return np.cumsum(values) if blob["delta"] else values


def unpack_names(blob: dict[str, Any]) -> list[str]:
    names: list[str] = json.loads(zlib.decompress(base64.b64decode(blob["data"])))
    return names


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="kant-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def empty_run(**changes: Any) -> RunResult:
    none = np.zeros(0, dtype=np.int64)
    series = {field.name: none for field in dataclasses.fields(Series)}
    jobs = {field.name: none for field in dataclasses.fields(JobTable) if field.name != "id"}
    run = RunResult(
        profile="kant", workload="none", cluster=ClusterSpec("void", ()), summary={},
        series=Series(**series), jobs=JobTable(id=[], **jobs), queues=(), end=0,
    )  # fmt: skip
    return dataclasses.replace(run, **changes)


@given(st.lists(st.integers(-(1 << 50), 1 << 50)), st.booleans())
def test_a_column_comes_back(values: list[int], delta: bool) -> None:
    assert unpack(pack(values, delta=delta)).tolist() == values


def test_a_column_too_large_for_the_page_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        pack([1 << 53])


@given(st.lists(st.text()))
def test_names_come_back(names: list[str]) -> None:
    assert unpack_names(pack_names(names)) == names


def test_every_interval_of_the_map_comes_back(pair: list[RunResult], page: str) -> None:
    data = data_of(page)
    fleet = data["fleet"]
    assert (fleet["frames"], fleet["kept"]) == (0, fleet["total"])
    for run, packed in zip(pair, fleet["runs"], strict=True):
        job, node, low, high, milli, start, length = (unpack(packed[name]) for name in MAP_COLUMNS)
        begin, unit = span(pair)[0], fleet["unit_us"]
        ids = unpack_names(packed["ids"])
        columns = (job, node, low + (high << 31), milli, start, start + length)
        found = {(ids[j], *row) for j, *row in zip(*(column.tolist() for column in columns), strict=True)}
        expected = {
            (run.jobs.id[j], n, m, k, (s - begin) // unit, (e - begin) // unit)
            for j, n, m, k, s, e in run.intervals.tolist()
        }
        assert found == {row for row in expected if row[4] < row[5]}
        rows = [run.jobs.id.index(name) for name in ids[:50]]
        assert unpack(packed["gpus"])[:50].tolist() == run.jobs.gpus[rows].tolist()
        queues = [data["queues"][code] for code in unpack(packed["queue"])[:50]]
        assert queues == [run.queues[run.jobs.queue[row]] for row in rows]
        assert unpack(packed["size"])[:50].tolist() == job_classes(run.jobs)[rows].tolist()


def test_the_cluster_comes_back_and_nodes_without_a_leaf_are_grouped() -> None:
    nodes = tuple(Node(f"n{i}", 8, leaf="a" if i < 3 else "") for i in range(70))
    packed = data_of(render([empty_run(cluster=ClusterSpec("c", nodes))], "t"))["clusters"][0]
    groups = unpack_names(packed["groups"])
    assert unpack_names(packed["names"]) == [node.name for node in nodes]
    assert [groups[i] for i in unpack(packed["group"])] == (
        ["a"] * 3 + ["nodes 0 to 31"] * 32 + ["nodes 32 to 63"] * 32 + ["nodes 64 to 95"] * 3
    )


def test_leaves_come_back_with_their_spines_and_jobs_with_the_fewest_nodes_and_leaves(pair: list[RunResult]) -> None:
    paths = [("a", "x", "l"), ("a", "x", "l"), ("a", "y", "l"), ("", "y", "l"), ("", "", "m")]
    nodes = tuple(Node(f"n{i}", 8, superspine=top, spine=mid, leaf=leaf) for i, (top, mid, leaf) in enumerate(paths))
    packed = data_of(render([empty_run(cluster=ClusterSpec("c", nodes))], "t"))["clusters"][0]
    names, spines, spine = unpack_names(packed["groups"]), unpack_names(packed["spines"]), unpack(packed["spine"])
    assert [(spines[spine[i]], names[i]) for i in unpack(packed["group"])] == [
        ("a / x", "l"), ("a / x", "l"), ("a / y", "l"), ("y", "l"), ("", "m"),
    ]  # fmt: skip
    run = pair[0]
    fewest = np.arange(2 * len(run.jobs.id)).reshape(-1, 2)
    known = dataclasses.replace(run, jobs=dataclasses.replace(run.jobs, fewest=fewest))
    fleet = data_of(render([known, run], "t"))["fleet"]["runs"]
    rows = [run.jobs.id.index(name) for name in unpack_names(fleet[0]["ids"])]
    assert [unpack(column).tolist() for column in fleet[0]["fewest"]] == fewest[rows].T.tolist()
    assert fleet[1]["fewest"] is None


def test_buckets_are_means_weighted_by_time() -> None:
    column = np.array
    series = Series(
        time=column([0, 1, 4]) * SECOND, allocated=column([0, 4, 2]), in_service=column([4, 4, 0]),
        fragmented=column([0, 1, 1]), nodes=column([1, 1, 0]), waiting_jobs=column([8, 0, 2]),
        waiting_gpus=column([0, 0, 0]),
    )  # fmt: skip
    edges = np.array([0.0, 2.0, 4.0, 8.0, 10.0]) * SECOND
    gar = bucket_means(series, np.array([0.0, 1.0, np.nan]), 8 * SECOND, edges)
    assert gar[:2].tolist() == [0.5, 1.0]
    assert np.isnan(gar[2:]).all()  # nothing in service, then after the end
    assert bucket_means(series, np.array([8.0, 0.0, 2.0]), 8 * SECOND, edges)[:3].tolist() == [4.0, 0.0, 2.0]
    assert running_sor(series, 8 * SECOND, edges)[:2].tolist() == [0.5, 0.75]


def test_the_means_of_the_buckets_have_the_mean_of_the_run(pair: list[RunResult], page: str) -> None:
    for run, packed in zip(pair, data_of(page)["runs"], strict=True):
        gar = unpack(packed["series"]["gar"])
        edges = bucket_edges(*span(pair))
        assert len(gar) == BUCKETS
        weight = np.diff(np.clip(edges, run.series.time[0], last_moment(run)))
        assert (np.maximum(gar, 0) * weight).sum() / weight.sum() / 1e6 == pytest.approx(
            run.summary["gar"]["mean"], abs=1e-6
        )
        assert unpack(packed["series"]["sor"])[-1] / 1e6 == pytest.approx(run.summary["sor"], abs=1e-6)


def test_waits_are_counted_once_each(pair: list[RunResult], page: str) -> None:
    run, packed = pair[0], data_of(page)["runs"][0]
    assert sum(row["started"] for row in packed["waits"]) == int((run.jobs.first_start >= 0).sum())
    for index, row in enumerate(packed["waits"]):
        wait = run.jobs.wait[(job_classes(run.jobs) == index) & (run.jobs.first_start >= 0)]
        shares = np.cumsum(unpack(row["counts"]))
        assert shares.tolist() == [int((wait <= edge).sum()) for edge in EDGES]


def test_without_a_summary_the_table_of_waits_is_computed(pair: list[RunResult]) -> None:
    bare = dataclasses.replace(pair[1], summary={})
    for told, computed in zip(class_waits(pair[1]), class_waits(bare), strict=True):
        for key in ("count", "censored", "p50", "p90", "p99", "max"):
            assert computed["row"].get(key) == pytest.approx(told["row"][key])


def test_nothing_is_fetched_from_outside(page: str) -> None:
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    targets = re.findall(r"""\b(?:src|href|srcset|action)\s*=\s*["']?([^"'\s>]*)""", markup)
    assert targets and all(target.startswith("#") for target in targets)
    assert not re.search(r"\b(?:fetch|XMLHttpRequest|WebSocket|import)\s*\(", page)
    assert "@import" not in page and "url(" not in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None and policy[1].startswith("default-src 'none'; ") and "http" not in policy[1]


def test_names_from_a_trace_cannot_leave_their_place(pair: list[RunResult], page: str) -> None:
    evil = "</script><script>alert(1)</script><!--&\u2028\ud800\"'"
    jobs = dataclasses.replace(pair[0].jobs, id=[f"{evil}{i}" for i in range(len(pair[0].jobs.id))])
    nodes = tuple(Node(f"{evil}{i}", 8, evil, leaf=evil) for i in range(64))
    summary = pair[0].summary | {"digest": evil, "seed": evil}
    run = dataclasses.replace(
        pair[0], profile=evil, workload=evil, cluster=ClusterSpec(evil, nodes), jobs=jobs, summary=summary,
        queues=tuple(f"{evil}{i}" for i in range(len(pair[0].queues))), interrupted=True,
    )  # fmt: skip
    broken = render([run], evil)
    assert broken.count("<script") == page.count("<script")
    assert broken.count("</script") == page.count("</script")
    assert "alert(1)</script>" not in broken
    data = data_of(broken)
    assert data["runs"][0]["label"] == evil
    assert unpack_names(data["fleet"]["runs"][0]["ids"])[0].startswith(evil)


def test_the_same_runs_give_the_same_bytes(pair: list[RunResult], page: str, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_report(tmp_path / name, pair, "Two runs")
    first, second = ((tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second == page.encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_a_report_that_cannot_be_written_leaves_what_was_there(pair: list[RunResult], tmp_path: Path) -> None:
    (tmp_path / "a.html").mkdir()
    with pytest.raises(OSError):
        write_report(tmp_path / "a.html", pair, "t")
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_over_the_budget_the_map_keeps_whole_frames(pair: list[RunResult]) -> None:
    begin, end = span(pair)
    queues = list(pair[0].queues)
    whole = pack_fleet(pair, queues, begin, end)
    budget = size(whole["runs"]) // 3
    cut = pack_fleet(pair, queues, begin, end, budget)
    assert 0 < cut["frames"] < BUCKETS and cut["kept"] < cut["total"] == whole["kept"]
    assert size(cut["runs"]) <= budget
    moments = frame_time(np.arange(cut["frames"]), cut["length"], cut["frames"])
    for run, packed in zip(pair, cut["runs"], strict=True):
        rows = clean_rows(run, begin, cut["unit_us"])
        start = unpack(packed["start"])
        stop = start + unpack(packed["length"])
        for moment in moments.tolist():
            alive = (rows[:, 4] <= moment) & (rows[:, 5] > moment)
            assert int(alive.sum()) == int(((start <= moment) & (stop > moment)).sum())


@given(st.integers(1, 10_000), st.integers(1, 50), st.integers(0, 10_000), st.integers(1, 500))
def test_an_interval_is_kept_if_a_frame_falls_into_it(length: int, frames: int, start: int, span: int) -> None:
    row = np.array([[0, 0, 1, 1000, start, start + span]])
    moments = [(2 * i + 1) * length // (2 * frames) for i in range(frames)]
    assert bool(in_force(row, length, frames)[0]) == any(start <= at < start + span for at in moments)


def test_a_large_run_makes_a_small_file(tmp_path: Path) -> None:
    run = make_run()
    write_report(tmp_path / "one.html", [run], "8,192 GPUs")
    assert run.cluster.gpus == 8192 and len(run.jobs.id) == 20_000
    assert (tmp_path / "one.html").stat().st_size < 600_000


@pytest.mark.parametrize("end", [0, HOUR])
def test_a_run_without_jobs_has_a_page(end: int) -> None:
    page = render([empty_run(end=end), empty_run(end=end, profile="other")], "Nothing")
    assert "No job arrived." in page and data_of(page)["fleet"]["total"] == 0


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        write_report(tmp_path / "a.html", [], "t")


def test_an_interrupted_run_is_announced(pair: list[RunResult], page: str) -> None:
    cut = dataclasses.replace(pair[1], interrupted=True)
    assert "Partial result" in render([pair[0], cut], "t") and "Partial result" not in page


@pytest.mark.parametrize(
    ("value", "base", "kind", "better", "verdict"),
    [
        (0.9, 0.8, "share", 1, "better"),
        (0.01, 0.085, "share", -1, "better"),
        (90, 60, "time", -1, "worse"),
        (60, 0, "time", -1, "worse"),
        (1, 1, "factor", -1, ""),
        (5, 3, "count", 0, ""),
    ],
)
def test_a_gain_knows_its_direction(value: float, base: float, kind: str, better: int, verdict: str) -> None:
    assert f'class="gain {verdict}"' in gain(value, base, kind, better)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "text", True])
def test_what_is_no_number_has_no_gain(value: Any) -> None:
    assert gain(value, 1.0, "share", 1) == "" and show(value, "share") == "\u2013"


def test_pools_and_queues_have_a_table_each(page: str, pair: list[RunResult]) -> None:
    assert "By pool (2)" in page and "By queue (9)" in page
    many = {f"<q{i}>": {"gpu_hours": i} for i in range(100)}
    wide = render([dataclasses.replace(pair[0], summary={"by_queue": many, "by_pool": {"one": {}}})], "t")
    assert "By queue (100, the 40 with most GPU-hours)" in wide and "By pool" not in wide
    assert "&lt;q99&gt;" in wide and "&lt;q59&gt;" not in wide


def test_runs_of_one_profile_are_numbered() -> None:
    runs = [empty_run(), empty_run(profile="easy"), empty_run()]
    assert labels(runs) == ["kant (1)", "easy", "kant (2)"]
