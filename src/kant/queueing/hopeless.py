"""Heads that would not fit even if all who overtook them stopped: what was found out once need not be tried again."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import J_PREEMPTIBLE, J_PRIORITY, J_SINCE, J_STARTED, J_SUBMIT
from kant.cluster.state import ClusterState


class Hopeless:
    """Waiting jobs, and up to where the state's log of moves this has been seen to hold of them.

    Whoever comes after such a job and starts behind it takes only what it could take back. So the verdict holds until
    somebody else moves, or a node comes into service. Forgetting it costs time only.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._found: dict[int, tuple[int, int, int]] = {}  # row -> since when it waits, services, end of the log

    def add(self, row: int) -> None:
        """The job does not fit. Only for gangs of one group: of others less room may fit more."""
        state = self.state
        if len(self._found) > 2 * len(state.pending):
            self._found = {row: found for row, found in self._found.items() if row in state.pending}
        self._found[row] = (int(state.jobs[row, J_SINCE]), state.services, state.moved.end)

    def forget(self, row: int) -> None:
        """What was seen of the job holds no more."""
        self._found.pop(row, None)

    def holds(self, row: int) -> bool:
        """Whether the job is known not to fit, still."""
        found, state = self._found.get(row), self.state
        if found is None or found[:2] != (state.jobs[row, J_SINCE], state.services):
            return False
        moved = state.moved.since(found[2])
        if moved is None or not self._take_only(row, moved):
            del self._found[row]
            return False
        self.add(row)
        return True

    def _take_only(self, row: int, moved: list[int]) -> bool:
        """Whether all of `moved` either never ran or came after `row` began to wait, behind it, and may be stopped."""
        jobs = self.state.jobs
        since, priority = jobs[row, [J_SINCE, J_PRIORITY]].tolist()
        own = jobs[np.array(moved, dtype=np.int64)]
        after = (own[:, J_SUBMIT] > since) & (own[:, J_PRIORITY] <= priority) & (own[:, J_PREEMPTIBLE] == 1)
        return bool((after | (own[:, J_STARTED] < 0)).all())
