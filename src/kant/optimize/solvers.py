"""The doors to the solvers of the extra `optimize`, opened only when one is asked for."""

from __future__ import annotations

from typing import Any

from kant.model.errors import InputError


def cp_sat() -> Any:
    """The module of OR-Tools' CP-SAT models, `ortools.sat.python.cp_model`; raises InputError where it is absent."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise InputError("this installation", "the extra `optimize` (pip install 'kant[optimize]')") from None
    return cp_model
