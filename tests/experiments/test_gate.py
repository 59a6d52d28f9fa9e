"""`kant gate`: its verdict, its exit code, and how often it is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cli.command import kant, trace

from kant.experiments import pool
from kant.experiments.gate import floor_of, judge
from kant.experiments.store import RunStore

pytestmark = pytest.mark.long

WAITS = st.lists(st.floats(0, 1e6), min_size=3, max_size=15)


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace whose jobs wait for minutes on 4x8."""
    return trace(tmp_path_factory.mktemp("month") / "month.csv", jobs=240)


@given(WAITS, st.floats(0, 0.5))
def test_a_policy_that_changes_nothing_passes(waits: list[float], allowed: float) -> None:
    assert judge("wait_s.p90", waits, waits, allowed=allowed).outcome == "pass"


@given(WAITS, st.floats(1.5, 10), st.floats(0, 0.3))
@example([0.0, 0.0, 849.0], 1.5, 0.25)
def test_what_makes_every_slice_worse_alike_is_found(waits: list[float], factor: float, allowed: float) -> None:
    floor = floor_of("wait_s.p90")
    old = [wait + floor for wait in waits]
    new = [(wait + floor) * factor - floor for wait in old]
    found = judge("wait_s.p90", old, new, allowed=allowed)
    assert found.outcome == "regression"
    assert found.regret.mean == pytest.approx(factor - 1) and found.mean_regret.mean == pytest.approx(factor - 1)
    assert judge("wait_s.p90", new, old, allowed=allowed).outcome == "pass"
    least = floor_of("sor")
    more = [(share + least) * factor - least for share in old]
    assert judge("sor", more, old, allowed=allowed).outcome == "regression"  # more of it is better


@given(WAITS, WAITS, st.floats(0, 0.5), st.floats(0.6, 0.99))
def test_the_verdict_is_where_the_interval_lies(a: list[float], b: list[float], allowed: float, level: float) -> None:
    n = min(len(a), len(b))
    found = judge("wait_s.p90", a[:n], b[:n], allowed=allowed, confidence=level)
    above = max(found.regret.low, found.mean_regret.low) > allowed
    below = max(found.regret.high, found.mean_regret.high) <= allowed
    if found.slices >= 3:
        assert (found.outcome == "regression") == above
        assert found.outcome == "pass" or above or not below
    many = judge("wait_s.p90", a[:n], b[:n], allowed=allowed, confidence=level, metrics=5)
    assert many.outcome in (found.outcome, "unsure")


@pytest.mark.parametrize(("planted", "least", "most"), [(0.0, 0, 0.02), (0.02, 0, 0.1), (0.05, 0.9, 1)])
def test_it_is_wrong_as_seldom_as_it_says_and_finds_what_is_planted(planted: float, least: float, most: float) -> None:
    """Days whose P90 waits chance changes by about 4 %, 20 of them, 400 times. The study has simulated days."""
    rng = np.random.Generator(np.random.PCG64(7))
    refused = 0
    for _ in range(400):
        days = np.exp(rng.normal(9, 1, 20))
        old, new = (days * np.exp(rng.normal(0, 0.025, 20)) for _ in range(2))
        refused += judge("wait_s.p90", old, new * (1 + planted), allowed=0.02).outcome == "regression"
    assert least <= refused / 400 <= most


def test_a_change_that_hurts_is_refused_with_a_summary(month: Path, tmp_path: Path) -> None:
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    found = kant("gate", "srtf", "fifo", "--traces", month, "--cluster", "4x8", "--slices", "6", "--summary", page)
    assert found.code == 1 and found.out.startswith("REGRESSION\n") and "wait_s.p90" in found.out
    text = page.read_text()
    assert text.startswith("before\n## REGRESSION: fifo in place of srtf") and "| wait_s.p90 |" in text


def test_a_change_that_helps_passes_and_no_change_is_told(month: Path) -> None:
    found = kant("gate", "fifo", "srtf", "--traces", month, "--cluster", "4x8", "--slices", "6", "--json").json()
    assert found["passes"] is True and found["metrics"][0]["regret"]["value"] < 0
    same = kant("gate", "fifo", "fifo", "--traces", month, month, "--cluster", "4x8", "--slices", "3")
    assert same.code == 0 and same.out.startswith("PASS: both decide the same on every slice")


def test_the_mean_is_that_of_the_slices(month: Path, tmp_path: Path) -> None:
    words = ("gate", "fifo", "srtf", "--traces", month, "--cluster", "4x8", "--slices", "4", "--metric", "sor")
    found = kant(*words, "--store", tmp_path / "runs", "--json").json()["metrics"][0]
    kept = [json.loads(path.read_text())["summary"] for path in RunStore(tmp_path / "runs").folder.glob("*.json")]
    assert len(kept) == 8
    for side, profile in (("old", "fifo"), ("new", "srtf")):
        values = [summary["sor"] for summary in kept if summary["profile"] == profile]
        assert found[side] == pytest.approx(math.exp(np.mean([math.log(sor + 0.001) for sor in values])) - 0.001)


def test_a_store_spares_the_runs_that_are_there(month: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("gate", "fifo", "srtf", "--traces", month, "--cluster", "4x8", "--slices", "3", "--json")
    first = kant(*words, "--store", tmp_path / "runs")

    def never(*arguments: object) -> None:
        raise AssertionError("a run began")

    monkeypatch.setattr(pool, "forked", never)
    assert kant(*words, "--store", tmp_path / "runs").out == first.out


def test_a_policy_that_fails_or_leaves_jobs_undone_is_refused(
    month: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate = pool.simulate

    def broken(experiment: object, run: object, *rest: object) -> object:
        if run.profile == "new" and run.part == 1:  # type: ignore[attr-defined]
            raise ZeroDivisionError("of the new policy")
        summary = simulate(experiment, run, *rest)  # type: ignore[arg-type]
        if run.profile == "new" and summary is not None:  # type: ignore[attr-defined]
            summary["completed"] -= 2
        return summary

    monkeypatch.setattr(pool, "simulate", broken)
    found = kant("gate", "fifo", "srtf", "--traces", month, "--cluster", "4x8", "--slices", "4")
    assert found.code == 1 and "it fails: new on month.csv, part 2" in found.out
    assert "it leaves 6 jobs incomplete" in found.out
    monkeypatch.setattr(pool, "_warmed", lambda experiment, profile: "no" if profile == "old" else "")
    kant("gate", "fifo", "srtf", "--traces", month, "--cluster", "4x8", "--json").refusal()


def test_a_strict_gate_refuses_what_it_cannot_tell(month: Path) -> None:
    words = ("gate", "worst-fit", "random", "--traces", month, "--cluster", "4x8", "--slices", "3")
    lenient, strict = kant(*words, "--json").json(), kant(*words, "--strict", "--json").json()
    assert [metric["outcome"] for metric in lenient["metrics"]] == ["unsure"]
    assert lenient["passes"] is True and strict["passes"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-regret", "much"), "a share such as 2%"),
        (("--confidence", "100%"), "a share such as 2%"),
        (("--metric", "colour"), "figures of a summary"),
        (("--slices", "2"), "at least 3 slices"),
        (("--slices", "0"), "from 1 to"),
        (("--slices", "100000"), "from 1 to"),
        (("--cluster", "none"), "NxG"),
        (("--format", "swf"), "18 numbers"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(month: Path, words: tuple[str, ...], said: str) -> None:
    assert said in kant("gate", "fifo", "srtf", "--traces", month, *words, "--json").refusal()
