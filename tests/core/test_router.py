"""A router of policies: what it looks at, when it switches, and that a journal has all of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.cluster.columns import J_ATTAINED, J_END, J_P50
from kant.cluster.state import ClusterState
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.metrics.result import RunResult
from kant.model.errors import InputError
from kant.model.event import JobStarted, JobSubmitted, PolicyRouted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.queueing.router import PolicyRouter, SwitchRule, features, predictions
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile, builtin_texts, parse_profile
from kant.sim.look_ahead import look_ahead
from kant.sim.run import RunHooks, simulate
from kant.workload.workload import Workload, make_workload

TEXT = """
name = "weather"
about = "Two policies of two disciplines"
order = { policy = "stretch" }
placement = { policy = "kant" }
preemption = { reclaim = "nominal" }
requeue = { base_s = 10 }
estimates = { source = "learned" }

[discipline]
policy = "backfill"
timeout_s = 600

[router]
floor = "patient"

[router.policies.rotate]
order = { policy = "las" }
discipline = { policy = "preemptive" }

[[router.rules]]
policy = "rotate"
says = "only small jobs wait"
where = { largest = [0, 12], large_running = [0, 0] }
"""
SPEC = ClusterSpec("4x8", tuple(Node(f"n{at}", 8) for at in range(4)))
FIXED = TEXT.partition("[router]")[0]


ONE = ClusterSpec("1x8", (Node("n0", 8),))
SHORT = """
name = "short"
about = "Short jobs first while somebody waits"
order = { policy = "fifo" }
discipline = { policy = "best-effort" }
placement = { policy = "kant" }

[router]
floor = "fifo"
hold_s = 60

[router.policies.short]
order = { policy = "sjf" }

[[router.rules]]
policy = "short"
says = "somebody waits"
where = { waiting = [1, 1000] }
"""


def workload(rows: Sequence[tuple[int, int, int]]) -> Workload:
    """Jobs by submission, run time and GPUs."""
    submit, runtime, gpus = np.array(sorted(rows), np.int64).T
    return make_workload("a test", submit * 10**6, runtime * 10**6, gpus)


BURSTS = [
    (begin + after, runs, 8)
    for begin in (0, 20_000)
    for after, runs in ((0, 1000), (10, 9000), (80, 60), (81, 60))
]  # fmt: skip
"""A job runs, a long one waits, then two short ones come: by estimates these are ten times better off first."""


def run(jobs: Workload, text: str, spec: ClusterSpec = ONE, hooks: RunHooks | None = None) -> RunResult:
    return simulate(jobs, spec, parse_profile(text, "a test"), hooks=hooks)


def test_a_journal_has_every_switch_and_every_proposal_that_was_not_confirmed_and_why(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with path.open("wb") as file:
        run(workload(BURSTS), SHORT, hooks=RunHooks(journal=file.write))
    assert kant("replay", path).out.startswith("equal")
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    routed = [
        (each["time"] // 10**6, each["policy"], each["why"].removesuffix(" the sum of bounded slowdowns"))
        for each in lines
        if each.get("event") == "routed"
    ]
    lowers = "simulated from now, 1 h under it lower the sum of bounded slowdowns"
    assert routed[:4] == [
        (80, "fifo", "short is not confirmed, though somebody waits: 1 jobs wait: 1 h under it do not lower"),
        (85, "short", f"somebody waits: 2 jobs wait; {lowers} by 89.0 % ± 0.0 %"),
        (1000, "fifo", "no look-ahead has confirmed short for 915 s"),
        (1005, "short", f"somebody waits: 2 jobs wait; {lowers} by 81.2 % ± 0.0 %"),
    ]
    starts = [each["job"] for each in lines if each.get("event") == "started"]
    assert starts == ["0", "2", "3", "1", "4", "6", "7", "5"]


def test_the_policy_of_the_last_switch_decides_from_the_next_cycle_on() -> None:
    seen: list[tuple[int, str, str]] = []

    def watched(scheduler: Scheduler) -> Callable[[int], None]:
        def at_end(now: int) -> None:
            routed = scheduler.state.routed
            seen.append((now, routed.policy if routed is not None and routed.time < now else "", tag(scheduler)))

        return at_end

    def tag(scheduler: Scheduler) -> str:
        return str(scheduler.profile.order.__struct_config__.tag)

    run(workload(BURSTS), SHORT, hooks=RunHooks(observer=watched))
    assert {(policy, order) for _, policy, order in seen if policy} == {("short", "sjf"), ("fifo", "fifo")}
    assert 1000 * 10**6 + 1 in {now for now, *_ in seen}, "a switch back asks for a cycle at once"


@given(
    st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 900)), min_size=1, max_size=6),
    st.integers(1, 12_000),
)  # fmt: skip
@example([(2000, 0), (1990, 1)], 100)  # a gain below the margin
@settings(max_examples=examples(25), deadline=None)
def test_a_look_ahead_confirms_what_a_queue_of_one_machine_gains(queued: list[tuple[int, int]], left: int) -> None:
    profile, now = parse_profile(SHORT, "a test"), 1000
    state = profile.new_state(ONE)
    queued = sorted((submit, runs) for runs, submit in queued)
    for at, (submit, runs) in enumerate([(0, now + left), *queued]):
        groups = (PodGroup(1, Demand(8)),)
        state.apply(JobSubmitted(submit * 10**6, Job(f"j{at}", submit * 10**6, groups, estimate=runs * 10**6)))
        if not at:
            state.apply(JobStarted(0, "j0", np.array([[0, 1, 255, 1000, 0, 0, 0, 0, 0]])))
    found = look_ahead(moment_of(Scheduler(state, profile), PastJobs(), now * 10**6))

    def slowdowns(hours: float) -> float:
        """By hand: the machine is free once the first job ends; for some hours the shortest is next, then the first."""
        waiting, free, total = list(queued), now + left, 1.0
        while waiting:
            job = min(waiting, key=lambda job: (job[1], job[0])) if free < now + hours * 3600 else waiting[0]
            waiting.remove(job)
            free += job[1]
            total += max((free - job[0]) / max(job[1], 10), 1.0)
        return total

    gains = {hours: slowdowns(0) - slowdowns(hours) for hours in (1, 6)}
    confirmed = all(gain > 1e-9 and gain > 0.01 * slowdowns(0) for gain in gains.values())
    assert found is not None and found.policy == ("short" if confirmed else "fifo")
    if min(gains.values()) > 1e-9:
        least = min(gains, key=lambda hours: gains[hours])
        share = 100 * gains[least] / slowdowns(0)
        assert found.why.endswith(f"{least} h under it lower the sum of bounded slowdowns by {share:.1f} % ± 0.0 %")


@given(
    st.lists(
        st.tuples(st.integers(0, 9000), st.integers(1, 9000), st.sampled_from([1, 3, 8, 16, 32])),
        min_size=5, max_size=14,
    ),
    st.integers(0, 3), st.integers(0, 60), st.sampled_from([1, 60, 3600]),
)  # fmt: skip
@settings(max_examples=examples(25), deadline=None)
def test_whatever_is_proposed_it_is_the_floor_where_no_look_ahead_confirms(
    rows: list[tuple[int, int, int]], waiting: int, free: int, hold: int
) -> None:
    text = TEXT.replace("largest = [0, 12], large_running = [0, 0]", f"waiting = [{waiting}, 99], free = [0, {free}]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kant.sim.look_ahead._confirms", lambda *_: (False, "it is not"))
        routed = run(workload(rows), text.replace('"patient"', f'"patient"\nhold_s = {hold}'), SPEC)
    alone = run(workload(rows), FIXED, SPEC)
    for name in ("first_start", "end", "wait", "preemptions"):
        assert np.array_equal(getattr(routed.jobs, name), getattr(alone.jobs, name))


@pytest.mark.parametrize("pin", ["fifo", "short"])
def test_pinned_it_decides_as_that_policy_alone(tmp_path: Path, pin: str) -> None:
    file, jobs = tmp_path / "weather.toml", workload(BURSTS)
    file.write_text(SHORT)
    assert kant("profiles", "pin", file, pin).code == 0
    alone = SHORT.partition("[router]")[0].replace("fifo", "sjf" if pin == "short" else "fifo")
    digest = run(jobs, alone).summary["digest"]
    assert run(jobs, file.read_text()).summary["digest"] == digest != run(jobs, SHORT).summary["digest"]
    assert kant("profiles", "pin", file, "auto").code == 0
    assert file.read_text() == SHORT
    assert "router: expected one of fifo, short" in kant("profiles", "pin", file, "nobody").refusal()
    assert file.read_text() == SHORT


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=8), st.integers(0, 10**4))
def test_features_are_what_a_count_by_hand_says(found: list[tuple[int, bool]], minutes: int) -> None:
    state, waits, held, busy = ClusterState(SPEC), list[tuple[int, int]](), list[int](), set[int]()
    for at, (gpus, runs) in enumerate(found):
        state.apply(JobSubmitted(at, Job(f"j{at}", at, (PodGroup(1, Demand(gpus)),))))
        free = next((node for node in range(4) if node not in busy), None)
        if runs and free is not None and len(found) - at > 1:
            busy.add(free)
            state.apply(JobStarted(at, f"j{at}", np.array([[free, 1, (1 << gpus) - 1, 1000, 0, 0, 0, 0, 0]])))
            held.append(gpus)
        else:
            waits.append((at, gpus))
    large = [gpus for at, gpus in waits if gpus >= 4]
    expected = {
        "waiting": len(waits), "backlog": sum(gpus for _, gpus in waits) * 100 // 32,
        "largest": max(gpus for _, gpus in waits) * 100 // 32, "large_backlog": sum(large) * 100 // 32,
        "free": 100 - sum(held) * 100 // 32, "oldest": (minutes * 60 * 10**6 - waits[0][0]) // (60 * 10**6),
    }  # fmt: skip
    told = features(state, minutes * 60 * 10**6)
    assert {name: told[name] for name in expected} == expected
    assert told["large_running"] == sum(gpus for gpus in held if gpus >= 4) * 100 // 32


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 9, 10, 11, 100]), st.sampled_from([-1, 0, 1, 10, 100, 999]),
            st.sampled_from([-1, 500, 501, 502, 600]),
        ), max_size=12,
    ),
    st.integers(1, 4),
)  # fmt: skip
@example([(10, 1, 600)], 1)
def test_predictions_are_judged_by_the_jobs_that_ended_lately(found: list[tuple[int, int, int]], enough: int) -> None:
    state = ClusterState(SPEC, learn=True)
    for at, (ran, predicted, ended) in enumerate(found):
        state.apply(JobSubmitted(at, Job(f"j{at}", at, (PodGroup(1, Demand(1)),))))
        state.jobs[at, [J_ATTAINED, J_P50, J_END]] = ran, predicted, ended
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kant.queueing.router.LATELY", 100)
        patch.setattr("kant.queueing.router.ENOUGH", enough)
        told = predictions(state, 601)
    lately = [(ran, predicted) for ran, predicted, ended in found if predicted > 0 and ended >= 502]
    if len(lately) < enough:
        assert told == {"shorter": 100, "longer": 100}
        return
    shorter = sum(ran < predicted / 100 for ran, predicted in lately)
    longer = sum(ran / predicted > 10 for ran, predicted in lately)
    assert told == {"shorter": 100 * shorter // len(lately), "longer": 100 * longer // len(lately)}


def test_kant_weather_goes_by_predictions_for_as_long_as_they_hold() -> None:
    router, state = builtin_profile("kant-weather").router, ClusterState(SPEC, learn=True)
    assert router is not None
    for at in range(60):
        state.apply(JobSubmitted(at, Job(f"j{at}", at, (PodGroup(1, Demand(1)),))))
    state.jobs[:59, [J_ATTAINED, J_P50, J_END]] = 500, 600, 10**6

    def proposes(*ran: int) -> str | None:
        state.jobs[:59, J_ATTAINED] = [*ran] * (59 // len(ran)) + [500] * (59 % len(ran))
        found = router.proposal(state, 2 * 10**6)
        return found[1] if found is not None else None

    rest = "% of jobs ran for less than a hundredth of what was predicted, 0 % of jobs ran for more than ten times what"
    assert proposes(5, 500, 500, 500) is None, "23 % ran for less than a hundredth"
    assert proposes(500) == f"run times are as predicted: 0 {rest} was predicted"
    state.apply(PolicyRouted(2 * 10**6, "predicted"))
    assert router.look(state, 2 * 10**6) is None
    assert proposes(7000, 500) is None
    back = router.look(state, 2 * 10**6)
    assert back is not None and back.policy == "attained"
    assert back.why == f"no longer true: 0 {rest.replace(' 0 %', ' 49 %')} was predicted"


def test_kant_weather_leaves_its_floor_for_what_it_has_learned() -> None:
    """Jobs of one GPU have run for a minute, those of eight for long: two small ones come behind a large one."""
    rows = [(at * 100, 60, 1) for at in range(40)] + [(5000 + at * 3000, 2500, 8) for at in range(40)]
    jobs = workload([*rows, (130_000, 2500, 8), (130_010, 2500, 8), (130_020, 60, 1), (130_030, 60, 1)])
    text = builtin_texts()["kant-weather"].replace("[router]", "[router]\nhold_s = 5")
    text += '\n[simulation]\nestimates = "none"\n'
    waits = [
        run(jobs, each).jobs.wait[-2:].max() // 10**6 for each in (text.replace("hold_s = 5", 'pin = "attained"'), text)
    ]
    assert waits[0] > 4900 and waits[1] < 300


def test_the_rule_that_acts_is_wider_by_its_band_and_lasts_for_two_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    router = PolicyRouter("floor", (SwitchRule("other", "so", {"waiting": (5, 10)}),), hold_s=60, band=2)
    state = ClusterState(SPEC)
    state.apply(JobSubmitted(0, Job("j", 0, (PodGroup(1, Demand(1)),))))

    def at(waiting: int, now: int) -> tuple[bool, bool]:
        """Whether the other policy is proposed, and the switch back to the floor is due."""
        monkeypatch.setattr("kant.queueing.router.features", lambda *_: {"waiting": waiting})
        due = router.look(state, now * 10**6)
        assert due is None or due.policy == "floor"
        return router.proposal(state, now * 10**6) is not None, due is not None

    assert [at(waiting, 0) for waiting in (4, 11, 5)] == [(False, False), (False, False), (True, False)]
    state.apply(PolicyRouted(0, "other"))
    assert [at(waiting, 1) for waiting in (2, 3, 12, 13)] == [
        (False, True),
        (True, False),
        (True, False),
        (False, True),
    ]
    assert [at(7, 119), at(7, 120)] == [(True, False), (True, True)]
    state.apply(PolicyRouted(0, "floor"))
    assert [at(3, 1), at(7, 500)] == [(False, False), (True, False)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text.replace("largest = [0, 12]", "size = [0, 12]"), "must be of waiting, backlog"),
        (lambda text: text.replace('policy = "rotate"', 'policy = "turn"'), "expected one of patient, rotate"),
        (
            lambda text: text.replace('{ policy = "preemptive" }', '{ policy = "easy" }'),
            "policies without reservations",
        ),
        (
            lambda text: text.replace("router.policies.rotate", "router.policies.patient"),
            "other than the floor patient",
        ),
    ],
)
def test_a_router_that_cannot_be_is_refused(change: Callable[[str], str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parse_profile(change(TEXT), "a profile")
    routed = parse_profile(TEXT, "a profile")
    assert not routed.quotas and routed.without_quotas == "preemptive", (
        "quotas hold where all of its policies keep them"
    )
    assert builtin_profile("kant-weather").quotas
