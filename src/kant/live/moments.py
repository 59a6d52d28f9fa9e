"""The moment of a live core, frozen while its event loop goes on: decisions and bindings do not wait for it."""

from __future__ import annotations

import asyncio

from kant.insight.moment import Moment, moment_in_steps
from kant.live.core import Core
from kant.model.job import Job


async def present_moment(core: Core, trial: Job | None = None) -> Moment:
    """Return the moment at which it is called, with a `trial` job if one is given."""
    steps = moment_in_steps(core.scheduler, core.past, core.now, core.zero, trial)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Moment = end.value
            return found
        await asyncio.sleep(0)
