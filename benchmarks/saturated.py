"""A cluster that is asked for 95 % of what it has, under `kant`, with and without queues; then EASY and conservative.

The rival does best effort on a count of free GPUs per node; that it decides as Kant's own best effort does is checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import rivals, traces
from benchmarks.measure import Figure, cpu_seconds
from benchmarks.traces import Trace
from kant.scheduler.profile import parse_profile
from kant.sim.run import simulate

DAYS, SHORT_DAYS = 10, 5

BEST_EFFORT = """
name = "best-effort"
about = "Best effort as the rival does it"

[order]
policy = "fifo"

[discipline]
policy = "best-effort"

[placement]
policy = "consolidated"
single = { policy = "best-fit" }
remainder = { policy = "worst-fit" }
"""

PYTHON = "Python between kernels: events, the buckets that are awake, and the tries that fail"


def measure(short: bool = False) -> Iterator[Figure]:
    days, repeat = (SHORT_DAYS, 2) if short else (DAYS, 3)
    plain = traces.saturated(days)
    kant, waiting = _ours(plain, repeat), _best_effort(plain)
    yield Figure("saturated-kant", len(plain.workload) / kant, "jobs per CPU-second", waiting / kant,
                 "plain Python, best effort", PYTHON)  # fmt: skip
    if not short:
        for name in ("easy", "conservative"):
            ours = _ours(plain, 1, name)
            yield Figure(f"saturated-{name}", len(plain.workload) / ours, "jobs per CPU-second", kant / ours,
                         "Kant's own profile `kant`", "the calendar: a search for each reservation")  # fmt: skip
    queues = traces.saturated_queues(SHORT_DAYS)
    ours = _ours(queues, 2)
    yield Figure("saturated-kant-queues", len(queues.workload) / ours, "jobs per CPU-second", _quotas(queues) / ours,
                 "plain Python, best effort with quotas", PYTHON)  # fmt: skip
    victims = traces.preempting()
    ours, fifo = _ours(victims, 2), _ours(victims, 2, "fifo-best-effort")
    yield Figure("preempting-kant", len(victims.workload) / ours, "jobs per CPU-second", fifo / ours,
                 "Kant's own profile `fifo-best-effort`", "victims: who may preempt whom, and the search")  # fmt: skip
    many = traces.many_queues(40)
    ours, fifo = _ours(many, 2), _ours(many, 2, "fifo-best-effort")
    yield Figure("saturated-kant-40-queues", len(many.workload) / ours, "jobs per CPU-second", fifo / ours,
                 "Kant's own profile `fifo-best-effort`", "late heads: who of each queue may preempt whom")  # fmt: skip


def _ours(trace: Trace, repeat: int, profile: str | None = None) -> float:
    """CPU-seconds of one run. One before it, shorter, compiles what it needs."""
    trace.first(200).simulate(profile)
    return cpu_seconds(lambda: trace.simulate(profile), repeat)[0]


def _best_effort(trace: Trace) -> float:
    """CPU-seconds of the rival."""
    jobs = trace.workload
    columns = [column.tolist() for column in (jobs.submit, jobs.runtime, jobs.gpus)]
    spent, waited = cpu_seconds(lambda: rivals.best_effort_nodes(*columns, len(trace.cluster.nodes)), 5)
    checked = simulate(jobs, trace.cluster, parse_profile(BEST_EFFORT, "best-effort"))
    assert waited == round(1e6 * checked.summary["wait_s"]["sum"]), "the rival differs"
    return spent


def _quotas(trace: Trace) -> float:
    jobs = trace.workload
    columns = [column.tolist() for column in (jobs.submit, jobs.runtime, jobs.gpus, jobs.priority, jobs.queue)]
    return cpu_seconds(lambda: rivals.quota_nodes(*columns, list(traces.QUOTAS), len(trace.cluster.nodes)), 5)[0]
