"""Jobs that must stop before others start: at their limit, in stopped queues, on nodes that drain, on GPUs that others
have booked, and burst replicas without their base job."""

from __future__ import annotations

from heapq import heappop, heappush

from kant.cluster.columns import J_QUEUE, J_STARTED, POOL
from kant.cluster.state import ClusterState
from kant.model.placement import MASK, NODE
from kant.queueing.cycle_plan import CyclePlan


class Limits:
    """The running jobs with a time limit, by when they reach it. Follows the changes of the state."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.ends: list[tuple[int, int]] = []

    def follow(self, moved: list[int] | None) -> None:
        """Follow the rows that arrived, started, stopped or left; None if unknown."""
        state = self.state
        if moved is None:
            self.ends.clear()
            moved = list(state.running)
        for row in moved:
            if row in state.running and state.live[row].limit >= 0:
                heappush(self.ends, (self._end(row), row))

    def _end(self, row: int) -> int:
        return int(self.state.jobs[row, J_STARTED]) + self.state.live[row].limit

    def stop(self, cycle: CyclePlan) -> None:
        """Stop the jobs that may not run on, and ask for a cycle when the next job reaches its limit."""
        ends = self.ends
        while ends and (ends[0][0] <= cycle.now or not self._is_current(*ends[0])):
            end, row = heappop(ends)
            if self._is_current(end, row) and row not in cycle.stopped:
                cycle.expire(row)
        if ends:
            cycle.wake_at(ends[0][0])
        for row in cycle.stopped:  # until the driver confirms the stop
            heappush(ends, (self._end(row), row))
        state = self.state
        if state.quota_usage.tree is not None:
            self._stop_queues(cycle)
        if state.health.drains:
            self._empty_nodes(cycle)
        if state.books:
            self._keep_bookings(cycle)
        if state.burst_replicas:
            self._stop_replicas(cycle)

    def _is_current(self, end: int, row: int) -> bool:
        """Return whether `end` belongs to the job's current run."""
        return row in self.state.running and end == self._end(row)

    def _stop_queues(self, cycle: CyclePlan) -> None:
        """Evict the running jobs of stopped queues; they wait."""
        state = self.state
        tree, node_of = state.quota_usage.tree, state.quota_usage.node_of
        if tree is not None and not all(tree.runs):
            queues = state.jobs[:, J_QUEUE]
            for row in [row for row in state.running if row not in cycle.stopped]:
                node = node_of[queues[row]]
                if node >= 0 and not tree.runs[node]:
                    cycle.evict(row, why="queue")

    def _empty_nodes(self, cycle: CyclePlan) -> None:
        """Evict the jobs that still run on a node whose drain is due."""
        state = self.state
        for node, until in state.health.drains.items():
            if until > cycle.now:
                cycle.wake_at(until)
            elif (state.table[node, POOL:] != state.empty[node, POOL:]).any():
                for row in [row for row in state.jobs_on(node) if row not in cycle.stopped]:
                    cycle.evict(row, why="drain")
                    cycle.drained.append(row)
                    cycle.wake_at(cycle.now + 1)  # to retry the job if it cannot move

    def _keep_bookings(self, cycle: CyclePlan) -> None:
        """Evict the jobs on GPUs whose reservation has begun; expire the jobs whose own reservation has ended.

        Asks for a cycle when the next reservation begins or ends.
        """
        state, now = self.state, cycle.now
        if not state.live:
            return
        begun: dict[int, list[tuple[int, str]]] = {}
        for name, booking in state.bookings.items():
            cycle.wake_at(min((time for time in (booking.start, booking.end) if time > now), default=-1))
            if booking.start <= now < booking.end:
                for node, devices in booking.devices().items():
                    begun.setdefault(node, []).append((devices, name))
        for row in [row for row in state.running if row not in cycle.stopped]:
            own = cycle.booked.own(row)
            if own and not cycle.booked.has_begun(row):
                cycle.expire(row)
                continue
            held = state.running[row][:, [NODE, MASK]].tolist() if begun else ()
            if any(devices & mask and name != own for node, mask in held for devices, name in begun.get(node, ())):
                cycle.evict(row, why="reservation")
                cycle.victims.append(row)
                cycle.wake_at(now + 1)  # to retry the job if it cannot move

    def _stop_replicas(self, cycle: CyclePlan) -> None:
        """Evict burst replicas whose base job does not run. If the base job restarts in this plan, they do too."""
        state = self.state
        for base, replicas in state.burst_replicas.items():
            if base not in state.running or base in cycle.stopped:
                for row in replicas:
                    if row in state.running and row not in cycle.stopped:
                        cycle.evict(row, why="core")
                        cycle.drained.append(row)
                        cycle.wake_at(cycle.now + 1)  # to retry the job if it cannot move
