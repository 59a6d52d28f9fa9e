"""What a core has learned of expected starts and of run times, and what queues have used, kept for the next one.

Corrections of expected starts are honoured under the very profile under which they were learned; run times are facts,
whatever the profile.
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
    """`zero`: of the clock that the memory's times are on, microseconds since the Unix epoch. `runs`: the latest."""

    profile: str
    zero: int
    memory: CalibrationState
    runs: Sequence[PastRun] = NO_RUNS
    used: SavedUse | None = None


def saved_calibration(core: Core) -> SavedCalibration:
    """What this core has learned."""
    used = use_of(core.state, core.zero, core.now)
    return SavedCalibration(digest(core.profile), core.zero, core.answers.remember(), core.past.runs(), used)


def learned_version(core: Core) -> tuple[int, int, int]:
    """Changes when there is something new to keep: of which core, what was learned, and what queues have used.

    The last two are 0 where there is nothing to keep.
    """
    learned = 0 if core.answers.is_blank else 1 + core.answers.learned
    return id(core), learned, use_version(core.state, core.now)


def restore_calibration(core: Core, saved: SavedCalibration | None, used: SavedUse | None = None) -> None:
    """Let a core whose state was built go on with what a process before has learned.

    `used` is what queues had used as somebody else knows it: the later of the two counts.
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
    """By which two profiles are told apart."""
    return hashlib.sha256(profile.text.encode()).hexdigest()[:16]
