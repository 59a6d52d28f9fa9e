"""The driver: what the API server says comes in as events, the core decides, and its plans go out.

One loop, in one thread: take in what has changed, decide, hand the work over, wait for more. Bindings, evictions and
words for people are sent by tasks beside it. The truth is in the API server alone: after a restart, a change of leader
or a change of the nodes the state is built from it anew, by the same code that follows it.

Long: one turn of the loop can be read from the change that comes in to the answer of the API server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kant.kube.binder import Answer, Binder, Outcome
from kant.kube.budgets import Budgets, Protection
from kant.kube.carry import Carrier
from kant.kube.client import Client
from kant.kube.evictor import Eviction, Evictor
from kant.kube.fleet import Fleet, cluster_of
from kant.kube.following import Following
from kant.kube.lessons import Shelf, learned_by, teach
from kant.kube.metrics import Telemetry
from kant.kube.mirror import Mirror, is_over
from kant.kube.objects import Meta
from kant.kube.reasons import Reasons
from kant.kube.recorder import Recorder
from kant.kube.status import Statuses
from kant.kube.telling import Telling
from kant.kube.translation import Translation
from kant.kube.workload import Phase
from kant.kube.workloads import Workloads
from kant.live.core import Core
from kant.live.journals import Journals
from kant.live.logs import decisions, said
from kant.model.units import count_from
from kant.scheduler.profile import Profile

log = logging.getLogger("kant.kube")
CALM = 0.5  # seconds without a change of the nodes after which the state is built anew
LONGEST_UNREST = 5.0
PACE = 0.005  # seconds between two cycles at least; and no less than the last one took,
BREATH = 0.25  # but no more than this: a state that took long to build has first bindings to be told of
IDLE = 1.0  # seconds after which the loop turns though nothing has happened


class Deposed(Exception):  # noqa: N818 - it is no error: somebody else leads
    """Another replica leads now."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`journals`: where they go (None: nowhere). `shadow`: decide for the GPU pods of these schedulers, and do nothing.

    `recovery`, `staleness`: as for `Halves.overdue`.
    """

    profile: Profile
    journals: Journals | None = None
    scheduler_name: str = "kant"
    shadow: tuple[str, ...] = ()
    recovery: float = 30.0
    staleness: float = 60.0
    seed: int = 0


@dataclass(slots=True)
class Counts:
    """What has happened since the replica leads."""

    cycles: int = 0
    builds: int = 0
    bound: int = 0
    refused: int = 0
    evicted: int = 0
    released: int = 0


class Driver:
    """One replica that leads. `run` returns only by an exception: Deposed, or whatever a task has met."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        recorder: Recorder,
        holds: Callable[[], bool] = lambda: True,
        token: Callable[[], str] = lambda: "",
        on_trouble: Callable[[Exception], None] = lambda error: None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.settings = settings
        self.telemetry = telemetry or Telemetry()
        self.counts = Counts()
        self.mirror = Mirror()
        self.words = Translation(self.mirror, settings.scheduler_name, settings.shadow)
        self._awake = asyncio.Event()
        self.following = Following(client, self.mirror, self._awake.set, on_trouble, self._malformed)
        self.words.groups = self.following.groups
        self.binder = Binder(client, self.mirror, self._awake.set, holds, token)
        self.evictor = Evictor(client, self._awake.set, holds, token, self.mirror)
        recorder.busy = self.is_binding
        self.telling = Telling(client, recorder, self.mirror, holds)
        self.holds = holds
        self.on_core: Callable[[Core], None] = lambda core: None  # a state begins to be built
        self.core: Core | None = None
        self.shelf = Shelf(settings.journals.folder if settings.journals is not None else None)
        self.statuses = Statuses(client, self.mirror, self.words, lambda: self.core, holds)
        self.workloads: Workloads
        self.fleet: Fleet
        self.carrier: Carrier
        self.protection: Protection
        self.reasons: Reasons
        self._unrest = self._calm_since = -1.0
        self._change_at = 0

    def take_profile(self, profile: Profile) -> None:
        """Decide by another profile from the next state on, which is built at once."""
        self.settings = dataclasses.replace(self.settings, profile=profile)
        self.words.stale = True
        self._awake.set()

    def reason(self, job: str) -> str:
        """Why a job waits, as people were told; "" where nothing has been said."""
        known = self.workloads.by_job.get(job) if self.core is not None else None
        return known.reason if known is not None else ""

    def is_binding(self) -> bool:
        """Whether bindings are under way, before which all else waits."""
        return bool(self.binder.in_flight)

    def _malformed(self, kind: str, meta: Meta, sentence: str) -> None:
        """An object that does not even decode, and is left out."""
        known = {"pods": "Pod", "nodes": "Node"}.get(kind)
        if known is not None and meta.uid:
            self.telling.malformed(known, meta, f"it is not as the API has it: {sentence}", not self.settings.shadow)
        else:
            said(log, f"{kind} {meta.name} is not as the API has it: {sentence}", logging.WARNING)

    async def run(self) -> None:
        """Follow, decide, carry out, for as long as we lead."""
        synced = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.following.run(synced))
                tasks.create_task(self.telling.run())
                await synced.wait()
                tasks.create_task(self.binder.run())
                if not self.settings.shadow:
                    tasks.create_task(self.statuses.run())
                await self._lead()
        finally:
            await self.evictor.close()
            if self.core is not None:
                self.shelf.put(self.core, last=True)
                self.core.end()
            if self.settings.journals is not None:
                self.settings.journals.close()

    async def _lead(self) -> None:
        while True:
            began = time.monotonic()
            if not self.holds():
                raise Deposed
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
        self._take_answers()
        self.take_changes()
        if self._is_stale():
            if not self._is_calm():
                return CALM / 4
            if not self.build():
                return IDLE
        began = time.monotonic()
        plan = self.core.cycle()
        self.counts.cycles += 1
        self.telemetry.cycle(time.monotonic() - began, plan)
        decisions(log, plan, self.names)
        if self.settings.shadow:
            self.carrier.only_note(plan)
        else:
            self.carrier.carry(plan)
            if not self.is_binding():
                self.reasons.ask()
            self._hand_over()
        self.core.attribute()
        if self.settings.journals is not None:
            self.settings.journals.flush()
        self.core.observe(idle=not self.is_binding())
        if not self.is_binding():
            self.shelf.put(self.core)
        wait = IDLE
        for moment in (plan.review_at, self._change_at):
            if moment >= 0:
                wait = min(wait, max((moment - self.core.now) / 1e6, 0.0))
        return wait

    def _is_stale(self) -> bool:
        return self.fleet.stale or self.words.stale or self._change_at <= self.core.now  # type: ignore[union-attr]

    def _is_calm(self) -> bool:
        """Whether the nodes have stood still for a while, and nothing is under way that a new state would miss."""
        now = time.monotonic()
        if self._unrest < 0:
            self._unrest = self._calm_since = now
        calm = not self.fleet.stale or now - self._calm_since >= CALM or now - self._unrest >= LONGEST_UNREST
        return calm and not (self.binder.in_flight or self.binder.answers or self.evictor.is_busy)

    def build(self) -> bool:
        """The state anew, from what the API server has said. False where there is no node yet."""
        mirror, settings = self.mirror, self.settings
        mirror.hear(list(mirror.bound_here))
        now = int(time.time() * 1e6)
        zero = self.words.beginning(now)
        self.words.begin(zero)
        count_from(zero)
        spec = cluster_of(mirror, self.words, now - zero)
        if spec is None:
            return False
        waited = {}
        learned = learned_by(self.core) if self.core is not None else self.shelf.read()
        if self.core is not None:
            waited = self.core.waits.kept(self.core.now)
            self.core.end()
        sink = settings.journals.open() if settings.journals is not None else None
        self.core = Core(spec, settings.profile, sink, zero, seed=settings.seed, waited=waited)
        self.on_core(self.core)
        self.fleet = Fleet(self.core, mirror, self.words)
        self.workloads = Workloads(
            self.core, mirror, self.words, self.binder.leaving, self.fleet.seats, self.binder.in_flight
        )
        self.budgets = Budgets(mirror)
        self.evictor.refuses = self.budgets.refuses
        self.protection = Protection(self.workloads, self.budgets)
        self.carrier = Carrier(self.core, mirror, self.workloads, self.binder.leaving)
        self.reasons = Reasons(self.core, self.workloads, self.telling)
        self.binder.answers.clear()
        self.binder.leaving.clear()
        self.binder.closed, self.binder.short = self.fleet.closed, set()
        self.workloads.recall = self.binder.recall
        self.workloads.recount = self.fleet.follow
        self.words.queues(self.core, 0)
        mirror.touched.clear()
        mirror.nodes_touched.clear()
        mirror.objects_touched.clear()
        mirror.budgets_touched.clear()
        notes = [self.workloads.note(uid, pod) for uid, pod in mirror.pods.items()]
        self.workloads.settle_all({key: None for key in notes if key is not None})
        self.fleet.follow(mirror.nodes)
        self.fleet.count_seats(mirror.nodes)
        self.workloads.out_of_service = self.fleet.closed
        self.protection.follow((), mirror.budgets)
        self._change_at = self.words.next_change(self.core.now)
        self._unrest = -1.0
        self.counts.builds += 1
        self.names = [node.name for node in spec.nodes]
        self.telemetry.follow(self.core.state, self.core.now)
        said(log, "state built", nodes=len(spec.nodes), pods=len(mirror.pods), waiting=len(self.core.state.pending))
        for about, sentence in self.words.complaints.items():
            if not about.startswith("node "):
                said(log, sentence, logging.WARNING, about=about)
        self.telling.nodes(mirror.nodes, self.words.complaints, not settings.shadow)
        teach(self.core, learned)
        self._look_up()
        return True

    # --- what has happened ---------------------------------------------------------------

    def take_changes(self) -> None:
        """What the mirror has seen since the last time, as events."""
        mirror, workloads = self.mirror, self.workloads
        names, mirror.nodes_touched = mirror.nodes_touched, {}
        if names:
            was_stale = self.fleet.stale
            self.fleet.follow(names)
            self.binder.recall(self.fleet.closed & names.keys())
            workloads.has_more(names)
            self.telling.nodes(names, self.words.complaints, not self.settings.shadow)
            if self.fleet.stale and was_stale:
                self._calm_since = time.monotonic()
        objects, mirror.objects_touched = mirror.objects_touched, {}
        self._take_objects({kind for kind, _, _ in objects})
        keys: dict[str, None] = {}
        touched, mirror.touched = mirror.touched, {}
        for uid, pod in touched.items():
            gone = uid not in mirror.pods
            if gone or is_over(pod):
                self.binder.left(uid, pod.spec.node_name)
            if pod.spec.node_name:
                workloads.crowded[pod.spec.node_name] = None
            self.telling.again(uid)
            key = workloads.note(uid, pod)
            if key is not None:
                keys[key] = None
        overrun = self.fleet.take_overrun()
        if overrun:
            workloads.withdraw(overrun)
            self.fleet.follow(overrun)  # what is given up may be what is lost
        self.binder.short = set(self.fleet.overrun)
        for name in names:
            if name in self.fleet.closed:
                keys.update(workloads.vacant_on(name))
        read, self.following.read = self.following.read, {}
        keys.update({"/".join(ref.key): None for ref in read})
        workloads.look_at_spared()
        workloads.look_at_growing()
        for known, limit in workloads.halves.overdue(self.settings.recovery, self.settings.staleness):
            workloads.halves.release(known, f"not whole within {limit:g} s")
            self.counts.released += 1
        if keys:
            workloads.settle_all(keys)
            self._look_up()
        workloads.halves.try_again()
        workloads.halves.mend_found()  # nobody is left in part when the core decides
        crowded, workloads.crowded = workloads.crowded, {}
        if crowded:
            workloads.count_promised()
        self.fleet.count_seats(name for name in crowded if name in mirror.nodes)
        budgets, mirror.budgets_touched = mirror.budgets_touched, {}
        self.protection.follow(touched, budgets)

    def _take_objects(self, kinds: set[str]) -> None:
        assert self.core is not None
        if any(kind.startswith(("topologies", "reservations")) for kind in kinds):
            self.words.stale = True
        elif "queues" in kinds:
            self.words.queues(self.core)
            self.workloads.try_rejected()

    def _look_up(self) -> None:
        awaited, self.workloads.awaited = self.workloads.awaited, {}
        for ref in awaited:
            self.following.look_up(ref)

    def _take_answers(self) -> None:
        answers, keys = list(self.binder.answers), dict[str, None]()
        self.binder.answers.clear()
        if any(answer.outcome is Outcome.DEPOSED for answer in answers):
            raise Deposed
        for answer in sorted(answers, key=lambda one: one.outcome is not Outcome.BOUND):
            self._take_answer(answer)  # what is bound first: nobody may have its place because another was refused
        for answer in answers:
            known = answer.workload
            if not self.workloads.is_flying(known) and not known.is_bound:  # what had to wait for the last answer
                if known.refused:
                    self.workloads.refused(known, known.refused, known.blameless)
                keys[known.key] = None
            elif answer.outcome is not Outcome.BOUND:
                keys[known.key] = None
        while self.evictor.refused:
            self._take_refusal(self.evictor.refused.popleft(), keys)
        while self.evictor.done:
            self._take_eviction(self.evictor.done.popleft())
        if keys:
            self.workloads.settle_all(keys)

    def _take_answer(self, answer: Answer) -> None:
        known, slot, uid = answer.workload, answer.slot, answer.uid
        pod = self.mirror.pods.get(uid)
        if answer.outcome is not Outcome.BOUND:
            if answer.outcome is not Outcome.WITHDRAWN:
                self.telemetry.bind_failed(answer.code or "lost")
        else:
            self.counts.bound += 1
            self.telemetry.bound(answer.seconds)
            if pod is not None:
                if not pod.spec.node_name:
                    self.mirror.bound_here[uid] = slot.node
                self.telling.bound(pod, slot.node)
        if self.workloads.known.get(known.key) is not known:
            return
        if answer.outcome is Outcome.BOUND and slot in known.slots and slot.pod == uid:
            slot.bound = True
            self.workloads.time_partial(known)
            return
        if answer.outcome is Outcome.BOUND and pod is not None and not pod.spec.node_name:
            self.mirror.hear([uid])  # its place was taken from it meanwhile
        elif answer.outcome is Outcome.ASTRAY and answer.pod is not None:
            self.mirror.pod("modified", answer.pod)
        elif answer.outcome is Outcome.REFUSED and slot in known.slots:
            self.counts.refused += 1
            self.workloads.say(known, f"a pod of it could not be bound: {answer.why}")
            self.workloads.refused(known, answer.why)
        elif answer.outcome is Outcome.WITHDRAWN and slot in known.slots:
            self.workloads.refused(known, answer.why, blameless=True)
        self.workloads.to_bind.append(known)  # it may have other places by now

    def _take_eviction(self, eviction: Eviction) -> None:
        """All of them have been asked to go."""
        evicted = sum(len(pods) for _, pods in eviction.victims)
        self.counts.evicted += evicted
        self.telemetry.evicted(eviction.right, evicted)
        self.telling.evicted(eviction)

    def _take_refusal(self, eviction: Eviction, keys: dict[str, None]) -> None:
        """Somebody may not be evicted: the winner waits again, and the victims stay what they are."""
        self.telling.may_not_go(eviction)
        if eviction.by:
            self.carrier.unplace(eviction.by, f"it may not evict whom it would replace: {eviction.refused}")
        for known, pods in eviction.victims:
            for pod in pods:
                self.binder.left(pod.metadata.uid, pod.spec.node_name)
            if known.phase is Phase.LEAVING:
                self.workloads.stays(
                    known, not eviction.protected or eviction.protected in {p.metadata.uid for p in pods}
                )
                keys[known.key] = None

    # --- what is to be done ---------------------------------------------------------------

    def _hand_over(self) -> None:
        workloads, carrier = self.workloads, self.carrier
        while workloads.to_evict:
            known, why = workloads.to_evict.popleft()
            carrier.evictions.append(Eviction(why, "", [(known, carrier.going(known))]))
        for eviction in carrier.evictions:
            said(log, eviction.why, decision="evict", jobs=[known.key for known, _ in eviction.victims], by=eviction.by)
            self.evictor.start(eviction)
        carrier.evictions.clear()
        while workloads.completed:
            known, seconds = workloads.completed.popleft()
            if known.job:
                assert self.core is not None
                self.telemetry.whole(self.core.state, self.core.state.rows[known.job], self.core.now)
            self.telemetry.partial(seconds)
        self.binder.pump(workloads.to_bind)
        while carrier.held:
            known, decision = carrier.held.popleft()
            self.telling.waits(known, workloads.pods_of.get(known.key, ()), decision.reason)
        while workloads.told:
            known, sentence, for_capacity = workloads.told.popleft()
            self.telling.says(known, workloads.pods_of.get(known.key, ()), sentence, for_capacity)
