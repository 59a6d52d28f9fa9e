"""What a core has learned about expected starts and run times, and what queues have used, saved for the next core.

Corrections of expected starts apply only under the profile under which they were learned; run times apply under any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from kant.insight.calibration import CalibrationState
from kant.insight.past_jobs import PastRun
from kant.live.core import Core
from kant.live.queue_use import SavedUse, use_of, use_version
from kant.scheduler.profile import Profile

NO_RUNS: tuple[PastRun, ...] = ()


class SavedCalibration(Struct):
    """What a core has learned. `zero`: zero of the clock of `memory` (µs since the Unix epoch). `runs`: the latest."""

    profile: str
    zero: int
    memory: CalibrationState
    runs: Sequence[PastRun] = NO_RUNS
    used: SavedUse | None = None


def saved_calibration(core: Core) -> SavedCalibration:
    """Return what this core has learned."""
    used = use_of(core.state, core.zero, core.now)
    return SavedCalibration(digest(core.profile), core.zero, core.answers.remember(), core.past.runs(), used)


def learned_version(core: Core) -> tuple[int, int, int]:
    """Return a version that changes when there is something new to save: (core, what it learned, what queues used).

    The second and the third number are 0 if there is nothing to save.
    """
    learned = 0 if core.answers.is_blank else 1 + core.answers.learned
    return id(core), learned, use_version(core.state, core.now)


def restore_calibration(core: Core, saved: SavedCalibration | None, used: SavedUse | None = None) -> None:
    """Let a core whose state was built continue with what an earlier process learned.

    `used` is the queues' use from another source. Of `used` and `saved.used`, the later applies.
    """
    core.inherit(None)
    known = [each for each in (used, saved.used if saved is not None else None) if each is not None]
    core.recall_use(max(known, key=lambda each: each.at, default=None))
    if saved is None:
        return
    for run in saved.runs:
        core.past.recall(run)
    if saved.profile == digest(core.profile):
        core.recall(saved.memory, core.zero - saved.zero)


def digest(profile: Profile) -> str:
    """Return a digest that identifies a profile."""
    return hashlib.sha256(profile.text.encode()).hexdigest()[:16]
