"""The state from which a driver decides, for questions about it. Also which job a user means by a name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kant.insight.calibration import Calibration
from kant.kube.objects.views import Pod
from kant.kube.reconcile.awaited_nodes import scale_up_remark
from kant.kube.reconcile.node_remarks import node_remarks
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.groups import INDEX
from kant.kube.user.targets import gang_of
from kant.scheduler.cycle import Scheduler

if TYPE_CHECKING:
    from kant.kube.lead.driver import KubeDriver

Name = tuple[str, str]
"""A namespace, and a name in that namespace."""


@dataclass(frozen=True, slots=True)
class RebuiltState:
    """The scheduler with its state at `now`. `jobs` are by the names of pods; `complaints` are about pods with no job.

    `calibration` is what the leader has learned about expected starts. `remarks` are about nodes that accept no new
    pods. `unread` says which objects are malformed, or may not be read. If there were Queues and none is left,
    `queues_gone` says so, and what to do; otherwise it is "". `scale_ups` has the reports of node autoscalers on
    waiting jobs.
    """

    scheduler: Scheduler
    now: int
    zero: int
    jobs: dict[Name, str]
    complaints: dict[Name, str]
    calibration: Calibration | None = None
    remarks: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    queues_gone: str = ""
    scale_ups: dict[str, str] = field(default_factory=dict)


def rebuilt_state(driver: KubeDriver, only: Name | None = None) -> RebuiltState:
    """Return the state of a driver that has built one. With `only`: just with jobs that a user may mean by it."""
    assert driver.state is not None
    members = driver.workloads.members
    if only is None:
        workloads: Iterable[Workload] = members.by_key.values()
    else:
        named = {members.key_of.get(uid, "") for uid, pod in driver.mirror.pods.items() if _may_be(pod, only)}
        workloads = [one for key, one in members.by_key.items() if key in named] if named else []
    jobs, complaints = _names(driver, workloads)
    core, workloads = driver.state.core, list(workloads)
    unread = [*driver.informers.unread, *(f"{name}: {said}" for name, said in driver.translation.complaints.items())]
    return RebuiltState(
        core.scheduler,
        core.now,
        core.zero,
        jobs,
        complaints,
        remarks=tuple(node_remarks(driver.state.fleet.closed, driver.mirror.nodes, core.state)),
        scale_ups={one.job: said for one in workloads if (said := scale_up_remark(driver.workloads, one))},
        unread=tuple(unread),
        queues_gone=driver.translation.queues.presence.advice(driver.settings.namespace),
    )


def _names(driver: KubeDriver, workloads: Iterable[Workload]) -> tuple[dict[Name, str], dict[Name, str]]:
    """Return the jobs of these workloads by the names of pods and owners, and the errors of workloads without a job."""
    jobs: dict[Name, str] = {}
    complaints: dict[Name, str] = {}
    owned: dict[Name, str] = {}
    waiting: set[Name] = set()  # owners with a waiting pod: the name of an owner means its first waiting pod
    for workload in workloads:
        for uid in driver.workloads.members.pods_of.get(workload.key, ()):
            pod = driver.mirror.pods.get(uid)
            job = workload.job
            if pod is not None and job:
                space, waits = pod.metadata.namespace, workload.phase is Phase.WAITING
                jobs[space, pod.metadata.name] = job
                for name in _owner_names(pod):
                    if (space, name) not in jobs or (waits and (space, name) not in waiting):
                        jobs[space, name] = job
                        waiting |= {(space, name)} if waits else set()
            elif pod is not None and (reason := workload.reason or _condition_of(workload, pod)):
                space = pod.metadata.namespace
                complaints[space, pod.metadata.name] = reason
                owned |= {(space, name): reason for name in (*_owner_names(pod), *gang_of(pod)[2:])}
    complaints |= {owner: reason for owner, reason in owned.items() if owner not in jobs}
    return jobs, complaints


def _condition_of(workload: Workload, pod: Pod) -> str:
    """Return why a pod waits, from its condition PodScheduled; "" for a pod that does not wait for Kant."""
    if workload.foreign or pod.spec.node_name:
        return ""
    return (pod.scheduled and pod.scheduled.message) or "Kant has only just seen it: ask again"


def _may_be(pod: Pod, named: Name) -> bool:
    """Whether a user may mean this pod or its workload by `named`."""
    space, name = named
    if pod.metadata.namespace != space:
        return False
    return pod.metadata.name == name or name in _owner_names(pod) or name in gang_of(pod)[2:]


def _owner_names(pod: Pod) -> list[str]:
    """Return names by which a user may mean a pod: the name of its owner, and for an indexed Job one such as NAME_3."""
    owner = pod.metadata.controller.name
    index = (pod.metadata.annotations or {}).get(INDEX, "")
    return ([owner] if owner else []) + ([f"{owner}_{index}"] if owner and index else [])
