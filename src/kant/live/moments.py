"""Freezes the state of a live core in steps, so that its event loop and its decisions do not wait for the copy."""

from __future__ import annotations

import asyncio

from kant.insight.moment import Moment, moment_in_steps
from kant.live.core import Core
from kant.model.job import Job


async def present_moment(core: Core, trial: Job | None = None) -> Moment:
    """Return the frozen state of the time of the call, with the `trial` job if one is given."""
    steps = moment_in_steps(core.scheduler, core.past, core.now, core.zero, trial)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Moment = end.value
            return found
        await asyncio.sleep(0)
