"""Preemption by node: for single pods that fit by the core's count, but that node filters keep from every node.

The filters are about devices of claims, and volumes. The core decides which jobs such a pod may preempt
(`kant.scheduler.node_preemption`). This module finds which jobs on each node may be stopped, and whether the pod would
pass the filters without them. One plan places the pod and preempts its victims.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection

import numpy as np

from kant.cluster.columns import J_PREEMPTIBLE, J_PRIORITY, J_QUEUE
from kant.kube.follow.mirror import is_over
from kant.kube.objects.views import Pod
from kant.kube.reconcile.slots import Member
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Phase, Workload, waits
from kant.model.decision import Plan
from kant.model.errors import InputError
from kant.model.event import JobCancelled, JobSubmitted
from kant.model.job import Job

AGAIN = 10.0
"""Seconds until a pod without possible victims is tried again."""

SHARE = 9
"""The pause after a search, as a multiple of the duration of the search."""


class NodePreemption:
    """Searches for victims for pods that filters keep from all nodes (`Transitions.nowhere`), one pod at a time."""

    def __init__(self, transitions: Transitions) -> None:
        self.transitions = transitions
        self.core = transitions.core
        self.mirror = transitions.mirror
        self.translation = transitions.translation
        self.filters = transitions.translation.filters
        self._next: dict[str, float] = {}  # by pod uid: when the pod may be tried again
        self._rest = 0.0  # no pod is tried before this time (monotonic seconds)

    def turn(self) -> tuple[Workload, Plan] | None:
        """Return a plan that places a pod by preemption, and the pod's workload; None if no such plan is found now."""
        nowhere = self.transitions.nowhere
        if self.core.scheduler.profile.preemption is None:
            nowhere.clear()
        now, began = self.core.clock(), time.monotonic()
        if not nowhere or began < self._rest:
            return None
        found = list[tuple[int, str, str]]()
        for workload, uid in list(nowhere.items()):
            pod = self.mirror.pods.get(uid)
            if workload.phase in (Phase.PLACED, Phase.LEAVING) or pod is None or not waits(pod):
                del nowhere[workload]
            elif self._next.get(uid, now) > now or pod.spec.preemption_policy == "Never":
                continue
            elif self.translation.is_free(pod):
                found.append((-(pod.spec.priority or 0), pod.metadata.creation_timestamp, uid))
        if not found:
            return None
        self._next = {uid: when for uid, when in self._next.items() if when > now}
        uid = min(found)[2]
        self._next[uid] = now + AGAIN
        workload = next(one for one, own in nowhere.items() if own == uid)
        plan = self._plan(workload, self.mirror.pods[uid])
        self._rest = time.monotonic() + SHARE * (time.monotonic() - began)
        return (workload, plan) if plan is not None else None

    def carried_out(self, workload: Workload, going: Collection[str]) -> bool:
        """Record that the plan was carried out: the pod is not bound until the pods in `going` (uids) are gone.

        Returns False, after ending the workload's job, if the workload was not placed after all.
        """
        if workload.phase is Phase.PLACED:
            workload.after = frozenset(going)
            return True
        self.transitions.end(workload)
        return False

    def _plan(self, workload: Workload, pod: Pod) -> Plan | None:
        core = self.core
        try:
            job = self.translation.job_but_for_filters(core, workload.group, pod)
        except InputError:
            return None
        stoppable, on_node = self._stoppable(job), defaultdict[str, set[str]](set)
        for name, one in stoppable.items():
            for slot in one.slots:
                if (other := self.mirror.pods.get(slot.pod)) is not None and not is_over(other):
                    on_node[slot.node].add(name)

        def will_do(node: str, gone: Collection[str]) -> bool:
            going = {slot.pod for name in gone if name in stoppable for slot in stoppable[name].slots if slot.pod}
            return node in accepted and not self.filters.check([(node, pod)], going)

        names = self.transitions.node_names if stoppable else []
        accepted = dict.fromkeys(self.translation.eligible.accepting(pod, names))
        departing = {uid for own in self.transitions.existing_pods.leaving.values() for uid in own}
        if departing and any(not self.filters.check([(node, pod)], departing) for node in accepted):
            return None  # no preemption: a node fits once the leaving pods are gone
        if not any(will_do(node, near) for node in accepted if (near := on_node[node])):
            return None
        core.happen(JobSubmitted(self.transitions.existing_pods.came(job), job))
        plan = core.preempt_by_node(core.state.rows[job.id], on_node.__getitem__, will_do)
        if plan is None:
            core.happen(JobCancelled(core.now, job.id))
            return None
        if workload.job:  # its present job may accept fewer nodes
            self.transitions.end(workload)
        self.transitions.came(workload, job, [Member(pod, self.translation.demand(pod))])
        return plan

    def _stoppable(self, job: Job) -> dict[str, Workload]:
        """Return, by job, the workloads that this job might preempt if quotas are disregarded."""
        policy, state = self.core.scheduler.profile.preemption, self.core.state
        if policy is None or (policy.reclaim == "off" and job.priority <= state.lowest_preemptible()):
            return {}
        rows = np.fromiter(state.running, dtype=np.int64, count=len(state.running))
        may_stop = (state.jobs[rows, J_PRIORITY] < job.priority) & policy.priority
        may_stop |= (state.jobs[rows, J_QUEUE] != state.queues.get(job.queue, -1)) & (policy.reclaim != "off")
        names = (state.ids[row] for row in rows[may_stop & (state.jobs[rows, J_PREEMPTIBLE] > 0)].tolist())
        return {name: self.transitions.by_job[name] for name in names if name in self.transitions.by_job}
