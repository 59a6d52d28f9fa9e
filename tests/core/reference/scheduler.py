"""The reference scheduler: it follows events, and decides."""

from __future__ import annotations

from collections.abc import Mapping

from tests.core.reference.allocator import Differs, OwnPlaces, PlacesOf
from tests.core.reference.places import SCORES
from tests.core.reference.plan import ReferencePlan, Said
from tests.core.reference.world import Pieces, ReferenceWorld

from kant.model.event import Event
from kant.model.node import ClusterSpec
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.disciplines.best_effort import BestEffort
from kant.queueing.disciplines.strict import Strict
from kant.queueing.orders.drf import Drf
from kant.queueing.orders.fifo import Fifo
from kant.queueing.orders.sjf import Sjf
from kant.scheduler.profile import Profile


class Reference:
    """Follows events, and makes the decisions of a profile at an instant.

    It models the disciplines `strict`, `best-effort` and `backfill`, the orders `fifo`, `sjf` and `drf`, quotas,
    preemption and back-offs; not bookings, elastic gangs, burst replicas, the fabric or the replacement of lost nodes.
    Raises TypeError for a policy that it does not model.
    """

    def __init__(self, spec: ClusterSpec, profile: Profile) -> None:
        self.world = ReferenceWorld.of(spec)
        self.profile = profile
        for policy, known in ((profile.discipline, (Strict, BestEffort, Backfill)), (profile.order, (Fifo, Sjf, Drf))):
            if not isinstance(policy, known):
                raise TypeError(f"the reference scheduler does not model {type(policy).__name__}")

    def happen(self, event: Event) -> None:
        """Apply one event."""
        self.world.happen(event)

    def decide(self, now: int, starts: Mapping[str, Pieces] | None = None) -> list[Said]:
        """The decisions of one cycle at `now` (µs), in order, without holds.

        With `starts`, the places of a plan under test, jobs are placed as in that plan. Otherwise they are placed by
        the profile's placement policy, which must be one of `SCORES`.
        """
        self.world.now = now
        tag = str(type(self.profile.placement).__struct_config__.tag)
        places = OwnPlaces(SCORES[tag], self.profile.preferences) if starts is None else PlacesOf(starts)
        plan = ReferencePlan(self.world, self.profile, now, places)
        try:
            plan.make()
        except Differs as difference:
            plan.said.append(("start", str(difference), "somewhere"))
        return plan.said
