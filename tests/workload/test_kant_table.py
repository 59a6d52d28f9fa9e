"""Kant's own table: what is written is read back, to the microsecond, and no half file stays behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.model.errors import InputError
from kant.workload.convert import write_workload
from kant.workload.kant_parquet import decode, table_of
from kant.workload.kant_table import seconds_text
from kant.workload.read import read_workload
from kant.workload.table import MAX_TIME, Field, parse_number
from kant.workload.workload import COLUMNS, Workload, make_workload

TIMES = st.one_of(st.integers(0, MAX_TIME), st.integers(0, 10**9))
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
MODELS = st.lists(NAMES.filter(lambda name: "|" not in name), max_size=2)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    n = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=np.int64)

    codes = np.arange(n, dtype=np.int64)
    segment = column(st.integers(0, 9))
    submit = np.sort(column(TIMES))
    pods = column(st.integers(0, 3000))
    apart = np.where(segment > 0, 0, column(st.integers(0, 5)))
    affinities = tuple(draw(st.lists(st.one_of(st.just(""), NAMES), min_size=n, max_size=n)))
    named = np.array([bool(name) for name in affinities])
    rigid = (segment > 0) | (apart > 0) | named
    return make_workload(
        "w",
        submit - submit[0],
        column(TIMES),
        column(st.integers(0, 3000)),
        ids=draw(st.lists(NAMES, min_size=n, max_size=n, unique=True)),
        pods=pods,
        floor=np.where(rigid, 0, np.minimum(column(st.integers(0, 3000)), pods)),
        milli=column(st.integers(1, 1000)),
        cpu=column(st.integers(0, 10**15)),
        memory=column(st.integers(0, 10**15)),
        limit=column(st.one_of(st.just(-1), TIMES)),
        due=column(st.one_of(st.just(-1), TIMES)),
        priority=column(st.integers(-(10**9), 10**9)),
        overhead=column(TIMES),
        within=column(st.integers(0, 5)),
        within_required=column(st.integers(0, 1)),
        segment=segment,
        affinity=codes,
        affinities=affinities,
        apart=apart,
        apart_required=column(st.integers(0, 1)),
        near=np.where(named, column(st.integers(0, 5)), 0),
        segment_within=np.minimum(segment, 5),
        queue=codes,
        user=codes,
        title=codes,
        models=codes,
        queues=tuple(draw(st.lists(NAMES, min_size=n, max_size=n))),
        users=tuple(draw(st.lists(st.one_of(st.just(""), NAMES), min_size=n, max_size=n))),
        titles=tuple(draw(st.lists(st.one_of(st.just(""), NAMES), min_size=n, max_size=n))),
        model_sets=tuple(tuple(draw(MODELS)) for _ in range(n)),
        origin=int(submit[0]),
    )


def same(a: Workload, b: Workload) -> None:
    assert a.ids == b.ids
    assert a.origin == b.origin
    for name in COLUMNS:
        if name not in ("queue", "user", "title", "models", "affinity"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist(), name
    coded = (
        ("queue", "queues"),
        ("user", "users"),
        ("title", "titles"),
        ("models", "model_sets"),
        ("affinity", "affinities"),
    )
    for codes, names in coded:
        left = [getattr(a, names)[code] for code in getattr(a, codes)]
        assert left == [getattr(b, names)[code] for code in getattr(b, codes)], names


@given(jobs=workloads(), kind=st.sampled_from([".csv", ".csv.gz"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_gives_back_what_was_written(tmp_path: Path, jobs: Workload, kind: str) -> None:
    path = tmp_path / f"w{kind}"
    write_workload(jobs, path)
    same(jobs, read_workload(path))


@given(jobs=workloads())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parquet_gives_back_what_was_written(tmp_path: Path, jobs: Workload) -> None:
    path = tmp_path / "w.parquet"
    write_workload(jobs, path)
    table = decode(path)
    assert table.numbers["submit_s"].tolist() == (jobs.submit + jobs.origin).tolist()
    for name, column in (("runtime_s", jobs.runtime), ("limit_s", jobs.limit), ("cpu_milli", jobs.cpu)):
        assert table.numbers[name].tolist() == column.tolist()
    assert table.texts["id"] == jobs.ids


@given(jobs=workloads())
@settings(max_examples=examples(3), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parquet_is_read_like_csv(tmp_path: Path, jobs: Workload) -> None:
    path = tmp_path / "w.parquet"
    write_workload(jobs, path)
    same(jobs, read_workload(path))


def test_parquet_of_other_makers(tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    frame = pl.DataFrame({"submit_s": [1.1, 0.3], "runtime_s": [5, 6], "gpus": [1.0, 8.0], "limit_s": [None, "2.5"]})
    frame.write_parquet(path)
    jobs = read_workload(path)
    assert jobs.submit.tolist() == [0, 800_000]
    assert jobs.gpus.tolist() == [8, 1]
    assert jobs.limit.tolist() == [2_500_000, -1]
    for bad, sentence in (
        (frame.with_columns(gpus=pl.Series([1.5, 2.0])), "line 1, field gpus: expected a whole number .* got 1.5"),
        (frame.with_columns(submit_s=pl.Series([1.0, float("nan")])), "line 2, field submit_s"),
        (frame.with_columns(runtime_s=pl.Series([-1, 2])), "line 1, field runtime_s: expected seconds .* got -1"),
        (frame.with_columns(gpus=pl.Series([[1], [2]])), "column gpus: expected numbers"),
        (frame.with_columns(colour=pl.lit("red")), "expected only the columns .* got 'colour'"),
        (frame.drop("gpus"), "expected the columns gpus"),
    ):
        with pytest.raises(InputError, match=sentence):  # as the process that reads a file says it
            table_of(bad, path)
    bad.write_parquet(path)
    with pytest.raises(InputError, match="expected the columns gpus"):
        read_workload(path)


def test_the_same_workload_gives_the_same_bytes(tmp_path: Path) -> None:
    jobs = make_workload("w", *(np.arange(5, dtype=np.int64) for _ in range(3)))
    for kind in (".csv", ".csv.gz", ".parquet"):
        write_workload(jobs, tmp_path / f"a{kind}")
        write_workload(jobs, tmp_path / f"b{kind}")
        assert (tmp_path / f"a{kind}").read_bytes() == (tmp_path / f"b{kind}").read_bytes()
    assert (tmp_path / "a.csv").read_text().startswith("id,submit_s,runtime_s,gpus\n0,0,0,0\n1,0.000001,")


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    jobs = make_workload("w", *(np.arange(2, dtype=np.int64) for _ in range(3)))
    path = tmp_path / "w.csv"
    path.write_text("before")
    with pytest.raises(InputError, match="names that UTF-8 can write"):
        write_workload(replace(jobs, ids=["a", "\ud800"]), path)
    with pytest.raises(InputError, match=r"\.csv, \.csv\.gz or \.parquet"):
        write_workload(jobs, tmp_path / "w.txt")
    with pytest.raises(InputError, match="a place that can be written"):
        write_workload(jobs, tmp_path / "none" / "w.csv")
    with pytest.raises(InputError, match="names that are not empty"):
        write_workload(replace(jobs, model_sets=(("A|B",),)), path)
    with pytest.raises(InputError, match="field runtime_s"):
        write_workload(replace(jobs, runtime=jobs.runtime - 1), path)
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InputError, match="a place that can be written"):
        write_workload(jobs, tmp_path / "d.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.csv", "w.csv"]
    assert path.read_text() == "before"


@given(us=TIMES)
def test_seconds_are_exact(us: int) -> None:
    field = Field("t", "seconds", "", high=MAX_TIME)
    assert parse_number(field, seconds_text(us)) == us
    assert parse_number(field, f"{us}e-6") == us
