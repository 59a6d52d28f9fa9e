"""Fitted costs: lines that are known come back, and files that are wrong are told so."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.model.errors import InputError
from kant.model.training import Training
from kant.placement.perf.fit import Fit, FittedCost, Sample, fit
from kant.placement.perf.layer import Cost
from kant.workload.measured_file import costs_text, read_costs, read_samples
from kant.workload.training_text import MODELS, parse_training, read_training, training_text


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-8), st.floats(0.3, 1.0), st.sets(st.integers(1, 1 << 26), min_size=2))
@settings(max_examples=examples(40), deadline=None)
def test_a_line_that_is_known_comes_back(alpha: float, beta: float, contention: float, sizes: set[int]) -> None:
    alone = [Sample("all_to_all", "leaf", size, alpha + beta * size) for size in sorted(sizes)]
    beside = [sample._replace(seconds=sample.seconds / contention, beside=True) for sample in alone]
    found = fit(alone + beside)
    for sample in alone:
        assert found.lines[0].cost.of(sample.size) == pytest.approx(sample.seconds, rel=1e-6)
    assert found.contention == pytest.approx(contention, rel=1e-6)
    assert found.lines[0].samples == len(sizes)


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0.01, 10.0)), min_size=2, max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_no_line_that_may_be_fits_better(points: list[tuple[int, float]]) -> None:
    (line,) = fit([Sample("gemm", "", size, seconds) for size, seconds in points]).lines

    def off(alpha: float, beta: float) -> float:
        return sum((seconds - alpha - beta * size) ** 2 for size, seconds in points)

    assert line.cost.alpha >= 0
    assert line.cost.beta >= 0
    here = off(*line.cost)
    for a in (-0.01, 0.0, 0.01):
        for b in (-0.001, 0.0, 0.001):
            alpha, beta = line.cost.alpha + a, line.cost.beta + b
            if alpha >= 0 and beta >= 0:
                assert here <= off(alpha, beta) + 1e-9


def test_fitted_costs_come_back_from_their_file(tmp_path: Path) -> None:
    found = Fit(
        (
            FittedCost("gemm", "", Cost(5e-6, 1 / 3e14), 12, 0.999),
            FittedCost("all_reduce", "spine", Cost(1e-5, 7e-11), 24, 1),
        ),
        0.71,
        5,
    )
    path = tmp_path / "costs.toml"
    path.write_text(costs_text(found))
    measured = read_costs(path)
    assert measured.contention == 0.71
    assert measured.costs == {(line.operation, line.place): line.cost for line in found.lines}


ROW = "all_to_all,leaf,1024,0.001\nall_to_all,leaf,2048,0.002\n"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("", "at least one row"),
        ("bcast,leaf,1,1\n", "row 1, field operation: expected one of all_to_all"),
        (ROW + "gemm,leaf,1,1\n", "row 3, field place: expected nothing for gemm"),
        (ROW + "all_to_all,rack,1,1\n", "row 3, field place: expected one of node"),
        (ROW + "all_to_all,leaf,0,1\n", "row 3, field size: expected a number above 0"),
        (ROW + "all_to_all,leaf,1,soon\n", "row 3, field seconds: expected a number above 0"),
        ("all_to_all,leaf,1024,0.001\n", "all_to_all leaf measured alone at two sizes or more"),
    ],
)
def test_measurements_that_say_nothing_are_refused(tmp_path: Path, rows: str, sentence: str) -> None:
    path = tmp_path / "measured.csv"
    path.write_text("operation,place,size,seconds\n" + rows)
    with pytest.raises(InputError, match=sentence):
        read_samples(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("contention = 2", "field contention: expected a number above 0, at most 1"),
        ("speed = 1", "expected the field contention and"),
        ("[[cost]]\noperation = 'gemm'\nalpha_s = -1\nbeta_s = 0", "cost 1, field alpha_s"),
        ("[[cost]]\noperation = 'all_reduce'\nalpha_s = 1\nbeta_s = 0", "cost 1, field place"),
        ("[[cost]]\noperation = 'gemm'\nalpha_s = 1\nbeta_s = 0\nrate = 3", "fields operation, place, alpha_s, beta_s"),
        ("cost = 3", r"\[\[cost\]\] tables"),
        ("][", "TOML"),
    ],
)
def test_costs_that_cannot_be_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_costs(path)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_words_of_a_training_come_back(name: str) -> None:
    training = parse_training("here", f"{name} tensor=8 micro_batches=4")
    assert isinstance(training, Training)
    assert (training.tensor, training.micro_batches, training.layers) == (8, 4, MODELS[name].layers)
    assert parse_training("here", training_text(training)) == training
    assert parse_training("here", " ") is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("gpt-9", "field model: expected one of llama-3-8b"),
        ("layers=2", "a model, or the field width"),
        ("llama-3-8b tensor=0", "field tensor: expected a whole number from 1"),
        ("llama-3-8b tensor=many", "field tensor: expected a whole number from 1"),
        ("llama-3-8b zero=3", "expected fields among model, layers"),
        ("llama-3-8b tensor=2 tensor=4", "tensor once"),
        ("llama-3-8b top_k=2", "field top_k: expected at most its 1 experts"),
        ("mixtral-8x7b expert=3", "field expert: expected a divisor of its 8 experts"),
        ("llama-3-8b pipeline=64", "field pipeline: expected at most its 32 layers"),
    ],
)
def test_a_training_that_cannot_be_is_refused(words: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parse_training("jobs.csv, job 3", words)


def test_a_training_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('model = "mixtral-8x7b"\ntensor = 8\nexpert = 8\n')
    training = read_training(path)
    assert (training.experts, training.expert) == (8, 8)
    path.write_text("layers = ")
    with pytest.raises(InputError, match="TOML"):
        read_training(path)
