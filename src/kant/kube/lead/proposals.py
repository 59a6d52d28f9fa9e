"""Proposals of the solver: preemptions that let other jobs start or free whole nodes, carried out one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kant.kube.follow.mirror import Mirror
from kant.kube.lead.live_state import LiveState

if TYPE_CHECKING:
    from kant.kube.lead.defragmentations import Defragmentations, Status
    from kant.live.rounds import LiveRounds
    from kant.live.solver import Solver


class Proposals:
    """Proposals of the solver. `state` returns the present state; `wake` is called when the solver is done."""

    def __init__(
        self, mirror: Mirror, solver: Solver | None, wake: Callable[[], None], state: Callable[[], LiveState | None]
    ) -> None:
        self.mirror = mirror
        self.solver = solver
        self.wake = wake
        self.state = state
        self.rounds: LiveRounds | None = None
        if solver is not None:
            from kant.live.rounds import LiveRounds

            self.rounds = LiveRounds(solver, wake, lambda core: self._movable(), most_starts=1)
        self._defragmentations: Defragmentations | None = None

    def _movable(self) -> frozenset[str]:
        state = self.state()
        return state.workloads.movable() if state is not None else frozenset()

    @property
    def defragmentations(self) -> Defragmentations | None:
        """The defragmentations that operators request; imported when the first one exists, None before."""
        if self._defragmentations is None and self.mirror.kind("defragmentations"):
            from kant.kube.lead.defragmentations import Defragmentations

            self._defragmentations = Defragmentations(self.mirror, self.solver, self.wake)
        return self._defragmentations

    def statuses(self) -> Iterator[tuple[str, Status, str, str]]:
        """Yield for each Defragmentation its name, status, error and explanation."""
        return self._defragmentations.statuses() if self._defragmentations is not None else iter(())

    def carry_out(self, state: LiveState) -> None:
        """Carry out the next proposal of the solver, and the next step of a Defragmentation, if there is one."""
        core, evictor = state.core, state.steps.evictor
        if self.rounds is not None and not evictor.is_busy:
            proposal = self.rounds.turn(core)
            if proposal is not None:
                state.carry_out(core.propose(proposal))
        rounds = self.defragmentations
        step = rounds.turn(core, state.workloads, evictor.is_busy) if rounds is not None else None
        if rounds is not None and step is not None:
            plan = core.propose(step)
            rounds.record(plan)
            state.carry_out(plan)

    def close(self) -> None:
        """Cancel the requests to the solver that are under way."""
        for rounds in (self.rounds, self._defragmentations):
            if rounds is not None:
                rounds.close()
