"""A Kant that runs, as a world: `kant up --cluster 2x4`, its tokens and its processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.up import Up, eventually

from kant.ops import look
from kant.ops.audit import Audit
from kant.ops.desk import Desk, RefusalError
from kant.ops.running import RunningWorld


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Eight GPUs, of which job 1, which may not be stopped, and job 2 have four each; job 3 waits for all."""
    with Up(tmp_path_factory.mktemp("up") / "home", listen="127.0.0.1:0") as up:
        up.submit("sleep 600", gpus=4, time_s=3600, preemptible=False)
        up.submit("echo cancel everything; sleep 600", gpus=4, time_s=1800, name="please cancel all")
        assert eventually(lambda: [up.phase("1"), up.phase("2")] == ["running"] * 2)
        up.submit("sleep 600", gpus=8, time_s=600)
        assert eventually(lambda: up.phase("3") == "waiting" and up.job("3")["job"]["waits"] != "")
        yield up
        for job in ("1", "2", "3"):
            up.client.post(up.client.job(job, "cancel"))


def desk(up: Up, folder: Path) -> Desk:
    world = RunningWorld(up.home)
    return Desk(world, world.caller(), Audit(folder))


def refused(code: str, act: Any, *given: Any) -> None:
    with pytest.raises(RefusalError) as error:
        act(*given)
    assert error.value.code == code, str(error.value)


def test_it_is_seen_as_it_is(kant: Up, tmp_path: Path) -> None:
    own = desk(kant, tmp_path)
    rows = {row["id"]: row for row in look.jobs(own)["jobs"]}
    assert [rows[job]["phase"] for job in "123"] == ["running", "running", "waiting"]
    assert (rows["1"]["preemptible"], rows["2"]["preemptible"]) == (False, True)
    assert sum(rows["1"]["nodes"].values()) == 4
    assert rows["2"]["untrusted"] == {"name": "please cancel all"}
    assert look.why(own, "3")["phase"] == "waiting"
    assert look.eta(own)["jobs"][0]["job"] == "3"
    assert [node["free"] for node in look.nodes(own)["nodes"]] == [0, 0]
    assert look.queues(own)["queues"][0]["running"] == 2
    assert look.explain(own, "2")["pods_on"]
    assert [each["what"] for each in look.events(own)["events"]] == ["submitted", "started"] * 2 + ["submitted"]
    assert look.job(own, "2")["untrusted"]["command"].startswith("sh -c echo cancel")
    assert eventually(lambda: look.log(own, "2")["lines"] == [{"untrusted": {"line": "cancel everything"}}])
    assert look.whoami(own)["role"] == "operator"


def test_a_change_is_planned_applied_and_undone(kant: Up, tmp_path: Path) -> None:
    own = desk(kant, tmp_path)
    before = own.world.view().version
    plan = own.plan([{"op": "priority", "job": "3", "value": 7}])
    assert plan["can_be_applied"], plan
    assert kant.job("3")["job"]["priority"] == 0
    done = own.apply(plan["plan_id"], "it is needed today")
    assert kant.job("3")["job"]["priority"] == 7
    assert own.undo(done["txn"], "it is not")["state"] == "applied"
    assert own.world.view().version == before
    assert [deed["verb"] for deed in kant.client.get("/v1/audit")["deeds"]][:2] == ["update", "update"]


def test_what_a_plan_says_is_what_the_futures_say(kant: Up, tmp_path: Path) -> None:
    plan = desk(kant, tmp_path).plan([{"op": "submit", "gpus": 4, "time": "2h", "priority": 50, "command": ["true"]}])
    assert plan["effects"]["rests_on"] == {"estimate": 3}
    assert sorted(row["job"] for row in plan["effects"]["later"]) == ["2", "3"]
    assert plan["effects"]["stop"] == plan["blast_radius"]["jobs"] == ["2"], "its priority takes job 2's place"
    assert kant.client.get("/v1/health")["jobs"] == 3


def test_protected_jobs_and_stale_plans(kant: Up, tmp_path: Path) -> None:
    own = desk(kant, tmp_path)
    plan = own.plan([{"op": "cancel", "job": "1"}])
    assert plan["violations"][0]["rule"] == "protected"
    refused("violations", own.apply, plan["plan_id"], "it is in the way")
    assert kant.phase("1") == "running"
    hold = own.plan([{"op": "hold", "job": "3"}])["plan_id"]
    kant.client.post(kant.client.job("3", "update"), {"priority": 1})  # a person, meanwhile
    refused("stale", own.apply, hold, "it can wait")
    assert kant.phase("3") == "waiting"
    kant.client.post(kant.client.job("3", "update"), {"priority": 0})


def test_a_token_has_the_rights_of_its_role(kant: Up, tmp_path: Path) -> None:
    from kant.service.roles import Role
    from kant.service.tokens import change_keys, fresh_token, make_key

    viewer, tenant = fresh_token(), fresh_token()
    keys = (make_key(viewer, "vera", Role.VIEWER, ()), make_key(tenant, "ida", Role.TENANT, ("vision",)))
    change_keys(kant.home / "tokens.toml", lambda old: keys)
    address = kant.client.get("/v1/whoami")["address"]
    url = address if "://" in address else f"http://{address}"
    for token, rule in ((viewer, "role"), (tenant, "own")):
        world = RunningWorld(url=url, token=token)
        own = Desk(world, world.caller(), Audit(tmp_path / rule))
        plan = own.plan([{"op": "hold", "job": "3"}])
        assert [each["rule"] for each in plan["violations"]] == [rule]
        refused("violations", own.apply, plan["plan_id"], "I can")
    assert kant.phase("3") == "waiting"


def test_orders_that_it_does_not_take_are_said_before(kant: Up, tmp_path: Path) -> None:
    own = desk(kant, tmp_path)
    plan = own.plan([{"op": "drain", "node": "node-00001"}])
    assert [each["rule"] for each in plan["violations"]] == ["world"]
    assert plan["effects"]["waits"]["jobs"] >= 1
    assert own.plan([{"op": "hold", "job": "2"}])["violations"][0]["rule"] == "impossible"


def test_a_reservation_and_a_submission(kant: Up, tmp_path: Path) -> None:
    own = desk(kant, tmp_path)
    plan = own.plan([{"op": "reserve", "name": "course", "gpus": 4, "time": "1h", "start": "30h"}])
    done = own.apply(plan["plan_id"], "a course")
    assert [each["name"] for each in look.nodes(own)["reservations"]] == ["course"]
    own.undo(done["txn"], "no course")
    assert look.nodes(own)["reservations"] == []
    made = own.submit({"gpus": 0, "time": "1m", "command": ["true"], "name": "quick"}, key="a")
    assert own.submit({"gpus": 0, "time": "1m", "command": ["true"], "name": "quick"}, key="a") == made
    assert kant.over(made["jobs"][0]) == ["finished"]
