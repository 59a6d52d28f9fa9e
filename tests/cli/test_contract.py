"""What scripts rely on: the keys of `--json`, their types, and numbers that agree with each other."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.cli.command import Outcome, kant, trace, without_machine

from kant import __version__
from kant.model.units import SIZE_CLASSES

SPREAD = ("mean", "p50", "p90", "p99", "max")
COUNTS = ("jobs", "completed", "censored", "rejected", "preemptions", "evictions", "decisions")
FILES = {"summary.json", "jobs.parquet", "series.parquet", "journal.jsonl", "report.html"}


def check_spread(spread: dict[str, Any], empty: bool) -> None:
    values = [spread[key] for key in SPREAD]
    if empty:
        assert values == [None] * 5
        return
    assert all(isinstance(value, float) and value >= 0 for value in values)
    assert spread["p50"] <= spread["p90"] <= spread["p99"] <= spread["max"]
    assert spread["mean"] <= spread["max"] * (1 + 1e-12)


def check_share(value: Any) -> None:
    assert value is None or (isinstance(value, float) and -1e-9 <= value <= 1 + 1e-9)


def check_summary(summary: dict[str, Any]) -> None:
    """Everything that the contract says about one run."""
    for key in COUNTS:
        assert type(summary[key]) is int and summary[key] >= 0, key
    assert summary["jobs"] == summary["completed"] + summary["censored"] + summary["rejected"]
    assert summary["evictions"] >= summary["preemptions"]
    assert isinstance(summary["makespan_s"], float) and summary["makespan_s"] >= 0
    assert summary["makespan_s"] <= summary["end_s"]
    admitted = summary["jobs"] - summary["rejected"]
    check_spread(summary["jct_s"], empty=summary["completed"] == 0)
    check_spread(summary["wait_s"], empty=admitted == 0)
    assert list(summary["wait_by_size"]) == [name for name, _ in SIZE_CLASSES]
    assert sum(row["count"] for row in summary["wait_by_size"].values()) <= admitted
    for row in summary["wait_by_size"].values():
        check_spread(row, empty=row["count"] == 0)
        assert type(row["count"]) is int and row["count"] >= row["censored"] >= 0
    for ratio in ("gar", "gfr"):
        check_share(summary[ratio]["mean"])
        check_share(summary[ratio]["median"])
    check_share(summary["sor"])
    assert isinstance(summary["jtted"], dict)
    assert sum(summary["rejected_because"].values()) == summary["rejected"]
    assert re.fullmatch(r"[0-9a-f]{32}", summary["digest"])
    assert type(summary["interrupted"]) is bool
    assert summary["kant"] == __version__
    assert summary["cpu_s"] >= 0 and summary["peak_rss_mib"] > 0
    assert summary["jobs_per_cpu_s"] is None or summary["jobs_per_cpu_s"] > 0


@pytest.mark.parametrize("profile", ["kant", "baseline", "srtf", "tiresias", "muri-srsf", "helios-srtf"])
def test_the_summary_of_a_run(small: Path, profile: str) -> None:
    summary = kant("simulate", small, "--cluster", "4x8", "--profile", profile, "--json").json()
    check_summary(summary)
    assert summary["jobs"] == summary["completed"] == 60
    assert summary["profile"] == profile and summary["workload"] == "small.csv" and summary["cluster"] == "4x8"
    assert summary["wait_s"]["max"] > 0
    assert "allocated_pct" not in summary and "frag_pct" not in summary
    assert sum(row["count"] for row in summary["wait_by_size"].values()) == 60


def test_a_run_leaves_its_files(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    summary = kant("simulate", small, "--cluster", "4x8", "--out", out, "--json").json()
    assert {path.name for path in out.iterdir()} == FILES
    assert json.loads((out / "summary.json").read_text()) == summary
    jobs = pl.read_parquet(out / "jobs.parquet")
    assert len(jobs) == summary["jobs"]
    assert (jobs["status"] == "finished").sum() == summary["completed"]
    assert jobs["wait_us"].max() == summary["wait_s"]["max"] * 1e6
    assert abs(jobs["wait_us"].mean() / 1e6 - summary["wait_s"]["mean"]) < 1e-6
    assert jobs["end_us"].max() == summary["makespan_s"] * 1e6
    series = pl.read_parquet(out / "series.parquet")
    assert series["time_us"].is_sorted() and series["allocated_milli_gpus"].max() <= 32_000
    assert "<html" in (out / "report.html").read_text()
    again = kant("simulate", small, "--cluster", "4x8", "--out", out, "--json").json()
    assert without_machine(again) == without_machine(summary)


def test_compare_runs_each_profile_alone(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    profiles = ("baseline", "kant", "kant", "srtf")
    chosen = [token for profile in profiles for token in ("--profile", profile)]
    both = kant("compare", small, "--cluster", "4x8", *chosen, "--out", out, "--json").json()
    assert both["interrupted"] is False
    for summary, profile in zip(both["runs"], profiles, strict=True):
        check_summary(summary)
        alone = kant("simulate", small, "--cluster", "4x8", "--profile", profile, "--json").json()
        assert without_machine(summary) == without_machine(alone)
    assert {path.name for path in out.iterdir()} == {"baseline", "kant-2", "kant-3", "srtf", "report.html"}
    for folder in ("baseline", "kant-2", "kant-3", "srtf"):
        assert {path.name for path in (out / folder).iterdir()} == FILES - {"report.html"}


def test_profiles_of_any_name_keep_apart(small: Path, tmp_path: Path) -> None:
    body = kant("profiles", "show", "fifo").out.split("\n", 1)[1]
    names = ["a", "a", "a-1", "a/../b", "report.html", "..", "x" * 400, "ü" * 300, "\\u0000[/]"]
    chosen = []
    for i, name in enumerate(names):
        path = tmp_path / f"{i}.toml"
        path.write_text(f'name = "{name}"\n{body}')
        chosen += ["--profile", str(path)]
    out = tmp_path / "results" / "out"
    result = kant("compare", small, "--cluster", "4x8", *chosen, "--out", out, "--json").json()
    assert len(result["runs"]) == len(names)
    assert len(list(out.glob("*/summary.json"))) == len(names)
    assert (out / "report.html").is_file()
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["out"]


def test_static_packing_has_its_curves(tmp_path: Path) -> None:
    pods = trace(tmp_path / "pods.csv", 200, sizes=(1, 2, 4, 8))
    summary = kant("simulate", pods, "--cluster", "16x8", "--profile", "openb-best-fit", "--json").json()
    check_summary(summary)
    for key in ("allocated_pct", "frag_pct"):
        curve = summary[key]
        assert isinstance(curve, dict)
        arrived = [float(percent) for percent in curve]
        assert len(arrived) > 5 and arrived == sorted(arrived)
        assert all(value is None or 0 <= value <= 100 for value in curve.values())
    held = [value for value in summary["allocated_pct"].values() if value is not None]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(held))


def test_jobs_that_can_never_fit_block_nobody(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("id,submit_s,runtime_s,gpus\nbig,0,100,65\na,1,10,8\nhuge,2,100,640\nb,3,10,8\n")
    for profile in ("kant", "baseline", "srtf", "muri-srtf"):
        outcome = kant("simulate", path, "--cluster", "4x8", "--profile", profile, "--json")
        summary = outcome.json()
        check_summary(summary)
        assert summary["rejected"] == 2 and summary["completed"] == 2
        assert len(summary["rejected_because"]) >= 1
        assert summary["wait_s"]["max"] < 1
    shown = kant("simulate", path, "--cluster", "4x8", "--out", tmp_path / "out")
    assert shown.code == 0
    assert re.search(r"^rejected 1: .*never fit", shown.out, re.MULTILINE)
    events = [json.loads(line) for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines()]
    assert [(e["job"], e["time"]) for e in events if e["event"] == "rejected"] == [("big", 0), ("huge", 2_000_000)]


def test_until_censors_what_still_runs(small: Path, tmp_path: Path) -> None:
    whole = kant("simulate", small, "--cluster", "4x8", "--json").json()
    out = tmp_path / "out"
    part = kant("simulate", small, "--cluster", "4x8", "--until", "10m", "--out", out, "--json").json()
    check_summary(part)
    assert part["censored"] > 0 and part["completed"] < whole["completed"]
    assert part["end_s"] == 600.0 and part["makespan_s"] <= 600.0
    assert part["jobs"] == sum(1 for i in range(60) if i * 10 + i * 7 % 11 <= 600)
    assert part["interrupted"] is False
    assert kant("replay", out / "journal.jsonl").code == 0
    start = kant("simulate", small, "--cluster", "4x8", "--until", "0", "--json").json()
    check_summary(start)
    assert start["completed"] == 0
    after = kant("simulate", small, "--cluster", "4x8", "--until", "99d", "--json").json()
    assert without_machine(after) == without_machine(whole)


def test_window_and_slice_choose_jobs(small: Path) -> None:
    batch = kant("simulate", small, "--cluster", "4x8", "--slice", "batch", "--json").json()
    check_summary(batch)
    assert batch["jobs"] == 30 and list(batch["by_queue"]) == ["batch"]
    early = kant("simulate", small, "--cluster", "4x8", "--window", ":5m", "--json").json()
    late = kant("simulate", small, "--cluster", "4x8", "--window", "5m:", "--json").json()
    assert early["jobs"] + late["jobs"] == 60 and early["jobs"] == sum(
        1 for i in range(60) if i * 10 + i * 7 % 11 < 300
    )
    both = kant("simulate", small, "--cluster", "4x8", "--window", "1m:5m", "--slice", "research", "--json").json()
    assert 0 < both["jobs"] < early["jobs"] / 2


def test_a_profile_that_was_edited_decides_otherwise(small: Path, tmp_path: Path) -> None:
    shown = kant("profiles", "show", "kant")
    path = tmp_path / "mine.toml"
    path.write_text(shown.out)
    same = kant("simulate", small, "--cluster", "4x8", "--profile", path, "--json").json()
    builtin = kant("simulate", small, "--cluster", "4x8", "--json").json()
    assert same["digest"] == builtin["digest"]
    path.write_text(shown.out.replace('"fifo"', '"sjf"').replace('name = "kant"', 'name = "mine"'))
    assert kant("check", path).out == f"{path}: the profile mine\n"
    mine = kant("simulate", small, "--cluster", "4x8", "--profile", path, "--json").json()
    assert mine["profile"] == "mine" and mine["digest"] != same["digest"]


def test_seeds_matter_only_where_something_is_drawn(small: Path) -> None:
    def digest(profile: str, seed: int) -> str:
        return str(
            kant("simulate", small, "--cluster", "4x8", "--profile", profile, "--seed", str(seed), "--json").json()[
                "digest"
            ]
        )

    assert digest("kant", 1) == digest("kant", 2)
    assert digest("random", 1) == digest("random", 1) != digest("random", 2**63 - 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["policies", "--json"],
        ["profiles", "--json"],
        ["cluster", "describe", "4x8", "--json"],
        ["trace", "describe", "SMALL", "--json"],
        ["replay", "JOURNAL", "--json"],
        ["replay", "JOURNAL", "--profile", "kant", "--json"],
    ],
    ids=" ".join,
)
def test_json_is_one_object(arguments: list[str], small: Path, journal: Path) -> None:
    named = {"SMALL": str(small), "JOURNAL": str(journal)}
    found = kant(*(named.get(token, token) for token in arguments)).json()
    assert isinstance(found, dict) and found


def test_the_verbs_that_look(small: Path, journal: Path) -> None:
    facts = kant("trace", "describe", small, "--json").json()
    assert facts["jobs"] == 60 and facts["queues"] == 2
    assert kant("cluster", "describe", "4x8", "--json").json()["gpus"] == 32
    profiles = kant("profiles", "--json").json()
    policies = kant("policies", "--json").json()
    assert {"kant", "baseline", "fifo", "tiresias"} <= set(profiles)
    assert list(policies) == [
        "order",
        "discipline",
        "placement",
        "engine",
        "router",
        "workflow",
        "dispatcher",
        "optimiser",
    ]
    for kind in policies.values():
        for policy in kind:
            assert (
                set(policy) == {"policy", "about", "fields", "source", "package", "tags"}
                and policy["about"]
                and policy["source"]
            )
    assert kant("check", small).out == f"{small}: a workload of 60 jobs\n"
    assert kant("check", journal).out.startswith(f"{journal}: a journal of ")
    missing: Outcome = kant("check", small, "--kind", "journal")
    assert "small.csv:1" in missing.refusal()
