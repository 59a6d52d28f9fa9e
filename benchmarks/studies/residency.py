"""Which models stay on a GPU that they share: `python -m benchmarks.studies.residency`.

The greedy rule, the beam and CP-SAT's optimum on drawn programs. Writes docs/studies/calendar.md. Needs the extra
`optimize`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import cpu_seconds
from benchmarks.studies.judges import residency_faults as faults
from benchmarks.studies.parts import write_part
from kant.optimize.residency.exact import shortest
from kant.optimize.residency.generate import generate
from kant.optimize.residency.program import duration
from kant.optimize.residency.search import WIDTH, beam, greedy

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "calendar.md"
CASES = ((30, 6, 0.5, 30), (30, 6, 0.3, 30), (60, 8, 0.4, 15))
"""Steps, models, the share of them that the fast memory holds, and programs."""


def rows() -> Iterator[str]:
    yield "| steps | models | share | programs | optima proven | greedy above them | beam above them | gap closed | beam at the optimum | CPU s of a beam | of CP-SAT |"  # noqa: E501
    yield "|---" * 11 + "|"
    for steps, models, share, count in CASES:
        simple = found = best = proven = met = 0
        beams = exact = 0.0
        for seed in range(count):
            program = generate(steps, models, 1_000 + seed, share)
            rule = greedy(program)
            spent, plan = cpu_seconds(lambda program=program: beam(program))
            beams += spent
            spent, optimum = cpu_seconds(lambda program=program, plan=plan: shortest(program, plan))
            exact += spent
            assert not any(faults(program, each) for each in (rule, plan, optimum.choices))
            mine, least = duration(program, plan), duration(program, optimum.choices)
            assert optimum.bound <= least <= mine <= duration(program, rule)
            simple, found, best = simple + duration(program, rule), found + mine, best + least
            proven += optimum.bound == least
            met += mine == least
        above, mine_above = 100 * (simple / best - 1), 100 * (found / best - 1)
        yield (
            f"| {steps} | {models} | {share} | {count} | {proven} | {above:.1f} % | {mine_above:.1f} % "
            f"| {100 * (simple - found) / (simple - best):.0f} % | {met} | {beams / count:.2f} | {exact / count:.2f} |"
        )


ABOUT = f"""\
The game of mallocGame (arXiv 2305.07440) with models for tensors: at each use of a buffer it is kept, copied ahead of
time, or dropped (`optimize/residency`). The paper's programs and results are not public; these are drawn by a seed
(`optimize/residency/generate.py`). *Greedy* decides in the order of the program: what a step can read during its
compute is dropped, anything else is kept if it fits, else copied as late as possible; of eight thresholds for what a
buffer must save the best is taken. The *beam* has {WIDTH} states and all moves, and judges a state by letting greedy
continue from it. The gap is that between greedy and CP-SAT's optimum, or the best that it finds in ten deterministic
seconds. Every plan is checked by `benchmarks/studies/judges.py`, and none of the beam's is worse than greedy's.
"""


def main() -> None:
    beam(generate(5))  # kernels are compiled
    lines = [
        "# Which models stay on a GPU that they share\n",
        "Made by `python -m benchmarks.studies.residency`.\n",
        ABOUT,
    ]
    write_part(PAGE, "residency", [*lines, *rows()])


if __name__ == "__main__":
    main()
