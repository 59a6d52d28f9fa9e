"""How many examples a property is tried with: `@settings(max_examples=examples(40))`.

The usual number is what a change needs. KANT_EXAMPLES multiplies it: `KANT_EXAMPLES=20 make test` is the long hunt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

TIMES = float(os.environ.get("KANT_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """`usual`, multiplied by what KANT_EXAMPLES says, and at least one."""
    return max(1, round(usual * TIMES))


def part(whole: Sequence[T], which: int, parts: int = 2) -> Sequence[T]:
    """Every `parts`-th of `whole`, from the `which`-th on; all of it where KANT_EXAMPLES is at least `parts`.

    The cases of a matrix that are neighbours pass numbers that are: together they try the whole of it, each a part.
    With fewer examples than usual the parts are so much smaller, and never empty.
    """
    step = min(max(1, round(parts / TIMES)), len(whole))
    return whole[which % step :: step]
