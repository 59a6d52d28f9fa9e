"""The mirror: reports of kubelets that say nothing new make nobody look again."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from kant.kube.follow.mirror import Mirror
from kant.kube.follow.relevance import waits_elsewhere
from kant.kube.objects import views as k

READY = k.Condition("Ready", "True", "KubeletReady", "beat 1", "2026-01-01T00:00:00Z")
POD = k.Pod(
    k.Meta("p", "default", "uid-p", "1", labels={"a": "b"}),
    k.PodSpec(node_name="n", containers=(k.Container("main"),)),
    k.PodStatus("Running", (READY,)),
)


def with_meta(**fields: Any) -> k.Pod:
    return replace(POD, metadata=replace(POD.metadata, resource_version="2", **fields))


def with_status(**fields: Any) -> k.Pod:
    return replace(with_meta(), status=replace(POD.status, **fields))


NEW: dict[str, Callable[[], k.Pod]] = {
    "labels": lambda: with_meta(labels={"a": "c"}),
    "annotations": lambda: with_meta(annotations={"x": "y"}),
    "deletion": lambda: with_meta(deletion_timestamp="2026-01-01T00:00:00Z"),
    "phase": lambda: with_status(phase="Succeeded"),
    "readiness": lambda: with_status(conditions=(replace(READY, status="False"),)),
    "condition": lambda: with_status(conditions=(READY, k.Condition("PodResizePending", "True", "Infeasible"))),
    "spec": lambda: replace(with_meta(), spec=replace(POD.spec, priority=1)),
    "not bound": lambda: replace(with_meta(), spec=replace(POD.spec, node_name="")),
}


@pytest.mark.parametrize("what", ["", *NEW])
def test_a_report_of_a_pod_counts_where_anything_depends_on_it(what: str) -> None:
    mirror, told = Mirror(), with_status(conditions=(replace(READY, message="beat 2"),))
    mirror.pod("added", POD)
    version = mirror.version
    mirror.touched.clear()
    report = NEW[what]() if what else told
    assert mirror.pod("modified", report) is bool(what)
    assert (mirror.version > version, set(mirror.touched)) == (bool(what), {"uid-p"} if what else set())
    assert mirror.pods["uid-p"] is report


def test_what_the_watch_says_of_our_own_binding_counts_though_we_knew_it() -> None:
    mirror = Mirror()
    mirror.pod("added", replace(POD, spec=replace(POD.spec, node_name="")))
    mirror.bound_here["uid-p"] = "n"
    mirror.apply_bindings(["uid-p"])
    mirror.touched.clear()
    assert mirror.pod("modified", with_meta()) and set(mirror.touched) == {"uid-p"}


LISTS = st.dictionaries(st.sampled_from("abc"), st.tuples(st.sampled_from(["", "n0", "n1"]), st.sampled_from("12")))


@given(LISTS, LISTS)
@example({"a": ("", "1")}, {"a": ("", "1")})
def test_a_list_of_pods_is_taken_in_as_their_changes_are(
    before: dict[str, tuple[str, str]], after: dict[str, tuple[str, str]]
) -> None:
    def pods(listed: dict[str, tuple[str, str]]) -> dict[str, k.Pod]:
        return {
            uid: k.Pod(k.Meta(uid, "default", uid, f"{node}{version}"), k.PodSpec(node_name=node))
            for uid, (node, version) in listed.items()
        }

    mirror, new = Mirror(), pods(after)
    mirror.replace_pods(pods(before).values())
    mirror.touched.clear()
    mirror.replace_pods(new.values())
    assert mirror.pods == new
    on_node = {uid: node for node, uids in mirror.on_node.items() for uid in uids}
    assert on_node == {uid: node for uid, (node, _) in after.items() if node}
    other = {uid for uid in before.keys() | after.keys() if before.get(uid) != after.get(uid)}
    same_node = {uid for uid in before.keys() & after.keys() if before[uid][0] == after[uid][0] != ""}
    assert mirror.touched.keys() == other - same_node, "what is said anew of a pod on its node is no news"


def test_a_heartbeat_of_a_node_is_no_change() -> None:
    mirror, ready = Mirror(), k.NodeStatus({"cpu": "1"}, {"cpu": "1"}, (READY,))
    mirror.nodes.change("added", k.Node(k.Meta("n"), k.NodeSpec(), ready))
    version = mirror.version
    beat = k.NodeStatus({"cpu": "1"}, {"cpu": "1"}, (replace(READY, message="beat 2"),))
    assert not mirror.nodes.change("modified", k.Node(k.Meta("n"), k.NodeSpec(), beat)) and mirror.version == version
    gone = replace(beat, conditions=(replace(READY, status="False"),))
    assert mirror.nodes.change("modified", k.Node(k.Meta("n"), k.NodeSpec(), gone)) and mirror.version > version


def test_what_another_scheduler_tells_its_waiting_pods_is_no_news_and_what_changes_of_ours_is() -> None:
    told = k.Condition("PodScheduled", "False", "Unschedulable", "0 of 9 nodes", "2026-01-01T00:00:00Z")
    for scheduler, news in (("default-scheduler", False), ("kant", True)):
        spec = replace(POD.spec, node_name="", scheduler_name=scheduler)
        mirror, pod = (
            Mirror(schedulers=("kant",)),
            replace(POD, spec=spec, status=replace(POD.status, conditions=(told,))),
        )
        mirror.pod("added", pod)
        again = replace(told, message="0 of 10 nodes")
        assert mirror.pod("modified", replace(pod, status=replace(pod.status, conditions=(again,)))) is news
        assert mirror.pod("modified", replace(pod, spec=replace(spec, node_name="n")))


WORDS: list[dict[str, str]] = [
    {}, {"schedulerName": "other"}, {"schedulerName": "kant"}, {"nodeName": "n"}, {"x": '"schedulerName":"other"'},
    {"x": '"schedulerName":"kant","nodeName":"n"'},
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_only_what_changes_of_pods_that_wait_for_others_is_not_even_decoded(words: dict[str, str]) -> None:
    skips, kinds = waits_elsewhere(("kant",)), ("MODIFIED", "ADDED", "DELETED", "ERROR")
    for kind, scheduler, node, claims in product(kinds, ("kant", "kant-2", "other"), (None, "n"), (None, ["c"])):
        said = {"schedulerName": scheduler, "nodeName": node, "resourceClaims": claims}
        spec = {key: value for key, value in said.items() if value is not None}
        thing = {"metadata": {"name": "p", "labels": words, "annotations": words}, "spec": spec}
        line = msgspec.json.encode({"type": kind, "object": thing})
        waits = kind == "MODIFIED" and scheduler != "kant" and not (node or claims)
        assert skips(line) == waits or (words and not skips(line))
        wide = b'{"type":"MODIFIED","object":' + json.dumps(thing).encode() + b"}"
        assert not skips(wide) or words, "it is not written as the API server writes"
