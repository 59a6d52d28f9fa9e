"""Jobs that wait for a node before they stop others, and what node autoscalers say about that.

The state is compared with what was said last of the pods, so it does not matter when that was.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.reconcile.workloads import Workloads
from kant.kube.translate.autoscaling import ScaleUp, of_gang, sentence
from kant.model.event import JobAwaitsNode

SOON = 1.0  # seconds between two comparisons where nothing new was said


class AwaitedNodes:
    """`listen` has the Events of autoscalers read from now on."""

    def __init__(self, workloads: Workloads, listen: Callable[[], None]) -> None:
        self.all = workloads
        self.listen = listen
        self._next = 0.0

    def follow(self) -> None:
        """Where a queue or a job waits for nodes, say for which jobs no autoscaler adds one, and for which it does
        again."""
        core, scale_ups = self.all.core, self.all.mirror.scale_ups
        self.listen()
        if not scale_ups.of_pod and not scale_ups.touched:
            return
        if not scale_ups.touched and core.clock() < self._next:
            return
        self._next = core.clock() + SOON
        touched, scale_ups.touched = scale_ups.touched, {}
        found = self._waiting()
        for workload in found:
            if any(member.pod.metadata.uid in touched for member in workload.members):
                workload.reason = ""  # to be asked about anew
        state = core.state
        refused = [one.job for one, said in found.items() if (last := of_gang(said)) and last.comes is False]
        without = {row for job in refused if (row := state.rows.get(job, -1)) in state.pending}
        for row in [row for row in state.without_node if row not in without]:
            core.happen(JobAwaitsNode(core.now, state.ids[row], True))
        for row in without - state.without_node.keys():
            core.happen(JobAwaitsNode(core.now, state.ids[row]))

    def _waiting(self) -> dict[Workload, list[ScaleUp]]:
        """The jobs that wait, of whose pods something was said."""
        scale_ups, mirror, members = self.all.mirror.scale_ups, self.all.mirror, self.all.members
        found = dict[Workload, list[ScaleUp]]()
        for uid, said in list(scale_ups.of_pod.items()):
            pod, workload = mirror.pods.get(uid), members.by_key.get(members.key_of.get(uid, ""))
            if pod is None or pod.spec.node_name:
                scale_ups.forget(uid)
            elif workload is not None and workload.phase is Phase.WAITING:
                found.setdefault(workload, []).append(said)
        return found


def scale_up_remark(workloads: Workloads, workload: Workload) -> str:
    """What autoscalers say of a node for a job that waits, in one sentence; "" where they say nothing."""
    of_pod = workloads.mirror.scale_ups.of_pod
    uids = (member.pod.metadata.uid for member in workload.members) if of_pod else ()
    said = of_gang([of_pod[uid] for uid in uids if uid in of_pod])
    return sentence(said) if said is not None else ""
