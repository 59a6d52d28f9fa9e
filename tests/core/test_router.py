"""A router of policies: what it looks at, when it switches, and that a journal has all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cli.command import kant

from kant.cluster.columns import J_ATTAINED, J_END, J_P50
from kant.cluster.state import ClusterState
from kant.metrics.result import RunResult
from kant.model.errors import InputError
from kant.model.event import JobStarted, JobSubmitted, PolicyRouted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.queueing.router import PolicyRouter, SwitchRule, features, predictions
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile, parse_profile
from kant.sim.run import RunHooks, simulate
from kant.workload.generate import generate
from kant.workload.workload import Workload

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
ROTATE = FIXED.replace('"stretch"', '"las"').replace('"backfill"\ntimeout_s = 600', '"preemptive"')


@pytest.fixture(scope="module")
def jobs() -> Workload:
    return generate("helios-venus", gpus=32, load=1.2, days=2, seed=3)


def run(jobs: Workload, text: str, hooks: RunHooks | None = None) -> RunResult:
    return simulate(jobs, SPEC, parse_profile(text, "a test"), hooks=hooks)


def events_of(jobs: Workload, text: str, path: Path) -> list[dict[str, object]]:
    """The lines of the journal of a run, which is then decided again."""
    with path.open("wb") as file:
        run(jobs, text, RunHooks(journal=file.write))
    assert kant("replay", path).out.startswith("equal")
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_journal_has_every_switch_and_why_and_leaving_the_floor_is_slow(jobs: Workload, tmp_path: Path) -> None:
    lines = events_of(jobs, TEXT, tmp_path / "journal.jsonl")
    routed = [each for each in lines if each.get("event") == "routed"]
    asked = [
        one for each in lines if each.get("event") == "planned" for one in each["decisions"] if one["do"] == "route"
    ]
    assert [each["policy"] for each in routed] == [one["policy"] for one in asked] and len(routed) > 2
    assert all(a["policy"] != b["policy"] for a, b in pairwise(routed))
    assert all(b["time"] - a["time"] >= 3600 * 10**6 for a, b in pairwise(routed) if b["policy"] != "patient")
    assert routed[0]["why"].startswith("only small jobs wait: ") and "of all GPUs" in routed[0]["why"]
    assert routed[1]["why"].startswith("no longer so: ")


def test_the_policy_of_the_last_switch_decides_from_the_next_cycle_on_and_that_is_soon(jobs: Workload) -> None:
    seen: list[tuple[int, str]] = []
    switches: list[PolicyRouted] = []

    def watched(scheduler: Scheduler) -> Callable[[int], None]:
        def at_end(now: int) -> None:
            routed = scheduler.state.routed
            if routed is not None and routed not in switches[-1:]:
                switches.append(routed)
            seen.append((now, scheduler.profile.discipline.__struct_config__.tag))

        return at_end

    run(jobs, TEXT, RunHooks(observer=watched))
    assert len(switches) > 2
    instants = dict(seen)
    for switch, after in pairwise([*switches, PolicyRouted(seen[-1][0], "")]):
        assert switch.time + 1 in instants, "it asks for a cycle at once"
        tags = {tag for now, tag in seen if switch.time < now <= after.time}
        assert tags == {"preemptive" if switch.policy == "rotate" else "backfill"}


@pytest.mark.parametrize(("pin", "text"), [("patient", FIXED), ("rotate", ROTATE)], ids=["patient", "rotate"])
def test_pinned_it_decides_as_that_policy_alone(jobs: Workload, tmp_path: Path, pin: str, text: str) -> None:
    file = tmp_path / "weather.toml"
    file.write_text(TEXT)
    assert kant("profiles", "pin", file, pin).code == 0
    digest = run(jobs, text).summary["digest"]
    assert run(jobs, file.read_text()).summary["digest"] == digest != run(jobs, TEXT).summary["digest"]
    assert kant("profiles", "pin", file, "auto").code == 0
    assert file.read_text() == TEXT
    assert "router: expected one of patient, rotate" in kant("profiles", "pin", file, "nobody").refusal()
    assert file.read_text() == TEXT


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
    state = ClusterState(SPEC)
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
    router, state = builtin_profile("kant-weather").router, ClusterState(SPEC)
    assert router is not None
    for at in range(60):
        state.apply(JobSubmitted(at, Job(f"j{at}", at, (PodGroup(1, Demand(1)),))))
    state.jobs[:59, [J_ATTAINED, J_P50, J_END]] = 500, 600, 10**6

    def wants(*ran: int) -> tuple[str, str] | None:
        state.jobs[:59, J_ATTAINED] = [*ran] * (59 // len(ran)) + [500] * (59 % len(ran))
        found = router.look(state, 2 * 10**6)
        if found is not None:
            state.apply(PolicyRouted(2 * 10**6, found.policy, found.why))
        return (found.policy, found.why) if found is not None else None

    rest = "% of jobs ran for less than a hundredth of what was predicted, 0 % of jobs ran for more than ten times what"
    assert wants(5, 500, 500, 500) is None, "23 % ran for less than a hundredth"
    assert wants(500) == ("predicted", f"run times are as predicted: 0 {rest} was predicted")
    assert wants(7000, 500) == ("attained", f"no longer so: 0 {rest.replace(' 0 %', ' 49 %')} was predicted")


def test_the_rule_that_acts_is_wider_by_its_band(monkeypatch: pytest.MonkeyPatch) -> None:
    router = PolicyRouter("floor", (SwitchRule("other", "so", {"waiting": (5, 10)}),), hold_s=60, band=2)
    state = ClusterState(SPEC)

    def wants(waiting: int, now: int) -> str | None:
        monkeypatch.setattr("kant.queueing.router.features", lambda *_: {"waiting": waiting})
        found = router.look(state, now * 10**6)
        if found is not None:
            state.apply(PolicyRouted(now * 10**6, found.policy, found.why))
        return None if found is None else found.policy

    assert [wants(waiting, 0) for waiting in (4, 11, 5)] == [None, None, "other"]
    assert [wants(waiting, 1) for waiting in (3, 12, 13)] == [None, None, "floor"]
    assert [wants(7, 60), wants(7, 61), wants(2, 62)] == [None, "other", "floor"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text.replace("largest = [0, 12]", "size = [0, 12]"), "must be of waiting, backlog"),
        (lambda text: text.replace('policy = "rotate"', 'policy = "turn"'), "expected one of patient, rotate"),
        (lambda text: text.replace('{ policy = "preemptive" }', '{ policy = "easy" }'), "plan nothing ahead"),
        (
            lambda text: text.replace("router.policies.rotate", "router.policies.patient"),
            "in addition to the floor patient",
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
