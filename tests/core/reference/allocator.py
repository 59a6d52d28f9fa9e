"""How the reference scheduler finds places: by a placement policy that it knows, or as in the plan under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.core.reference.places import SCORES, Score, may_stand, place
from tests.core.reference.world import Pieces, Room

from kant.model.job import Job
from kant.placement.preference_weights import PreferenceWeights


class Differs(Exception):  # noqa: N818
    """The plan under test has no place for a job that the reference starts."""


class OwnPlaces:
    """Places by the score of a placement policy that the reference knows, and by preferences under `weights`."""

    def __init__(self, score: Score, weights: PreferenceWeights | None = None) -> None:
        self.score, self.weights = score, weights

    def fits(self, rooms: Sequence[Room], job: Job, model: str | None, prefers: bool = True) -> bool:
        """Whether the whole gang has a place; takes nothing. Without `prefers` preferences are ignored."""
        weights = self.weights if prefers else None
        return place([room.copy() for room in rooms], job, self.score, model, weights) is not None

    def place(self, rooms: list[Room], job: Job, model: str | None) -> Pieces | None:
        """Find a place for the whole gang, and take it from `rooms`."""
        return place(rooms, job, self.score, model, self.weights)


class PlacesOf(OwnPlaces):
    """Places as in a plan under test, for gangs of one group: whether they fit depends on no placement policy.

    `starts` has the pieces of each job that the plan starts. A piece that is not free fails an assertion.
    """

    def __init__(self, starts: Mapping[str, Pieces]) -> None:
        super().__init__(SCORES["first-fit"])
        self.starts = starts

    def place(self, rooms: list[Room], job: Job, model: str | None) -> Pieces | None:
        if not self.fits(rooms, job, model):
            return None
        if job.id not in self.starts:
            raise Differs(job.id)
        assert may_stand(rooms, job, self.starts[job.id]), f"{job.id} is placed against a rule"
        for piece in self.starts[job.id]:
            rooms[piece[0]].change(piece, -1, job)
        return self.starts[job.id]
