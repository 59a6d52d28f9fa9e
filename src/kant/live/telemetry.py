"""Telemetry of a live Kant: counters that its driver updates, and gauges read from the state on each scrape.

This module has the metrics that both drivers share; docs/kubernetes-metrics.md has each name. Units are s and GPUs.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.metrics.live import Occupancy
from kant.model.decision import Hold, Plan, Reject, Start
from kant.model.status import NodeStatus
from kant.model.units import GPU, SECOND, size_class
from kant.optimize.answers import Optimality
from kant.placement.cost.communication import FULL
from kant.placement.cost.slowdown import Slowdowns

WAITS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
QUICK = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
RATIOS = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 4)
MOST_QUEUES = 500
"""Maximum number of undeclared queues with their own label: without declared queues, users can make up names."""


class Telemetry:
    """The metrics of one process. The driver calls the methods; `text` returns the metrics for a Prometheus scrape.

    `stand` is called at each scrape and returns (state, time of the state); None on a standby replica.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.stand: Callable[[], tuple[ClusterState, int] | None] = lambda: None
        self.optimality: Callable[[], tuple[Optimality, float] | None] = lambda: None
        """Returns how far the present state is from the optimum, and the age of that result in seconds, or None."""
        self._occupancy: Occupancy | None = None
        self._earlier: Tally[tuple[str, str]] = Tally()  # GPU-seconds of earlier states
        self._slowdowns: Slowdowns | None = None
        self._reasons: dict[str, str] = {}
        self._count = {each._name: each for each in self.counters()}
        self.registry.register(self.gauges())
        ProcessCollector(registry=self.registry)

    def counters(self) -> list[Counter | Histogram | Gauge]:
        """Create the metrics that the driver updates."""
        here = self.registry
        return [
            Counter("kant_cycles", "Scheduling cycles.", registry=here),
            Histogram("kant_cycle_duration_seconds", "Time that a cycle took.", buckets=QUICK, registry=here),
            Counter("kant_evictions", "Pods that were evicted.", ["why"], registry=here),
            Histogram(
                "kant_job_wait_seconds",
                "From the submission of a job to its start.",
                ["gpu_bucket"],
                buckets=WAITS,
                registry=here,
            ),
            Histogram(
                "kant_jtted_ratio",
                "Expected run time at the place of a job over that at its best possible place.",
                ["gpu_bucket"],
                buckets=RATIOS,
                registry=here,
            ),
        ]

    @property
    def counters_in_use(self) -> list[Counter | Histogram | Gauge]:
        """The metrics that `counters` created for this object."""
        return list(self._count.values())

    def gauges(self) -> StateGauges:
        """Return the collector that reads the state."""
        return StateGauges(self)

    # --- what the driver reports -------------------------------------------------------------------------------------

    def follow(self, state: ClusterState, now: int = 0) -> None:
        """Read the gauges from this rebuilt state from now on. Counters continue."""
        if self._occupancy is not None:
            self._earlier.update(_by_pool(self._occupancy))
        self._occupancy = Occupancy(state)
        self._occupancy.observe(now)
        self._slowdowns = Slowdowns(state)
        self._reasons.clear()

    def cycle(self, seconds: float, plan: Plan) -> None:
        """Record a finished cycle."""
        self._inc("kant_cycles")
        self._observe("kant_cycle_duration_seconds", seconds)
        for decision in plan.decisions:
            if isinstance(decision, Hold | Reject):
                self._reasons[decision.job] = decision.reason.__struct_config__.tag  # type: ignore[assignment]
            elif isinstance(decision, Start):
                self._reasons.pop(decision.job, None)
        if self._occupancy is not None:
            self._occupancy.observe(plan.time)

    def whole(self, state: ClusterState, row: int, now: int) -> None:
        """Record that all pods of the running job with this row are bound."""
        own = state.jobs[row]
        milli = int(own[c.J_MILLI])
        size = size_class(-(-milli // GPU)) if milli else "0"
        self._observe("kant_job_wait_seconds", (now - int(own[c.J_SUBMIT])) / SECOND, gpu_bucket=size)
        if milli and self._slowdowns is not None and row in state.running and self._slowdowns.state is state:
            spans = self._slowdowns.spans(state.running[row])
            ratio = self._slowdowns.of(int(own[c.J_SHAPE]), spans) / FULL
            self._observe("kant_jtted_ratio", ratio, gpu_bucket=size)

    def evicted(self, why: str, pods: int = 1) -> None:
        """Record evictions of `pods` pods; `why` is the name of the rule behind them (priority, reclaim, …)."""
        self._inc("kant_evictions", pods, why=why)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _inc(self, name: str, by: float = 1, **labels: str) -> None:
        counter = self._count[name]
        assert isinstance(counter, Counter)
        (counter.labels(**labels) if labels else counter).inc(by)

    def _observe(self, name: str, value: float, **labels: str) -> None:
        histogram = self._count[name]
        assert isinstance(histogram, Histogram)
        (histogram.labels(**labels) if labels else histogram).observe(value)

    def gpu_seconds(self) -> Tally[tuple[str, str]]:
        """Return GPU-seconds by (pool, `allocated` or `in_service`), summed over all states so far."""
        total = Tally(self._earlier)
        if self._occupancy is not None:
            total.update(_by_pool(self._occupancy))
        return total

    def reason(self, job: str) -> str:
        """Return why a job waits, as the tag of its reason; `ready` if no reason is known."""
        return self._reasons.get(job, "ready")

    def forget_others(self, jobs: set[str]) -> None:
        """Drop the reasons of all jobs but `jobs`."""
        if len(self._reasons) > len(jobs):
            self._reasons = {job: why for job, why in self._reasons.items() if job in jobs}


class StateGauges(Collector):
    """Gauges that are computed from the state at each scrape."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        yield from self._occupancy()
        now = self.telemetry.stand()
        if now is not None:
            state, _ = now
            yield from _ratios(state)
            yield from _queues(state)
            yield from self.pending(state)
            yield _startable(state)
            yield from _optimality(self.telemetry.optimality())

    def _occupancy(self) -> Iterator[Metric]:
        total = self.telemetry.gpu_seconds()
        sor = GaugeMetricFamily("kant_sor", "GPU-seconds allocated over those in service.", labels=["pool"])
        families = {
            "allocated": CounterMetricFamily("kant_allocated_gpu_seconds", "GPU-seconds allocated.", labels=["pool"]),
            "in_service": CounterMetricFamily(
                "kant_in_service_gpu_seconds", "GPU-seconds in service.", labels=["pool"]
            ),
        }
        for (pool, kind), value in sorted(total.items()):
            families[kind].add_metric([pool], value)
            if kind == "allocated" and total[pool, "in_service"] > 0:
                sor.add_metric([pool], value / total[pool, "in_service"])
        yield sor
        yield from families.values()

    def pending(self, state: ClusterState) -> Iterator[Metric]:
        """Yield the waiting jobs, by queue and reason."""
        telemetry, names = self.telemetry, _queue_names(state)
        jobs: Tally[tuple[str, str]] = Tally()
        rows = list(state.pending)
        codes = state.jobs[rows][:, c.J_QUEUE].tolist()
        telemetry.forget_others({state.ids[row] for row in rows})
        for row, queue in zip(rows, codes, strict=True):
            jobs[names[queue], telemetry.reason(state.ids[row])] += 1
        waiting = GaugeMetricFamily("kant_pending_jobs", "Jobs that wait.", labels=["queue", "reason"])
        for (queue_name, why), count in sorted(jobs.items()):
            waiting.add_metric([queue_name, why], count)
        yield waiting


def _by_pool(occupancy: Occupancy) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for pool, (allocated, in_service) in enumerate(occupancy.gpu_seconds()):
        name = occupancy.state.shapes.pool_name(pool)
        found[name, "allocated"], found[name, "in_service"] = allocated, in_service
    return found


def _queue_names(state: ClusterState) -> list[str]:
    """Return the label of each queue, by its code: the declared queues, or the first that jobs have named."""
    declared = state.quota_usage.tree.index if state.quota_usage.tree is not None else None
    return [
        name if (name in declared if declared is not None else code < MOST_QUEUES) else "(other)"
        for code, name in enumerate(state.queues)
    ]


def _ratios(state: ClusterState) -> Iterator[Metric]:
    gar = GaugeMetricFamily("kant_gar", "GPUs allocated over GPUs in service.", labels=["pool"])
    gfr = GaugeMetricFamily("kant_gfr", "Nodes with some but not all GPUs allocated, over nodes.", labels=["pool"])
    allocated = GaugeMetricFamily("kant_allocated_gpus", "GPUs allocated.", labels=["pool"])
    in_service = GaugeMetricFamily("kant_in_service_gpus", "GPUs in service.", labels=["pool"])
    for pool, row in enumerate(state.pools.tolist()):
        name = [state.shapes.pool_name(pool)]
        allocated.add_metric(name, row[c.P_ALLOCATED] / GPU)
        in_service.add_metric(name, row[c.P_CAPACITY] / GPU)
        if row[c.P_CAPACITY]:
            gar.add_metric(name, row[c.P_ALLOCATED] / row[c.P_CAPACITY])
            gfr.add_metric(name, row[c.P_FRAGMENTED] / row[c.P_NODES])
    yield from (gar, gfr, allocated, in_service)


def _queues(state: ClusterState) -> Iterator[Metric]:
    """Yield the quota and use of each declared queue, by GPU model (empty: a quota over all models)."""
    named = ["queue", "model"]
    nominal = GaugeMetricFamily("kant_queue_nominal_gpus", "GPUs of the queue's quota.", labels=named)
    used = GaugeMetricFamily("kant_queue_used_gpus", "GPUs in use by the queue and those below it.", labels=named)
    borrowed = GaugeMetricFamily("kant_queue_borrowed_gpus", "GPUs in use beyond the quota.", labels=named)
    tree = state.quota_usage.tree
    if tree is not None:
        for queue, declared in enumerate(tree.queues):
            for key, (model, resource) in enumerate(tree.keys):
                if resource != "gpu":
                    continue
                labels = [declared.name, model]
                nominal.add_metric(labels, tree.nominal(queue, key) / GPU)
                used.add_metric(labels, tree.usage(queue, key) / GPU)
                borrowed.add_metric(labels, tree.borrowed(queue, key) / GPU)
    yield from (nominal, used, borrowed)


def _startable(state: ClusterState) -> Metric:
    """Return for each pool the GPUs on idle nodes: the most that a gang of whole-node pods could get now."""
    table = state.table
    idle = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (table[:, c.IDLE] == table[:, c.GPUS])
    gpus = np.bincount(table[idle, c.POOL], table[idle, c.GPUS], len(state.pools))
    family = GaugeMetricFamily(
        "kant_largest_startable_gang_gpus", "GPUs on nodes that are wholly idle.", labels=["pool"]
    )
    for pool, value in enumerate(gpus.tolist()):
        family.add_metric([state.shapes.pool_name(pool)], value)
    return family


def _optimality(latest: tuple[Optimality, float] | None) -> Iterator[Metric]:
    """Yield the GPUs that a solver could fill, those of the largest gang after moves, and stranded GPUs by queue."""
    gpus = GaugeMetricFamily(
        "kant_solver_startable_gpus", "GPUs of the waiting jobs that a solver could start now.", labels=["moves"]
    )
    share = GaugeMetricFamily(
        "kant_solver_startable_ratio", "Share of the GPUs that all waiting jobs request.", labels=["moves"]
    )
    gang = GaugeMetricFamily(
        "kant_largest_gang_after_moves_gpus", "GPUs on idle nodes after jobs have moved to pack them.", labels=["pool"]
    )
    stranded = GaugeMetricFamily(
        "kant_stranded_gpus", "Free GPUs on partly used nodes, by the queue that uses the rest.", labels=["queue"]
    )
    age = GaugeMetricFamily("kant_solver_look_age_seconds", "Seconds since the solver last looked.", labels=[])
    if latest is not None:
        found, seconds = latest
        for moves, packing in (("no", found.in_place), ("yes", found.with_moves)):
            gpus.add_metric([moves], packing.gpu_milli / GPU)
            share.add_metric([moves], packing.share)
        for one in found.gangs:
            gang.add_metric([one.pool], one.after_moves)
        for holder in found.stranded[:MOST_QUEUES]:
            stranded.add_metric([holder.queue], holder.gpu_milli / GPU)
        age.add_metric([], seconds)
    yield from (gpus, share, gang, stranded, age)
