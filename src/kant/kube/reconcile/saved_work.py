"""What preempting a job would lose: the work since its last checkpoint, whose time an annotation of a pod states.

The core has a preemption cost for each job, which grows with time. A cost is updated once the loss has grown by an
eighth and by half a minute: enough precision to compare victims.
"""

from __future__ import annotations

from collections.abc import Iterable

from kant.cluster.columns import J_MILLI, J_STARTED
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Pod
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.reconcile.workloads import Workloads
from kant.kube.translate.annotations import CHECKPOINTED
from kant.kube.translate.pods import about
from kant.model.errors import InputError
from kant.model.event import JobPriced
from kant.model.units import SECOND

LEAST = 30 * SECOND


class SavedWork:
    """`due` is when a cost must be updated next (microseconds of the run); -1: never."""

    def __init__(self, workloads: Workloads) -> None:
        self.all = workloads
        self.due = -1
        self._saving: dict[Workload, tuple[str, int, int]] = {}  # the job, its last save, its cost's last update

    def follow(self, pods: Iterable[str]) -> None:
        """Process changes to these pods (uids), and update the costs that are due."""
        mirror, members, now = self.all.mirror.pods, self.all.members, self.all.core.now
        changed: dict[Workload, None] = {}
        for uid in pods:
            pod = mirror.get(uid)
            if pod is not None and CHECKPOINTED in (pod.metadata.annotations or {}):
                workload = members.by_key.get(members.key_of.get(uid, ""))
                if workload is not None and not workload.foreign:
                    changed[workload] = None
        if 0 <= self.due <= now:
            changed |= dict.fromkeys(self._saving)
        if changed:
            for workload in changed:
                self._say(workload)
            self.due = min((_next(saved, at) for _, saved, at in self._saving.values()), default=-1)

    def _say(self, workload: Workload) -> None:
        core = self.all.core
        if workload.phase is not Phase.PLACED or workload.job not in core.state.rows:
            self._saving.pop(workload, None)
            return
        found = self.all.mirror.pods
        times = [self._time(found[slot.pod]) for slot in workload.slots if slot.pod in found]
        said = max(times, default=-1)
        if said < 0:
            if self._saving.pop(workload, ("",))[0] == workload.job:
                core.happen(JobPriced(core.now, workload.job))
            return
        milli, started = core.state.jobs[core.state.rows[workload.job], [J_MILLI, J_STARTED]].tolist()
        saved = min(max(said, started), core.now)
        job, before, at = self._saving.get(workload, ("", -1, -1))
        if job != workload.job or before != saved or _next(saved, at) <= core.now:
            self._saving[workload] = workload.job, saved, core.now
            core.happen(JobPriced(core.now, workload.job, milli * ((core.now - saved) // SECOND)))

    def _time(self, pod: Pod) -> int:
        """Return when work was last saved, by a pod's annotation (microseconds of the run); -1: no valid time."""
        text = (pod.metadata.annotations or {}).get(CHECKPOINTED, "")
        if not text:
            return -1
        try:
            found = microseconds(text, f"{about(pod)}, {CHECKPOINTED}") - self.all.core.zero
        except InputError as wrong:
            self.all.translation.complaints[about(pod)] = str(wrong)
            return -1
        self.all.translation.complaints.drop(about(pod))
        return max(found, 0)


def _next(saved: int, said: int) -> int:
    """Return when the next update is due, given the times of the last save and of the last update."""
    return said + max(LEAST, (said - saved) // 8)
