"""Solvers are an extra: who has not installed it is told what to install."""

from __future__ import annotations

import sys

import pytest

from kant.model.errors import InputError
from kant.optimize.solvers import cp_sat


def test_an_absent_solver_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(InputError, match=r"pip install 'kant\[optimize\]'"):
        cp_sat()


def test_a_model_is_solved() -> None:
    cp_model = cp_sat()
    model = cp_model.CpModel()
    x = model.new_int_var(0, 9, "x")
    model.maximize(x)
    solver = cp_model.CpSolver()
    assert solver.solve(model) == cp_model.OPTIMAL and solver.value(x) == 9
