"""One state of the core and all that is built with it: turns changes into events, and decisions into requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kant.kube.act.evictor import Eviction
from kant.kube.act.plan_executor import KubeExecutor, ShadowExecutor
from kant.kube.act.steps import Steps
from kant.kube.follow.informers import Informers
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.lead.answers import Answers, Counts
from kant.kube.lead.rebuilding import Rebuilding
from kant.kube.lead.reports import Reports
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.notifier import Notifier
from kant.kube.notify.reasons import Reasons
from kant.kube.objects.views import Pod
from kant.kube.reconcile.budgets import DisruptionBudgets, Protection
from kant.kube.reconcile.fleet import Fleet
from kant.kube.reconcile.messages import QUEUED
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workloads import Workloads
from kant.kube.serve.metrics import KubeTelemetry
from kant.kube.translate.annotations import CHECKPOINTED
from kant.kube.translate.provisioning import PROVISIONING
from kant.live.core import Core
from kant.live.logs import log_decisions, log_event
from kant.model.decision import Plan

if TYPE_CHECKING:
    from kant.kube.reconcile.awaited_nodes import AwaitedNodes
    from kant.kube.reconcile.bookings import Bookings
    from kant.kube.reconcile.node_preemption import NodePreemption
    from kant.kube.reconcile.saved_work import SavedWork

log = logging.getLogger("kant.kube")


@dataclass(eq=False)
class LiveState:
    """One state of the core, with its workloads, nodes and answers."""

    core: Core
    settings: DriverSettings
    translation: Translation
    steps: Steps
    informers: Informers
    notifier: Notifier
    rebuilding: Rebuilding
    telemetry: KubeTelemetry
    counts: Counts
    reports: Reports

    def __post_init__(self) -> None:
        core, translation, steps, binder = self.core, self.translation, self.steps, self.steps.binder
        self.mirror = translation.mirror
        binder.results.clear()
        binder.leaving.clear()
        self.fleet = Fleet(core, self.mirror, translation)
        self.workloads = Workloads(core, self.mirror, translation, binder.leaving, binder.step.in_flight)
        lost_places = self.workloads.lost_places
        lost_places.recall, lost_places.recount = binder.recall, self.fleet.follow
        binder.closed, binder.short = self.fleet.closed, set()
        budgets = DisruptionBudgets(self.mirror)
        steps.evictor.refuses = budgets.refuses
        self.protection = Protection(self.workloads, budgets)
        translation.filters.promises.leaving = binder.leaving
        executor = ShadowExecutor if self.settings.shadow else KubeExecutor
        self.executor = executor(core, self.mirror, self.workloads, binder.leaving)
        self.answers = Answers(self.workloads, self.executor, steps, self.notifier, self.telemetry, self.counts)
        self.reasons = Reasons(core, self.workloads, self.notifier)

    @cached_property
    def bookings(self) -> Bookings:
        """The reservations of GPUs; imported when the first one exists."""
        from kant.kube.reconcile.bookings import Bookings

        return Bookings(self.core, self.translation)

    @cached_property
    def awaited_nodes(self) -> AwaitedNodes:
        """Jobs that wait for nodes of autoscalers. Imported with the first queue or job that waits for such nodes."""
        from kant.kube.reconcile.awaited_nodes import AwaitedNodes

        return AwaitedNodes(self.workloads, self.informers.listen_to_autoscalers)

    @cached_property
    def node_preemption(self) -> NodePreemption:
        """Preemption for pods that only node filters keep from nodes; imported with the first such pod."""
        from kant.kube.reconcile.node_preemption import NodePreemption

        return NodePreemption(self.workloads.transitions)

    @cached_property
    def saved_work(self) -> SavedWork:
        """What running jobs would lose if stopped. Imported with the first pod that says when its work was saved."""
        from kant.kube.reconcile.saved_work import SavedWork

        return SavedWork(self.workloads)

    def _follow_saved_work(self, pods: Mapping[str, Pod]) -> None:
        said = (CHECKPOINTED in pod.metadata.annotations for pod in pods.values() if pod.metadata.annotations)
        if "saved_work" in self.__dict__ or any(said):
            self.saved_work.follow(pods)

    def settle_everything(self) -> None:
        """Turn everything in the mirror into the first events of the state."""
        mirror, workloads = self.mirror, self.workloads
        self.translation.queues.follow(self.core, 0)
        for touched in _touched(mirror):
            touched.clear()
        mirror.namespaces.touched = mirror.namespaces.relabelled = False
        if mirror.has_devices:
            mirror.devices.is_new = False
        self.translation.queues.take_reopened()
        notes = [workloads.members.note(uid, pod) for uid, pod in mirror.pods.items()]
        workloads.settle_all({key: None for key in notes if key is not None})
        self.fleet.follow(mirror.nodes)
        workloads.rule_changes.count_beside([(uid, node) for node, own in mirror.on_node.items() for uid in own])
        workloads.transitions.closed = self.fleet.closed
        self.protection.follow((), mirror.budgets)
        self._follow_saved_work(mirror.pods)

    # --- changes ------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether the mirror has changes that have not been processed."""
        return any(_touched(self.mirror)) or bool(self.informers.read)

    def take_changes(self) -> None:
        """Turn the changes of the mirror since the last call into events."""
        mirror, workloads = self.mirror, self.workloads
        nodes = self._take_nodes()
        self._take_objects()
        pods, mirror.touched = mirror.touched, {}
        keys = self._take_pods(pods)
        self.informers.look_for_queues(pods.values())
        workloads.rule_changes.touched |= dict.fromkeys(pods)
        self._take_overrun()
        for name in nodes:
            if name in self.fleet.closed:
                keys.update(workloads.affected.vacant_on(name))
        others, self.fleet.others = self.fleet.others, {}
        keys.update(workloads.affected.of_changed_nodes(others))
        read, self.informers.read = self.informers.read, {}
        keys.update({"/".join(ref.key): None for ref in read})
        filled = {pod.spec.node_name: None for pod in pods.values() if pod.spec.node_name}
        self.rebuilding.look(self.core, nodes | filled)
        claims, mirror.claims_touched = mirror.claims_touched, {}
        keys.update(workloads.affected.renew(uid for claim in claims for uid in mirror.users.get(claim, ())))
        if mirror.namespaces.touched:
            mirror.namespaces.touched, self.translation.stale = False, True
        if mirror.has_devices:
            keys.update(workloads.affected.renew(self._take_devices()))
        keys.update(workloads.follow_sets())
        self._look_at_clock()
        if keys:
            workloads.settle_all(keys)
            self.look_up()
        if self.translation.devices.has_other_homes:  # other nodes may offer the shared devices
            self.rebuilding.look_soon()
        workloads.lost_places.retry_partially_bound()
        workloads.partially_bound.complete_all()  # so that the core decides after partially bound gangs are completed
        self._count_pods()
        budgets, mirror.budgets_touched = mirror.budgets_touched, {}
        self.protection.follow(pods, budgets)
        self._follow_saved_work(pods)
        if self.translation.queues.awaits_nodes:
            self.awaited_nodes.follow()

    def _take_nodes(self) -> dict[str, None]:
        names, self.mirror.nodes_touched = self.mirror.nodes_touched, {}
        if names:
            was_stale = self.fleet.stale
            self.fleet.follow(names)
            self.steps.binder.recall(self.fleet.closed & names.keys())
            self.workloads.lost_places.has_more(names)
            self.reports.nodes(names)
            if self.fleet.stale and was_stale:
                self.rebuilding.stable_since = time.monotonic()
        return names

    def _take_devices(self) -> list[str]:
        """Return the uids of the pods whose claims or requested devices have changed."""
        devices = self.mirror.devices
        touched, devices.touched = devices.touched, {}
        if touched:
            self.rebuilding.touched.update(dict.fromkeys(self.translation.filters.failing))  # devices may have moved
        if devices.is_new:
            devices.is_new = False
            self.fleet.follow(self.mirror.nodes)
        return [uid for claim in touched for uid in devices.users.get(claim, ())]

    def _take_objects(self) -> None:
        objects, self.mirror.objects_touched = self.mirror.objects_touched, {}
        kinds = {kind for kind, _, _ in objects}
        if PROVISIONING in kinds:
            named = {(space, name) for kind, space, name in objects if kind == PROVISIONING}
            self.workloads.settle_all(self.workloads.affected.consuming(named))
        if any(kind.startswith(("topologies", "reservations")) for kind in kinds):
            self.translation.stale = True
        elif "queues" in kinds or self.translation.queues.presence.is_meant:
            self.translation.queues.follow(self.core)
            self.workloads.settle_all(self.workloads.affected.rejected())
        elif self.mirror.namespaces.relabelled and self.translation.queues.selects_namespaces:
            self.translation.queues.follow(self.core)
        self.mirror.namespaces.relabelled = False
        changed = self.translation.queues.take_reopened()
        if changed or changed is None:
            self.workloads.settle_all(self.workloads.affected.waiting_in(changed))

    def _take_pods(self, pods: dict[str, Pod]) -> dict[str, None]:
        """Process changed pods. Returns the keys of their workloads."""
        keys = dict[str, None]()
        for uid, pod in pods.items():
            if uid not in self.mirror.pods or is_over(pod):
                self.steps.binder.left(uid)
            if pod.spec.node_name:
                self.workloads.transitions.changed[uid, pod.spec.node_name] = None
            self.notifier.again(uid)
            key = self.workloads.members.note(uid, pod)
            if key is not None:
                keys[key] = None
        resized, self.mirror.resized = self.mirror.resized, {}
        if resized and self.workloads.affected.resized(resized):
            self.rebuilding.soon(self.core)
        return keys

    def look_at_filters(self) -> None:
        """Evaluate the node filters again, and create the jobs of the waiting pods that need filters again."""
        began = time.monotonic()
        keys = self.workloads.look_at_filters()
        self.translation.eligible.report_sets(self.core)
        keys.update(self.workloads.follow_sets())
        self.workloads.settle_all(keys)
        self.look_up()
        self.rebuilding.looked(began)

    def _take_overrun(self) -> None:
        """Handle nodes that have lost GPUs which jobs still hold."""
        overrun, self.fleet.overrun = self.fleet.overrun, {}
        if overrun:
            self.workloads.lost_places.withdraw(overrun)
            self.fleet.follow(overrun)  # the GPUs that jobs give up may be the lost ones
        self.steps.binder.short = set(self.fleet.overrun)

    def _look_at_clock(self) -> None:
        """Do everything that is due by time, even without a change."""
        workloads = self.workloads
        workloads.lost_places.look_at_protected()
        due = workloads.elastic.due()
        if due:
            workloads.settle_all(due)
        workloads.messages.look_at_growing()
        for gang, limit in workloads.partially_bound.overdue(self.settings.recovery, self.settings.staleness):
            workloads.partially_bound.release(gang, f"not complete within {limit:g} s")
            self.counts.released += 1

    def _count_pods(self) -> None:
        """On nodes where pods came or left, count the pods that belong to no job of the core."""
        transitions = self.workloads.transitions
        changed, transitions.changed = transitions.changed, {}
        if changed:
            transitions.count_promised()
        self.workloads.rule_changes.count_beside(changed)

    def look_up(self) -> None:
        """Request the group objects for which workloads wait."""
        reading = self.workloads.reading
        awaited, reading.awaited = reading.awaited, {}
        for ref in awaited:
            self.informers.look_up(ref)

    # --- actions ---------------------------------------------------------------------------

    def carry_out(self, plan: Plan) -> None:
        """Carry out a plan of the core: apply its decisions to the state, and queue the bindings and evictions."""
        log_decisions(log, plan, self.core.state.node_rows.names)
        self.executor.execute(plan)

    def preempt_by_node(self) -> None:
        """Preempt jobs for a pod that node filters keep from every node, if that helps."""
        found = self.node_preemption.turn() if self.workloads.transitions.nowhere else None
        if found is not None:
            workload, plan = found
            self.carry_out(plan)
            going = (pods for one in self.executor.evictions if one.by == workload.job for _, pods in one.victims)
            uids = {pod.metadata.uid for pods in going for pod in pods}
            if not self.node_preemption.carried_out(workload, uids):
                self.workloads.settle(workload.key)

    def hand_over(self) -> None:
        """Begin all pending bindings and evictions, and send messages to users."""
        self._start_evictions()
        transitions, members = self.workloads.transitions, self.workloads.members
        while transitions.completed:
            workload, seconds = transitions.completed.popleft()
            if workload.job:
                self.telemetry.whole(self.core.state, self.core.state.rows[workload.job], self.core.now)
            self.telemetry.partial(seconds)
        self.steps.binder.pump(transitions.to_bind)
        if (claims := self.steps.claims) is not None:
            claims.take_back()
            while claims.unattached:
                workload, why = claims.unattached.popleft()
                self.workloads.messages.say(workload, why, QUEUED)
        while self.executor.held:
            workload, decision = self.executor.held.popleft()
            added = "; ".join(self.reasons.remarks(workload, decision.reason))
            self.notifier.waits(workload, members.pods_of.get(workload.key, ()), decision.reason, added)
        self.workloads.elastic.report_waiting()
        unsent = self.workloads.messages.unsent
        while unsent:
            workload, sentence, reason = unsent.popleft()
            self.notifier.says(members.pods_of.get(workload.key, ()), sentence, reason)

    def _start_evictions(self) -> None:
        evictions, to_evict = self.executor.evictions, self.workloads.transitions.to_evict
        while to_evict:
            workload, why = to_evict.popleft()
            evictions.append(Eviction(why, "", [(workload, self.executor.going(workload))]))
        for eviction in evictions:
            jobs = [workload.key for workload, _ in eviction.victims]
            log_event(log, eviction.why, decision="evict", jobs=jobs, by=eviction.by)
            self.steps.evictor.start(eviction)
        evictions.clear()


def _touched(mirror: Mirror) -> tuple[dict[Any, Any], ...]:
    """Return the parts of the mirror with unprocessed changes."""
    return (
        mirror.touched,
        mirror.resized,
        mirror.nodes_touched,
        mirror.objects_touched,
        mirror.budgets_touched,
        mirror.claims_touched,
        mirror.devices.touched if mirror.has_devices else {},
    )
