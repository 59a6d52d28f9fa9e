"""The ledger: the causes of every wait add up to it, and each is the right one in the cases that define it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.examples import part

from kant.cluster import columns as c
from kant.metrics.summary import job_table
from kant.metrics.wait_causes import Cause
from kant.metrics.wait_ledger import WaitLedger
from kant.model.event import JobSubmitted
from kant.model.node import ClusterSpec
from kant.model.rules import PodAntiAffinity, PodRules
from kant.model.tenant import Queue, QueueConfig
from kant.model.units import MINUTE, SECOND
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.scheduler.profile import parse_profile
from kant.sim.run import RunHooks, simulate
from kant.sim.state_at import state_at
from kant.testing import Harness, at_random, make_cluster, make_job, make_profile, never
from kant.testing.builders import make_queue
from kant.testing.drawn import QUEUES, Mould, draw_arrivals, draw_cluster, generator
from kant.workload.workload import Workload, make_workload

DISCIPLINES = ("best-effort", "strict", "backfill", "easy", "conservative", "preemptive", "pooled", "repack")
WITH_QUOTAS = ("best-effort", "strict", "backfill", "easy", "conservative")


def with_ledger(harness: Harness) -> WaitLedger:
    """A ledger that looks at the harness after each of its plans."""
    ledger = WaitLedger(harness.scheduler)
    harness.after_carrying_out = lambda plan: ledger.observe(plan.time)
    return ledger


def spent(harness: Harness, ledger: WaitLedger, job: str) -> dict[str, int]:
    """The causes of a job's wait so far, in seconds, without those that are zero."""
    row = harness.state.rows[job]
    found = {cause: int(column[row]) for cause, column in ledger.columns(harness.now).items()}
    return {cause: span // SECOND for cause, span in found.items() if span}


def adds_up(harness: Harness, ledger: WaitLedger) -> None:
    waits = job_table(harness.state, harness.now).wait
    assert ledger.splits(harness.now).sum(axis=1).tolist() == waits.tolist()


def tenants(draw: np.random.Generator, tree: bool) -> tuple[Queue, ...]:
    """Queues of the drawn jobs, below one root or each alone."""
    parent = "all" if tree else ""
    some: dict[str, Any] = {"user": int(draw.integers(2, 9))} if draw.integers(2) else {}
    queues = [make_queue(name, int(draw.integers(2, 12)), parent=parent, **some) for name in QUEUES]
    return (make_queue("all"), *queues) if tree else tuple(queues)


def troubled(draw: np.random.Generator, coming: list[JobSubmitted], limits: bool) -> list[JobSubmitted]:
    """The jobs have users and retries, and some of them limits that they will meet."""
    found: list[JobSubmitted] = []
    for event in coming:
        changes: dict[str, Any] = {"user": f"u{draw.integers(3)}", "retries": 2}
        if limits and draw.integers(6) == 0:
            changes["limit"] = max(event.runtime // 2, SECOND)
        found.append(JobSubmitted(event.time, msgspec.structs.replace(event.job, **changes), event.runtime))
    return found


def two_queues(draw: np.random.Generator, jobs: int) -> Workload:
    """Jobs of two queues and two priorities."""
    return make_workload(
        "drawn",
        np.cumsum(draw.integers(0, 60, jobs)) * SECOND,
        draw.integers(10, 900, jobs) * SECOND,
        draw.choice([1, 2, 4, 8, 12], jobs),
        queue=draw.integers(0, 2, jobs),
        priority=draw.integers(0, 2, jobs),
        queues=("a", "b"),
    )


@pytest.mark.parametrize("refuse", [0.0, 0.2])
@pytest.mark.parametrize(
    ("discipline", "quotas"),
    [*((discipline, "none") for discipline in DISCIPLINES), *product(WITH_QUOTAS, ("alone", "tree"))],
)
def test_the_causes_of_every_wait_add_up_to_it(discipline: str, quotas: str, refuse: float) -> None:
    waited = 0
    for seed in part((0, 1, 3, 2), int(refuse > 0)):
        draw = generator(seed)
        profile = make_profile(
            "las" if seed == 3 and discipline == "preemptive" else "fifo",
            discipline,
            preemption=Preemption(min_run_s=0) if seed % 2 and discipline in WITH_QUOTAS else None,
            requeue=Requeue(base_s=30),
        )
        driver = at_random(refuse, seed) if refuse else never
        harness = Harness(draw_cluster(draw, 6), profile, seed=seed, refuse=driver, check=False)
        ledger = WaitLedger(harness.scheduler)

        def look(plan: object, harness: Harness = harness, ledger: WaitLedger = ledger) -> None:
            ledger.observe(harness.now)
            adds_up(harness, ledger)

        harness.after_carrying_out = look
        if quotas != "none":
            harness.set_queues(*tenants(draw, quotas == "tree"))
        limits = discipline in WITH_QUOTAS and seed < 2
        harness.run(troubled(draw, draw_arrivals(draw, 50, Mould(groups=2), gap=60, estimates="right"), limits))
        adds_up(harness, ledger)
        splits = ledger.splits(harness.now)
        # What a job gives back that is stopped is seen by the next cycle, and the harness does not cycle at once.
        stopped = harness.state.jobs[: len(splits), [c.J_FAILURES, c.J_PREEMPTIONS]].any()
        assert refuse or stopped or not splits[:, -1].any(), "every instant has its cycle, so no cause is unknown"
        waited += int(splits.sum())
    assert waited > 0


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_run_with_a_ledger_decides_the_same(discipline: str, tmp_path: Path) -> None:
    draw = generator(7)
    jobs = two_queues(draw, 120)
    queue_config = QueueConfig((make_queue("all"), make_queue("a", 8, parent="all"), make_queue("b", 16, parent="all")))
    preemption = Preemption() if discipline in WITH_QUOTAS else None
    profile = make_profile("fifo", discipline, preemption=preemption)
    some = queue_config if discipline in WITH_QUOTAS else None
    plain = simulate(jobs, make_cluster(8, 8, 8), profile, queue_config=some)
    path = tmp_path / "journal.jsonl"
    with path.open("wb") as file:
        kept = simulate(
            jobs, make_cluster(8, 8, 8), profile, queue_config=some, hooks=RunHooks(journal=file.write, ledger=True)
        )
    assert kept.summary["digest"] == plain.summary["digest"]
    assert plain.wait_by_cause is None and "wait_by_cause" not in plain.summary
    assert kept.wait_by_cause is not None
    assert sum(kept.wait_by_cause.values()).tolist() == kept.jobs.wait.tolist()  # type: ignore[union-attr]
    assert kept.jobs.wait.any()
    total = kept.summary["wait_by_cause"]["total"]
    assert sum(total.values()) == pytest.approx(kept.summary["wait_s"]["sum"])
    by_queue = kept.summary["wait_by_cause"]["by_queue"]
    for cause, span in total.items():
        assert sum(spans[cause] for spans in by_queue.values()) == pytest.approx(span)


def test_the_ledger_of_a_journal_is_that_of_the_run(tmp_path: Path) -> None:
    for name in ("best-effort", "strict", "conservative"):
        text = f'[order]\npolicy = "fifo"\n[discipline]\npolicy = "{name}"\n[placement]\npolicy = "best-fit"\n'
        draw = generator(3)
        jobs = two_queues(draw, 80)
        queue_config = QueueConfig(
            (make_queue("all"), make_queue("a", 8, parent="all"), make_queue("b", 8, parent="all"))
        )
        path = tmp_path / f"{name}.jsonl"
        with path.open("wb") as file:
            result = simulate(
                jobs, make_cluster(8, 8), parse_profile(text, "mine"), queue_config=queue_config,
                hooks=RunHooks(journal=file.write, ledger=True),
            )  # fmt: skip
        rebuilt = state_at(path, keep_ledger=True)
        assert rebuilt.ledger is not None and result.wait_by_cause is not None
        for cause, column in rebuilt.ledger.columns(rebuilt.now).items():
            assert column.tolist() == result.wait_by_cause[cause].tolist(), (name, cause)


# --- each cause where it is the cause ---------------------------------------------------------------------------


def test_less_is_free_than_asked_and_then_enough_but_in_pieces() -> None:
    harness = Harness(make_cluster(4, 4))
    ledger = with_ledger(harness)
    harness.submit(make_job("a", 3), make_job("b", 3), make_job("big", 4))
    harness.cycle()
    harness.submit(make_job("c", 1))
    harness.cycle(10 * SECOND)
    harness.finish("c")
    harness.cycle(30 * SECOND)
    assert spent(harness, ledger, "big") == {"capacity": 30}
    harness.submit(make_job("two", 2))
    harness.cycle(40 * SECOND)
    harness.cycle(50 * SECOND)
    harness.now = 60 * SECOND
    assert spent(harness, ledger, "two") == {"other": 10, "fragmentation": 20}, "nobody looked at it for 10 seconds"
    adds_up(harness, ledger)


def test_too_little_of_an_amount_and_a_rule_are_told_from_pieces() -> None:
    nodes = tuple(msgspec.structs.replace(n, amounts=(("power", 3),)) for n in make_cluster(4, 4).nodes)
    harness = Harness(ClusterSpec("capped", nodes))
    ledger = with_ledger(harness)
    takes = {"rules": (PodRules(amounts=(("power", 2),)),)}
    apart = PodRules(classes=("web",), anti_affinity=(PodAntiAffinity("web"),))
    harness.submit(make_job("a", 1, **takes), make_job("b", 1, **takes), make_job("c", 1, **takes))
    harness.submit(make_job("wide", 4, **takes), *(make_job(f"w{i}", 1, rules=(apart,)) for i in range(3)))
    harness.cycle()
    harness.cycle(10 * SECOND)
    assert harness.running() == ["a", "b", "w0", "w1"]
    assert spent(harness, ledger, "c") == spent(harness, ledger, "w2") == {"rules": 10}
    assert spent(harness, ledger, "wide") == {"fragmentation": 10}, "with all the power there are pieces alone"
    adds_up(harness, ledger)


def test_order_is_the_cause_of_those_behind_the_head_alone() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "strict"))
    ledger = with_ledger(harness)
    harness.submit(make_job("a", 6), make_job("head", 4), make_job("behind", 1))
    harness.cycle()
    harness.cycle(10 * SECOND)
    assert spent(harness, ledger, "head") == {"capacity": 10}
    assert spent(harness, ledger, "behind") == {"order": 10}
    harness.cancel("head")
    harness.cycle()
    assert harness.running() == ["a", "behind"]


def test_what_others_borrowed_is_told_from_what_a_queue_lacks() -> None:
    harness = Harness(make_cluster(8, 8))
    ledger = with_ledger(harness)
    harness.set_queues(
        make_queue("all"), make_queue("a", 4, parent="all"), make_queue("b", 4, parent="all", borrowing=4)
    )
    harness.submit(make_job("borrows", 8, queue="b"), make_job("more", 1, queue="b"), make_job("lent", 4, queue="a"))
    harness.cycle()
    harness.cycle(10 * SECOND)
    assert spent(harness, ledger, "lent") == {"quota-lent": 10}
    assert spent(harness, ledger, "more") == {"quota": 10}


def test_a_closed_queue_a_back_off_and_a_core_gate_their_jobs() -> None:
    harness = Harness(make_cluster(8), make_profile(requeue=Requeue(base_s=60)))
    ledger = with_ledger(harness)
    harness.set_queues(make_queue("open", 8), make_queue("shut", 8, state="hold"))
    harness.submit(make_job("shut", 1, queue="shut"), make_job("a", 8, queue="open", retries=3))
    harness.cycle()
    harness.now = 10 * SECOND
    harness.fail_job("a")
    harness.submit(make_job("b", 8, queue="open"))
    harness.cycle()
    harness.cycle(MINUTE + 30 * SECOND)
    assert spent(harness, ledger, "shut") == {"gated": 90}
    assert spent(harness, ledger, "a") == {"gated": 60, "quota": 20}
    adds_up(harness, ledger)


def test_a_promise_is_the_cause_where_only_it_is_in_the_way() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "easy"))
    ledger = with_ledger(harness)
    harness.submit(make_job("runs", 6, estimate=MINUTE), runtime=MINUTE)
    harness.submit(make_job("head", 8, estimate=MINUTE), make_job("long", 2, estimate=10 * MINUTE))
    harness.cycle()
    assert int(harness.state.jobs[0, c.J_STATUS]) == 1
    harness.cycle(20 * SECOND)
    assert spent(harness, ledger, "head") == {"capacity": 20}
    assert spent(harness, ledger, "long") == {"reservation": 20}


def test_jobs_of_higher_priority_are_the_cause_where_they_hold_the_gpus_or_stand_before() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "strict"))
    ledger = with_ledger(harness)
    harness.submit(make_job("high", 6, priority=2), make_job("low", 4), make_job("same", 1), make_job("huge", 8))
    harness.cycle()
    harness.cycle(10 * SECOND)
    assert spent(harness, ledger, "low") == {"priority": 10}, "without `high` there would be GPUs for it"
    assert spent(harness, ledger, "same") == {"order": 10}
    harness.submit(make_job("head", 5, priority=1))
    harness.cycle()
    harness.cycle(20 * SECOND)
    assert spent(harness, ledger, "same") == {"order": 10, "priority": 10}
    assert spent(harness, ledger, "head") == {"priority": 10}
    harness.finish("high")
    harness.submit(make_job("other", 6, priority=1))
    harness.cycle()
    harness.cycle(30 * SECOND)
    assert spent(harness, ledger, "other") == {"capacity": 10}, "they have the same priority"
    adds_up(harness, ledger)


def test_where_all_quotas_and_the_cluster_are_used_up_the_cluster_is_the_cause() -> None:
    harness = Harness(make_cluster(8))
    ledger = with_ledger(harness)
    harness.set_queues(make_queue("all"), make_queue("a", 4, parent="all"), make_queue("b", 4, parent="all"))
    harness.submit(make_job("a", 4, queue="a"), make_job("b", 4, queue="b"), make_job("more", 1, queue="b"))
    harness.cycle()
    harness.cycle(10 * SECOND)
    assert spent(harness, ledger, "more") == {"capacity": 10}, "more quota would not help it"


@pytest.mark.parametrize("discipline", WITH_QUOTAS)
def test_in_a_simulated_run_no_cause_is_unknown(discipline: str) -> None:
    """Jobs that reach their limits, back-offs, two queues: at every instant somebody has looked."""
    draw = generator(11)
    jobs = two_queues(draw, 150)
    jobs = replace(jobs, limit=np.where(draw.integers(0, 3, len(jobs)) == 0, jobs.runtime // 2, jobs.runtime))
    queue_config = QueueConfig((make_queue("all"), make_queue("a", 8, parent="all"), make_queue("b", 16, parent="all")))
    profile = make_profile("fifo", discipline, requeue=Requeue(base_s=30), enforce_limits=True, retries=2)
    result = simulate(jobs, make_cluster(8, 8, 8), profile, queue_config=queue_config, hooks=RunHooks(ledger=True))
    assert result.wait_by_cause is not None and result.summary["failures"] > 0
    assert sum(result.wait_by_cause.values()).tolist() == result.jobs.wait.tolist()  # type: ignore[union-attr]
    assert not result.wait_by_cause["other"].any()
    assert result.wait_by_cause["gated"].any()


def test_there_are_eleven_causes_and_they_have_names() -> None:
    assert [cause.value for cause in Cause] == [
        "quota", "quota-lent", "capacity", "fragmentation", "rules", "topology", "reservation", "priority", "order",
        "gated", "other",
    ]  # fmt: skip
