"""The ledger of waits says what one says that keeps nothing: whatever happens, for every job and cause."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.core.naive_waits import NaiveLedger
from tests.examples import examples

from kant.metrics.wait_causes import Cause
from kant.metrics.wait_ledger import WaitLedger
from kant.model.node import ClusterSpec, Node
from kant.model.units import SECOND
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.testing import Harness, make_job, make_profile
from kant.testing.builders import make_queue

WHAT = (
    *["submit"] * 6, *["later"] * 3, "finish", "finish", "fail", "cancel", "cordon", "back", "join", "leave", "queues",
)  # fmt: skip
ACTS = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 1000), st.sampled_from((0, 1, 7 * SECOND, 90 * SECOND))),
    min_size=25,
    max_size=60,
)
QUEUES: tuple[tuple[Any, ...], ...] = (
    (),
    (make_queue("default", 4), make_queue("other", 4)),
    (make_queue("all", 8), make_queue("default", 3, parent="all", user=2), make_queue("other", 5, parent="all")),
    (make_queue("default", 8, state="hold"), make_queue("other")),
)
DISCIPLINES = st.sampled_from(("best-effort", "strict", "backfill", "easy"))


A_BACK_OFF_ENDS = [
    ("submit", 534, 1), ("submit", 74, 1), ("finish", 258, 0), ("leave", 345, 0), ("later", 954, 90 * SECOND),
    ("fail", 317, 1),
]  # fmt: skip
"""A head whose back-off ends while nothing else happens was still counted as one behind a head."""


@example(acts=A_BACK_OFF_ENDS, discipline="strict", preempts=False, levels=False)
@given(acts=ACTS, discipline=DISCIPLINES, preempts=st.booleans(), levels=st.booleans())
@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
def test_every_wait_is_split_as_by_a_ledger_that_keeps_nothing(
    acts: Any, discipline: str, preempts: bool, levels: bool
) -> None:
    preemption = Preemption(min_run_s=0) if preempts else None
    profile = make_profile("fifo", discipline, preemption=preemption, requeue=Requeue(base_s=30))
    nodes = tuple(Node(f"n{i}", 4 - 2 * (i == 2), leaf=f"leaf{i % 2}", spine="spine") for i in range(4))
    harness = Harness(ClusterSpec("drawn", nodes), profile)
    ledger, naive = WaitLedger(harness.scheduler), NaiveLedger(harness)

    def look(plan: object) -> None:
        ledger.observe(harness.now)
        naive.observe(harness.now)

    harness.after_carrying_out = look
    for number, (what, pick, later) in enumerate(acts):
        jobs, state = list(harness.state.live), harness.state
        job = state.ids[jobs[pick % len(jobs)]] if jobs else ""
        node = sorted(state.node_index)[pick % len(state.node_index)]
        if what == "submit":
            queue, level = ("default", "other")[pick % 5 == 0], "leaf" if levels and pick % 4 == 0 else ""
            asks = {"gpus": 1 + pick % 4, "pods": 1 + pick % 3, "priority": pick % 3, "queue": queue, "within": level}
            harness.submit(make_job(f"j{number}", **asks, user=f"u{pick % 2}", estimate=(60 + pick) * SECOND))
        elif what in ("finish", "fail") and job in harness.running():
            (harness.finish if what == "finish" else harness.evict)(job)
        elif what == "cancel" and job:
            harness.cancel(job)
        elif what == "cordon":
            harness.cordon(node)
        elif what == "back":
            harness.bring_back(node)
        elif what == "join":
            harness.join(Node(f"late{number}", 2 + pick % 3))
        elif what == "leave" and len(state.node_index) > 2:
            harness.leave(node)
        elif what == "queues":
            harness.set_queues(*QUEUES[pick % len(QUEUES)])
        harness.cycle()
        harness.cycle(harness.now + later)
        splits = ledger.columns(harness.now)
        for row, split in naive.spent.items():
            found = {Cause(name): int(column[row]) for name, column in splits.items() if column[row]}
            assert found == +split, (state.ids[row], what)
