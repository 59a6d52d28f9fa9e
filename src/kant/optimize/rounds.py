"""Rounds: when a profile's solver or look-ahead runs, and what the solver learns about the queue.

A driver asks `Rounds` when a round is due, gives the state to a solver (`proposals.py`), and passes the proposal to the
core as an event. The solver also gets what was learned about the queue since the last round.
"""

from __future__ import annotations

from collections.abc import Sequence

from kant.cluster.columns import J_SINCE
from kant.cluster.state import ClusterState
from kant.model.units import FOREVER, HOUR, SECOND
from kant.optimize.answers import LearnedShares, Round
from kant.optimize.defragment.wanted import wanted_leaves, wanted_nodes
from kant.scheduler.profile import Profile


class Rounds:
    """When rounds are due under a profile. `due` is the next time; FOREVER if the profile has none."""

    def __init__(self, profile: Profile, now: int = 0) -> None:
        self.profile = profile
        self.learned = LearnedShares()
        self._next: dict[Round, int] = {}
        if profile.fallback is not None:
            self._next["fallback"] = now + profile.fallback.every_s * SECOND
        if profile.defragment is not None:
            self._next["defragment"] = now + profile.defragment.every_s * SECOND
        self._looks_from = now  # when a look-ahead may be requested

    @property
    def due(self) -> int:
        return min(self._next.values(), default=FOREVER)

    def is_due(self, now: int) -> bool:
        """Whether a round may begin at `now`: a regular round that is due, or a look-ahead because a rule of the router
        applies."""
        return self.due <= now or (self.profile.router is not None and self._looks_from <= now)

    def begin(self, state: ClusterState, now: int) -> list[Round]:
        """The rounds that begin at `now` and could have an effect."""
        found: list[Round] = []
        fallback, defragment, router = self.profile.fallback, self.profile.defragment, self.profile.router
        if router is not None and self._looks_from <= now and router.proposal(state, now) is not None:
            self._looks_from = now + router.hold_s * SECOND
            found.append("route")
        if fallback is not None and self._next["fallback"] <= now:
            self._next["fallback"] = now + fallback.every_s * SECOND
            since = now - fallback.wait_s * SECOND
            if any(int(state.jobs[row, J_SINCE]) <= since for row in state.pending):
                found.append("fallback")
        if defragment is not None and self._next["defragment"] <= now:
            self._next["defragment"] = now + defragment.every_s * SECOND
            part = min(defragment.every_s / (defragment.horizon_h * (HOUR // SECOND)), 1.0)
            leaves = _later(self.learned.leaves, wanted_leaves(state), part) if defragment.leaves else ()
            self.learned = LearnedShares(_later(self.learned.wanted, wanted_nodes(state), part), leaves)
            if max(*self.learned.wanted, *leaves, defragment.floor) > 0:
                found.append("defragment")
        return found


def _later(before: tuple[float, ...], here: Sequence[bool], part: float) -> tuple[float, ...]:
    """The shares `before`, updated by one more observation that has the weight `part`."""
    return tuple(old + part * (new - old) for old, new in zip(before or (0.0,) * len(here), here, strict=True))
