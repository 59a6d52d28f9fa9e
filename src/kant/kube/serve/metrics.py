"""The metrics of Kant on Kubernetes: those that every running Kant has, and those about pods and the API server.
docs/kubernetes-metrics.md lists each name.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.live import telemetry
from kant.live.telemetry import MOST_QUEUES, QUICK, StateGauges
from kant.model.decision import Hold, Plan, Reject, Start

__all__ = ["MOST_QUEUES", "KubeTelemetry"]

GATED = {"over-quota", "closed", "core-waits"}
Follow = Callable[[], float]


class KubeTelemetry(telemetry.Telemetry):
    """The telemetry of one replica. `staleness` has, for each watch, the seconds since its last message."""

    def __init__(self) -> None:
        self.staleness: dict[str, Follow] = {}
        super().__init__()

    def counters(self) -> list[Counter | Histogram | Gauge]:
        here = self.registry
        return [
            *super().counters(),
            Histogram("kant_bind_duration_seconds", "Time of one binding request.", buckets=QUICK, registry=here),
            Counter("kant_bind_errors", "Bindings that failed.", ["code"], registry=here),
            Counter("kant_events_dropped", "Events that were not posted, because too many waited.", registry=here),
            Histogram(
                "kant_gang_partial_seconds", "How long gangs were partially bound.", buckets=QUICK, registry=here
            ),
            Gauge("kant_journal_failed", "1 while the journal cannot be written.", registry=here),
            Gauge("kant_leader", "1 on the replica that leads.", registry=here),
            Gauge("kant_name_taken", "1 while a Kant in another namespace schedules the same pods.", registry=here),
            Gauge("kant_queues_gone", "1 while nothing starts because all Queues are gone.", registry=here),
            Counter("scheduler_schedule_attempts", "Attempts by result.", ["result", "profile"], registry=here),
        ]

    def gauges(self) -> StateGauges:
        return _KubeGauges(self)

    # --- reports of the driver ---------------------------------------------------------------------------------------

    def cycle(self, seconds: float, plan: Plan) -> None:
        super().cycle(seconds, plan)
        results: Tally[str] = Tally()
        for decision in plan.decisions:
            if isinstance(decision, Hold | Reject):
                results["unschedulable"] += 1
            elif isinstance(decision, Start):
                results["scheduled"] += 1
        for result, count in results.items():
            self._inc("scheduler_schedule_attempts", count, result=result, profile="kant")

    def bound(self, seconds: float) -> None:
        self._observe("kant_bind_duration_seconds", seconds)

    def bind_failed(self, code: int | str) -> None:
        """Count a failed binding. `code` is an HTTP status, or a word for the reason."""
        self._inc("kant_bind_errors", code=str(code))
        self._inc("scheduler_schedule_attempts", result="error", profile="kant")

    def partial(self, seconds: float) -> None:
        """Record that a partially bound gang was completed or given up, `seconds` after it became so."""
        self._observe("kant_gang_partial_seconds", seconds)

    def dropped(self) -> None:
        """Count an event that is dropped because too many events are queued."""
        self._inc("kant_events_dropped")

    def flag(self, name: str, value: bool) -> None:
        """Set a gauge that is 1 or 0, such as `kant_leader`."""
        gauge = self._count[name]
        assert isinstance(gauge, Gauge)
        gauge.set(int(value))


class _KubeGauges(StateGauges):
    """Adds the seconds since each watch's last message, and a counterpart of kube-scheduler's gauge of pending pods."""

    telemetry: KubeTelemetry

    def collect(self) -> Iterator[Metric]:
        stale = GaugeMetricFamily(
            "kant_watch_staleness_seconds", "Time since the last message of the watch.", labels=["resource"]
        )
        for resource, age in self.telemetry.staleness.items():
            stale.add_metric([resource], age())
        yield stale
        yield from super().collect()

    def pending(self, state: ClusterState) -> Iterator[Metric]:
        yield from super().pending(state)
        pods: Tally[str] = Tally(dict.fromkeys(("active", "backoff", "unschedulable", "gated"), 0))
        rows = list(state.pending)
        for row, count in zip(rows, state.jobs[rows][:, c.J_PODS].tolist(), strict=True):
            why = self.telemetry.reason(state.ids[row])
            where = {"ready": "active", "back-off": "backoff"}.get(why, "gated" if why in GATED else "unschedulable")
            pods[where] += count
        twin = GaugeMetricFamily("scheduler_pending_pods", "Pods that wait.", labels=["queue"])
        for where, count in sorted(pods.items()):
            twin.add_metric([where], count)
        yield twin
