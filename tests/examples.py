"""How many examples a property is tried with: `@settings(max_examples=examples(40))`.

A quarter of them is what a change needs: outside CI other ones are drawn in each run. KANT_EXAMPLES says which part or
multiple is tried: `KANT_EXAMPLES=1 make test` tries all of them, and `KANT_EXAMPLES=20` is the long hunt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

TIMES = float(os.environ.get("KANT_EXAMPLES", "0.25"))


def examples(usual: int) -> int:
    """`usual`, multiplied by what KANT_EXAMPLES says, or by a quarter; at least one."""
    return max(1, round(usual * TIMES))


def part(whole: Sequence[T], which: int, parts: int = 2) -> Sequence[T]:
    """Every `parts`-th of `whole`, from the `which`-th on, with KANT_EXAMPLES=1; all of it where it is `parts` or more.

    The cases of a matrix that are neighbours pass numbers that are: together they try the whole of it, each a part.
    With fewer examples than usual the parts are so much smaller, and never empty.
    """
    step = min(max(1, round(parts / TIMES)), len(whole))
    return whole[which % step :: step]
