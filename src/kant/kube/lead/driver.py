"""The driver: objects of the API server become events, the core decides, and its plans are carried out.

The driver is one loop in one thread: process changes, decide, queue the requests, wait for changes. Separate tasks send
bindings, evictions and messages. Only the API server is authoritative: after a restart, a change of leader or certain
changes of nodes the state is rebuilt from it, by the same code that follows it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from kant.kube.act.effects import Effects
from kant.kube.act.gates import asks
from kant.kube.act.steps import Steps
from kant.kube.connect.client import ApiClient
from kant.kube.follow.informers import OWN_KINDS, Informers
from kant.kube.follow.mirror import Mirror
from kant.kube.lead.answers import Counts, LeadershipLostError
from kant.kube.lead.calibration_store import CalibrationStore
from kant.kube.lead.live_state import LiveState
from kant.kube.lead.proposals import Proposals
from kant.kube.lead.rebuilding import QUIET, Rebuilding
from kant.kube.lead.reports import Reports
from kant.kube.lead.settings import DriverSettings
from kant.kube.lead.steady_clock import SteadyClock
from kant.kube.notify.notifier import Notifier
from kant.kube.notify.recorder import EventRecorder
from kant.kube.objects.views import Pod
from kant.kube.reconcile.fleet import cluster_of
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workloads import Workloads
from kant.kube.serve.metrics import KubeTelemetry
from kant.live.core import Core
from kant.model.node import ClusterSpec
from kant.model.units import count_from
from kant.scheduler.profile import Profile

if TYPE_CHECKING:
    from kant.kube.lead.trials import Trials
    from kant.kube.notify.status import Statuses

PACE = 0.005  # minimum seconds between two cycles; the pause is also at least as long as the last cycle
BREATH = 0.25  # the longest such pause, since bindings are due after a slow build
IDLE = 1.0  # seconds after which the loop runs again without a change


class KubeDriver:
    """Schedules for one replica. `run` ends only by an exception: LeadershipLostError, or the exception of a task."""

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
        self.telemetry = telemetry or KubeTelemetry()
        self.counts = Counts()
        self.clock = SteadyClock()
        self.mirror = Mirror(schedulers=settings.shadow or (settings.scheduler_name,))
        self.translation = Translation(self.mirror, settings.scheduler_name, settings.shadow)
        self._awake = asyncio.Event()
        self.informers = Informers(
            client,
            self.mirror,
            self._awake.set,
            on_trouble,
            lambda *about: self.reports.malformed(*about),
            settings.once,
        )
        self.translation.groups = self.informers.groups
        self.effects = effects = Effects(client, self._awake.set, holds, token)
        self.steps = Steps(effects, self.mirror, self.translation)
        recorder.busy, recorder.on_dropped = self.steps.is_binding, self.telemetry.dropped
        self.notifier = Notifier(effects, recorder, self.mirror)
        self.on_core: Callable[[Core], None] = lambda core: None  # called when the build of a state begins
        self.state: LiveState | None = None
        self.rebuilding = Rebuilding(self.translation)
        self.calibration_store = CalibrationStore(settings.journals.folder if settings.journals is not None else None)
        self.proposals = Proposals(self.mirror, settings.solver, self._awake.set, lambda: self.state)
        self._asked = asyncio.Event()  # set by the first pod that only asks when it would start
        self.reports = Reports(settings, self.translation, recorder, self.telemetry)
        self._early: list[bytes] | None = None  # journal lines of a state built on standby; None: leading

    @cached_property
    def trials(self) -> Trials:
        """Answers pods that only ask when they would start. Imported when the first such pod appears."""
        from kant.kube.lead.trials import Trials

        return Trials(self.translation, self.notifier, self.settings.forecaster, lambda: self.core)

    @cached_property
    def statuses(self) -> Statuses:
        """Writes the statuses of Kant's own objects; imported when the first such object appears."""
        from kant.kube.notify.status import Statuses

        return Statuses(self.effects, self.translation, lambda: self.state, self.proposals.statuses)

    async def _write_statuses(self) -> None:
        while not any(self.mirror.objects.get(kind) for kind in OWN_KINDS):
            await asyncio.sleep(IDLE)
        await self.statuses.run()

    def _look_for_trials(self, pods: Mapping[str, Pod]) -> None:
        if any(map(asks, pods.values())):
            self.trials.look(pods)
            self._asked.set()

    async def _answer_trials(self) -> None:
        await self._asked.wait()
        await self.trials.run()

    def take_profile(self, profile: Profile) -> None:
        """Use `profile` from the next state on, which is built at once."""
        self.settings = dataclasses.replace(self.settings, profile=profile)
        self.translation.stale = True
        self._awake.set()

    @property
    def core(self) -> Core | None:
        """The core of the current state; None while there is no state, as in a cluster without nodes."""
        return self.state.core if self.state is not None else None

    @property
    def workloads(self) -> Workloads:
        """The workloads of the current state."""
        assert self.state is not None
        return self.state.workloads

    def reason(self, job: str) -> str:
        """Return the reported reason why a job waits; "" if none was reported."""
        workload = self.workloads.by_job.get(job) if self.state is not None else None
        return workload.reason if workload is not None else ""

    async def run(self, led: asyncio.Event | None = None) -> None:
        """Follow the cluster; decide and act while leading. Until `led` is set, only keep the state up to date."""
        synced = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.informers.run(synced))
                await synced.wait()
                if led is not None and not led.is_set():
                    await self._stand_by(led)
                await self.calibration_store.look_elsewhere(
                    self.client, self.settings.namespace, self.settings.profile.order.shares
                )
                self._begin_to_lead()
                tasks.create_task(self.notifier.recorder.run())
                tasks.create_task(self.effects.run())
                if not self.settings.shadow:
                    tasks.create_task(self._write_statuses())
                    tasks.create_task(self._answer_trials())
                await self._lead()
        finally:
            gc.unfreeze()
            self.proposals.close()
            if self.core is not None and self._early is None:
                self.calibration_store.put(self.core, last=True)
                self.core.end()
            if self.settings.journals is not None:
                self.settings.journals.close()

    async def _stand_by(self, led: asyncio.Event) -> None:
        """Until `led` is set, build the state without writing anything, and rebuild it from time to time.

        Then wait until the watch shows all bindings of the last leader. Raises BehindError if that takes too long.
        """
        while not led.is_set():
            if self.state is None or self.state.has_changes:
                self.state, self._early = None, []
                self.clock.set()
                self.build()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rebuilding.rest):
                    await led.wait()
        await self.informers.know_of_bound()

    def _begin_to_lead(self) -> None:
        """Continue with the state that was built on standby, if there is one."""
        early, self._early, state = self._early or [], None, self.state
        if state is None:
            return
        core = state.core
        if self.settings.journals is not None:
            core.journal.sink = write = self.settings.journals.open()
            for line in early:
                write(line)
        self.on_core(core)
        self.reports.built(core)
        self.translation.queues.follow(core)  # what the last leader noted about queues is known now
        self.rebuilding.built_at = time.monotonic()
        for gang in state.workloads.partially_bound.in_part():
            gang.partial = core.clock()  # on standby, this replica could not complete the gang
        self.take_changes()
        self.calibration_store.restore(core)

    async def _lead(self) -> None:
        while True:
            began = time.monotonic()
            if not self.effects.holds():
                raise LeadershipLostError
            wait = self.turn()
            await asyncio.sleep(min(max(PACE, time.monotonic() - began), BREATH))
            try:
                async with asyncio.timeout(wait):
                    await self._awake.wait()
            except TimeoutError:
                pass
            self._awake.clear()

    # --- one pass of the loop ---------------------------------------------------------------

    def turn(self) -> float:
        """Process changes, decide, and queue the requests. Returns for how many seconds to wait for changes."""
        if self.state is None and not self.build():
            return IDLE
        assert self.state is not None
        self.state.answers.take()
        self.take_changes()
        self.reports.look_for_gone_queues()
        if self.informers.is_unsure:
            return IDLE  # a change wakes the loop
        state, steps, shadow = self.state, self.steps, bool(self.settings.shadow)
        if self.rebuilding.is_due(state.core, state.fleet):
            if not (state.fleet.stale or shadow):  # otherwise claims would be written in vain
                steps.binder.pump(state.workloads.transitions.to_bind)
            if not self.rebuilding.is_stable(state.fleet) or steps.is_busy:
                return QUIET / 4
            if not self.build():
                return IDLE
            state = self.state
        if self.rebuilding.is_look_due():
            state.look_at_filters()
        fresh = time.monotonic() - self.rebuilding.built_at < self.settings.recovery
        if fresh and state.workloads.reading.unread and state.workloads.reading.may_lack_places():
            return IDLE  # a gang whose group is unread must not lose its capacity; changes wake the loop
        if self.translation.booked and state.bookings.settle():
            state.workloads.settle_all(state.workloads.affected.naming_reservations())
        if not (shadow or self.translation.queues.presence.gone):  # otherwise a moved job could not start again
            self.proposals.carry_out(state)
        core, began = state.core, time.monotonic()
        plan = core.cycle()
        self.counts.cycles += 1
        self.telemetry.cycle(time.monotonic() - began, plan)
        state.carry_out(plan)
        if not shadow:
            state.preempt_by_node()
            state.hand_over()
            if not steps.is_binding():  # messages about waiting pods are sent after bindings
                state.reasons.ask()
        core.attribute()
        core.observe()
        if core.is_overgrown or (self.settings.journals is not None and self.reports.look_at_journals()):
            self.translation.stale = True
        if not steps.is_binding():
            self.calibration_store.put(core)
        moments = (moment for moment in (plan.review_at, self.rebuilding.change_at) if moment >= 0)
        return min([IDLE, *(max((moment - core.now) / 1e6, 0.0) for moment in moments)])

    def take_changes(self) -> None:
        """Turn the changes of the mirror since the last call into events."""
        assert self.state is not None
        self._look_for_trials(self.mirror.touched)
        self.state.take_changes()

    def build(self) -> bool:
        """Build the state from the objects of the API server. Returns False if there is no node yet."""
        mirror, began = self.mirror, time.monotonic()
        mirror.apply_bindings(list(mirror.bound_here))
        now = int(self.clock() * 1e6)
        zero = self.translation.beginning(now)
        self.translation.begin(zero)
        count_from(zero)
        spec = cluster_of(mirror, self.translation, now - zero)
        if spec is None:
            return False
        before = self.core
        core = self._new_core(spec, zero, before)
        if self._early is None:
            self.on_core(core)
        self.state = state = LiveState(
            core, self.settings, self.translation, self.steps, self.informers, self.notifier, self.rebuilding,
            self.telemetry, self.counts, self.reports,
        )  # fmt: skip
        self._look_for_trials(mirror.pods)
        state.settle_everything()
        self.counts.builds += 1
        if self._early is None:
            self.reports.built(core)
        if before is not None:
            core.inherit(before)
        elif self._early is None:
            self.calibration_store.restore(core)
        state.look_up()
        if self.counts.builds > 1:  # the previous state is garbage
            gc.unfreeze()
            gc.collect()
        gc.freeze()  # otherwise a full collection visits the whole state: 0.25 s with 10,000 nodes
        self.rebuilding.built(now - zero, began)
        return True

    def _new_core(self, spec: ClusterSpec, zero: int, before: Core | None) -> Core:
        settings, waited = self.settings, {}
        if before is not None:
            waited = before.waits.kept(before.now)
            before.end()
        sink: Callable[[bytes], object] | None = None
        if settings.journals is not None:
            sink = settings.journals.open() if self._early is None else self._early.append
        return Core(spec, settings.profile, sink, zero, self.clock, settings.seed, waited)
