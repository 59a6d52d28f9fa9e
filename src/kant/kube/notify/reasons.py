"""Reasons for every waiting job, also for a job that no cycle has tried, because a job with equal requests did not fit.

A cycle gives a reason when it first holds a job. Jobs of one queue and user with equal requests wait for the same
reason, so one diagnosis answers for all of them. Reasons become outdated, so they are computed again, a few at a time.
A job that waits for quota is diagnosed again when quota is freed: then it may lack only capacity.
"""

from __future__ import annotations

from kant.cluster.columns import J_QUEUE, J_SHAPE, J_USER
from kant.insight.diagnosis import Diagnosis
from kant.insight.facts import AwaitsNode, fact_sentence
from kant.insight.protected_victims import awaits_node, protected_victims
from kant.kube.notify.notifier import Notifier
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.reconcile.workloads import Workloads
from kant.live.core import Core
from kant.model.decision import Behind, Closed, NoFit, Reason

SOON = 0.5  # minimum seconds between two batches of diagnoses
AFRESH = 30.0  # seconds until jobs of one kind are diagnosed again
AT_ONCE = 16  # maximum diagnoses in one batch

Kind = tuple[int, int, int]
"""The numbers of a job's shape (its requests), queue and user in the core's state."""


class Reasons:
    """Asks the core why jobs wait, and reports the reasons to their pods."""

    def __init__(self, core: Core, workloads: Workloads, notifier: Notifier) -> None:
        self.core = core
        self.workloads = workloads
        self.notifier = notifier
        self._asked: dict[Kind, float] = {}
        self._quota_version = 0
        self._next = 0.0

    def ask(self) -> None:
        """Diagnose some of the kinds of jobs that have no recent reason; call this after each cycle."""
        now = self.core.clock()
        if now < self._next or not self.core.state.pending:
            return
        self._next = now + SOON
        kinds: dict[Kind, list[Workload]] = {}
        silent: dict[Kind, None] = {}
        state = self.core.state
        came_back = self._quota_version != state.quota_usage.quota_version
        self._quota_version = state.quota_usage.quota_version
        rows = list(state.pending)
        for row, (shape, queue, user) in zip(
            rows, state.jobs[rows][:, [J_SHAPE, J_QUEUE, J_USER]].tolist(), strict=True
        ):
            workload = self.workloads.by_job.get(state.ids[row])
            if workload is None or workload.phase is not Phase.WAITING:
                continue
            kinds.setdefault((shape, queue, user), []).append(workload)
            if not workload.reason or (workload.queued and came_back):
                silent[shape, queue, user] = None
        for kind in [kind for kind in self._asked if kind not in kinds]:
            del self._asked[kind]
        old = [kind for kind in kinds if kind not in silent and now - self._asked.get(kind, now) > AFRESH]
        due = [*silent, *sorted(old, key=lambda kind: self._asked[kind])][:AT_ONCE]
        for kind in kinds:
            self._asked.setdefault(kind, now)
        if due:
            diagnosis = Diagnosis(self.core.scheduler, self.core.now)
            for kind in due:
                self._asked[kind] = now
                self._answer(diagnosis, kinds[kind])

    def remarks(self, workload: Workload, reason: Reason | None) -> list[str]:
        """Return further sentences on why a workload waits, about facts that the core does not know."""
        workloads, state = self.workloads, self.core.state
        if isinstance(reason, Closed) and (gone := workloads.translation.queues.presence.gone):
            return [gone]
        if not isinstance(reason, NoFit) or workload.job not in state.rows:
            return []
        from kant.kube.reconcile.node_remarks import node_remarks  # imported with the first job that fits on no node
        from kant.kube.reconcile.rule_words import rule_words

        row, waits = state.rows[workload.job], list[str]()
        if workloads.translation.queues.awaits_nodes:
            from kant.kube.reconcile.awaited_nodes import scale_up_remark

            node = awaits_node(self.core.scheduler.profile, state, row, self.core.now)
            waits = [fact_sentence(node)] if node is not None else []
            waits += filter(None, [scale_up_remark(workloads, workload)])
        out = node_remarks(workloads.transitions.closed, workloads.mirror.nodes, state)
        return [*waits, *rule_words(state, row, self._example), *out]

    def _example(self, name: str, rows: list[int]) -> str:
        """Return NAMESPACE/NAME of a pod of the pod class `name` on one of these nodes (rows); "" for none."""
        mirror, names = self.workloads.mirror, self.core.state.node_rows.names
        book = self.workloads.translation.rule_book
        pods = (mirror.pods[uid] for row in rows for uid in mirror.on_node.get(names[row], ()))
        found = next((pod.metadata for pod in pods if name in book.classes(pod)), None)
        return f"{found.namespace}/{found.name}" if found is not None else ""

    def _answer(self, diagnosis: Diagnosis, alike: list[Workload]) -> None:
        row = diagnosis.row(alike[0].job)
        reason = diagnosis.why(row)
        if isinstance(reason, Behind):  # `Behind`: take the reason of the first of the equal jobs
            jobs, head = diagnosis.state.jobs, diagnosis.row(reason.job)
            if jobs[head, J_SHAPE] == jobs[row, J_SHAPE]:
                reason = diagnosis.why(head)
        facts = protected_victims(diagnosis, row, reason)
        details = "; ".join(
            [*self.remarks(alike[0], reason), *(fact_sentence(one) for one in facts if not isinstance(one, AwaitsNode))]
        )
        for workload in alike:
            pods = self.workloads.members.pods_of.get(workload.key, ())
            if reason is not None:
                self.notifier.waits(workload, pods, reason, details)
                self.workloads.transitions.fits_nowhere(workload)
            elif not workload.reason:
                workload.reason = "it is next in the queue"
