"""The report as a file: its data comes back as it went in, it needs nothing from outside, and it is small."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from importlib.resources import files
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
from kant.report.bundle import render
from kant.report.data import EDGES, class_waits, job_classes, labels
from kant.report.fleet import clean_rows, frame_time, in_force, pack_fleet
from kant.report.pack import pack, pack_names, size
from kant.report.series import BUCKETS, bucket_edges, bucket_means, last_moment, running_sor, span
from kant.report.summary import MOST, plain, trimmed

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


def test_every_job_and_every_interval_of_the_map_comes_back(pair: list[RunResult], page: str) -> None:
    data = data_of(page)
    assert (data["map"]["frames"], data["map"]["kept"]) == (0, data["map"]["total"])
    begin, unit = data["begin_us"], data["map"]["unit_us"]
    for run, packed in zip(pair, data["runs"], strict=True):
        own, jobs = packed["jobs"], run.jobs
        assert own["whole"] and unpack_names(own["ids"]) == jobs.id
        submit = unpack(own["submit"])
        assert submit.tolist() == ((jobs.submit - begin) // unit).tolist()
        for key, column in (("start", jobs.first_start), ("end", jobs.end)):
            since = unpack(own[key])
            assert (since < 0).tolist() == (column < 0).tolist()
            known = column >= 0
            assert np.abs((begin // unit + submit + since) - column // unit)[known].max() <= 1
        assert unpack(own["wait"]).tolist() == (jobs.wait // unit).tolist()
        assert unpack(own["milli"]).tolist() == jobs.gpus.tolist()
        assert unpack(own["status"]).tolist() == jobs.status.tolist()
        names = [data["queues"][code] for code in unpack(own["queue"])]
        assert names == [run.queues[code] for code in jobs.queue]
        job, node, low, high, milli, start, length = (unpack(packed["fleet"][name]) for name in MAP_COLUMNS)
        columns = (job, node, low + (high << 31), milli, start, start + length)
        found = set(zip(*(column.tolist() for column in columns), strict=True))
        expected = {
            (j, n, m, k, (s - begin) // unit, (e - begin) // unit) for j, n, m, k, s, e in run.intervals.tolist()
        }
        assert found == {row for row in expected if row[4] < row[5]}


def test_the_cluster_comes_back_with_the_domains_of_every_node() -> None:
    paths = [("a", "x", "l"), ("a", "x", "l"), ("a", "y", "l"), ("", "y", "l"), ("", "", "")]
    nodes = tuple(Node(f"n{i}", 8, superspine=top, spine=mid, leaf=leaf) for i, (top, mid, leaf) in enumerate(paths))
    packed = data_of(render([empty_run(cluster=ClusterSpec("c", nodes))], "t"))["clusters"][0]
    assert unpack_names(packed["names"]) == [node.name for node in nodes]
    levels = (unpack_names(packed[key]) for key in ("superspine", "spine", "leaf"))
    assert list(zip(*levels, strict=True)) == paths


def test_what_is_known_of_jobs_comes_along(pair: list[RunResult]) -> None:
    run = pair[0]
    fewest = np.arange(2 * len(run.jobs.id)).reshape(-1, 2)
    causes = {"capacity": run.jobs.wait // 3, "order": run.jobs.wait - run.jobs.wait // 3}
    known = dataclasses.replace(run, jobs=dataclasses.replace(run.jobs, fewest=fewest), wait_by_cause=causes)
    data = data_of(render([known, run], "t"))
    told, untold = (packed["jobs"] for packed in data["runs"])
    assert [unpack(column).tolist() for column in told["fewest"]] == fewest.T.tolist()
    assert {cause: unpack(column).tolist() for cause, column in told["causes"].items()} == {
        cause: (column // data["map"]["unit_us"]).tolist() for cause, column in causes.items()
    }
    assert untold["fewest"] is None and untold["causes"] == {}


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
    markup = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert not re.search(r"\b(?:src|href|srcset|action)\s*=", markup)
    assert "@import" not in page and "url(" not in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None and policy[1].startswith("default-src 'none'; ")
    assert "http" not in policy[1] and "connect-src" not in policy[1]


def test_the_bundle_cannot_end_its_element() -> None:
    script = files("kant.report").joinpath("page", "page.js").read_text(encoding="utf-8")
    assert "</script" not in script.lower() and "<!--" not in script
    assert "</style" not in files("kant.report").joinpath("page", "page.css").read_text(encoding="utf-8").lower()


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
    assert unpack_names(data["runs"][0]["jobs"]["ids"])[0].startswith(evil)


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
    budget = size(whole["runs"]) // 4
    cut = pack_fleet(pair, queues, begin, end, budget)
    assert 0 < cut["frames"] < BUCKETS and cut["kept"] < cut["total"] == whole["kept"]
    assert size(cut["runs"]) <= budget
    moments = frame_time(np.arange(cut["frames"]), cut["length"], cut["frames"])
    for run, packed in zip(pair, cut["runs"], strict=True):
        rows = clean_rows(run, begin, cut["unit_us"])
        assert not packed["jobs"]["whole"] and packed["jobs"]["ids"]["n"] < len(run.jobs.id)
        assert unpack(packed["fleet"]["job"]).max() == packed["jobs"]["ids"]["n"] - 1
        start = unpack(packed["fleet"]["start"])
        stop = start + unpack(packed["fleet"]["length"])
        for moment in moments.tolist():
            alive = (rows[:, 4] <= moment) & (rows[:, 5] > moment)
            assert int(alive.sum()) == int(((start <= moment) & (stop > moment)).sum())


@given(st.integers(1, 10_000), st.integers(1, 50), st.integers(0, 10_000), st.integers(1, 500))
def test_an_interval_is_kept_if_a_frame_falls_into_it(length: int, frames: int, start: int, span: int) -> None:
    row = np.array([[0, 0, 1, 1000, start, start + span]])
    moments = [(2 * i + 1) * length // (2 * frames) for i in range(frames)]
    assert bool(in_force(row, length, frames)[0]) == any(start <= at < start + span for at in moments)


@pytest.mark.long
def test_a_large_run_makes_a_small_file(tmp_path: Path) -> None:
    run = make_run()
    write_report(tmp_path / "one.html", [run], "8,192 GPUs")
    assert run.cluster.gpus == 8192 and len(run.jobs.id) == 20_000
    assert (tmp_path / "one.html").stat().st_size < 915_000


@pytest.mark.parametrize("end", [0, HOUR])
def test_a_run_without_jobs_has_a_page(end: int) -> None:
    page = render([empty_run(end=end), empty_run(end=end, profile="other")], "Nothing")
    assert data_of(page)["map"]["total"] == 0


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        write_report(tmp_path / "a.html", [], "t")


def test_a_summary_is_plain_json_with_its_largest_parts(pair: list[RunResult]) -> None:
    odd = plain({"a": float("nan"), "b": (1, float("inf")), 3: {"c": True, "d": "x", "e": None}})
    assert odd == {"a": None, "b": [1, None], "3": {"c": True, "d": "x", "e": None}}
    many = {f"q{i}": {"gpu_hours": i} for i in range(100)}
    first, second = (
        dataclasses.replace(pair[0], summary={"by_queue": part}) for part in (many, {"q0": {"gpu_hours": 500}})
    )
    wide, narrow = trimmed([first, second])
    assert list(wide["by_queue"]) == ["q0", *(f"q{i}" for i in range(99, 100 - MOST, -1))]
    assert wide["parts"] == narrow["parts"] == {"by_pool": 0, "by_queue": 100}
    assert list(narrow["by_queue"]) == ["q0"]


def test_runs_of_one_profile_are_numbered() -> None:
    runs = [empty_run(), empty_run(profile="easy"), empty_run()]
    assert labels(runs) == ["kant (1)", "easy", "kant (2)"]
