"""What holds whatever is asked, by however many at once, and whenever the power goes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.ops.worlds import OPERATOR, SMALL, TENANT, VIEWER, Objects, Shared, desk, small

from kant.kube.connect.config import Config
from kant.model.errors import InputError
from kant.model.units import MINUTE
from kant.ops import look
from kant.ops.audit import Audit, OpsEntry
from kant.ops.desk import Desk, RefusalError
from kant.ops.kube_audit import LONGEST, KubeAudit
from kant.ops.kubernetes import KubeWorld
from kant.ops.orders import Submit
from kant.ops.scenario import parse_scenario
from kant.ops.simulated import SimulatedWorld
from kant.ops.view import WorldView

JOBS = st.sampled_from(["t1", "t2", "t3", "svc", "big", "ops-1", "nobody", "t1~2", "%00", ""])
NODES = st.sampled_from(["node-00000", "node-00001", "node-00002", "node-00003", "node-99999"])
QUEUES = st.sampled_from(["train", "infer", "default", "\n"])
SPANS = st.sampled_from(["0s", "1m", "30m", "3h", "500h", "-1h", "soon"])
ORDER = st.one_of(
    st.builds(lambda op, job: {"op": op, "job": job}, st.sampled_from(["cancel", "hold", "release", "preempt"]), JOBS),
    st.builds(lambda job, value: {"op": "priority", "job": job, "value": value}, JOBS, st.integers(-20, 20)),
    st.builds(lambda queue, gpus: {"op": "quota", "queue": queue, "gpus": gpus}, QUEUES, st.integers(-1, 40)),
    st.builds(lambda node, evict: {"op": "drain", "node": node, "evict": evict}, NODES, st.booleans()),
    st.builds(lambda node: {"op": "resume", "node": node}, NODES),
    st.builds(
        lambda gpus, pods, time, queue: {"op": "submit", "gpus": gpus, "pods": pods, "time": time, "queue": queue},
        st.integers(0, 9), st.integers(1, 5), SPANS, QUEUES,
    ),
    st.builds(
        lambda name, gpus, time, start: {"op": "reserve", "name": name, "gpus": gpus, "time": time, "start": start},
        st.sampled_from(["a", "b"]), st.integers(1, 40), SPANS, SPANS,
    ),
    st.builds(lambda name: {"op": "unreserve", "name": name}, st.sampled_from(["a", "b"])),
    st.just({"op": "defragment"}),
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ACT = st.tuples(st.lists(ORDER, min_size=1, max_size=4), st.sampled_from(["apply", "undo", "step", "leave"]))


def check_invariants(own: Desk) -> None:
    """Who may not be stopped runs where it ran, gangs are whole, and quotas promise no more than there is."""
    world = own.world
    assert isinstance(world, SimulatedWorld)
    world.run.state.check()
    view = world.view()
    for job, node in (("t3", "node-00002"), ("svc", "node-00002")):
        assert view.jobs[job].phase == "running"
        assert view.jobs[job].nodes == {node: 4.0}
        assert view.jobs[job].run == 1
    for each in view.jobs.values():
        assert sum(each.nodes.values()) in (0, each.gpus), "a gang runs whole or not at all"
    assert sum(each.nominal_gpus or 0 for each in view.queues) <= 32


@settings(max_examples=examples(20))
@given(acts=st.lists(ACT, min_size=1, max_size=6), who=st.sampled_from([OPERATOR, OPERATOR, TENANT, VIEWER]))
def test_whatever_is_ordered_the_rules_hold_and_the_audit_comes_to_the_same(
    acts: list[tuple[list[dict[str, Any]], str]], who: Any
) -> None:
    own = desk(who=who)
    last = ""
    for orders, then in acts:
        before = own.world.view()
        try:
            plan = own.plan(orders)
        except InputError:
            assert own.world.view() == before
            continue
        assert own.world.view() == before, "a plan changes nothing"
        try:
            if then == "apply":
                last = own.apply(plan["plan_id"], "a trial", approved="a person")["txn"]
                assert plan["can_be_applied"]
            elif then == "undo" and last:
                own.undo(last, "a trial")
            elif then == "step":
                own.step(7 * MINUTE)
        except RefusalError as refusal:
            assert refusal.code == "failed" or own.world.view().facts() == before.facts(), refusal
        check_invariants(own)
    assert same_by_replay(own).facts() == own.world.view().facts()


def same_by_replay(own: Desk) -> Any:
    """The view of a new world on which only what the audit says was done is done again."""
    from kant.ops.desk import replay

    world = small()
    replay(world, own.audit.entries)
    world.step(own.world.now())
    return world.view()


@settings(max_examples=examples(60))
@given(junk=JSON)
@example(junk={"\n": None})
def test_junk_is_refused_in_one_sentence_and_changes_nothing(junk: Any) -> None:
    own = junk_desk()
    before = own.world.view().version
    for act in (own.plan, own.submit, lambda given: own.plan([given]), lambda given: own.apply(str(given), str(given))):
        with pytest.raises(InputError) as error:
            act(junk)
        assert "\n" not in str(error.value)
    assert own.world.view().version == before


@cache
def junk_desk() -> Desk:
    return desk()


@settings(max_examples=examples(15))
@given(given_=st.dictionaries(st.sampled_from(["orders", "job", "cursor", "by", "phase", "plan_id", "x"]), JSON))
def test_junk_by_mcp_is_an_error_of_the_caller(given_: dict[str, Any]) -> None:
    pytest.importorskip("mcp")
    from mcp.client import Client

    from kant.ops.mcp_server import make_server

    own = junk_desk()
    before = own.world.view().version

    async def talk() -> None:
        async with Client(make_server(lambda token: own)) as client:
            given = json.loads(re.sub("NaN|-?Infinity", "1", json.dumps(given_)))
            for name in ("plan", "jobs", "why", "usage", "events", "undo", "submit", "log"):
                result = await client.call_tool(name, given)
                text = str(result.structured_content or result.content)
                assert "Traceback" not in text and "object has no" not in text

    asyncio.run(talk())
    assert own.world.view().version == before


Servers = Callable[[str], Desk]
"""Makes the desk of another server of one cluster, for an assistant of this name."""


@pytest.fixture(params=["folder", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Servers:
    """Each server has a world and an audit of its own on one folder, as processes have; or one cluster is there."""
    if request.param == "folder":
        return lambda via: Desk(small(), OPERATOR, Audit(tmp_path), via=via)
    world, objects = Shared(), Objects()
    return lambda via: Desk(cast(Any, world), OPERATOR, KubeAudit(cast(Any, objects)), via=via)


def test_two_assistants_at_once_and_the_lock_holds(server: Servers) -> None:
    desks = [server(f"assistant {n}") for n in (1, 2)]
    plans = [own.plan([{"op": "priority", "job": "t1", "value": n}])["plan_id"] for n, own in enumerate(desks, 5)]
    found: list[str] = []

    def apply(own: Desk, plan: str) -> None:
        try:
            found.append(own.apply(plan, "first come, first served")["state"])
        except RefusalError as refusal:
            found.append(refusal.code)

    threads = [threading.Thread(target=apply, args=pair) for pair in zip(desks, plans, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) in (["applied", "stale"], ["applied", "busy"])
    for own in desks:
        with own.alone():
            pass
    assert desks[0].world.view() == desks[1].world.view()


def test_many_at_once_leave_one_story(server: Servers) -> None:
    done: list[str] = []
    refused: set[str] = set()

    def assistant(number: int) -> None:
        own = server(f"assistant {number}")
        for turn in range(4):
            orders = [{"op": "priority", "job": "t1", "value": -1 - 10 * number - turn}]
            try:
                done.append(own.apply(own.plan(orders)["plan_id"], "my turn")["txn"])
            except RefusalError as refusal:
                refused.add(refusal.code)

    threads = [threading.Thread(target=assistant, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own = server("whoever looks")
    assert done and refused <= {"stale", "busy"}
    assert [entry.seq for entry in own.audit.entries] == list(range(1, len(own.audit.entries) + 1))
    assert {entry.txn for entry in own.audit.entries if entry.what == "applied"} == set(done)
    assert own.world.view().facts() == same_by_replay(own).facts()


def test_a_server_that_is_killed_between_plan_and_apply(server: Servers) -> None:
    first = server("first")
    plan = first.plan([{"op": "hold", "job": "t1"}])["plan_id"]
    second = server("second")  # after a start
    assert second.apply(plan, "as it was planned")["state"] == "applied"
    third = server("third")
    assert third.world.view().jobs["t1"].phase == "held"
    assert third.apply(plan, "once more")["state"] == "applied", "it is not applied again"


@pytest.mark.parametrize("last", ["apply", "done", "half"])
def test_a_server_that_is_killed_while_it_applies(tmp_path: Path, last: str) -> None:
    """The process is gone after the line `last`, or in the middle of writing it."""
    orders = [{"op": "hold", "job": "t1"}, {"op": "hold", "job": "t2"}]
    pid = os.fork()
    if pid == 0:
        own = Desk(small(), OPERATOR, Audit(tmp_path))
        plan = own.plan(orders)["plan_id"]
        write = own.audit.write

        def dying(what: Any, *given: Any, **fields: Any) -> OpsEntry:
            found = write(what, *given, **fields)
            if what == ("apply" if last == "apply" else "done"):
                if last == "half":
                    with own.audit.path.open("ab") as file:
                        file.write(b'{"seq": 4, "ti')
                os._exit(9)
            return found

        own.audit.write = dying  # type: ignore[method-assign]
        own.apply(plan, "maintenance")
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    own = Desk(small(), OPERATOR, Audit(tmp_path))
    latest = look.audit(own)["entries"][0]
    assert latest["what"] == "interrupted"
    held = {job.id for job in own.world.view().jobs.values() if job.phase == "held"}
    assert held == (set() if last == "apply" else {"t1"})
    if held:
        assert own.undo(latest["txn"], "it was cut off")["state"] == "applied"
        assert own.world.view().facts() == small().view().facts()
    check_invariants(own)


def test_who_carries_a_change_out_on_a_cluster_is_left_alone_and_given_up_when_gone() -> None:
    """There is no lock there: what stands in the audit says that somebody is at it, for two minutes after each line."""
    world, objects = Shared(), Objects()
    first, second = (
        Desk(cast(Any, world), OPERATOR, KubeAudit(cast(Any, objects)), via=via) for via in ("first", "second")
    )
    plans = [first.plan([{"op": "hold", "job": job}])["plan_id"] for job in ("t1", "t2")]
    carry_out = world.world.carry_out

    def meanwhile(order: Any, who: Any) -> Any:
        with pytest.raises(RefusalError) as error:
            second.apply(plans[1], "at the same time")
        assert error.value.code == "busy" and "olga is carrying out a change" in str(error.value)
        raise KeyboardInterrupt  # the first is gone

    world.world.carry_out = meanwhile  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.apply(plans[0], "maintenance")
    world.world.carry_out = carry_out  # type: ignore[method-assign]
    assert {entry.what for entry in second.audit.entries} == {"plan", "apply", "refused"}
    world.world.step(world.world.now() + LONGEST + 1)
    assert second.apply(plans[1], "it is free")["state"] == "applied"
    assert [entry.what for entry in second.audit.entries if entry.txn][:2] == ["apply", "interrupted"]


def test_an_audit_of_a_cluster_begins_where_old_entries_were_taken_away_and_shows_forged_ones() -> None:
    objects = Objects()
    own = Desk(cast(Any, Shared()), OPERATOR, KubeAudit(cast(Any, objects)))
    for value in (1, 2):
        own.apply(own.plan([{"op": "priority", "job": "t1", "value": value}])["plan_id"], "a trial")
    oldest = max(objects.there)
    del objects.there[oldest]
    assert [entry.seq for entry in KubeAudit(cast(Any, objects)).news()] == list(range(2, 9))
    name = sorted(objects.there)[2]
    found = objects.there[name]
    for before, after in ((b'"who":"olga"', b'"who":"eve"'), (b"a trial", b"a tribe"), (b"seq", b"sec")):
        objects.there[name] = msgspec.structs.replace(found, spec=msgspec.Raw(bytes(found.spec).replace(before, after)))
        with pytest.raises(InputError):
            KubeAudit(cast(Any, objects)).news()


def test_an_audit_that_was_changed_is_seen(tmp_path: Path) -> None:
    own = Desk(small(), OPERATOR, Audit(tmp_path))
    own.apply(own.plan([{"op": "hold", "job": "t1"}])["plan_id"], "its data is late")
    path = tmp_path / "audit.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1].replace(b"late", b"here"), *lines[2:]]))
    with pytest.raises(InputError, match="an unchanged file"):
        Desk(small(), OPERATOR, Audit(tmp_path))
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(InputError, match="an unchanged file"):
        Desk(small(), OPERATOR, Audit(tmp_path))


def test_another_scenario_does_not_take_over_the_audit(tmp_path: Path) -> None:
    own = Desk(small(), OPERATOR, Audit(tmp_path))
    own.apply(own.plan([{"op": "hold", "job": "t1"}])["plan_id"], "its data is late")
    other = parse_scenario(SMALL | {"cluster": "6x8"}).world()
    with pytest.raises(InputError, match="when the entries are replayed"):
        Desk(other, OPERATOR, Audit(tmp_path))


def test_what_fails_midway_is_taken_back() -> None:
    own = desk()
    before = own.world.view().facts()
    plan = own.plan([{"op": "hold", "job": "t1"}, {"op": "hold", "job": "t2"}])["plan_id"]
    carry_out = own.world.carry_out

    def second_fails(order: Any, who: Any) -> Any:
        if getattr(order, "job", "") == "t2":
            raise InputError("the disk", "room")
        return carry_out(order, who)

    own.world.carry_out = second_fails  # type: ignore[method-assign]
    with pytest.raises(RefusalError) as error:
        own.apply(plan, "maintenance")
    assert error.value.code == "failed"
    assert own.world.view().facts() == before


def test_a_change_of_a_cluster_is_over_when_the_leader_has_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own, seen = desk(), list[WorldView]()
    before = own.world.view()
    own.apply(own.plan([{"op": "hold", "job": "t1"}])["plan_id"], "its data is late")
    coming = [before, before, own.world.view()]
    own.submit({"gpus": 8, "time": "1h", "queue": "train"})
    coming.append(own.world.view())
    world = KubeWorld(Config("http://nowhere"))
    monkeypatch.setattr(world, "view", lambda: seen.append(coming[len(seen)]) or seen[-1])
    world.settle()
    assert not seen, "nothing was ordered"
    world._before = before.version
    world.settle()
    assert seen == coming[:3]
    world._before, world._made = before.version, {*coming[3].jobs} - {*before.jobs}
    seen[:] = coming[:2]  # somebody else's change comes first
    world.settle()
    assert seen == coming
    world.settle()
    assert seen == coming, "it is over"


@pytest.mark.parametrize(
    ("pods", "lacks", "said"),
    [
        (1, ("services", "patch"), ""),
        (2, ("services",), "submit needs the permission to create services in namespace red"),
        (2, ("patch",), "submit needs the permission to patch jobs in namespace red"),
        (1, ("create",), "submit needs the permission to create jobs in namespace red"),
    ],
)
def test_a_gang_needs_more_rights_than_a_job(
    monkeypatch: pytest.MonkeyPatch, pods: int, lacks: tuple[str, ...], said: str
) -> None:
    async def may(client: Any, what: dict[str, str]) -> bool:
        return not {what["resource"], what["verb"]} & {*lacks}

    monkeypatch.setattr("kant.ops.kubernetes.may", may)
    world = KubeWorld(Config("http://nowhere"), namespace="red")
    assert world.rights(Submit(8, "1h", pods=pods)) == said
