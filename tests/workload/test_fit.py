"""A fitted generator: near its trace, the same for the same seed, without names, and a workload like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant

from kant.model.errors import InputError
from kant.model.units import HOUR, SECOND
from kant.workload.convert import write_workload
from kant.workload.digest import workload_digest
from kant.workload.fit import distance, fit, quality
from kant.workload.fitted import QUANTILES, draw, read_fit, write_fit
from kant.workload.generate import generate
from kant.workload.workload import Workload, make_workload


@pytest.fixture(scope="module")
def month() -> Workload:
    """Four weeks of a cluster, with limits of one or four hours, or of a day."""
    drawn = generate("seren", days=28, gpus=256, load=0.8, seed=2)
    hours = np.array([1, 4, 24, 14 * 24])[np.searchsorted([HOUR, 4 * HOUR, 24 * HOUR], drawn.runtime)]
    return replace(drawn, limit=np.where(np.arange(len(drawn)) % 3 == 0, -1, hours * HOUR))


def test_what_is_drawn_is_near_the_trace(month: Workload) -> None:
    drawn = draw(fit(month), jobs=len(month), seed=5)
    off = {str(row["quantity"]): float(str(row["distance"])) for row in quality(month, drawn)}
    assert {"limit, s", "run time over limit", "rank of the user", "run time of 9-64 GPUs, s"} <= off.keys()
    for name, most in {"run time, s": 0.02, "GPUs of a job": 0.02, "seconds between submissions": 0.05,
                       "jobs an hour": 0.1, "GPU-hours of a job": 0.03, "limit, s": 0.02,
                       "run time over limit": 0.05, "rank of the user": 0.03}.items():  # fmt: skip
        assert off[name] <= most, (name, off[name])
    assert abs(len(drawn) / len(month) - 1) < 1e-9
    other = draw(fit(generate("kalos", days=28, seed=2)), jobs=len(month), seed=5)
    assert max(float(str(row["distance"])) for row in quality(month, other)) > 0.3


def test_the_rhythm_of_the_day_is_that_of_the_trace() -> None:
    rng = np.random.default_rng(1)
    hours = rng.choice(24, 20_000, p=np.r_[np.full(12, 1), np.full(12, 9)] / 120)  # nine of ten in the second half
    submit = np.sort(rng.integers(0, 28, 20_000) * 24 * HOUR + hours * HOUR + rng.integers(0, HOUR, 20_000))
    ones = np.ones(20_000, dtype=np.int64)
    fitted = fit(make_workload("days", submit, ones * SECOND, ones, user=np.arange(20_000) % 50,
                               users=tuple(map(str, range(50)))))  # fmt: skip
    assert np.mean(fitted.hours[12:]) / np.mean(fitted.hours[:12]) == pytest.approx(9, rel=0.1)
    drawn = draw(fitted, seed=1)
    late = (drawn.submit // HOUR % 24 >= 12).mean()
    assert late == pytest.approx(0.9, abs=0.01) and fitted.noise < 0.1


@given(st.integers(0, 2**63 - 1), st.integers(1, 300), st.floats(0.05, 40))
def test_a_seed_decides_all_and_every_workload_is_sane(month: Workload, seed: int, jobs: int, days: float) -> None:
    fitted = fit(month.take(np.arange(2000)))
    drawn = draw(fitted, jobs=jobs, days=days, seed=seed)
    assert workload_digest(drawn) == workload_digest(draw(fitted, jobs=jobs, days=days, seed=seed))
    assert len(drawn) == jobs and (np.diff(drawn.submit) >= 0).all() and (drawn.runtime > 0).all()
    limited = drawn.limit > 0
    assert (drawn.runtime <= drawn.limit)[limited].all() and set(drawn.limit) <= set(month.limit)
    assert set(drawn.total_gpus) <= set(month.total_gpus)
    assert workload_digest(drawn) != workload_digest(draw(fitted, jobs=jobs, days=days, seed=seed ^ 1))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_the_distance_is_that_of_kolmogorov_and_smirnov(a: list[float], b: list[float]) -> None:
    brute = max(abs(sum(v <= x for v in a) / len(a) - sum(v <= x for v in b) / len(b)) for x in a + b)
    assert distance(np.array(a), np.array(b)) == pytest.approx(brute)


def test_a_file_of_it_holds_no_name_and_draws_a_workload_that_runs(month: Workload, tmp_path: Path) -> None:
    write_workload(month.take(np.arange(1500)), tmp_path / "month.csv")
    found = kant("trace", "fit", tmp_path / "month.csv", "--out", tmp_path / "fit.json", "--json").json()
    assert found["jobs"] == 1500 and len(found["quality"]) > 8
    text = (tmp_path / "fit.json").read_text()
    assert "vc0" not in text and "seren" not in text and len(text) < 100_000
    words = ("trace", "generate", tmp_path / "fit.json", "--days", "3", "--seed", "4", "--out")
    assert kant(*words, tmp_path / "drawn.csv").code == 0
    assert kant("simulate", tmp_path / "drawn.csv", "--cluster", "32x8", "--json").json()["completed"] > 100
    assert "distance" in kant("trace", "fit", tmp_path / "month.csv").out
    fitted = read_fit(tmp_path / "fit.json")
    write_fit(fitted, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == text and len(fitted.inner) == len(QUANTILES)


def test_too_little_is_refused(month: Workload, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 20 jobs over at least an hour"):
        fit(month.take(np.arange(19)))
    write_workload(month.take(np.arange(500)), tmp_path / "month.csv")
    assert (
        "ends with .json" in kant("trace", "fit", tmp_path / "month.csv", "--out", tmp_path / "x", "--json").refusal()
    )
    kant("trace", "fit", tmp_path / "month.csv", "--out", tmp_path / "fit.json")
    words = ("trace", "generate", tmp_path / "fit.json", "--out", tmp_path / "x.csv", "--load", "1")
    assert "only --jobs, --days and --seed with a fitted trace" in kant(*words).refusal()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fit: fit | {"format": "other"}, "field format"),
        (lambda fit: fit | {"hours": [0] * 24}, "field hours"),
        (lambda fit: fit | {"per_hour": 0}, "per_hour"),
        (lambda fit: fit | {"memory": 1}, "memory"),
        (lambda fit: fit | {"sessions": []}, "field sessions"),
        (lambda fit: fit | {"inner": [1]}, "field inner"),
        (lambda fit: fit | {"queues": []}, "field sizes"),
        (lambda fit: fit | {"shapes": [fit["shapes"][0] | {"size": 99}]}, "field shapes"),
        (lambda fit: {"format": 1}, "a fit that `kant trace fit` has written"),
    ],
)
def test_a_file_that_is_no_fit_is_refused(
    month: Workload, tmp_path: Path, change: Callable[[dict[str, object]], object], said: str
) -> None:
    path = tmp_path / "fit.json"
    write_fit(fit(month.take(np.arange(200))), path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert said in kant("trace", "generate", path, "--out", tmp_path / "x.csv").refusal()
