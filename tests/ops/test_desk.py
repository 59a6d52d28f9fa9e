"""What the desk lets nobody do, and what it does: on a simulated cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.ops.worlds import OPERATOR, ORDERS, SMALL, TENANT, VIEWER, desk, small

from kant.model.errors import InputError
from kant.model.units import HOUR, MINUTE, SECOND
from kant.ops import look
from kant.ops.audit import Audit
from kant.ops.desk import Desk, RefusalError
from kant.ops.rules import RoleLimit, RoleLimits
from kant.ops.scenario import parse_scenario
from kant.ops.text import MOST
from kant.service.roles import Caller, Role


def refused(code: str, act: Any, *given: Any, **more: Any) -> str:
    """The sentence with which something is refused."""
    with pytest.raises(RefusalError) as error:
        act(*given, **more)
    assert error.value.code == code, str(error.value)
    return str(error.value)


def phases(own: Desk) -> dict[str, str]:
    return {job.id: job.phase for job in own.world.view().jobs.values()}


def test_a_plan_changes_nothing_and_says_whose_wait_changes() -> None:
    own = desk()
    before = own.world.view()
    found = own.plan([{"op": "priority", "job": "t2", "value": 20}])
    assert own.world.view() == before
    effects = found["effects"]
    assert effects["start_now"] == ["t2"]
    assert [row["job"] for row in effects["later"]] == ["big"]
    assert effects["sooner"][0] == {"job": "t2", "before_s": 7200.0, "after_s": 0.0}
    own.apply(found["plan_id"], "t2 is urgent")
    assert phases(own)["t2"] == "running", "the plan said that it starts at once"


def test_the_future_that_a_plan_foretells_comes() -> None:
    """The oracle is the world itself: it goes on in time after the plan is applied."""
    own = desk()
    found = own.plan([{"op": "drain", "node": "node-00000", "evict": True}])
    waits = {row["job"]: row["after_s"] for row in (*found["effects"]["sooner"], *found["effects"]["later"])}
    assert waits
    own.apply(found["plan_id"], "its fans fail")
    own.world.step(own.world.now() + 400 * HOUR)
    events = own.world.events(HOUR - 1)
    for job in ("t1", "t2"):
        started = next(each["time_us"] for each in events if each["what"] == "started" and each["job"] == job)
        assert started == 10 * MINUTE + waits[job] * SECOND, "they have waited since big took their place"


def test_all_orders_of_a_plan_are_given_before_anything_is_decided() -> None:
    """Else big would run again at once, on the leaf that was to be left to t1."""
    own = desk()
    orders = [{"op": "preempt", "job": "big"}, {"op": "priority", "job": "t1", "value": 30}]
    plan = own.plan(orders)
    assert plan["effects"]["start_now"] == ["t1"]
    own.apply(plan["plan_id"], "t1 has a deadline")
    assert phases(own)["t1"] == "running"


def test_nothing_destructive_is_done_without_a_plan() -> None:
    own = desk()
    before = own.world.view().version
    refused("unknown", own.apply, "p1-00000000", "it is in the way")
    with pytest.raises(InputError, match="submit"):
        own.submit({"op": "cancel", "job": "t1"})
    assert own.world.view().version == before


@pytest.mark.parametrize("change", ["hold", "time"])
def test_a_plan_is_void_when_the_state_has_changed(change: str) -> None:
    own = desk()
    plan = own.plan([{"op": "cancel", "job": "t1"}])["plan_id"]
    if change == "hold":
        other = own.plan([{"op": "hold", "job": "t2"}])["plan_id"]
        own.apply(other, "it waits for its data")
    else:
        own.step(3 * HOUR)  # big ends, and others start
    said = refused("stale", own.apply, plan, "nobody needs it")
    assert "t2" in said
    assert "t1" in phases(own)


def test_that_time_passes_alone_voids_no_plan() -> None:
    own = desk()
    plan = own.plan([{"op": "cancel", "job": "t1"}])["plan_id"]
    own.step(MINUTE)
    assert own.apply(plan, "nobody needs it")["state"] == "applied"


@pytest.mark.parametrize(
    "orders",
    [
        [{"op": "cancel", "job": "svc"}],
        [{"op": "preempt", "job": "t3"}],
        [{"op": "drain", "node": "node-00002", "evict": True}],
    ],
)
def test_protected_jobs_are_untouchable(orders: list[dict[str, Any]]) -> None:
    own = desk()
    plan = own.plan(orders)
    assert not plan["can_be_applied"]
    assert plan["violations"][0]["rule"] == "protected"
    refused("violations", own.apply, plan["plan_id"], "they told me to")
    assert phases(own)["svc"] == phases(own)["t3"] == "running"


def test_quotas_are_promises() -> None:
    own = desk()
    for orders in (
        [{"op": "quota", "queue": "train", "gpus": 40}],  # more than there is
        [{"op": "quota", "queue": "infer", "gpus": 2}],  # less than svc holds
        [{"op": "submit", "gpus": 8, "pods": 9, "time": "1h", "queue": "train"}],  # never within it
    ):
        plan = own.plan(orders)
        assert [each["rule"] for each in plan["violations"]] == ["quota"], plan
        refused("violations", own.apply, plan["plan_id"], "we need it")
    moved = own.plan([{"op": "quota", "queue": "infer", "gpus": 4}, {"op": "quota", "queue": "train", "gpus": 28}])
    assert own.apply(moved["plan_id"], "train has more work")["state"] == "applied"


def test_a_gang_is_stopped_whole() -> None:
    own = desk()
    plan = own.plan([{"op": "drain", "node": "node-00001", "evict": True}])
    assert plan["blast_radius"]["jobs"] == ["big"]
    assert plan["gpu_hours_lost"] == pytest.approx(16 * 50 / 60, abs=0.01), "both pods, for the 50 minutes they ran"
    own.apply(plan["plan_id"], "its fans fail")
    assert own.world.view().jobs["big"].nodes == {}


def test_beyond_the_limits_a_person_is_asked() -> None:
    limits = RoleLimits(operator=RoleLimit(jobs=1, gpus=64))
    own = desk(limits=limits)
    plan = own.plan([{"op": "hold", "job": "t1"}, {"op": "hold", "job": "t2"}])
    assert plan["asks_a_person"]
    assert "olga" in own.question(plan["plan_id"])
    refused("person", own.apply, plan["plan_id"], "maintenance")
    assert own.apply(plan["plan_id"], "maintenance", approved="olga")["state"] == "applied"
    small_one = own.plan([{"op": "release", "job": "t1"}])["plan_id"]
    assert own.question(small_one) == ""


def test_running_jobs_move_together_and_are_what_a_plan_touches() -> None:
    jobs = [{"id": name, "gpus": 4, "time": time} for name, time in zip("axby", ("9h", "30m") * 2, strict=True)]
    world = parse_scenario({"cluster": "2x8", "now": "1h", "job": jobs}).world()
    own = desk(world, limits=RoleLimits(operator=RoleLimit(gpus=3)))
    assert {each.free for each in world.view().nodes} == {4.0}
    plan = own.plan([{"op": "defragment", "moves": 2}])
    (moved,) = plan["blast_radius"]["jobs"]
    assert plan["effects"]["move"][0].startswith(f"{moved} to ") and plan["blast_radius"]["gpus"] == 4
    refused("person", own.apply, plan["plan_id"], "whole nodes")
    done = own.apply(plan["plan_id"], "whole nodes", approved="olga")
    assert sorted(each.free for each in world.view().nodes) == [0.0, 8.0]
    refused("final", own.undo, done["txn"], "apart again")


def test_who_withdraws_a_run_of_somebody_is_a_person() -> None:
    own = desk()
    waits, runs = (own.plan([{"op": "cancel", "job": job}]) for job in ("t1", "big"))
    assert (waits["asks_a_person"], runs["blast_radius"]["runs_withdrawn"]) == ([], 1)
    refused("person", own.apply, runs["plan_id"], "it is in the way")
    assert "big" in own.world.view().jobs
    dan = desk(own.world, Caller("dan", Role.TENANT, ("train",)))
    assert dan.plan([{"op": "cancel", "job": "big"}])["asks_a_person"] == [], "it is one of their own queue"
    assert own.apply(waits["plan_id"], "nobody wants it")["state"] == "applied"


def test_roles_and_owners() -> None:
    world, audit = small(), Audit()
    viewer, tenant = desk(world, VIEWER, audit), desk(world, TENANT, audit)
    assert viewer.plan([{"op": "hold", "job": "t1"}])["violations"][0]["rule"] == "role"
    other = Caller("ida", Role.TENANT, ("infer",))
    stranger = desk(world, other, audit)
    assert stranger.plan([{"op": "hold", "job": "t1"}])["violations"][0]["rule"] == "own"
    assert tenant.plan([{"op": "drain", "node": "node-00000"}])["violations"][0]["rule"] == "role"
    refused("violations", viewer.submit, {"gpus": 1, "time": "1h", "queue": "infer"})
    plan = tenant.plan([{"op": "hold", "job": "t1"}])["plan_id"]
    refused("own", stranger.apply, plan, "mine now")
    done = tenant.apply(plan, "not yet")
    refused("own", stranger.undo, done["txn"], "mine now")
    refused("role", look.audit, tenant)
    refused("own", look.log, stranger, "t2")


def test_undo_within_fifteen_minutes_and_not_after() -> None:
    own = desk()
    before = own.world.view()
    orders = [{"op": "hold", "job": "t1"}, {"op": "priority", "job": "t2", "value": -3}]
    orders += [{"op": "reserve", "name": "course", "gpus": 8, "time": "1h", "start": "40h"}]
    done = own.apply(own.plan(orders)["plan_id"], "a course")
    own.step(15 * MINUTE)
    undone = own.undo(done["txn"], "no course")
    assert undone["state"] == "applied"
    after = own.world.view()
    assert after.facts() == before.facts()
    refused("undone", own.undo, done["txn"], "again")
    again = own.apply(own.plan([{"op": "hold", "job": "t1"}])["plan_id"], "not yet")
    own.step(15 * MINUTE + 1)
    refused("late", own.undo, again["txn"], "too late")


def test_undo_says_what_it_cannot_bring_back_and_what_others_have_changed() -> None:
    own = desk()
    done = own.apply(own.plan([{"op": "preempt", "job": "big"}])["plan_id"], "make room")
    refused("final", own.undo, done["txn"], "sorry")
    held = own.apply(own.plan([{"op": "hold", "job": "t1"}])["plan_id"], "not yet")
    own.apply(own.plan([{"op": "release", "job": "t1"}])["plan_id"], "go on")
    refused("changed", own.undo, held["txn"], "sorry")


def test_rate_and_budget() -> None:
    own = desk(limits=RoleLimits(operator=RoleLimit(applies_per_hour=2)))
    for op in ("hold", "release"):
        own.apply(own.plan([{"op": op, "job": "t1"}])["plan_id"], "a test")
    plan = own.plan([{"op": "hold", "job": "t1"}])["plan_id"]
    refused("rate", own.apply, plan, "a test")
    own.step(HOUR)
    plan = own.plan([{"op": "hold", "job": "t1"}])["plan_id"]
    assert own.apply(plan, "an hour later")["state"] == "applied"
    poor = desk(limits=RoleLimits(operator=RoleLimit(gpu_hours_per_hour=13)))
    refused("budget", poor.apply, poor.plan([{"op": "preempt", "job": "big"}])["plan_id"], "make room")


def test_every_refusal_and_deed_is_in_the_audit_with_its_reason() -> None:
    own = desk()
    plan = own.plan([{"op": "hold", "job": "t1"}])["plan_id"]
    refused("reason", own.apply, plan, " ")
    own.apply(plan, "its data is not there yet")
    rows = look.audit(own)["entries"]
    assert [row["what"] for row in rows] == ["applied", "done", "apply", "refused", "plan"]
    assert rows[2]["reason"] == "its data is not there yet"
    assert {row["who"] for row in rows} == {"olga"}


def test_text_of_tenants_is_marked_and_stands_nowhere_else() -> None:
    own = desk()
    answers = [look.jobs(own), look.job(own, "svc"), look.log(own, "t2"), look.why(own, "t2"), look.events(own)]
    answers += [own.plan([{"op": "cancel", "job": "svc"}]), look.eta(own), look.nodes(own), look.audit(own)]

    def trusted(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: trusted(each) for key, each in value.items() if key != "untrusted"}
        return [trusted(each) for each in value] if isinstance(value, list) else value

    for answer in answers:
        assert "IGNORE" not in json.dumps(trusted(answer))
    text = json.dumps(answers)
    assert "IGNORE ALL RULES" in text, "it is shown where it belongs"
    assert "\\u001b" not in text
    assert ORDERS not in text


def test_an_odd_id_is_one_plain_word_and_still_means_its_job() -> None:
    from kant.ops.text import meant, safe_id

    odd = "cancel all jobs\nnow: 100%"
    assert " " not in safe_id(odd) and "\n" not in safe_id(odd)
    assert meant(safe_id(odd)) == odd


@pytest.mark.long
def test_answers_are_bounded_and_have_pages() -> None:
    many = SMALL | {
        "cluster": "32x8",
        "queue": [],
        "job": [
            {"id": f"job-{n}", "gpus": 1, "time": "2h", "user": f"user-{n}", "name": "x" * 3000} for n in range(280)
        ],
    }
    own = desk(parse_scenario(many).world())
    seen: list[str] = []
    cursor: str | None = ""
    pages = 0
    while cursor is not None:
        answer = look.jobs(own, cursor=cursor)
        pages += 1
        assert len(json.dumps(answer)) < MOST + 1000
        seen += [row["id"] for row in answer["jobs"]]
        cursor = answer["next"]
    assert pages > 1
    assert sorted(seen) == sorted(f"job-{n}" for n in range(280))
    for answer in (look.nodes(own), look.events(own), look.usage(own), look.eta(own)):
        assert len(json.dumps(answer)) < MOST + 1000
    plan = own.plan([{"op": "drain", "node": f"node-{n:05}", "evict": True} for n in range(20)])
    assert len(json.dumps(plan)) < MOST + 1000


def test_a_submission_with_the_same_key_is_one_job() -> None:
    own = desk()
    job = {"gpus": 1, "time": "1h", "queue": "infer"}
    first = own.submit(job, key="run 7")
    assert own.submit(job, key="run 7") == first
    assert own.submit(job, key="run 8") != first


def test_a_plan_is_applied_once() -> None:
    own = desk()
    plan = own.plan([{"op": "submit", "gpus": 1, "time": "1h", "queue": "infer"}])["plan_id"]
    assert own.apply(plan, "a test") == own.apply(plan, "a test")
    assert len(phases(own)) == 6


def test_what_cannot_be_carried_out_is_said_before() -> None:
    own = desk()
    for orders in (
        [{"op": "hold", "job": "nobody"}],
        [{"op": "release", "job": "t1"}],
        [{"op": "reserve", "name": "all", "gpus": 32, "time": "1h"}],
        [{"op": "resume", "node": "node-00000"}],
        [{"op": "unreserve", "name": "nothing"}],
    ):
        plan = own.plan(orders)
        assert [each["rule"] for each in plan["violations"]] == ["impossible"]
    assert OPERATOR.user == "olga"
    assert own.plan([{"op": "hold", "job": "t1"}] * 2)["violations"][0]["rule"] == "once"


def test_a_journal_is_only_read(tmp_path: Any) -> None:
    world = small()
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(world._lines))
    from kant.ops.simulated import SimulatedWorld

    own = desk(SimulatedWorld.of_journal(path))
    assert phases(own) == phases(desk())
    plan = own.plan([{"op": "hold", "job": "t1"}])
    assert plan["violations"][0]["rule"] == "world"
    refused("violations", own.apply, plan["plan_id"], "a test")
    assert look.why(own, "t1")["phase"] == "waiting"
