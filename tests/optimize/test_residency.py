"""The game of fast memory: plans hold, the beam never loses to the rule, optima are optima."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.studies.judges import residency_faults as faults
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.model.errors import InputError
from kant.optimize.instance_file import instance_text
from kant.optimize.residency import kernels
from kant.optimize.residency.exact import shortest
from kant.optimize.residency.generate import generate, read_program
from kant.optimize.residency.program import (
    COPY,
    DROP,
    KEEP,
    Buffer,
    BufferAction,
    Program,
    ProgramStep,
    Tier,
    duration,
    uses_of,
)
from kant.optimize.residency.search import LEAST, beam, begin, greedy


@st.composite
def programs(draw: st.DrawFn, most: int = 4) -> Program:
    """A few steps that use up to three buffers, one of which is made by a step."""
    count = draw(st.integers(1, 3))
    buffers = tuple(Buffer(f"b{n}", draw(st.integers(1, 6)), "slow") for n in range(count))
    steps = draw(st.integers(1, most))
    made = draw(st.integers(-1, steps - 1))
    rows = []
    for n in range(steps):
        uses = [f"b{b}" for b in range(count) if draw(st.booleans()) and (b > 0 or made < 0 or n > made)]
        rows.append(ProgramStep(draw(st.integers(0, 4)), tuple(uses), ("b0",) if n == made else ()))
    return Program(draw(st.integers(1, 10)), (Tier("slow", draw(st.integers(1, 3))),), buffers, tuple(rows))


def all_plans(program: Program) -> Iterator[tuple[BufferAction, ...]]:
    """Every plan that holds."""
    options = [
        [BufferAction(DROP), BufferAction(KEEP), *(BufferAction(COPY, first) for first in range(use.step))]
        for use in uses_of(program)
    ]
    for choices in product(*options):
        if not faults(program, choices):
            yield choices


@given(programs())
@settings(max_examples=examples(60))
def test_plans_hold_and_none_is_better_than_the_best_of_all(program: Program) -> None:
    if len(uses_of(program)) > 7:
        return
    best = min(duration(program, choices) for choices in all_plans(program))
    simple, found = greedy(program), beam(program, 8)
    assert not faults(program, simple) and not faults(program, found)
    assert best <= duration(program, found) <= duration(program, simple)
    exact = shortest(program, simple)
    assert not faults(program, exact.choices)
    assert duration(program, exact.choices) == exact.bound == best


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([0.2, 0.5, 1.0]))
@settings(max_examples=examples(20))
def test_on_drawn_programs_the_beam_never_loses_to_the_rule(seed: int, steps: int, share: float) -> None:
    program = generate(steps, 5, seed, share)
    simple, found = greedy(program), beam(program, 6)
    assert not faults(program, simple) and not faults(program, found)
    compute = sum(step.compute for step in program.steps)
    nothing = duration(program, [BufferAction(DROP)] * len(uses_of(program)))
    assert compute <= duration(program, found) <= duration(program, simple) <= nothing
    assert found == beam(program, 6) and program == generate(steps, 5, seed, share)


@given(st.integers(0, 10_000), st.sampled_from(LEAST))
@settings(max_examples=examples(10))
def test_the_rule_plays_the_same_compiled_and_not(seed: int, least: float) -> None:
    program = generate(20, 5, seed, 0.4)
    ends = []
    for compiled in (True, False):
        game = begin(program)
        play = kernels.play if compiled else getattr(kernels.play, "py_func", kernels.play)
        state = (game.done, game.starts, game.free, game.supply, game.reads)
        took = play(game.uses, 0, least, game.compute, *state)
        assert took == duration(program, game.choices()) and (game.free >= 0).all() and (game.supply >= 0).all()
        ends.append((took, *(column.tolist() for column in state)))
    assert ends[0] == ends[1]


@pytest.mark.long
def test_the_beam_closes_at_least_half_of_the_gap_to_the_optimum() -> None:
    gaps = np.zeros(3, dtype=int)
    for seed in range(6):
        program = generate(30, 6, seed)
        found = beam(program)
        best = shortest(program, found)
        assert best.bound == duration(program, best.choices)
        gaps += [duration(program, greedy(program)), duration(program, found), best.bound]
    assert gaps[0] - gaps[1] >= (gaps[0] - gaps[2]) / 2 > 0


def test_a_program_that_is_too_long_to_prove_is_refused() -> None:
    steps = (ProgramStep(1, ("a",)), *[ProgramStep(1)] * 1500, ProgramStep(1, ("a",)))
    program = Program(6, (Tier("slow", 2),), (Buffer("a", 4, "slow"),), steps)
    assert not faults(program, beam(program, 2))
    with pytest.raises(InputError, match="fewer steps between the uses of its buffers, or --search beam"):
        shortest(program, greedy(program))


def test_the_check_of_a_plan_sees_each_fault() -> None:
    buffers = (Buffer("a", 4, "slow"), Buffer("b", 4, "slow"))
    steps = (ProgramStep(2, ("a",)), ProgramStep(2, ("b",)), ProgramStep(2, ("a", "b")))
    program = Program(6, (Tier("slow", 2),), buffers, steps)  # 2 ticks for each
    drop = BufferAction(DROP)

    def said(*choices: BufferAction) -> str:
        return " and ".join(faults(program, choices))

    assert said(drop, drop, drop, drop) == ""
    assert said(drop, BufferAction(COPY, 0), drop, BufferAction(KEEP)) == ""
    assert "never there" in said(BufferAction(KEEP), drop, drop, drop)
    assert "not there at its last use" in said(drop, drop, BufferAction(KEEP), drop)
    assert "not between its uses" in said(drop, BufferAction(COPY, 1), drop, drop)
    assert "step 2 holds 8" in said(drop, drop, BufferAction(COPY, 1), BufferAction(COPY, 1)) or "holds 8" in said(
        drop, BufferAction(COPY, 0), BufferAction(COPY, 1), BufferAction(KEEP)
    )
    narrow = Program(20, (Tier("slow", 1),), buffers, steps)  # 4 ticks for each
    assert any("in time" in each for each in faults(narrow, (drop, BufferAction(COPY, 0), drop, drop)))


TURNS: dict[str, Any] = {
    "capacity": 70,
    "tiers": [{"name": "host", "bandwidth": 10}],
    "buffers": [{"name": "chat", "size": 40, "tier": "host"}, {"name": "cache", "size": 10, "tier": "host"}],
    "steps": [{"compute": 5, "uses": ["chat"], "makes": ["cache"]}, {"compute": 3, "uses": ["chat", "cache"]}],
}


def test_the_command_says_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "turns.json"
    path.write_text(json.dumps(TURNS))
    answer = kant("plan", "residency", path, "--search", "optimal", "--json").json()
    assert (answer["ticks"], answer["bound"], answer["compute"]) == (9, 9, 8) or answer["ticks"] == answer["bound"]
    text = kant("plan", "residency", path).out
    assert "2 steps take" in text and "(beam)" in text and "What each step finds" in text
    out = tmp_path / "drawn.json"
    drawn = kant("plan", "generate", "--kind", "residency", "--tasks", "12", "--seed", "4", "--out", out).out
    assert "12 steps with" in drawn and read_program(out) == generate(12, seed=4)
    assert out.read_text() == instance_text(generate(12, seed=4))
    rows = kant("plan", "residency", out, "--search", "greedy", "--json").json()
    assert len(rows["uses"]) == len(uses_of(generate(12, seed=4))) and rows["ticks"] == rows["greedy"]


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (("capacity",), 0, "capacity"),
        (("buffers", 0, "tier"), "moon", "buffer chat, tier: expected one of host"),
        (("buffers", 1, "name"), "chat", "buffer chat: expected a name"),
        (("buffers", 0, "size"), "big", "buffers[0].size"),
        (("tiers", 0, "bandwidth"), 0, "tiers[0].bandwidth"),
        (("steps", 0, "uses"), ["nobody"], "step 0, uses: expected names of buffers"),
        (("steps", 0, "uses"), ["cache"], "step 0"),
        (("steps", 0, "makes"), [], ""),
        (("steps", 1, "makes"), ["cache"], "step 1"),
        (("steps", 0, "colour"), 1, "colour"),
    ],
)
def test_a_bad_program_is_refused_in_one_sentence(tmp_path: Path, path: tuple[Any, ...], to: Any, says: str) -> None:
    changed = json.loads(json.dumps(TURNS))
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(changed))
    if not says:
        assert kant("plan", "residency", file).code == 0
        return
    sentence = kant("plan", "residency", file).refusal()
    assert "bad.json" in sentence and says in sentence, sentence
    file.write_text("{")
    assert "JSON" in kant("plan", "residency", file).refusal()
