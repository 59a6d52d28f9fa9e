"""How many functions of Kant a leader calls for a change of a node or a pod. The counts may only fall."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import ref

import pytest
from benchmarks.kubernetes_churn import WAITING
from benchmarks.kubernetes_load import LEAF_LABEL, pod
from benchmarks.kubernetes_turns import KINDS, Cost, Rig, run, standing_clock

from kant.kube.connect.client import ApiError
from kant.kube.lead import driver as leader
from kant.kube.reconcile.eligible_nodes import EligibleNodes
from kant.kube.reconcile.rule_changes import RuleChanges
from kant.kube.reconcile.workloads import Workloads
from kant.kube.translate.annotations import SLICE, SLICE_SIZE
from kant.kube.translate.groups import GROUP, MIN_AVAILABLE

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ROOT = Path(__file__).parents[2]
MOST = {"pod": 1171, "taint": 453, "label": 558, "join": 560, "leave": 1614, "report": 9}


def test_what_a_change_costs_may_only_fall_and_does_not_grow_with_the_cluster() -> None:
    _, small, large = (
        {kind: cost.calls_each for kind, cost in run(nodes, 5 * nodes, 3, counting=True).items()}
        for nodes in (50, 50, 250)  # what is done once is done in the first
    )
    assert list(large) == list(KINDS)
    assert all(large[kind] <= most for kind, most in MOST.items()), large
    assert all(large[kind] <= 1.03 * small[kind] for kind in KINDS), (small, large)


def counted(workloads: Workloads) -> dict[str, list[dict[str, int]]]:
    """Return what is counted beside the jobs, by node: all of it is counted anew, which must give the same."""
    kept = workloads.rule_changes
    anew = RuleChanges(kept.transitions, kept.members)
    with patch.object(anew.core, "happen"):
        anew.count_beside([(uid, node) for node in kept.mirror.nodes for uid in kept.mirror.pods])
    assert {node: one for node, one in kept._beside.items() if any(one)} == anew._beside
    assert kept._counted == anew._counted
    return {node: [one for one in both if one] for node, both in anew._beside.items()}


async def test_what_pods_count_as_beyond_their_jobs_follows_each_of_them() -> None:
    """A node is counted again where one of its pods counts for something beyond its job, or did before."""
    rig, cost = Rig(3, 6, counting=False), Cost()
    carrying_out = asyncio.create_task(rig.driver.effects.run())
    term = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "example.com/rack"}
    said: dict[str, dict[str, Any]] = {
        "apart": {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}, "nodeName": "node-00000"},
        "one": {}, "two": {}, "odd": {"nodeName": "node-00002"},
    }  # fmt: skip

    for name, spec in said.items():
        gang = {GROUP: "g", MIN_AVAILABLE: "2"} if name in ("one", "two") else {}
        made = rig._made(name, pod(name, "other" if "nodeName" in spec else "kant", 1, notes=gang))
        made["spec"] |= spec
        made["metadata"]["labels"] = {"app": "a"}
        if name == "odd":
            made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"
        await rig._told(cost, "ADDED", name)
    bound = dict(rig.client.bound)
    for uid, node in bound.items():
        await rig._told(cost, "MODIFIED", uid, spec={"nodeName": node})
    classes = {'default/[["app","In",["a"]]]': 1}
    odd = {"node-00002": [classes, {"pods": 1}]}
    assert bound.keys() == {"one", "two"} and counted(rig.driver.workloads) == odd, "it is in no job"
    beyond = {bound["two"]: [classes]}
    await rig._told(cost, "MODIFIED", "one", metadata={"labels": {"app": "b"}})
    assert counted(rig.driver.workloads) == odd | beyond, "what the other counts as is not what both do"
    await rig._told(cost, "MODIFIED", "one", metadata={"labels": {"app": "a"}})
    assert counted(rig.driver.workloads) == odd
    await rig._told(cost, "MODIFIED", "one", metadata={"labels": {"app": "b"}})
    await rig._told(cost, "DELETED", "odd")
    assert counted(rig.driver.workloads) == beyond
    answered = asyncio.Event()

    async def refuses(*_: object, **__: object) -> None:
        await answered.wait()
        raise ApiError(400, "Invalid", "no")

    with patch.object(rig.client, "bind", refuses):
        for name in ("three", "four"):
            made = rig._made(name, pod(name, "kant", 1, notes={GROUP: "h", MIN_AVAILABLE: "2"}))
            made["metadata"]["labels"] = {"app": "a"}
            await rig._told(cost, "ADDED", name)
        await rig._told(cost, "MODIFIED", "four", metadata={"labels": {"app": "b"}})
        assert counted(rig.driver.workloads) != beyond, (
            "one of them counts for something of its own, where it is to be bound"
        )
        answered.set()
        for _ in range(3):
            await rig._turn()
    assert counted(rig.driver.workloads) == beyond, "both were refused"
    carrying_out.cancel()


async def test_what_pods_of_gangs_count_as_follows_who_gives_a_place_up_and_who_gets_one() -> None:
    rig, cost = Rig(1, 0, counting=False), Cost()
    carrying_out = asyncio.create_task(rig.driver.effects.run())
    assert rig.driver.state is not None
    workloads, promises = rig.driver.workloads, rig.driver.translation.filters.promises

    async def comes(name: str, group: str, app: str, notes: Mapping[str, str] = {}, **spec: Any) -> None:
        own = {GROUP: group, MIN_AVAILABLE: "2"} if group else {}
        made = rig._made(name, pod(name, "kant", 1, notes=own | notes))
        made["metadata"]["labels"] = {"app": app}
        made["spec"] |= spec
        await rig._told(cost, "ADDED", name)

    async def all_bound() -> None:
        bound, rig.client.bound = rig.client.bound, []
        for uid, node in bound:
            await rig._told(cost, "MODIFIED", uid, spec={"nodeName": node})

    term = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "example.com/rack"}
    await comes("apart", "", "b", affinity={"podAntiAffinity": {REQUIRED: [term]}}, nodeName="node-00000")
    for name in ("one", "two", "three"):
        await comes(name, "grows", "a")
        await all_bound()
    await rig._told(cost, "MODIFIED", "three", metadata={"labels": {"app": "b"}})
    (gang,) = [one for one in workloads.by_job.values() if len(one.slots) == 3]
    a = 'default/[["app","In",["a"]]]'
    assert gang.floor == 2 and counted(workloads) == {"node-00000": [{a: 2}]}, "not all of its pods are of the class"
    given = next(slot for slot in gang.slots if slot.pod == "two")
    workloads.elastic.shrink(gang, workloads.elastic._pieces(gang, [given]), "other")
    rig.driver.state._count_pods()
    assert counted(workloads) == {"node-00000": [{a: 1}]}, "it is asked to go"

    sliced = {SLICE: LEAF_LABEL, SLICE_SIZE: "2"}  # so it is a gang of as many pods as it has
    for name in ("four", "five"):
        await comes(name, "fixed", "b", sliced)
    await all_bound()
    await rig._told(cost, "DELETED", "five")
    with patch.object(rig.client, "bind", asyncio.Event().wait):
        await comes("six", "fixed", "b", sliced)
        assert "six" in promises.promised["node-00000"], "it has the place of the fifth, though no cycle has given it"
    carrying_out.cancel()


@pytest.mark.parametrize(("few", "many"), [(10, 60), (260, 310)], ids=["that has room", "of which 128 fit"])
def test_a_pod_that_goes_costs_the_same_however_many_are_on_its_node(few: int, many: int) -> None:
    async def calls(held: int) -> list[int]:
        rig, costs = Rig(1, held, counting=True), [Cost() for _ in range(4)]
        carrying_out = asyncio.create_task(rig.driver.effects.run())
        for number, cost in enumerate(costs):
            await rig._told(cost, "DELETED", f"held-{number}")
        carrying_out.cancel()
        return [cost.calls.total() for cost in costs]  # what is done once is in the first

    with standing_clock():
        _, second, *_, last = asyncio.run(calls(few))
        *_, of_many = asyncio.run(calls(many))
    assert 0 < of_many < last + 50, "it was 14 more for each other pod, 625 for each that lacks something"
    assert last < second + 50, "who has got what it lacked does not ask again"


async def test_gated_pods_cost_a_pod_that_is_bound_beside_them_nothing() -> None:
    async def calls(gated: int) -> int:
        rig = Rig(1, 1, counting=True)
        carrying_out = asyncio.create_task(rig.driver.effects.run())
        for number in range(gated):
            made = rig._made(f"gated-{number}", pod(f"gated-{number}", "kant", 0))
            made["spec"]["schedulingGates"] = [{"name": "example.com/hold"}]
            await rig._told(Cost(), "ADDED", f"gated-{number}")
        for turn in range(3):
            await rig.happen("pod", turn)
        first = rig.costs["pod"].calls.total()
        await rig.happen("pod", 3)
        carrying_out.cancel()
        return rig.costs["pod"].calls.total() - first

    with standing_clock():
        _, none, some, many = [await calls(gated) for gated in (0, 0, 10, 100)]
    assert 0 < many == some <= none + 10


async def test_what_another_scheduler_tells_a_pod_that_waits_costs_next_to_nothing() -> None:
    """It tells all of them something at most changes of the nodes."""
    with standing_clock():
        rig, came, told, bound = Rig(1, 1, counting=True), Cost(), Cost(), Cost()
        rig._made("theirs", pod("theirs", "default-scheduler", 1))
        await rig._told(came, "ADDED", "theirs")
        await rig._told(told, "MODIFIED", "theirs", status={"phase": "Pending"})
        await rig._told(bound, "MODIFIED", "theirs", spec={"nodeName": "node-00000"})
    assert told.calls.total() <= 3 < bound.calls.total()
    assert "theirs" in rig.driver.mirror.on_node["node-00000"]


def test_pods_that_no_node_takes_cost_one_look_at_the_nodes_together_where_one_leaves() -> None:
    """They wait for a label that no node has, as of a group of nodes that is empty until an autoscaler adds some."""

    async def calls(nodes: int) -> int:
        rig = Rig(nodes, nodes, counting=True)
        carrying_out = asyncio.create_task(rig.driver.effects.run())
        for turn in range(3):
            await rig.happen("leave", turn)
        carrying_out.cancel()
        return rig.costs["leave"].calls_each

    with standing_clock():
        _, few, many = (asyncio.run(calls(nodes)) for nodes in (50, 50, 250))
    assert 0 < many - few < 10 * 200, "it was 140 for each further node when each pod looked at all of them"


async def test_why_no_node_fits_a_pod_is_found_out_for_people_alone() -> None:
    """The sentence looks at all nodes, and a search for victims tries such a pod every 10 s."""
    state = Rig(3, 3, counting=False).driver.state
    assert state is not None and len(state.workloads.transitions.nowhere) == WAITING
    with patch.object(EligibleNodes, "why_no_node") as why:
        assert state.node_preemption.turn() is None
    assert len(state.node_preemption._next) == 1 and not why.called


@pytest.mark.long
async def test_the_collector_leaves_out_the_state_that_there_is_and_takes_the_one_before() -> None:
    frozen = gc.get_freeze_count()
    with patch.object(leader, "gc", gc):
        driver = Rig(5, 5, counting=False).driver
        assert driver.state is not None and gc.get_freeze_count() > frozen
        before = ref(driver.state)
        driver.build()
    assert before() is None and gc.get_freeze_count()


CHANGES = """
import asyncio
from benchmarks.kubernetes_turns import KINDS, Rig
from kant.compiled import compiling_ahead, work
from kant.live.warm import warm
from kant.scheduler.profile import builtin_profile
warm(builtin_profile("kant"))
made = work.compiled + work.found
async def play():
    rig = Rig(20, 100, counting=False)
    asyncio.create_task(rig.driver.effects.run())
    for turn in range(4 * len(KINDS)):
        await rig.happen(KINDS[turn % len(KINDS)], turn)
with compiling_ahead():
    asyncio.run(play())
print(made, work.compiled + work.found)
"""


@pytest.mark.long
def test_kernels_that_are_made_ahead_are_all_that_changes_of_nodes_and_pods_need() -> None:
    """Else the first pod that asks for a whole node, or the first node that joins, waits for a compiler."""
    done = subprocess.run([sys.executable, "-c", CHANGES], cwd=ROOT, capture_output=True, text=True, check=True)
    ahead, needed = done.stdout.split()
    assert int(ahead) > 5 and ahead == needed
