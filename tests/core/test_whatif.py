"""What if: a fork in which nothing changes is the run itself, and a change does what it says to the second future."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.core.elastic_runs import elastic_arrivals
from tests.core.small_runs import gangs, uniform
from tests.core.tenant_runs import draw_queues, draw_tenants_jobs
from tests.examples import examples

from kant.cluster.columns import J_ATTAINED
from kant.cluster.journal import Header, read_lines
from kant.metrics.result import JobTable, RunResult
from kant.model.errors import InputError
from kant.model.event import JobFinished, JobRejected, JobStarted, JobSubmitted
from kant.model.node import ClusterSpec
from kant.model.placement import NODE
from kant.model.status import JobStatus, NodeStatus
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, HOUR, SECOND
from kant.scheduler.profile import Profile, builtin_profile, parse_profile
from kant.sim.drains import Drain, drained, nodes_called
from kant.sim.fork import fork
from kant.sim.options import read_options
from kant.sim.past import Past, read_past
from kant.sim.run import Run, RunHooks, simulate
from kant.sim.whatif import WhatIf, what_if
from kant.sim.whatif_changes import AddedNodes, Changes, QuotaChange, with_nodes
from kant.sim.whatif_request import parse_time
from kant.testing import Harness, make_cluster, make_job, make_jobs
from kant.testing.builders import make_queue
from kant.testing.drawn import Mould, draw_arrivals, draw_cluster, generator
from kant.testing.harness import at_random
from kant.workload.faults_file import NodeHealth

few = settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

PROFILES = (
    "fifo",
    "fifo-best-effort",
    "kant",
    "easy",
    "conservative",
    "srtf",
    "tiresias",
    "aged",
    "fair-share",
    "muri-srtf",
)


@dataclass
class Recorded:
    """A run and its journal."""

    path: Path
    result: RunResult

    def past(self, time: int | None = None) -> Past:
        return read_past(self.path, time)


def record(
    path: Path,
    cluster: ClusterSpec,
    profile: Profile,
    coming: Sequence[JobSubmitted],
    queue_config: QueueConfig | None = None,
) -> Recorded:
    options = read_options(profile.simulation, "test")
    with path.open("wb") as file:
        run = Run("drawn", cluster, profile, options, 3, FOREVER, RunHooks(journal=file.write), queue_config)
        result = run.result(iter(coming), len(coming))
    return Recorded(path, result)


def fates(jobs: JobTable) -> dict[str, tuple[int, ...]]:
    """When each job first started and ended, how long it waited, how often it was stopped, and what became of it."""
    columns = (jobs.submit, jobs.first_start, jobs.end, jobs.wait, jobs.preemptions, jobs.status)
    return dict(zip(jobs.id, zip(*(column.tolist() for column in columns), strict=True), strict=True))


def check_null(recorded: Recorded, share: float) -> None:
    """A fork with no change goes on as the run itself did."""
    time = int(recorded.result.end * share)
    own = fork(recorded.past(time))
    found = own.run.result(iter(own.coming), len(own.coming))
    then = fates(recorded.result.jobs)
    withdrawn = then.keys() - fates(found.jobs).keys()  # burst replicas whose base job had left when they came
    assert all(then[job][1] < 0 for job in withdrawn)
    assert fates(found.jobs) == {job: fate for job, fate in then.items() if job not in withdrawn}
    assert found.end == recorded.result.end or not own.state.ids


@pytest.mark.parametrize("name", PROFILES)
@few
@example(seed=700, share=0.625)
@given(seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_nothing_changed_is_what_happened(name: str, seed: int, share: float, tmp_path: Path) -> None:
    draw = generator(seed)
    profile = builtin_profile(name)
    estimates = "right" if name in ("easy", "conservative") and draw.integers(2) else "any"
    mould = Mould(groups=1, shares=False) if name == "muri-srtf" else Mould(levels=bool(draw.integers(2)))
    coming = draw_arrivals(draw, 25, mould, gap=200, estimates=estimates)
    check_null(record(tmp_path / "run.jsonl", draw_cluster(draw, 6), profile, coming), share)


FAULTY = "[simulation]\nmtbf_days = 0.05\nrepair_h = 0.2\ngpu_fault_share = 0.4\ncheckpoint_s = 300\nspeed = 'placed'\n"


@few
@given(
    seed=st.integers(0, 2**32), share=st.floats(0, 1), name=st.sampled_from(["fifo-best-effort", "backfill", "srtf"])
)
def test_nodes_that_fall_ill_and_elastic_gangs_are_taken_over(
    seed: int, share: float, name: str, tmp_path: Path
) -> None:
    draw = generator(seed)
    text = builtin_profile(name).text.split("[simulation]")[0] + FAULTY
    coming = elastic_arrivals(draw, draw_arrivals(draw, 20, Mould(shares=False), gap=200))
    check_null(record(tmp_path / "run.jsonl", draw_cluster(draw, 6), parse_profile(text, name), coming), share)


@few
@given(seed=st.integers(0, 2**32), share=st.floats(0, 1), name=st.sampled_from(["fifo-best-effort", "easy", "kant"]))
def test_queues_with_quotas_are_taken_over(seed: int, share: float, name: str, tmp_path: Path) -> None:
    draw = generator(seed)
    cluster = draw_cluster(draw, 6)
    queues = draw_queues(draw, cluster)
    coming = draw_tenants_jobs(draw, queues, 25)
    recorded = record(tmp_path / "run.jsonl", cluster, builtin_profile(name), coming, QueueConfig(tuple(queues)))
    check_null(recorded, share)


@pytest.mark.parametrize("name", ["backfill", "tiresias", "muri-tiresias"])
def test_a_contended_run_goes_on_wherever_it_is_cut(name: str, tmp_path: Path) -> None:
    with (tmp_path / "run.jsonl").open("wb") as file:
        result = simulate(gangs(), uniform(), builtin_profile(name), seed=4, hooks=RunHooks(journal=file.write))
    for part in range(8):
        check_null(Recorded(tmp_path / "run.jsonl", result), part / 7)


def test_a_moment_that_nothing_else_would_wake_is_not_slept_through(tmp_path: Path) -> None:
    """A job is stopped at its limit, of which the journal says nothing before."""
    text = builtin_profile("fifo-best-effort").text + "[simulation]\nenforce_limits = true\n"
    jobs = make_jobs(submit=[0, 10], runtime=[1000, 50], limit=[300, 100], gpus=[8, 8])
    with (tmp_path / "run.jsonl").open("wb") as file:
        result = simulate(jobs, make_cluster(8), parse_profile(text, "test"), hooks=RunHooks(journal=file.write))
    assert result.end == 350 * SECOND
    check_null(Recorded(tmp_path / "run.jsonl", result), 0.5)


# --- What changes ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A contended run of two queues on six nodes in three leaves."""
    path = tmp_path_factory.mktemp("whatif") / "run.jsonl"
    with path.open("wb") as file:
        result = simulate(gangs(), uniform(), builtin_profile("kant"), seed=4, hooks=RunHooks(journal=file.write))
    return Recorded(path, result)


def answer(found: WhatIf | None) -> WhatIf:
    assert found is not None
    return found


def started_on(lines: Sequence[bytes], past: Past) -> list[tuple[int, set[int]]]:
    """(time, nodes) of each start in the journal of a future, which begins with its past."""
    events = list(read_lines(iter(lines), "future"))[1 + len(past.events) :]
    return [(e.time, set(e.allocation[:, NODE].tolist())) for e in events if isinstance(e, JobStarted)]


@few
@given(share=st.floats(0, 0.8), leaf=st.sampled_from(["leaf0", "leaf2", "n3"]), delay=st.integers(0, 600),
       length=st.none() | st.integers(1, 4000), evicts=st.booleans())  # fmt: skip
def test_nothing_starts_on_what_is_drained(
    share: float, leaf: str, delay: int, length: int | None, evicts: bool, recorded: Recorded
) -> None:
    past = recorded.past(int(recorded.result.end * share))
    start = past.now + delay * SECOND
    end = FOREVER if length is None else start + length * SECOND
    drain = Drain(leaf, nodes_called(past.header.cluster, leaf, "test"), start, end, evicts)
    lines: list[bytes] = []
    hooks = {"with the change": RunHooks(journal=lines.append)}
    found = answer(what_if(past, Changes(drains=(drain,)), hooks=lambda name: hooks.get(name, RunHooks())))
    starts = started_on(lines, past)
    assert not any(nodes & set(drain.nodes) for time, nodes in starts if start <= time < end)
    if evicts:
        held = found.after.intervals
        held = held[np.isin(held[:, 1], drain.nodes)]
        assert not ((held[:, 4] < min(end, found.after.end)) & (held[:, 5] > start)).any()
    if end < FOREVER and leaf == "leaf0" and not evicts:
        assert found.after.summary["completed"] == found.before.summary["completed"]


def test_who_waits_for_what_is_drained_for_good_waits_in_vain_and_not_for_ever(tmp_path: Path) -> None:
    """Where faults are drawn without end, and nothing is left to run on."""
    text = builtin_profile("fifo-best-effort").text + FAULTY
    coming = [JobSubmitted(i, make_job(f"j{i}", 8, submit=i), HOUR) for i in range(6)]
    own = record(tmp_path / "run.jsonl", make_cluster(8, 8), parse_profile(text, "test"), coming)
    past = own.past(own.result.end // 3)
    found = answer(what_if(past, Changes(drains=(Drain("all", (0, 1), past.now),))))
    assert found.after.summary["censored"] > 0 == found.before.summary["censored"]


@few
@given(share=st.floats(0, 1), gpus=st.sampled_from([1, 8]), pods=st.integers(1, 7))
def test_a_submitted_job_is_there_exactly_once(share: float, gpus: int, pods: int, recorded: Recorded) -> None:
    past = recorded.past(int(recorded.result.end * share))
    job = make_job("mine", gpus, pods, submit=past.now, queue="batch", estimate=HOUR)
    found = answer(what_if(past, Changes(jobs=(JobSubmitted(past.now, job, HOUR),))))
    assert "mine" not in found.before.jobs.id and found.after.jobs.id.count("mine") == 1
    assert set(found.after.jobs.id) == {*found.before.jobs.id, "mine"}
    (own,) = found.answer["submitted"]
    fits = gpus * pods <= 48
    assert (own["status"], own["why"] == "never-fits") == (("finished", False) if fits else ("rejected", True))
    if fits:
        held = found.after.intervals[found.after.intervals[:, 0] == found.after.jobs.id.index("mine")]
        assert held[:, 4].min() == own["start_us"] >= past.now
        ran = sum({(start, end): end - start for *_, start, end in held.tolist()}.values())
        assert ran == HOUR  # stopped or not, its work is done once
    assert found.answer["waits"]["all"]["jobs"] <= len(found.before.jobs.id)


def test_the_same_question_has_the_same_answer(recorded: Recorded) -> None:
    past = recorded.past(recorded.result.end // 3)
    changes = Changes(nodes=(AddedNodes(2),), drains=(Drain("n0", (0,), past.now),), profile=builtin_profile("srtf"))
    one, two = (answer(what_if(recorded.past(past.now), changes)).answer for _ in range(2))
    assert one["after"]["digest"] == two["after"]["digest"] != one["before"]["digest"]
    for name in ("before", "after"):
        for key in ("cpu_s", "jobs_per_cpu_s", "peak_rss_mib"):
            del one[name][key], two[name][key]
    assert one == two


def test_waits_add_up_and_both_futures_count_the_same_jobs(recorded: Recorded) -> None:
    past = recorded.past(recorded.result.end // 3)
    found = answer(what_if(past, Changes(nodes=(AddedNodes(3),))))
    waits = found.answer["waits"]
    for group in ("by_queue", "by_size"):
        for key in ("sooner", "later"):
            assert sum(row[key]["jobs"] for row in waits[group].values()) == waits["all"][key]["jobs"]
        assert sum(row["jobs"] for row in waits[group].values()) == waits["all"]["jobs"]
    assert found.before.jobs.id == found.after.jobs.id
    assert len(found.after.cluster.nodes) == 9 and found.after.summary["completed"] == found.before.summary["completed"]
    best = found.answer["helped"][0]
    assert best["after_s"] < best["before_s"]
    shares = found.answer["ratios"]
    assert shares["before"]["sor"] > shares["after"]["sor"] > 0  # the same work on more nodes, in the same time


def test_without_arrivals_nobody_comes_and_until_ends_both(recorded: Recorded) -> None:
    past = recorded.past(recorded.result.end // 3)
    alone = answer(what_if(past, Changes(nodes=(AddedNodes(1),)), arrivals=False))
    assert alone.answer["coming"] == 0
    assert all(int(submit) <= past.now for submit in alone.after.jobs.submit)
    cut = answer(what_if(past, Changes(nodes=(AddedNodes(1),)), until=past.now + 600 * SECOND))
    assert cut.before.end == cut.after.end == past.now + 600 * SECOND
    assert cut.before.summary["censored"] > 0


def test_more_quota_lets_a_queue_start_what_it_holds_back(tmp_path: Path) -> None:
    queue_config = QueueConfig((make_queue("all", 8), make_queue("a", 2, parent="all", borrowing=0)))
    jobs = [make_job(f"j{i}", 2, submit=i * SECOND, queue="a", estimate=HOUR) for i in range(3)]
    coming = [JobSubmitted(job.submit, job, HOUR) for job in jobs]
    own = record(tmp_path / "run.jsonl", make_cluster(8), builtin_profile("fifo-best-effort"), coming, queue_config)
    change = QuotaChange("a", "gpu", "", 2000, True)
    found = answer(what_if(own.past(10 * SECOND), Changes(quotas=(change,))))
    assert found.before.jobs.first_start.tolist() == [0, HOUR, 2 * HOUR]
    assert found.after.jobs.first_start.tolist() == [0, 10 * SECOND, HOUR]
    with pytest.raises(InputError, match="--quota: expected a quota of a that is not below 0"):
        what_if(own.past(), Changes(quotas=(QuotaChange("a", "gpu", "", -3000, True),)))


# --- What is known of run times ------------------------------------------------------------------------------------


def live(path: Path, cut: int | None = None, **fields: Any) -> Past:
    """A journal as a live cluster writes it: nobody knows run times. One job runs for 1000 s, two wait."""
    jobs = [make_job(f"j{i}", 8, submit=i * SECOND, **fields) for i in range(3)]
    coming = [JobSubmitted(job.submit, job, 1000 * SECOND) for job in jobs]
    record(path, make_cluster(8), builtin_profile("fifo"), coming)
    lines = path.read_bytes().replace(b',"runtime":1000000000', b"").splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if cut is None or json.loads(line).get("time", 0) <= cut))
    return read_past(path, 400 * SECOND if cut is None else None)


def test_what_a_journal_saw_later_is_how_long_a_job_ran(tmp_path: Path) -> None:
    past = live(tmp_path / "run.jsonl")
    found = answer(what_if(past, Changes(nodes=(AddedNodes(1),))))
    assert found.answer["run_times"] == {"recorded": 3}
    assert found.before.jobs.end.tolist() == [1000 * SECOND, 2000 * SECOND, 3000 * SECOND]
    assert found.after.jobs.first_start.tolist() == [0, 400 * SECOND, 1000 * SECOND]


@pytest.mark.parametrize(
    ("fields", "source", "runs"),
    [({"estimate": 700 * SECOND}, "estimate", 700), ({"limit": 900 * SECOND}, "limit", 900), ({}, "assumed", 3600)],
)
def test_of_others_it_is_what_was_said_of_them(fields: dict[str, int], source: str, runs: int, tmp_path: Path) -> None:
    past = live(tmp_path / "run.jsonl", cut=2 * SECOND, **fields)
    assert past.now == 2 * SECOND
    found = answer(what_if(past, Changes(nodes=(AddedNodes(1),))))
    assert found.answer["run_times"] == {source: 3}
    assert found.before.jobs.end.tolist() == [runs * SECOND, 2 * runs * SECOND, 3 * runs * SECOND]


@few
@given(seed=st.integers(0, 2**32), share=st.floats(0, 1), cut=st.booleans())
def test_a_live_journal_of_a_driver_that_refuses_has_futures(seed: int, share: float, cut: bool) -> None:
    """Nobody knows run times before: who finished later runs as long as it did, also after refused starts."""
    draw = generator(seed)
    cluster, profile = draw_cluster(draw, 6), builtin_profile("fifo-best-effort")
    harness = Harness(cluster, profile, refuse=at_random(0.2, seed), check=False)
    harness.run(draw_arrivals(draw, 20, gap=200))
    events = [msgspec.structs.replace(e, runtime=-1) if isinstance(e, JobSubmitted) else e for e in harness.events]
    now = int(harness.now * share)
    before, later = ([e for e in events if (e.time <= now) == own] for own in (True, False))
    header = Header("1", "live", profile.text, 0, cluster)
    moved = before[-1].time if before else 0
    past = Past(Path("live"), header, profile, read_options({}, "test"), now, moved, before, [] if cut else later)
    found = answer(what_if(past, Changes(nodes=(AddedNodes(1),)), arrivals=not cut))
    finished = {e.job for e in later if isinstance(e, JobFinished)}
    there = {e.job.id for e in events if isinstance(e, JobSubmitted)} - {
        e.job for e in before if isinstance(e, JobFinished | JobRejected)
    }
    coming = {e.job.id for e in later if isinstance(e, JobSubmitted)}
    assert set(found.before.jobs.id) == set(found.after.jobs.id) == (there - coming if cut else there)
    if cut:
        assert "recorded" not in found.answer["run_times"]
        return
    for future in (found.before, found.after):
        for row, job in enumerate(future.jobs.id):
            if job in finished:
                assert int(future.jobs.status[row]) == JobStatus.FINISHED
                ran = int(future.jobs.end[row] - future.jobs.submit[row] - future.jobs.wait[row])
                assert ran == int(harness.state.jobs[harness.state.rows[job], J_ATTAINED])


# --- Parts of the fabric -------------------------------------------------------------------------------------------


def test_without_a_job_the_next_starts_at_once(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("id,submit_s,runtime_s,gpus\nlong,0,36000,8\nnext,60,600,8\n")
    kant("simulate", str(jobs), "--cluster", "1x8", "--profile", "fifo", "--out", str(tmp_path / "run"))
    asked = ("whatif", str(tmp_path / "run" / "journal.jsonl"), "--at", "1h", "--cancel")
    found = kant(*asked, "long", "--json").json()
    assert found["change"] == ["job long is cancelled"]
    (gains,) = [row for row in found["helped"] if row["job"] == "next"]
    assert gains["before_s"] == 36_000 - 60 and gains["after_s"] == 3_600 - 60
    assert "--cancel: expected a waiting or running job" in kant(*asked, "nobody").refusal()


def test_new_nodes_stand_in_leaves_of_their_own() -> None:
    cluster = with_nodes(uniform(), (AddedNodes(3), AddedNodes(1, "n5")))
    assert cluster.nodes[:6] == uniform().nodes
    assert [(node.gpus, node.leaf) for node in cluster.nodes[6:]] == [
        (8, "new-1-leaf1"), (8, "new-1-leaf1"), (8, "new-1-leaf2"), (8, "new-2-leaf1"),
    ]  # fmt: skip
    assert len({node.name for node in cluster.nodes}) == 10
    with pytest.raises(InputError, match="--nodes: expected the name of a node of 6x8"):
        with_nodes(uniform(), (AddedNodes(1, "n9"),))


def test_who_returns_while_it_is_drained_takes_nothing_before_the_end() -> None:
    ok, failed, draining = NodeStatus.IN_SERVICE, NodeStatus.FAILED, NodeStatus.DRAINING
    now = [NodeHealth(0, 0, ok), NodeHealth(0, 1, ok)]
    coming = [NodeHealth(10, 0, failed), NodeHealth(30, 0, ok), NodeHealth(35, 1, ok, 2)]
    found = list(drained(now, coming, (Drain("leaf", (0, 1), 20, 40),)))
    assert found == [
        NodeHealth(10, 0, failed), NodeHealth(20, 0, failed), NodeHealth(20, 1, draining), NodeHealth(30, 0, draining),
        NodeHealth(35, 1, draining, 2), NodeHealth(40, 0, ok), NodeHealth(40, 1, ok, 2),
    ]  # fmt: skip


def test_a_journal_that_is_still_written_ends_today(tmp_path: Path) -> None:
    path = live(tmp_path / "live.jsonl").path
    zero = 1_700_000_000 * SECOND
    header, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header.replace(b'"zero":0', b'"zero":%d' % zero) + b"".join(lines))
    last = read_past(path).now
    assert read_past(path, today=zero + last + 7).now == last + 7
    assert read_past(path, today=zero).now == last  # a clock that is behind, or a line that came meanwhile
    past = read_past(path, today=zero + HOUR)  # it is 2023-11-14 23:13:20
    for text, micros in (("23:14Z", 40), ("23:13Z", 86_380), ("2023-11-15T00:00Z", 2_800), ("+5s", 5)):
        assert parse_time(text, past, "--until") == HOUR + micros * SECOND
    for text in ("2023-02-30T00:00Z", "24:00Z"):
        with pytest.raises(InputError, match="expected a date such as"):
            parse_time(text, past, "--until")
    with pytest.raises(InputError, match="its clock has no dates"):
        parse_time("23:14Z", live(tmp_path / "run.jsonl"), "--until")
