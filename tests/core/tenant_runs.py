"""Random tenancies, jobs in their queues, and what the naive quotas say of a run: for the tests beside it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from tests.core.naive_quota import Key, NaiveQuotas

from kant.model.decision import Expire, Plan, Preempt, Start
from kant.model.event import JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec
from kant.model.placement import CPU, MASK, MEMORY, MILLI, NODE, PODS
from kant.model.tenant import Queue, Quota
from kant.model.units import GPU, SECOND
from kant.testing import Harness
from kant.testing.drawn import MODELS, Mould, draw_job
from kant.testing.naive import admits, pods_that_fit

USERS = ("ann", "bob", "cyd")


def draw_queues(draw: np.random.Generator, spec: ClusterSpec, limits: bool = True) -> list[Queue]:
    """A forest of three to eight queues, `q0` first. Some name GPU models, some CPU; many may borrow."""
    total, by_model = sum(node.gpus for node in spec.nodes), bool(draw.integers(2))
    keys: list[Key] = [("", "gpu")] if not by_model else [(model, "gpu") for model in MODELS[: draw.integers(1, 3)]]
    if draw.integers(4) == 0:
        keys.append(("", "cpu"))
    queues = []
    for i in range(int(draw.integers(3, 9))):
        quotas = tuple(draw_quota(draw, key, total, limits) for key in keys if draw.integers(6))
        parent, weight = f"q{draw.integers(0, i)}" if i and draw.integers(6) else "", int(draw.integers(1, 4))
        queues.append(
            Queue(
                f"q{i}",
                parent=parent,
                weight=weight,
                node_wait=90 * SECOND * (weight == 3 and i % 2),
                isolated=bool(draw.integers(8) == 0),
                min_run=int(draw.choice([0, 0, 0, 400])) * SECOND,
                quotas=quotas,
                fallback=str(draw.choice(["listed", "cheapest"])),  # type: ignore[arg-type]
            )
        )
    return queues


def draw_quota(draw: np.random.Generator, key: Key, total: int, limits: bool) -> Quota:
    """A nominal amount of up to half the cluster, with or without limits."""

    def limit() -> int:
        return int(draw.integers(0, max(total // 2, 1) + 1)) * unit if limits and draw.integers(3) == 0 else -1

    unit = GPU
    nominal = int(draw.integers(0, max(total // 2, 1) + 1)) * unit
    user = int(draw.integers(1, max(total, 2))) * unit if limits and draw.integers(4) == 0 else -1
    return Quota(key[1], key[0], nominal, limit(), limit(), user)  # type: ignore[arg-type]


def draw_tenants_jobs(
    draw: np.random.Generator, queues: list[Queue], jobs: int, gap: int = 120, parts: bool = False, **fields: object
) -> list[JobSubmitted]:
    """Jobs of one group each, of any queue and user. `parts`: some ask for parts that nodes count themselves."""
    coming, now = [], 0
    for i in range(jobs):
        now += int(draw.exponential(gap)) * SECOND * int(draw.integers(3) > 0)
        job = draw_job(draw, f"j{i}", Mould(groups=1), now)
        if parts and i % 4 == 3:
            job = msgspec.structs.replace(job, groups=(PodGroup(job.pods, of_parts(job.groups[0].demand)),))
        changes = {
            "queue": queues[int(draw.integers(len(queues)))].name,
            "user": str(draw.choice(USERS)),
            "checkpoint": int(draw.choice([-1, 60])) * SECOND if draw.integers(2) else -1,
        }
        coming.append(JobSubmitted(now, msgspec.structs.replace(job, **{**changes, **fields}), draw_time(draw)))
    return coming


def of_parts(demand: Demand) -> Demand:
    """The same CPU and memory, and parts of GPUs that are worth as much as the GPUs, or a fourth of one."""
    return Demand(0, demand.gpu_milli or GPU // 4, max(demand.cpu, 1000), demand.memory, mig="parts")


def draw_time(draw: np.random.Generator) -> int:
    return int(draw.lognormal(6, 1)) * SECOND + 1


def of_keys(amounts: dict[str, list[int]], keys: set[Key]) -> dict[Key, int]:
    """Amounts by model (GPUs, CPU, memory) as the quotas name them."""
    parts = ("gpu", "cpu", "memory")
    return {
        (model, resource): sum(a[parts.index(resource)] for m, a in amounts.items() if model in ("", m))
        for model, resource in keys
    }


def keys_of(naive: NaiveQuotas) -> set[Key]:
    return {(quota.model, quota.resource) for queue in naive.queues.values() for quota in queue.quotas}


def holding(harness: Harness, job: Job, allocation: np.ndarray, keys: set[Key]) -> tuple[str, int, dict[Key, int]]:
    """What a running job holds, as the naive quotas want it."""
    amounts: dict[str, list[int]] = {}
    for piece in allocation.tolist():
        own = amounts.setdefault(harness.state.spec.nodes[piece[NODE]].model, [0, 0, 0])
        milli = piece[MASK].bit_count() * piece[MILLI]
        if not piece[MASK] and len(job.groups) == 1 and job.groups[0].demand.mig:
            milli = piece[PODS] * job.groups[0].demand.milli
        for i, part in enumerate((milli, piece[CPU], piece[MEMORY])):
            own[i] += part
    return job.queue, USERS.index(job.user) if job.user in USERS else -1, of_keys(amounts, keys)


def naive_quotas(harness: Harness) -> NaiveQuotas:
    """The quotas and who holds what of them, from the state's running jobs alone."""
    state = harness.state
    naive = NaiveQuotas(state.quota_usage.queue_config)
    keys = keys_of(naive)
    for row, allocation in state.running.items():
        if state.live[row].queue in naive.queues:
            naive.held.append(holding(harness, state.live[row], allocation, keys))
    return naive


def check_quotas(harness: Harness, plan: Plan) -> int:
    """Every start of the plan is within the quotas at its place in the plan. Returns how many there are."""
    state, naive, starts = harness.state, naive_quotas(harness), 0
    keys = keys_of(naive)
    for decision in plan.decisions:
        if isinstance(decision, (Preempt, Expire)):
            row = state.rows[decision.job]
            if state.live[row].queue in naive.queues:
                naive.held.remove(holding(harness, state.live[row], state.running[row], keys))
        elif isinstance(decision, Start):
            job = state.live[state.rows[decision.job]]
            queue, user, amounts = holding(harness, job, decision.allocation, keys)
            assert queue in naive.queues, f"{job.id} starts in a queue that there is not"
            assert naive.fits(queue, user, amounts), f"{job.id} starts beyond the quota of {queue} at {plan.time}"
            naive.held.append((queue, user, amounts))
            starts += 1
    return starts


def ways(harness: Harness, job: Job, naive: NaiveQuotas) -> Iterator[tuple[tuple[str, ...], dict[Key, int]]]:
    """The GPU models on which a job may be tried together, and what it would hold there of the quotas."""
    keys, queue_config = keys_of(naive), harness.state.quota_usage.queue_config
    (group,) = job.groups
    amounts = [group.count * part for part in (group.demand.charged_milli, group.demand.cpu, group.demand.memory)]
    open_to = {node.model for node in harness.state.spec.nodes if admits(node, job)}
    apart = bool(queue_config.prices) or any(model for model, _ in keys)
    for models in [(model,) for model in sorted(open_to)] if apart else [tuple(sorted(open_to))]:
        yield models, of_keys({models[0] if apart or len(models) == 1 else "?": amounts}, keys)


def could_start(harness: Harness, job: Job, table: np.ndarray, naive: NaiveQuotas) -> bool:
    """Whether the naive quotas admit the job of one group, and the naive count finds room for it."""
    group: PodGroup = job.groups[0]
    user = USERS.index(job.user) if job.user in USERS else -1
    for models, amounts in ways(harness, job, naive):
        if naive.fits(job.queue, user, amounts):
            nodes = zip(harness.state.spec.nodes, table, strict=True)
            room = sum(
                pods_that_fit(node, row, group.demand)
                for node, row in nodes
                if admits(node, job) and node.model in models
            )
            if room >= group.count:
                return True
    return False
