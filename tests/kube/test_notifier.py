"""What pods are told is told again where it came too late."""

from __future__ import annotations

from typing import Any

from kant.kube.follow.mirror import Mirror
from kant.kube.notify.notifier import Notifier
from kant.kube.objects.views import Condition, Meta, Node, Pod, PodSpec, PodStatus
from kant.kube.reconcile.workload import Workload
from kant.model.decision import NoFit, OverQuota


class Heard:
    """A recorder that only listens."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.on_changed: Any = None
        self.busy = False

    def condition(self, pod: Meta, text: str, reason: str, current: Condition | None) -> bool:
        if not self.busy:
            self.said.append((pod.resource_version, reason))
        return not self.busy

    def event(self, *_: object) -> None:
        pass


def pod(version: str, condition: Condition | None = None, node: str = "") -> Pod:
    meta = Meta(name="a", namespace="ns", uid="u", resource_version=version)
    return Pod(meta, PodSpec(node_name=node), PodStatus(conditions=(condition,) if condition is not None else ()))


def test_a_condition_that_came_too_late_is_told_of_the_newer_pod() -> None:
    mirror, heard = Mirror(), Heard()
    notifier = Notifier(None, heard, mirror, lambda: True)  # type: ignore[arg-type]
    mirror.pod("added", pod("1"))
    known = Workload("u")
    notifier.waits(known, ["u"], NoFit(0, 1, 0))
    assert heard.said == [("1", "Unschedulable")] and not known.queued
    heard.on_changed("u")  # refused, and the watch has not said why yet
    assert len(heard.said) == 1
    mirror.pod("modified", pod("2"))
    heard.busy = True
    notifier.again("u")  # the first is still under way
    heard.busy = False
    heard.on_changed("u")  # and is refused now
    assert heard.said[1:] == [("2", "Unschedulable")]
    notifier.again("u")
    mirror.pod("modified", pod("3", Condition("PodScheduled", "False", "Unschedulable", known.reason)))
    notifier.again("u")  # it has arrived
    assert len(heard.said) == 2
    notifier.waits(known, ["u"], OverQuota("q", "", "gpu", 1000, 0, "quota"))
    assert heard.said[2:] == [("3", "Queued")] and known.queued
    mirror.pod("modified", pod("4", node="n"))
    notifier.again("u")
    mirror.pod("modified", pod("5"))
    notifier.again("u")
    assert len(heard.said) == 3


def test_the_fault_of_a_node_is_told_once_for_each_change_of_it() -> None:
    mirror, told = Mirror(), []

    class Noted(Heard):
        def event(self, *words: Any) -> None:
            told.append((words[0].uid, words[3], words[5]))

    notifier = Notifier(None, Noted(), mirror, lambda: True)  # type: ignore[arg-type]
    steps = [("1", "odd"), ("1", "odd"), ("1", "odder"), ("1", ""), ("1", "odd"), ("2", "odd"), ("", ""), ("2", "odd")]
    for uid, fault in steps:
        mirror.replace_nodes([Node(Meta(name="n", uid=uid))] if uid else [])
        notifier.nodes(["n"], {"node n": fault, "node m": "of somebody else"} if fault else {})
    notifier.nodes(["n"], {"node n": "in a shadow"}, post=False)
    assert told == [(uid, fault, "Node") for uid, fault in (steps[0], steps[2], steps[4], steps[5], steps[7])]
