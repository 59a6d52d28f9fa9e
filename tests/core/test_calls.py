"""Python calls of a simulated job, exact counts on fixed traces: they may fall, and never rise.

`python -m benchmarks.calls` shows where the calls go. Once they have fallen, lower the figures:

    KANT_REFRESH_CALLS=1 python -m pytest tests/core/test_calls.py

A figure that has to rise for a good reason is raised by hand in calls.toml, and the commit says why.
"""

from __future__ import annotations

import os
import tomllib
from math import inf
from pathlib import Path

import pytest
from benchmarks.calls import TRACES, count

pytestmark = pytest.mark.long

FIGURES = Path(__file__).with_name("calls.toml")
REFRESH = os.environ.get("KANT_REFRESH_CALLS") == "1"
HEAD = """\
# Of one simulated job, on the traces of benchmarks/traces.py: Python calls and cycles, at most. They may only fall.
# tests/core/test_calls.py holds them and says how they are lowered.
"""


def written() -> dict[str, dict[str, float | str]]:
    return tomllib.loads(FIGURES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TRACES)
def test_a_job_costs_no_more_calls_than_before(name: str) -> None:
    before = written()[name]
    calls = count(TRACES[name](), inf if REFRESH else float(before["calls"]))
    if not REFRESH:
        assert calls.digest == before["digest"], "the trace is decided otherwise: its counts compare with nothing"
    now = calls.figures()
    risen = [f"{what} a job: {now[what]}, at most {before[what]}" for what in now if now[what] > float(before[what])]
    assert not risen, f"{name}: {'; '.join(risen)} (python -m benchmarks.calls {name} --by function)"
    if REFRESH:
        write({**written(), name: {**now, "digest": calls.digest}})


def write(figures: dict[str, dict[str, float | str]]) -> None:
    lines = [HEAD]
    for name, figure in figures.items():
        lines.append(f"[{name}]\n")
        lines += [f"{key} = {value!r}\n".replace("'", '"') for key, value in figure.items()]
        lines.append("\n")
    FIGURES.write_text("".join(lines).rstrip() + "\n", encoding="utf-8")


def test_the_figures_are_those_of_the_traces() -> None:
    assert list(written()) == list(TRACES)
