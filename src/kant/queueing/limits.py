"""What has to stop before anything starts: jobs at their limit, in stopped queues, on nodes that are to be empty, and
bursts without their core."""

from __future__ import annotations

from heapq import heappop, heappush

from kant.cluster.columns import J_LIMIT, J_QUEUE, J_STARTED, POOL
from kant.cluster.state import ClusterState
from kant.queueing.turn import Turn


class Limits:
    """The running jobs that have a limit, by when they reach it; it follows what moves in the state."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._ends: list[tuple[int, int]] = []
        self._seen = -1

    def refresh(self) -> None:
        state = self.state
        moved = None if self._seen < 0 else state.moved.since(self._seen)
        self._seen = state.moved.end
        if moved is None:
            self._ends.clear()
            moved = list(state.running)
        for row in moved:
            if row in state.running and state.jobs[row, J_LIMIT] >= 0:
                heappush(self._ends, (self._end(row), row))

    def _end(self, row: int) -> int:
        return int(self.state.jobs[row, J_STARTED] + self.state.jobs[row, J_LIMIT])

    def stop(self, turn: Turn) -> None:
        """Stop what may not run on, and ask for a cycle when the next job reaches its limit."""
        ends = self._ends
        while ends and (ends[0][0] <= turn.now or not self._is_current(*ends[0])):
            end, row = heappop(ends)
            if self._is_current(end, row) and row not in turn.stopped:
                turn.expire(row)
        if ends:
            turn.review(ends[0][0])
        for row in turn.stopped:  # until the driver says that it has stopped
            heappush(ends, (self._end(row), row))
        self._stop_queues(turn)
        self._empty_nodes(turn)
        self._stop_bursts(turn)

    def _is_current(self, end: int, row: int) -> bool:
        """Whether this is the end of the run that the job is in."""
        return row in self.state.running and end == self._end(row)

    def _stop_queues(self, turn: Turn) -> None:
        """What runs in a stopped queue makes way, and waits."""
        state = self.state
        tree, node_of = state.holdings.tree, state.holdings.node_of
        if tree is not None and not all(tree.runs):
            queues = state.jobs[:, J_QUEUE]
            for row in [row for row in state.running if row not in turn.stopped]:
                node = node_of[queues[row]]
                if node >= 0 and not tree.runs[node]:
                    turn.evict(row, why="queue")

    def _empty_nodes(self, turn: Turn) -> None:
        """What still runs on a node whose time to be empty has come makes way."""
        state = self.state
        for node, until in state.health.drains.items():
            if until > turn.now:
                turn.review(until)
            elif (state.table[node, POOL:] != state.empty[node, POOL:]).any():
                for row in [row for row in state.jobs_on(node) if row not in turn.stopped]:
                    turn.evict(row, why="drain")
                    turn.drained.append(row)
                    turn.review(turn.now + 1)  # to try it again, where it cannot move

    def _stop_bursts(self, turn: Turn) -> None:
        """Bursts run only while their core does."""
        state = self.state
        for core, bursts in state.bursts.items():
            if core not in state.running or core in turn.stopped:
                for row in bursts:
                    if row in state.running and row not in turn.stopped:
                        turn.evict(row, why="core")
