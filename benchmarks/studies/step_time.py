"""How fast a step goes, and where: `python -m benchmarks.studies.step_time`.

Table 5 of FSMoE on both of its testbeds. Writes docs/studies/step-time.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import cpu_seconds
from kant.placement.perf.layer import DEGREES, Half, half_seconds
from kant.placement.perf.plan import Plan, Stack, best_plan, our_plan, published_plan
from kant.placement.perf.testbeds import CONTENTION, TESTBEDS, layers

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "step-time.md"

TABLE_5 = {"A": (1.0, 1.09, 1.12, 1.18), "B": (1.0, 1.08, 1.16, 1.22)}
"""Of the paper: times faster than Tutel, for the schedules below."""
SCHEDULES = ("Tutel", "Tutel-Improved", "FSMoE-No-IIO", "FSMoE")


class Layer(NamedTuple):
    """Seconds of a layer's forward and backward pass under the four schedules of table 5, and the plans behind two."""

    seconds: tuple[float, float, float, float]
    published: Plan
    best: Plan


def schedules(stack: Stack) -> Layer:
    """A steady layer under Tutel (with PipeMoE's degree), Tutel-Improved, FSMoE-No-IIO and FSMoE.

    The first three let messages inside nodes take turns with those between nodes. Tutel takes one degree, the best of
    the forward pass, for both passes, and sums gradients when nothing else runs; improved, during attention.
    """
    (layer,) = stack.layers
    halves = stack.halves(layer)
    gradients = stack.costs.all_reduce.of(layer.gradient)

    def seconds(half: Half, degree: int, sums: float = 0.0) -> float:
        return float(half_seconds(half, (degree,), np.array([sums]), stack.costs.contention, apart=False)[0, 0])

    degree = min(DEGREES, key=lambda each: seconds(halves.experts, each))
    experts = seconds(halves.experts, degree) + seconds(halves.experts_back, degree)
    ahead = seconds(halves.attention, 1)
    tutel = ahead + experts + seconds(halves.attention_back, 1) + gradients
    improved = ahead + experts + seconds(halves.attention_back, 1, gradients)
    published = published_plan(stack)
    without = our_plan(stack, apart=False).seconds
    return Layer((tutel, improved, without, published.seconds), published, best_plan(stack))


def table_5(name: str) -> list[Layer]:
    """All 1,458 layers of a testbed."""
    testbed = TESTBEDS[name]
    return [schedules(Stack((layer,), testbed.costs, steady=True)) for layer in layers(testbed)]


def speedups(rows: list[Layer]) -> tuple[float, ...]:
    """Mean over the layers of how many times faster than Tutel each schedule is."""
    seconds = np.array([row.seconds for row in rows])
    return tuple((seconds[:, :1] / seconds).mean(axis=0).tolist())


def page() -> str:
    """The page."""
    lines = [
        "# How fast a step goes, and where",
        "",
        "Made by `python -m benchmarks.studies.step_time`.",
        "",
        "## FSMoE's table 5",
        "",
        "Mean over 1,458 layers of how many times faster than Tutel a layer's forward and backward pass are",
        "(Pan et al., FSMoE, ASPLOS 2025, arXiv 2501.10714). Costs of links and GEMMs are those that the paper",
        "measured (`placement/perf/testbeds.py`); the one constant fitted to this table is the contention,",
        f"{CONTENTION}, which both testbeds share: the speed of each of the two streams of messages while both run.",
        "",
        "| testbed | schedule | paper | here | off by |",
        "|---|---|---|---|---|",
    ]
    spent, rows = cpu_seconds(lambda: {name: table_5(name) for name in TESTBEDS})
    for name, found in rows.items():
        for schedule, paper, here in zip(SCHEDULES, TABLE_5[name], speedups(found), strict=True):
            lines.append(f"| {name} | {schedule} | {paper:.2f} | {here:.3f} | {here - paper:+.3f} |")
    lines += [
        "",
        f"All {sum(map(len, rows.values())):,} layers take {spent:.1f} seconds of CPU.",
        "",
        "FSMoE plans as if the streams did not slow each other down. Our plan tries each degree on streams that do,",
        "and takes FSMoE's where that is faster:",
        "",
        "| testbed | layers | times faster than Tutel | than FSMoE's plan, mean | at most | slower | degrees differ "
        "forward and backward |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        gain = np.array([row.published.seconds / row.best.seconds for row in found])
        tutel = np.array([row.seconds[0] / row.best.seconds for row in found]).mean()
        differ = sum(row.best.layers[0].forward_degree != row.best.layers[0].backward_degree for row in found)
        lines.append(
            f"| {name} | {len(found):,} | {tutel:.3f} | {gain.mean():.4f} | {gain.max():.3f} | "
            f"{int((gain < 1).sum())} | {differ} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
