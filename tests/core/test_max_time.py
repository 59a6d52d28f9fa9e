"""How long runs of a queue may last."""

from __future__ import annotations

import pytest

from kant.model.decision import Reject, TooLong, sentence
from kant.model.status import JobStatus
from kant.model.tenant import Queue, QueueConfig
from kant.model.units import HOUR
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster, make_job

QUEUES = Queue("all", max_time=4 * HOUR), Queue("debug", "all", max_time=HOUR), Queue("long", "all", max_time=9 * HOUR)


@pytest.mark.parametrize("queue, hours", [("debug", 1), ("long", 4), ("all", 4), ("debug/ann", 1)])
def test_who_says_nothing_runs_so_long_and_who_asks_for_more_is_rejected(queue: str, hours: int) -> None:
    harness = Harness(make_cluster(8), builtin_profile("teams"))
    harness.set_queues(*QUEUES, Queue("debug/ann", "debug"))
    assert QueueConfig(QUEUES).max_time("debug") == (HOUR, "debug")
    for job, limit in (("none", -1), ("less", hours * HOUR - 1), ("equal", hours * HOUR), ("more", hours * HOUR + 1)):
        harness.submit(make_job(job, queue=queue, gpus=1, submit=0, limit=limit))
    harness.cycle()
    (rejected,) = [each for each in harness.plans[0].decisions if isinstance(each, Reject)]
    where = queue.partition("/")[0] if hours == 1 else "all"
    assert rejected.reason == TooLong(where, hours * HOUR + 1, hours * HOUR)
    assert sentence(rejected.reason).endswith(f"and queue {where} allows at most {hours}h")
    assert harness.running() == ["none", "less", "equal"]
    harness.cycle(hours * HOUR - 1)
    assert harness.running() == ["none", "equal"]
    harness.cycle(hours * HOUR)
    assert harness.running() == [] and harness.status("more") == JobStatus.REJECTED


def test_what_runs_and_waits_keeps_the_limit_of_its_day() -> None:
    harness = Harness(make_cluster(1), builtin_profile("teams"))
    harness.set_queues(Queue("debug"))
    harness.submit(*(make_job(job, queue="debug", gpus=1, submit=0) for job in ("a", "b")))
    harness.cycle()
    harness.set_queues(Queue("debug", max_time=HOUR))
    harness.cycle(3 * HOUR)
    assert harness.running() == ["a"]
    harness.finish("a")
    harness.cycle(4 * HOUR)
    harness.cycle(9 * HOUR)
    assert harness.running() == ["b"]
