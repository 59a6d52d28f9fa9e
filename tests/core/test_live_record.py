"""The record of a live run: whoever asks for what is new knows as much as who asks for everything."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from tests.core.test_state_machine import Cluster
from tests.examples import examples

from kant.cluster import columns as c
from kant.live.record import RunRecord
from kant.live.sentences import KEPT
from kant.metrics.recorder import Recorder
from kant.metrics.summary import job_table, summarise
from kant.model.event import Event
from kant.model.node import ClusterSpec, Node
from kant.model.placement import MASK, MILLI, NODE
from kant.model.status import NodeStatus
from kant.model.units import SECOND
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.strategies import clusters

KEYED = {"jobs": "row", "intervals": "row"}
APPENDED = ("nodes", "series")


class Viewer:
    """Applies answers as the page does."""

    def __init__(self) -> None:
        self.cursor = ""
        self.known: dict[str, Any] = {}
        self.answers: list[dict[str, Any]] = []

    def ask(self, record: RunRecord, now: int) -> None:
        answer = record.since(self.cursor, now)
        self.answers.append(answer)
        self.cursor = answer["cursor"]
        if answer["complete"]:
            self.known = {key: {} for key in KEYED} | {key: [] for key in APPENDED} | {"cluster": answer["cluster"]}
        for key, by in KEYED.items():
            for row, *values in zip(answer[key][by], *(v for k, v in answer[key].items() if k != by), strict=True):
                self.known[key][row] = values
        for key in APPENDED:
            self.known[key] += list(zip(*answer[key].values(), strict=True))
        self.known["queues"] = answer["queues"]


class Watched(Cluster):
    """A cluster to which anything may happen, with a record that is small, and people who look at it at times."""

    @initialize(
        spec=clusters(),
        discipline=st.sampled_from(("best-effort", {"policy": "preemptive", "min_run_s": 0}, "easy")),
        most=st.tuples(st.sampled_from((1, 3, 1000)), st.sampled_from((1, 3, 1000)), st.sampled_from((1, 1000))),
        samples=st.sampled_from((2, 5, 1000)),
        seed=st.integers(0, 1 << 40),
    )
    def begin(self, spec: ClusterSpec, discipline: Any, most: Any, samples: int, seed: int) -> None:
        self.harness = Harness(spec, make_profile("fifo", discipline, "first-fit"), seed=seed, check=False)
        jobs, pieces, changes = most
        self.record = RunRecord(
            self.harness.state, "r", jobs=jobs, pieces=pieces, changes=changes, samples=samples
        )  # fmt: skip
        self.viewers = [Viewer(), Viewer(), Viewer()]
        take = self.harness.happen

        def happen(event: Event) -> None:
            take(event)
            self.record.happened(event)

        self.harness.happen = happen  # type: ignore[method-assign]
        self.harness.before_carrying_out = self.record.decided

    @rule(who=st.integers(0, 2), later=st.sampled_from((0, 0, 1, 900_000, 3 * SECOND)))
    def somebody_looks(self, who: int, later: int) -> None:
        now = self.harness.now + later
        self.harness.now = now
        self.viewers[who].ask(self.record, now)
        fresh = Viewer()
        fresh.ask(self.record, now)
        assert fresh.answers[0]["complete"]
        assert self.viewers[who].known == fresh.known

    @rule(pick=st.integers(0, 1000))
    def leaves_and_comes_again(self, pick: int) -> None:
        waiting = list(self.harness.state.pending)
        if not waiting:
            return
        row = waiting[pick % len(waiting)]
        job = self.harness.state.live[row]
        self.harness.cancel(job.id)
        base, _, count = job.id.partition("~")
        again = {name: getattr(job, name) for name in job.__struct_fields__}
        self.harness.submit(type(job)(**(again | {"id": f"{base}~{int(count or 1) + 1}"})))

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "record"):
            return
        state, record = self.harness.state, self.record
        held: Counter[Any] = Counter()
        for row, allocation in state.running.items():
            for piece in allocation[:, [NODE, MASK, MILLI]].tolist():
                held[state.ids[row].partition("~")[0], *piece] += 1
        pieces = record.pieces.table[: record.pieces.used]
        assert Counter((record.ids[j], n, m, g) for j, n, m, g, _, end in pieces.tolist() if end < 0) == held
        for own, job in state.live.items():
            row = record.by_id[job.id.partition("~")[0]]
            assert record.jobs.table[row, 7] == state.jobs[own, c.J_STATUS]
        assert record.jobs.used <= len(state.live) + 2 * record.most[0] + 1
        assert record.recorder.used <= record.recorder.most + 1
        assert len(record.telling._sentences) <= record.jobs.used
        assert all(len(told) <= KEPT for told in record.telling._sentences.values())


TestWatched = Watched.TestCase
TestWatched.settings = settings(
    max_examples=examples(15), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
del Cluster


def test_an_answer_costs_what_has_changed() -> None:
    harness = Harness(make_cluster(*[8] * 20), make_profile())
    record = RunRecord(harness.state, "r")
    take = harness.happen
    harness.happen = lambda event: (take(event), record.happened(event))  # type: ignore[method-assign]
    harness.submit(*(make_job(f"j{i}", gpus=1) for i in range(150)))
    harness.cycle()
    first = record.since("", harness.now)
    assert len(first["jobs"]["row"]) == 150
    assert len(first["intervals"]["row"]) == 150
    harness.now += 2 * SECOND
    harness.finish("j7")
    then = record.since(first["cursor"], harness.now + 2 * SECOND)
    assert not then["complete"]
    assert then["cluster"] is None
    assert then["jobs"]["id"] == ["j7"]
    assert then["intervals"]["end"] == [2 * SECOND]
    assert then["series"]["allocated"] == [150_000, 149_000][-len(then["series"]["allocated"]) :]
    assert record.since(then["cursor"], harness.now + 2 * SECOND)["jobs"]["row"] == []
    assert record.since("r.0.0.9999.0.0.0", harness.now)["complete"]
    assert record.since("nonsense", harness.now)["complete"]


def test_the_summary_is_that_of_the_recorder() -> None:
    """While nothing is thinned, and nothing happens twice in a second."""
    harness = Harness(make_cluster(8, 8, 4), make_profile())
    record, oracle = RunRecord(harness.state, "r"), Recorder(harness.state)
    oracle.observe(0)
    take = harness.happen

    def happen(event: Event) -> None:
        take(event)
        record.happened(event)
        row = harness.state.rows.get(
            getattr(event, "job", "") if isinstance(getattr(event, "job", ""), str) else "", -1
        )
        if row in harness.state.running:
            oracle.started(row, harness.state.running[row])
        oracle.observe(event.time)

    harness.happen = happen  # type: ignore[method-assign]
    for step in range(30):
        harness.now = step * 7 * SECOND
        harness.submit(make_job(f"j{step}", gpus=1 + step % 8))
        harness.cycle()
        if step % 3 == 2:
            harness.finish(harness.state.ids[next(iter(harness.state.running))])
    now = harness.now + 1_500_000
    oracle.observe(now)
    expected = summarise(harness.state, oracle, job_table(harness.state, now), now, "linear")
    found = record.summary(now)
    for key in ("sor", "jtted", "wait_s", "wait_by_size"):
        assert found["so_far"][key] == expected[key]
    for key in ("gar", "gfr"):
        assert found["so_far"][key] == pytest.approx(expected[key])
    assert found["now"]["running"] == len(harness.state.running)


def test_the_history_of_a_job_is_told_in_order() -> None:
    harness = Harness(make_cluster(8), make_profile())
    record = RunRecord(harness.state, "r")
    take = harness.happen
    harness.happen = lambda event: (take(event), record.happened(event))  # type: ignore[method-assign]
    harness.before_carrying_out = record.decided
    harness.submit(make_job("a", gpus=8))
    harness.cycle()
    harness.submit(make_job("b", gpus=8))
    harness.cycle(SECOND)
    harness.now = 2 * SECOND
    harness.finish("a")
    harness.cycle(3 * SECOND)
    told = record.history("b")
    assert told is not None
    assert [each["what"] for each in told] == ["submitted", "hold", "started"]
    assert told[1]["sentence"] == "it waits: not enough free capacity: 0 of 1 pods fit now"
    assert told[2] == {"time_us": 3 * SECOND, "what": "started", "sentence": "it started on 8 GPUs of n0"}
    assert record.history("c") is None


def test_a_node_that_has_left_is_told_as_not_there_until_it_is_back() -> None:
    harness = Harness(make_cluster(8, 8), make_profile())
    record, take = RunRecord(harness.state, "r"), harness.happen

    def happen(event: Event) -> None:
        take(event)
        record.happened(event)

    harness.happen = happen  # type: ignore[method-assign]
    harness.leave("n1")
    harness.join(Node("n1", 8))
    nodes = record.since("", harness.now)["nodes"]
    status = [NodeStatus.RETIRED.value, NodeStatus.IN_SERVICE.value]
    assert (nodes["node"], nodes["status"]) == ([1, 1], status)
