"""The driver: what the API server says comes in as events, the core decides, and its plans go out.

One loop, in one thread: take in what has changed, decide, hand the work over, wait for more. Bindings, evictions and
words for people are sent by tasks beside it. The truth is in the API server alone: after a restart, a change of leader
or a change of the nodes the state is built from it anew, by the same code that follows it.

Long: one loop, and what each of its steps hands over.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kant.kube.act.binder import Binder
from kant.kube.act.claim_binder import ClaimBinder
from kant.kube.act.device_locks import DeviceLocks
from kant.kube.act.evictor import Eviction, Evictor
from kant.kube.act.plan_executor import KubeExecutor, ShadowExecutor
from kant.kube.act.volume_binder import VolumeBinder
from kant.kube.connect.client import ApiClient
from kant.kube.follow.informers import Informers
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.lead.answers import Answers, LeadershipLostError
from kant.kube.lead.calibration_store import CalibrationStore, learned_elsewhere, use_on_lease
from kant.kube.lead.counts import Counts
from kant.kube.lead.defragmentations import Defragmentations
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.notifier import Notifier
from kant.kube.notify.reasons import Reasons
from kant.kube.notify.recorder import EventRecorder
from kant.kube.notify.status import Statuses
from kant.kube.objects.views import Meta, Pod
from kant.kube.reconcile.bookings import Bookings
from kant.kube.reconcile.budgets import Budgets, Protection
from kant.kube.reconcile.device_lanes import REDRAW
from kant.kube.reconcile.fleet import Fleet, cluster_of
from kant.kube.reconcile.saved_work import SavedWork
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workloads import Workloads
from kant.kube.serve.metrics import KubeTelemetry
from kant.kube.translate.provisioning import PROVISIONING
from kant.live.core import Core
from kant.live.learned import SavedCalibration, restore_calibration
from kant.live.logs import log_decisions, log_event
from kant.live.queue_use import SavedUse
from kant.live.rounds import LiveRounds
from kant.model.decision import Plan
from kant.model.node import ClusterSpec
from kant.model.units import count_from
from kant.scheduler.profile import Profile

log = logging.getLogger("kant.kube")
CALM = 0.5  # seconds without a change of the nodes after which the state is built anew
LONGEST_UNREST = 5.0
PACE = 0.005  # seconds between two cycles at least; and no less than the last one took,
BREATH = 0.25  # but no more than this: a state that took long to build has first bindings to be told of
FAILING = 2.0  # seconds between two states that are built because nodes fail less
LEAST_WORK = 20.0  # and as many times as long as it took to build the last one, or to look whether one is due
IDLE = 1.0  # seconds after which the loop turns though nothing has happened
STALE = 10.0  # seconds between two states at least that are built while we stand by


class KubeDriver:
    """One replica that leads. `run` returns only by an exception: LeadershipLostError, or whatever a task has met."""

    def __init__(
        self,
        client: ApiClient,
        settings: DriverSettings,
        recorder: EventRecorder,
        holds: Callable[[], bool] = lambda: True,
        token: Callable[[], str] = lambda: "",
        on_trouble: Callable[[Exception], None] = lambda error: None,
        telemetry: KubeTelemetry | None = None,
    ) -> None:
        self.client = client
        self.settings = settings
        self.learned: SavedCalibration | None = None  # by another Kant, which has become this one
        self.used: SavedUse | None = None  # by queues, as the leader before this one told it
        self.telemetry = telemetry or KubeTelemetry()
        self.counts = Counts()
        self.mirror = Mirror(schedulers=settings.shadow or (settings.scheduler_name,))
        self.translation = Translation(self.mirror, settings.scheduler_name, settings.shadow)
        self._awake = asyncio.Event()
        self.informers = Informers(client, self.mirror, self._awake.set, on_trouble, self._malformed, settings.once)
        self.translation.groups = self.informers.groups
        self.volume_binder = VolumeBinder(client, self.mirror, self._awake.set, holds)
        self.volume_binder.chosen = lambda: self.translation.filters.chosen_volumes.chosen
        self.claim_binder = ClaimBinder(
            client, self.mirror, self.translation.devices, self._awake.set, holds, token=token
        )
        self.device_locks = DeviceLocks(client, self.mirror, self._awake.set, holds, settings.scheduler_name)
        self.binder = Binder(
            client, self.mirror, self._awake.set, holds, token, self.volume_binder, self.claim_binder, self.device_locks
        )
        self.evictor = Evictor(client, self._awake.set, holds, token, self.mirror)
        recorder.busy = self.is_binding
        self.notifier = Notifier(client, recorder, self.mirror, holds)
        self.holds = holds
        self.on_core: Callable[[Core], None] = lambda core: None  # a state begins to be built
        self.core: Core | None = None
        self.calibration_store = CalibrationStore(settings.journals.folder if settings.journals is not None else None)
        self.statuses = Statuses(client, self.mirror, self.translation, lambda: self.core, holds, lambda: self.bookings)
        self.rounds = (
            LiveRounds(settings.solver, self._awake.set, self._movable, most_starts=1) if settings.solver else None
        )
        self.defragmentations = Defragmentations(self.mirror, settings.solver, self._awake.set)
        self.statuses.rounds = self.defragmentations.statuses
        self.workloads: Workloads
        self.fleet: Fleet
        self.executor: KubeExecutor
        self.protection: Protection
        self.saved_work: SavedWork
        self.reasons: Reasons
        self.answers: Answers
        self._unrest = self._calm_since = -1.0
        self._change_at = 0
        self._built_at = self._build_s = self._look_at = 0.0
        self._touched: dict[str, None] = {}  # nodes that may fail fewer filters than they did
        self._volume_version = 0
        self._journal_trouble = ""
        self._queues_gone = False
        self._early: list[bytes] | None = None  # of the journal, while we do not lead yet

    def take_profile(self, profile: Profile) -> None:
        """Decide by another profile from the next state on, which is built at once."""
        self.settings = dataclasses.replace(self.settings, profile=profile)
        self.translation.stale = True
        self._awake.set()

    def reason(self, job: str) -> str:
        """Why a job waits, as people were told; "" where nothing has been said."""
        workload = self.workloads.by_job.get(job) if self.core is not None else None
        return workload.reason if workload is not None else ""

    def is_binding(self) -> bool:
        """Whether bindings are under way, before which all else waits."""
        return bool(self.binder.in_flight)

    def _malformed(self, kind: str, meta: Meta, sentence: str) -> None:
        """An object that does not even decode, and is left out."""
        known = {"pods": "Pod", "nodes": "Node"}.get(kind)
        if known is not None and meta.uid:
            self.notifier.malformed(known, meta, f"it is not as the API has it: {sentence}", not self.settings.shadow)
        else:
            log_event(log, f"{kind} {meta.name} is not as the API has it: {sentence}", logging.WARNING)

    async def run(self, led: asyncio.Event | None = None) -> None:
        """Follow, decide, carry out, for as long as we lead. Until `led` is set the state is only made ready."""
        synced = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.informers.run(synced))
                await synced.wait()
                if led is not None and not led.is_set():
                    await self._stand_by(led)
                await self._ask_what_was_learned()
                self._begin_to_lead()
                tasks.create_task(self.notifier.run())
                tasks.create_task(self.binder.run())
                if not self.settings.shadow:
                    tasks.create_task(self.statuses.run())
                await self._lead()
        finally:
            await self.evictor.close()
            await self.volume_binder.close()
            await self.claim_binder.close()
            await self.device_locks.close()
            if self.rounds is not None:
                self.rounds.close()
            self.defragmentations.close()
            if self.core is not None and self._early is None:
                self.calibration_store.put(self.core, last=True)
                self.core.end()
            if self.settings.journals is not None:
                self.settings.journals.close()

    async def _ask_what_was_learned(self) -> None:
        """Read what the leader before us has learned."""
        self.learned = await learned_elsewhere(self.client, self.settings.namespace)
        if self.settings.profile.order.shares:
            self.used = await use_on_lease(self.client, self.settings.namespace)

    async def _stand_by(self, led: asyncio.Event) -> None:
        """Build the state before we lead, and tell nobody. It is built anew when something has changed, now and then.

        What has changed since is taken in when we lead, once all is known that the last leader has bound. Raises
        BehindError.
        """
        while not led.is_set():
            if self.core is None or any(_touched(self.mirror)) or self.informers.read:
                self.core, self._early = None, []
                self.build()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(STALE, LEAST_WORK * self._build_s)):
                    await led.wait()
        await self.informers.know_of_bound()

    def _begin_to_lead(self) -> None:
        """Go on with the state that was built while we stood by, if there is one."""
        early, self._early, core = self._early or [], None, self.core
        if core is None:
            return
        if self.settings.journals is not None:
            core.journal.sink = write = self.settings.journals.open()
            for line in early:
                write(line)
        self.on_core(core)
        self._say_built(core)
        self.translation.queues(core)  # what the last leader knew of them is known now
        self._built_at = time.monotonic()
        for gang in self.workloads.partially_bound.in_part():
            gang.partial = core.clock()  # until now it was not for us to make it whole
        self.take_changes()
        restore_calibration(core, self.calibration_store.read() or self.learned, self.used)

    async def _lead(self) -> None:
        while True:
            began = time.monotonic()
            if not self.holds():
                raise LeadershipLostError
            wait = self.turn()
            await asyncio.sleep(min(max(PACE, time.monotonic() - began), BREATH))
            try:
                async with asyncio.timeout(wait):
                    await self._awake.wait()
            except TimeoutError:
                pass
            self._awake.clear()

    # --- one turn of the loop ---------------------------------------------------------------

    def turn(self) -> float:
        """Take in, decide, hand over. Returns the seconds after which to turn again though nothing happens."""
        if self.core is None and not self.build():
            return IDLE
        assert self.core is not None
        self.answers.take()
        self.take_changes()
        self._look_for_gone_queues()
        if self.informers.is_unsure:
            return IDLE  # we are woken
        if self._is_stale():
            if not (self.fleet.stale or self.settings.shadow):  # else claims that were just written would be in vain
                self.binder.pump(self.workloads.transitions.to_bind)
            if not self._is_calm():
                return CALM / 4
            if not self.build():
                return IDLE
        if self.workloads.may_lack_places() and time.monotonic() - self._built_at < self.settings.recovery:
            return IDLE  # we are woken; nobody else is to get what they need
        if self.bookings.settle():
            self.workloads.settle_all(self.workloads.naming_reservations())
        moves = not (self.settings.shadow or self.translation.presence.gone)  # else who is moved would not start again
        if self.rounds is not None and moves and not self.evictor.is_busy:
            proposal = self.rounds.turn(self.core)
            if proposal is not None:
                self._carry_out(self.core.propose(proposal))
        if moves:
            step = self.defragmentations.turn(self.core, self.workloads, self.evictor.is_busy)
            if step is not None:
                plan = self.core.propose(step)
                self.defragmentations.told(plan)
                self._carry_out(plan)
        began = time.monotonic()
        plan = self.core.cycle()
        self.counts.cycles += 1
        self.telemetry.cycle(time.monotonic() - began, plan)
        self._carry_out(plan)
        if not self.settings.shadow:
            self._preempt_by_node()
            if not self.is_binding():
                self.reasons.ask()
            self._hand_over()
        self.core.attribute()
        self._look_at_journals()
        self.core.observe()
        if not self.is_binding():
            self.calibration_store.put(self.core)
        wait = IDLE
        for moment in (plan.review_at, self._change_at):
            if moment >= 0:
                wait = min(wait, max((moment - self.core.now) / 1e6, 0.0))
        return wait

    def _carry_out(self, plan: Plan) -> None:
        log_decisions(log, plan, self.names)
        self.executor.execute(plan)

    def _preempt_by_node(self) -> None:
        """Make room for a pod that only what the core does not count keeps from every node."""
        found = self.workloads.node_preemption.turn()
        if found is not None:
            workload, plan = found
            self._carry_out(plan)
            going = (pods for one in self.executor.evictions if one.by == workload.job for _, pods in one.victims)
            uids = {pod.metadata.uid for pods in going for pod in pods}
            if not self.workloads.node_preemption.carried_out(workload, uids):
                self.workloads.settle(workload.key)

    def _movable(self, core: Core) -> frozenset[str]:
        """The jobs all of whose pods say that they may be moved."""
        return self.workloads.movable()

    def _look_at_journals(self) -> None:
        """Say whether the record goes on. Another file begins with a state that is built anew."""
        journals = self.settings.journals
        if journals is None:
            return
        journals.flush()
        if journals.trouble != self._journal_trouble:
            self._journal_trouble = journals.trouble
            self.telemetry.recording(not journals.trouble)
            self.notifier.journal(self.settings.namespace, journals.trouble)
        if journals.wants_new_file():
            self.translation.stale = True

    def _is_stale(self) -> bool:
        waited, patience = self.translation.filters.lanes.waited(), max(REDRAW, LEAST_WORK * self._build_s)
        due = waited > patience or self._change_at <= self.core.now  # type: ignore[union-attr]
        return self.fleet.stale or self.translation.stale or due

    def _is_calm(self) -> bool:
        """Whether the nodes have stood still for a while, and nothing is under way that a new state would miss."""
        now = time.monotonic()
        if self._unrest < 0:
            self._unrest = self._calm_since = now
        calm = not self.fleet.stale or now - self._calm_since >= CALM or now - self._unrest >= LONGEST_UNREST
        busy = self.binder.in_flight or self.binder.results or self.evictor.is_busy or self.claim_binder.is_busy
        return calm and not busy

    def build(self) -> bool:
        """The state anew, from what the API server has said. False where there is no node yet."""
        mirror, began = self.mirror, time.monotonic()
        mirror.hear(list(mirror.bound_here))
        now = int(time.time() * 1e6)
        zero = self.translation.beginning(now)
        self.translation.begin(zero)
        count_from(zero)
        spec = cluster_of(mirror, self.translation, now - zero)
        if spec is None:
            return False
        before = self.core
        self.core = self._new_core(spec, zero)
        if self._early is None:
            self.on_core(self.core)
        self._build_parts(self.core)
        self._settle_everything(self.core)
        self._unrest = -1.0
        self.counts.builds += 1
        if self._early is None:
            self._say_built(self.core)
        if before is not None:
            self.core.inherit(before)
        elif self._early is None:
            restore_calibration(self.core, self.calibration_store.read() or self.learned, self.used)
        self._look_up()
        self._built_at = time.monotonic()
        self._build_s = self._built_at - began
        return True

    def _new_core(self, spec: ClusterSpec, zero: int) -> Core:
        settings, waited = self.settings, {}
        if self.core is not None:
            waited = self.core.waits.kept(self.core.now)
            self.core.end()
        sink: Callable[[bytes], object] | None = None
        if settings.journals is not None:
            sink = settings.journals.open() if self._early is None else self._early.append
        return Core(spec, settings.profile, sink, zero, seed=settings.seed, waited=waited)

    def _build_parts(self, core: Core) -> None:
        """All that lives as long as one state."""
        mirror, binder = self.mirror, self.binder
        binder.results.clear()
        binder.leaving.clear()
        self.fleet = Fleet(core, mirror, self.translation)
        self.bookings = Bookings(core, self.translation)
        self.workloads = Workloads(core, mirror, self.translation, binder.leaving, binder.in_flight)
        self.workloads.recall, self.workloads.recount = binder.recall, self.fleet.follow
        binder.closed, binder.short = self.fleet.closed, set()
        budgets = Budgets(mirror)
        self.evictor.refuses = budgets.refuses
        self.protection = Protection(self.workloads, budgets)
        self.saved_work = SavedWork(self.workloads)
        self.translation.filters.promises.leaving = binder.leaving
        executor = ShadowExecutor if self.settings.shadow else KubeExecutor
        self.executor = executor(core, mirror, self.workloads, binder.leaving)
        self.answers = Answers(
            mirror, self.workloads, self.executor, binder, self.evictor, self.notifier, self.telemetry, self.counts
        )
        self.reasons = Reasons(core, self.workloads, self.notifier)

    def _settle_everything(self, core: Core) -> None:
        mirror, workloads = self.mirror, self.workloads
        self.translation.queues(core, 0)
        for touched in _touched(mirror):
            touched.clear()
        mirror.namespaces.touched = mirror.namespaces.relabelled = mirror.devices.is_new = False
        self.translation.queue_namespaces.take_changed()
        notes = [workloads.members.note(uid, pod) for uid, pod in mirror.pods.items()]
        workloads.settle_all({key: None for key in notes if key is not None})
        self.fleet.follow(mirror.nodes)
        workloads.rule_changes.count_beside(mirror.nodes)
        workloads.out_of_service = workloads.transitions.closed = self.fleet.closed
        self.protection.follow((), mirror.budgets)
        self.saved_work.follow(mirror.pods)
        self._change_at = self.translation.next_change(core.now)

    def _say_built(self, core: Core) -> None:
        nodes, complaints = core.state.node_index, self.translation.complaints
        self.names = core.state.node_rows.names
        self.telemetry.follow(core.state, core.now)
        log_event(log, "state built", nodes=len(nodes), pods=len(self.mirror.pods), waiting=len(core.state.pending))
        for about, sentence in complaints.items():
            if not about.startswith("node "):
                log_event(log, sentence, logging.WARNING, about=about)
        self.notifier.nodes(self.mirror.nodes, complaints, not self.settings.shadow)

    # --- what has happened ---------------------------------------------------------------

    def take_changes(self) -> None:
        """What the mirror has seen since the last time, as events."""
        mirror, workloads = self.mirror, self.workloads
        nodes = self._take_nodes()
        self._take_objects()
        pods, mirror.touched = mirror.touched, {}
        keys = self._take_pods(pods)
        self.informers.look_for_queues(pods.values())
        workloads.rule_changes.touch(pods)
        self._take_overrun()
        for name in nodes:
            if name in self.fleet.closed:
                keys.update(workloads.vacant_on(name))
        keys.update(workloads.come_to(self.fleet.take_others()))
        read, self.informers.read = self.informers.read, {}
        keys.update({"/".join(ref.key): None for ref in read})
        self._look_at_filters(nodes, pods)
        claims, mirror.claims_touched = mirror.claims_touched, {}
        keys.update(workloads.renew(uid for claim in claims for uid in mirror.users.get(claim, ())))
        if mirror.namespaces.touched:
            mirror.namespaces.touched, self.translation.stale = False, True
        keys.update(workloads.renew(self._take_devices()))
        keys.update(workloads.follow_sets())
        self._look_at_clock()
        if keys:
            workloads.settle_all(keys)
            self._look_up()
        self._look_at_homes()
        workloads.retry_partially_bound()
        workloads.partially_bound.complete_all()  # nobody is left in part when the core decides
        self._count_pods()
        budgets, mirror.budgets_touched = mirror.budgets_touched, {}
        self.protection.follow(pods, budgets)
        self.saved_work.follow(pods)

    def _take_nodes(self) -> dict[str, None]:
        names, self.mirror.nodes_touched = self.mirror.nodes_touched, {}
        if names:
            was_stale = self.fleet.stale
            self.fleet.follow(names)
            self.binder.recall(self.fleet.closed & names.keys())
            self.workloads.has_more(names)
            self.notifier.nodes(names, self.translation.complaints, not self.settings.shadow)
            if self.fleet.stale and was_stale:
                self._calm_since = time.monotonic()
        return names

    def _take_devices(self) -> list[str]:
        """The uids of the pods whose claims have changed, or the devices that they ask for."""
        devices = self.mirror.devices
        touched, devices.touched = devices.touched, {}
        if touched:
            self._touched.update(dict.fromkeys(self.translation.filters.failing))  # what one gives up is another's
        if devices.is_new:
            devices.is_new = False
            self.fleet.follow(self.mirror.nodes)
        return [uid for claim in touched for uid in devices.users.get(claim, ())]

    def _take_objects(self) -> None:
        assert self.core is not None
        objects, self.mirror.objects_touched = self.mirror.objects_touched, {}
        kinds = {kind for kind, _, _ in objects}
        if PROVISIONING in kinds:
            named = {(space, name) for kind, space, name in objects if kind == PROVISIONING}
            self.workloads.settle_all(self.workloads.consuming(named))
        if any(kind.startswith(("topologies", "reservations")) for kind in kinds):
            self.translation.stale = True
        elif "queues" in kinds or self.translation.presence.is_meant:
            self.translation.queues(self.core)
            self.workloads.try_rejected()
        elif self.mirror.namespaces.relabelled and self.translation.queue_namespaces.selecting:
            self.translation.queues(self.core)
        self.mirror.namespaces.relabelled = False
        changed = self.translation.queue_namespaces.take_changed()
        if changed or changed is None:
            self.workloads.settle_all(self.workloads.waiting_in(changed))

    def _take_pods(self, pods: dict[str, Pod]) -> dict[str, None]:
        """The keys of the workloads that they belong to."""
        keys = dict[str, None]()
        for uid, pod in pods.items():
            if uid not in self.mirror.pods or is_over(pod):
                self.binder.left(uid)
            if pod.spec.node_name:
                self.workloads.transitions.crowded[pod.spec.node_name] = None
            self.notifier.again(uid)
            key = self.workloads.members.note(uid, pod)
            if key is not None:
                keys[key] = None
        resized, self.mirror.resized = self.mirror.resized, {}
        if resized and self.workloads.resized(resized):
            self._build_in_time()
        return keys

    def _look_at_filters(self, nodes: dict[str, None], pods: dict[str, Pod]) -> None:
        """Build the state anew, but not too often, where nodes that failed a filter of waiting pods do not any more."""
        assert self.core is not None
        filters, version = self.translation.filters, self.mirror.volume_version + self.mirror.csi.version
        if version != self._volume_version and filters.chooses_volumes:
            self._touched.update(dict.fromkeys(filters.failing))
        self._volume_version = version
        self._touched.update(nodes)
        self._touched.update((pod.spec.node_name, None) for pod in pods.values() if pod.spec.node_name)
        if not filters.failing:
            self._touched.clear()
        began = time.monotonic()
        if not self._touched or began < self._look_at or self._change_at - self.core.now <= FAILING * 1e6:
            return
        touched, self._touched = self._touched, {}
        improved = filters.improved(touched)
        self._look_at = began + LEAST_WORK * (time.monotonic() - began)
        if improved:
            wait = max(self._built_at + max(FAILING, LEAST_WORK * self._build_s) - began, 0.0)
            self._change_at = min(self._change_at, self.core.now + int(wait * 1e6))

    def _look_for_gone_queues(self) -> None:
        """Say that no Queue is left, or that there is one again."""
        presence, namespace = self.translation.presence, self.settings.namespace
        if bool(presence.gone) != self._queues_gone:
            self._queues_gone = bool(presence.gone)
            self.telemetry.queues_gone(self._queues_gone)
            self.notifier.queues(namespace, presence.advice(namespace), not self.settings.shadow)

    def _look_at_homes(self) -> None:
        """Build the state anew where devices that pods share may be had elsewhere, but not too often."""
        assert self.core is not None
        if self.translation.devices.requests.has_other_homes:
            self._build_in_time()

    def _build_in_time(self) -> None:
        """Build the state anew, but not too often."""
        assert self.core is not None
        wait = max(FAILING, LEAST_WORK * self._build_s)
        self._change_at = min(self._change_at, self.core.now + int(wait * 1e6))

    def _take_overrun(self) -> None:
        """Nodes have lost GPUs that somebody holds."""
        overrun = self.fleet.take_overrun()
        if overrun:
            self.workloads.withdraw(overrun)
            self.fleet.follow(overrun)  # what is given up may be what is lost
        self.binder.short = set(self.fleet.overrun)

    def _look_at_clock(self) -> None:
        """What is due though nothing has changed."""
        workloads = self.workloads
        workloads.look_at_protected()
        due = workloads.elastic.due()
        if due:
            workloads.settle_all(due)
        workloads.messages.look_at_growing()
        for gang, limit in workloads.partially_bound.overdue(self.settings.recovery, self.settings.staleness):
            workloads.partially_bound.release(gang, f"not whole within {limit:g} s")
            self.counts.released += 1

    def _count_pods(self) -> None:
        """Count what no job says on nodes where pods came or went."""
        transitions = self.workloads.transitions
        crowded, transitions.crowded = transitions.crowded, {}
        if crowded:
            transitions.count_promised()
        self.workloads.rule_changes.count_beside(crowded)

    def _look_up(self) -> None:
        awaited, self.workloads.awaited = self.workloads.awaited, {}
        for ref in awaited:
            self.informers.look_up(ref)

    # --- what is to be done ---------------------------------------------------------------

    def _hand_over(self) -> None:
        self._start_evictions()
        transitions, members = self.workloads.transitions, self.workloads.members
        while transitions.completed:
            workload, seconds = transitions.completed.popleft()
            if workload.job:
                assert self.core is not None
                self.telemetry.whole(self.core.state, self.core.state.rows[workload.job], self.core.now)
            self.telemetry.partial(seconds)
        self.binder.pump(transitions.to_bind)
        self.claim_binder.take_back()
        while self.executor.held:
            workload, decision = self.executor.held.popleft()
            told = "; ".join(self.reasons.remarks(workload, decision.reason))
            self.notifier.waits(workload, members.pods_of.get(workload.key, ()), decision.reason, told)
        self.workloads.elastic.tell_waiting()
        unsent = self.workloads.messages.unsent
        while unsent:
            workload, sentence, reason = unsent.popleft()
            self.notifier.says(workload, members.pods_of.get(workload.key, ()), sentence, reason)

    def _start_evictions(self) -> None:
        evictions, to_evict = self.executor.evictions, self.workloads.transitions.to_evict
        while to_evict:
            workload, why = to_evict.popleft()
            evictions.append(Eviction(why, "", [(workload, self.executor.going(workload))]))
        for eviction in evictions:
            jobs = [workload.key for workload, _ in eviction.victims]
            log_event(log, eviction.why, decision="evict", jobs=jobs, by=eviction.by)
            self.evictor.start(eviction)
        evictions.clear()


def _touched(mirror: Mirror) -> tuple[dict[Any, Any], ...]:
    """What of the mirror nobody has looked at since it changed."""
    return (
        mirror.touched,
        mirror.resized,
        mirror.nodes_touched,
        mirror.objects_touched,
        mirror.budgets_touched,
        mirror.claims_touched,
        mirror.devices.touched,
    )
