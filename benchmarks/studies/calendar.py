"""Do calendars of contiguous GPUs fit? `python -m benchmarks.studies.calendar`.

The published instances of static memory allocation, and random weeks. Writes docs/studies/calendar.md. Needs
minimalloc_a_f.csv.gz.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from benchmarks.data import DATA
from benchmarks.measure import cpu_seconds
from benchmarks.studies.judges import calendar_faults as faults
from benchmarks.studies.parts import write_part
from kant.optimize.calendar.attempts import attempts_at
from kant.optimize.calendar.booking import LineBooking
from kant.optimize.calendar.file import read_calendar
from kant.optimize.calendar.solve import Answer, solve
from kant.optimize.solvers import cp_sat, deterministic

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "calendar.md"
CAPACITY = 1_048_576
NODES, HOURS = 64, 168
WEEKS = ((45, 0.15, 40), (90, 0.05, 20), (130, 0.05, 20))
SEARCH_NODES = 20_000_000
RIVAL = 1.0
"""Deterministic seconds of CP-SAT. On rectangles each is many seconds of a core: the page has both."""


def week(seed: int, bookings: int, free: float) -> list[LineBooking]:
    """A week of about so many bookings that fits by construction, the first such of those that are drawn."""
    drawn = (pieces(f"{seed} {attempt}", bookings, free) for attempt in count())
    return next(found for found in drawn if abs(len(found) - bookings) <= 5)


def pieces(seed: str, bookings: int, free: float) -> list[LineBooking]:
    """NODES x HOURS cut by straight cuts, and some pieces left out until so much is `free`."""
    rng = random.Random(seed)
    found = [(0, 0, NODES, HOURS)]
    while len(found) < round(bookings / (1 - free)):
        found.sort(key=lambda piece: -piece[2] * piece[3])
        node, hour, width, length = found.pop(rng.randrange(min(6, len(found))))
        across = rng.random() < width / NODES / (width / NODES + length / HOURS)
        if width > 1 and (across or length == 1):
            cut = rng.randint(1, width - 1)
            found += [(node, hour, cut, length), (node + cut, hour, width - cut, length)]
        elif length > 1:
            cut = rng.randint(1, length - 1)
            found += [(node, hour, width, cut), (node, hour + cut, width, length - cut)]
        else:
            found.append((node, hour, width, length))
    rng.shuffle(found)
    spare = free * NODES * HOURS
    kept = []
    for piece in found:
        if piece[2] * piece[3] <= spare:
            spare -= piece[2] * piece[3]
        else:
            kept.append(piece)
    return [LineBooking(str(i), hour, hour + length, width) for i, (_, hour, width, length) in enumerate(kept)]


class Rival(NamedTuple):
    """What CP-SAT found: whether a plan, after how much CPU time, and after how many of its deterministic seconds."""

    fits: bool
    cpu_s: float
    spent: float


def rival(bookings: list[LineBooking], capacity: int) -> Rival:
    """CP-SAT on rectangles that do not overlap, and whose GPUs are never more than the line has.

    Sizes are divided by what all of them are multiples of: a plan of whole parts exists where any does.
    """
    cp_model = cp_sat()
    model = cp_model.CpModel()
    unit = math.gcd(*(b.gpus for b in bookings))
    sizes, length = [b.gpus // unit for b in bookings], capacity // unit
    starts = [model.new_int_var(0, length - size, "") for size in sizes]
    times = [model.new_fixed_size_interval_var(b.start, b.end - b.start, "") for b in bookings]
    places = [model.new_fixed_size_interval_var(at, size, "") for at, size in zip(starts, sizes, strict=True)]
    model.add_no_overlap_2d(times, places)
    model.add_cumulative(times, sizes, length)
    solver = deterministic(RIVAL)
    seconds, status = cpu_seconds(lambda: solver.solve(model))
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    assert not found or not faults(bookings, [solver.value(at) * unit for at in starts], capacity)
    return Rival(found, seconds, solver.response_proto.deterministic_time)


def solved(bookings: list[LineBooking], capacity: int) -> tuple[float, Answer]:
    """CPU seconds and the answer, its plan checked."""
    seconds, answer = cpu_seconds(lambda: solve(bookings, capacity, nodes=SEARCH_NODES))
    assert not faults(bookings, answer.offsets, max(capacity, answer.needed))
    return seconds, answer


def instances() -> Iterator[str]:
    yield (
        "| instance | buffers | answer | CPU s | nodes | first fit by size | by lifetime | by area "
        "| CP-SAT | CPU s | deterministic s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    solved_too, sooner = [], []
    for name in "ABCDEF":
        bookings = list(read_calendar(DATA / "minimalloc_a_f.csv.gz", name).bookings)
        seconds, answer = solved(bookings, CAPACITY)
        fits = " | ".join(f"{needed / CAPACITY:.2f}" for needed, _ in attempts_at(bookings).first_fits())
        other = rival(bookings, CAPACITY)
        said = f"{'fits' if other.fits else 'none found'} | {other.cpu_s:.1f} | {other.spent:.2f}"
        yield f"| {name} | {len(bookings)} | {answer.status} | {seconds:.2f} | {answer.nodes:,} | {fits} | {said} |"
        if other.fits:
            solved_too.append(name)
        if other.fits and other.cpu_s < seconds:
            sooner.append(name)
    found, faster = (", ".join(names) or "none" for names in (solved_too, sooner))
    yield f"\nCP-SAT finds a plan for {found}; sooner than Kant for {faster}."


def weeks(scale: float) -> Iterator[str]:
    yield "| bookings | free | weeks | fit | CPU s, mean | CPU s, worst | first fit needs | CP-SAT: fit | CPU s, mean |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for bookings, free, seeds in WEEKS:
        chosen = range(max(round(seeds * scale), 1))
        cases = [week(seed, bookings, free) for seed in chosen]
        answers = [solved(case, NODES) for case in cases]
        others = [rival(case, NODES) for case in cases[:5]]
        sizes = [len(case) for case in cases]
        times = [seconds for seconds, _ in answers]
        fit = sum(answer.status == "fits" for _, answer in answers)
        needs = sum(answer.first_fit for _, answer in answers) / len(answers) / NODES
        yield (
            f"| {min(sizes)} to {max(sizes)} | {100 * free:.0f} % | {len(cases)} | {fit} "
            f"| {sum(times) / len(times):.3f} | {max(times):.2f} | {needs:.2f} times "
            f"| {sum(other.fits for other in others)} of {len(others)} "
            f"| {sum(other.cpu_s for other in others) / len(others):.1f} |"
        )


ABOUT = """\
A calendar of contiguous GPUs is static memory allocation: a booking is a buffer, its window a lifetime, its GPUs
bytes (MiniMalloc, M. D. Moffitt, ASPLOS 2023; mallocMuZero, arXiv 2305.07440). Each plan is checked by
`benchmarks/studies/judges.py`, which is independent of the search. Times are CPU seconds of one core.

CP-SAT gets the same rectangles as a `no_overlap_2d` and a `cumulative` constraint, sizes divided by their greatest
common divisor, one worker, and {rival:g} deterministic second. Its deterministic seconds are counted, not measured;
on these models each takes many seconds of a core, so both are shown.

## The published instances

Six of the challenging instances that MiniMalloc publishes, at their capacity of 1,048,576. First fit is shown as
multiples of it.
"""

WEEKS_ABOUT = """
## Random weeks

64 nodes for 168 hours, divided into pieces by straight cuts; some are left out until the given part is free. A plan
exists by construction. CP-SAT is asked for the first five.
"""


def page(scale: float) -> Iterator[str]:
    solve(week(0, 20, 0.3), NODES)  # kernels are compiled
    yield "# Do calendars of contiguous GPUs fit?\n"
    yield "Made by `python -m benchmarks.studies.calendar`.\n"
    yield ABOUT.format(rival=RIVAL)
    yield from instances()
    yield WEEKS_ABOUT
    yield from weeks(scale)


def main() -> None:
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    text = "\n".join(page(scale)) + "\n"
    if scale == 1.0:
        write_part(PAGE, "calendar", [text])
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
