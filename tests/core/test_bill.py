"""A bill is what was held, waited for and left idle, counted from what the journal says alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.core.reference_worlds import Watched, crowded_run
from tests.examples import examples

from kant import __version__
from kant.cluster.journal import Header, Journal
from kant.model import event as ev
from kant.model.placement import MASK, MILLI, NODE
from kant.model.status import NodeStatus
from kant.model.units import FOREVER, GPU, HOUR
from kant.scheduler.profile import builtin_profile
from kant.sim.bill import bill_of
from kant.testing import Harness, make_cluster, make_job

ENDS = (
    ev.JobFinished | ev.JobPreempted | ev.JobFailed | ev.JobEvicted | ev.JobRefused | ev.JobCancelled | ev.JobRejected
)


QUICK = (Phase.explicit, Phase.generate)
"""A run that differs is small enough as it is drawn."""


def naive(harness: Watched, since: int, until: int) -> dict[str, Counter[str]]:
    """By amount what each user has, in milli-GPU-microseconds: every interval between two events, one by one."""
    users, waits, runs = dict[str, str](), dict[str, int](), dict[str, ev.JobStarted]()
    found: dict[str, Counter[str]] = {"held": Counter(), "waited": Counter(), "fragments": Counter()}
    times = [event.time for event in harness.events]
    for event, (now, then) in zip(harness.events, pairwise([*times, times[-1]]), strict=True):
        if isinstance(event, ev.JobSubmitted):
            users[event.job.id] = event.job.user
            waits[event.job.id] = event.job.gpu_milli
        elif isinstance(event, ev.JobStarted):
            runs[event.job] = event
        elif isinstance(event, ENDS):
            runs.pop(event.job, None)
            if isinstance(event, ev.JobFinished | ev.JobCancelled | ev.JobRejected):
                waits.pop(event.job)
        lasted = max(min(then, until) - max(now, since), 0)
        on = dict[int, Counter[str]]()
        for job, started in runs.items():
            for piece in started.allocation.tolist():
                milli = piece[MASK].bit_count() * piece[MILLI]
                found["held"][users[job]] += milli * lasted
                on.setdefault(piece[NODE], Counter())[users[job]] += milli
        for job in waits.keys() - runs.keys():
            found["waited"][users[job]] += waits[job] * lasted
        for node, held in on.items():
            idle = harness.state.cluster.nodes[node].gpus * GPU - held.total()
            for user, milli in held.items():
                found["fragments"][user] += idle * milli / held.total() * lasted  # type: ignore[assignment]
    return found


def written(harness: Harness, folder: Path, begins: int = 0) -> Path:
    path = folder / "journal.jsonl"
    with path.open("wb") as file:
        journal, spec = Journal(file.write), harness.state.cluster
        journal.write(Header(__version__, "drawn", builtin_profile("kant").text, 0, spec, begins=begins))
        for event in harness.events:
            journal.write(event)
    return path


def test_nodes_out_of_service_and_what_was_before_a_journal_begins_are_not_counted(tmp_path: Path) -> None:
    """By hand: one of four GPUs for two hours, of which the node serves one and a half; the journal begins at 1 h."""
    harness = Harness(make_cluster(4, 8), builtin_profile("kant"))
    harness.submit(make_job("one", user="ann", gpus=1, submit=0))
    harness.cycle()
    (node,) = [harness.state.nodes[held[0, NODE]].name for held in harness.state.running.values()]
    harness.now = 3 * HOUR // 2
    harness.happen(ev.NodeChanged(harness.now, node, NodeStatus.CORDONED))
    harness.now = 2 * HOUR
    harness.finish("one")
    for begins in (0, HOUR):
        (row,) = bill_of([written(harness, tmp_path, begins)]).rows(["user"])
        idle = {"n0": 3, "n1": 7}[node]
        assert (row["gpu_hours"], row["fragment_gpu_hours"]) == ((2, 1.5 * idle) if not begins else (1, 0.5 * idle))


@given(st.integers(0, 2**31), st.integers(0, 600), st.integers(0, 1500))
@settings(
    max_examples=examples(12), deadline=None, phases=QUICK, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_bill_is_the_sum_over_every_moment(tmp_path: Path, seed: int, since: int, lasts: int) -> None:
    harness = crowded_run(seed, "nominal")
    path, window = written(harness, tmp_path), (since * 10**6, (since + lasts) * 10**6)
    for begin, end in (window, (0, FOREVER)):
        rows = bill_of([path], begin, end, {"gpu": 2500}).rows(["user"])
        expected = naive(harness, begin, end)
        for amount, hours, cost in (
            ("held", "gpu_hours", "cost"), ("waited", "waited_gpu_hours", "waited_cost"),
            ("fragments", "fragment_gpu_hours", "fragment_cost"),
        ):  # fmt: skip
            told = {row["user"]: row for row in rows}
            for user in expected[amount].keys() | told.keys():
                want = expected[amount][user] / GPU / HOUR
                assert told.get(user, {hours: 0})[hours] == pytest.approx(
                    want, abs=2e-6 if amount != "fragments" else 1e-3
                )
                assert told.get(user, {cost: 0})[cost] == pytest.approx(2.5 * want, abs=0.0051)


def test_a_bill_for_people(tmp_path: Path) -> None:
    """By hand: ann holds 4 of 8 GPUs for two hours and bob waits for 8 until then, which he holds for one hour."""
    (tmp_path / "q.toml").write_text('[[queue]]\nname = "a"\n[prices]\ngpu = 2\n')
    (tmp_path / "j.csv").write_text("submit_s,runtime_s,gpus,queue,user,pods\n0,7200,4,a,ann,1\n0,3600,8,a,bob,1\n")
    out = tmp_path / "out"
    kant("simulate", tmp_path / "j.csv", "--cluster", "1x8", "--queues", tmp_path / "q.toml", "--out", out)
    said = kant("bill", out / "journal.jsonl", "--by", "user,model", "--csv").out
    assert said.splitlines() == [
        "user,model,gpu_hours,cost,waited_gpu_hours,waited_cost,fragment_gpu_hours,fragment_cost",
        "ann,gpu,8.0,16.0,0.0,0.0,8.0,16.0", "bob,gpu,8.0,16.0,16.0,32.0,0.0,0.0",
    ]  # fmt: skip
    (tmp_path / "other.toml").write_text("[prices]\nH100 = 9\n")
    (row,) = kant("bill", out / "journal.jsonl", "--by", "queue", "--queues", tmp_path / "other.toml", "--json").json()[
        "rows"
    ]
    assert (row["queue"], row["gpu_hours"], row["cost"]) == ("a", 16.0, None)
    assert "│ 16.00 │" in kant("bill", out / "journal.jsonl").out
    assert "--by: expected some of user, queue, model" in kant("bill", "--by", "day").refusal()
    own = tmp_path / "journal"
    own.mkdir()
    (own / "1.jsonl").write_bytes(b'{"journal"')  # of a Kant that was killed as it started
    assert "journals of Kant that this user can read" in kant("bill", "--home", tmp_path).refusal()
    (own / "2.jsonl").write_bytes((out / "journal.jsonl").read_bytes())
    assert "│ 16.00 │" in kant("bill", "--home", tmp_path).out
