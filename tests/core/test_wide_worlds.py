"""Nobody could decide while nobody asks, and a new scheduler decides alike, where all features meet."""

from __future__ import annotations

import pytest
from tests.core.wide_worlds import SHIPPED, WideWorld
from tests.examples import examples


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_plan_asks_for_the_next_cycle_in_which_something_may_be_decided(seed: int) -> None:
    """Under a drawn profile, and under a shipped one: the seeds pass over them."""
    drawn = WideWorld(seed).run(15)
    shipped = WideWorld(seed, SHIPPED[seed % len(SHIPPED)]).run(15)
    assert drawn.decided + shipped.decided > 0
