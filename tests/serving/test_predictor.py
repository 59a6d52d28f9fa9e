"""The ranker of prompts learns the order of lengths, and nothing where there is nothing to learn."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.cli.command import kant

from kant.serving.predictor import LengthRanker, PromptPair, kendall, listmle, train

TASKS = {"translate": 40, "summarise": 120, "classify": 5, "explain": 400, "write an essay about": 900, "list": 80}
WORDS = ("river", "stone", "market", "engine", "garden", "winter", "letter", "copper", "forest", "signal", "mirror")


def pairs(count: int, seed: int, meaningful: bool = True) -> list[PromptPair]:
    draw = np.random.Generator(np.random.PCG64(seed))
    found = []
    for _ in range(count):
        task = list(TASKS)[int(draw.integers(len(TASKS)))]
        words = " ".join(WORDS[int(k)] for k in draw.integers(0, len(WORDS), int(draw.integers(3, 30))))
        mean = TASKS[task] if meaningful else 100
        found.append(
            PromptPair(f"Please {task} the {words}", max(1, round(mean * float(np.exp(0.4 * draw.standard_normal())))))
        )
    return found


scores = arrays.arrays(np.float64, st.integers(2, 5), elements=st.floats(-3, 3))


@given(scores, st.randoms())
def test_the_likelihoods_of_all_orders_are_one_and_the_gradient_is_theirs(values: np.ndarray, shuffle: object) -> None:
    orders = [np.array(order) for order in itertools.permutations(range(len(values)))]
    assert sum(np.exp(-listmle(values, order)[0]) for order in orders) == pytest.approx(1)
    order = orders[shuffle.randrange(len(orders))]  # type: ignore[attr-defined]
    _, gradient = listmle(values, order)
    for k in range(len(values)):
        step = np.zeros(len(values))
        step[k] = 1e-6
        slope = (listmle(values + step, order)[0] - listmle(values - step, order)[0]) / 2e-6
        assert gradient[k] == pytest.approx(slope, abs=1e-5)


def test_kendalls_tau_counts_pairs() -> None:
    up = np.arange(5.0)
    assert kendall(up, up) == 1 and kendall(up, -up) == -1
    assert kendall(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])) == pytest.approx(1 / 3)


def test_it_learns_which_task_has_long_answers_and_keeps_it(tmp_path: Path) -> None:
    model, tau = train(pairs(800, 1), seed=0)
    assert tau > 0.6
    model.save(tmp_path / "model.npz")
    again = LengthRanker.load(tmp_path / "model.npz")
    asked = ["Please classify the river stone", "Please write an essay about the river stone"]
    assert again.rank(asked)[0] < again.rank(asked)[1]
    assert np.array_equal(again.rank(asked), model.rank(asked))


def test_it_finds_nothing_where_prompts_say_nothing() -> None:
    assert abs(train(pairs(800, 2, meaningful=False), seed=0, epochs=3)[1]) < 0.25


def test_the_command_trains_and_refuses(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": p.prompt, "output": p.output}) for p in pairs(300, 3)))
    runs = [kant("serve", "train", path, "--out", tmp_path / "model.npz", "--json").json() for _ in range(2)]
    assert runs[0] == runs[1] and runs[0]["pairs"] == 300 and runs[0]["held_out"] == 30
    assert runs[0]["kendall_tau"] > 0.4
    for text, says in (
        ('{"prompt": "x", "output": 0}', ":1: output: expected a number of tokens from 1"),
        ('{"prompt": 5, "output": 3}', ":1: expected"),
        ('{"prompt": "x", "output": 3}', "expected at least 64 pairs"),
        ("", "expected at least 64 pairs"),
    ):
        path.write_text(text)
        assert says in kant("serve", "train", path, "--out", tmp_path / "model.npz").refusal()
