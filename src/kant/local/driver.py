"""The driver: what people ask and what processes do comes in as events, the core decides, and its plans go out.

One loop, in one thread. A turn takes in what has happened, decides, writes all that has changed to the book in one
transaction, and only then starts and stops processes and answers those who asked. The truth is in the book and in the
folders of the runs: after a restart the state is built from them anew.

Long: a turn, and what may come between two of them, can be read in one place, in the order in which the book is
written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kant.cluster.columns import can_take
from kant.live.core import Core
from kant.live.journals import Journals
from kant.live.logs import decisions, said
from kant.live.waits import Split
from kant.local.carry import Carrier
from kant.local.clock import SteadyClock
from kant.local.endings import Endings
from kant.local.launch import Launcher
from kant.local.record import OVER, Book, Phase, Record
from kant.local.runs import Exit
from kant.local.wishes import job_of
from kant.model.errors import InputError
from kant.model.event import (
    Event,
    JobCancelled,
    JobStarted,
    JobSubmitted,
    QueuesChanged,
)
from kant.model.node import ClusterSpec
from kant.model.tenant import Tenancy
from kant.model.units import count_from
from kant.scheduler.profile import Profile

if TYPE_CHECKING:
    from kant.local.telemetry import Telemetry

log = logging.getLogger("kant.local")
PACE = 0.005  # seconds between two turns at least; and no less than the last one took
IDLE = 1.0  # seconds after which the loop turns though nothing has happened
FORGET = 50_000  # jobs that have left, with which the state is built anew
NO_QUEUES = Tenancy()
BURST = 5_000  # submissions that one turn takes in


@dataclass(frozen=True, slots=True)
class Settings:
    """`runs`: the folder of the runs. `log_bytes`: the most that is kept of the output of one.

    `cores`: those of this machine, of which runs get a share; none where the cluster is a virtual one. `cgroups`: the
    folder in which runs may have cgroups.
    """

    cluster: ClusterSpec
    profile: Profile
    runs: Path
    tenancy: Tenancy = NO_QUEUES
    journals: Journals | None = None
    log_bytes: int = 1 << 30
    seed: int = 0
    cores: tuple[int, ...] = ()
    cgroups: Path | None = None


class Driver:
    """One Kant on one machine. `records` has the jobs that are not over, by id, in the order of their submission."""

    def __init__(self, settings: Settings, book: Book, clock: SteadyClock) -> None:
        self.settings = settings
        self.book = book
        self.clock = clock
        self.records: dict[str, Record] = {}
        self.by_core: dict[str, Record] = {}
        self.core_id: dict[str, str] = {}
        self.notes: dict[str, str] = {}  # why a job waits, as it was last said
        self.dirty: dict[str, Record] = {}
        self.waits_for: dict[str, dict[str, None]] = {}
        self.trouble = ""  # why nothing can be written, in one sentence
        self.on_change: Callable[[Record], None] = lambda record: None
        self.telemetry: Telemetry | None = None
        self.on_build: Callable[[Core], None] = lambda core: None
        self.on_built: Callable[[], None] = lambda: None  # everybody who was there before is in
        self.launcher = Launcher(settings, self._over)
        self.widest = max(node.gpus for node in settings.cluster.nodes)
        self.endings = Endings(self)
        self._new: list[Record] = []
        self._ended: list[tuple[Record, Exit]] = []
        self._answers: list[asyncio.Future[None]] = []
        self._awake = asyncio.Event()
        self._anew = False  # the state is to be built anew
        self.waited: Mapping[str, Split] = {}  # by cause, as the Kant before this one knew it
        self.waited_by: Callable[[str], dict[str, int] | None] = lambda job: None  # by cause, of a job that has left
        self.core: Core
        self.carrier: Carrier

    # --- the state, from what is known ----------------------------------------------------------------

    def adopt(self, records: list[Record]) -> None:
        """Take over what the last Kant has left: build the state, and find out about every run. Raises InputError."""
        for record in sorted(records, key=lambda record: record.seq):
            self.records[record.id] = record
        for record in self.records.values():
            if record.phase in (Phase.RUNNING, Phase.STOPPING):
                found = self.launcher.find(record)
                if isinstance(found, Exit):
                    self._ended.append((record, found))
                elif found is None:  # it was meant to begin, and never will: as if it had not been meant
                    record.phase, record.started, record.place = Phase.WAITING, -1, []
                    self.touch(record)
        self.launcher.sweep()
        self.build()
        for record in self.records.values():
            if record.phase is Phase.STOPPING:
                self.launcher.stop(record)

    def build(self) -> None:
        """The state anew: everybody who waits or runs, as of the times at which they came and started."""
        settings = self.settings
        ended = {record.id for record, _ in self._ended}
        inside = [record for record in self.records.values() if record.id not in ended and _is_inside(record)]
        inside.sort(key=lambda record: record.seq)
        now = self.clock.micros()
        zero = min([now, *(record.submitted for record in inside)])
        count_from(zero)
        sink = settings.journals.open() if settings.journals is not None else None
        waited = self.core.waits.kept(self.core.now) if hasattr(self, "core") else self.waited
        self.core = Core(settings.cluster, settings.profile, sink, zero, self.clock, settings.seed, waited)
        self.on_build(self.core)
        self.core.settled()
        self.carrier = Carrier(self)
        self.by_core.clear()
        self.core_id.clear()
        core = self.core
        if settings.tenancy.queues:
            core.happen(QueuesChanged(0, settings.tenancy))
        moments: list[tuple[int, int, Record, bool]] = []
        for record in inside:
            came = record.submitted - zero
            moments.append((came, record.seq, record, False))
            if record.phase is Phase.RUNNING:
                moments.append((max(record.started - zero, came), record.seq, record, True))
        for moment, _, record, starts in sorted(moments, key=lambda each: (each[0], each[3], each[1])):
            if not starts:
                self._enter(record, moment)
                continue
            place = np.array(record.place, dtype=np.int64)
            if not all(piece[0] < len(core.state.table) and can_take(core.state.table, piece) for piece in place):
                raise InputError("--cluster", f"the cluster on which job {record.id} runs, until it has ended")
            core.happen(JobStarted(moment, self.core_id[record.id], place))
        self.on_built()
        for record in self.records.values():
            self.block(record)
        if self.telemetry is not None:
            self.telemetry.follow(self.core.state, self.core.now)
        said(log, "state built", jobs=len(self.records), inside=len(inside))

    def _enter(self, record: Record, moment: int) -> None:
        name = self.core.fresh_id(record.id)
        self.by_core[name], self.core_id[record.id] = record, name
        self.core.happen(JobSubmitted(moment, job_of(record, name, moment, self.widest)))

    def leave(self, record: Record) -> None:
        """The core has done with the job."""
        self.by_core.pop(self.core_id.pop(record.id, ""), None)
        self.notes.pop(record.id, None)

    def happen(self, event: Event) -> None:
        self.core.happen(event)

    def set_queues(self, tenancy: Tenancy) -> None:
        """Other queues and quotas from now on; every job that is there has its queue among them."""
        self.settings = replace(self.settings, tenancy=tenancy)
        self.happen(QueuesChanged(self.core.now, tenancy))
        self._awake.set()

    def set_profile(self, profile: Profile) -> None:
        """Another profile, from the end of the next turn that leaves nothing to begin: the state is built anew then."""
        self.settings = replace(self.settings, profile=profile)
        self._anew = True
        self._awake.set()

    # --- what people ask; answered by `committed` -----------------------------------------------------------------

    def submit(self, records: list[Record]) -> None:
        """Take new jobs in. Raises InputError while nothing can be written."""
        self.check_writing()
        self._new += records
        self._awake.set()

    def check_writing(self) -> None:
        """Raise InputError while the book cannot be written."""
        if self.trouble:
            raise InputError("the store", f"a disk that can be written ({self.trouble}); running jobs go on")

    def cancel(self, record: Record) -> None:
        """Withdraw a job, waiting or running."""
        if record.phase in (Phase.RUNNING, Phase.STOPPING) and not self.launcher.unbegin(record):
            self._withdraw(record)
            record.phase, record.stopping = Phase.STOPPING, "cancelled"
            self.touch(record)
            self.launcher.to_stop.append(record)
        elif not record.is_over:
            self._withdraw(record)
            self.finish(record, Phase.CANCELLED, "")
        self._awake.set()

    def hold(self, record: Record) -> None:
        """Keep a job that waits from starting. Raises InputError for another."""
        if record.phase is Phase.HELD:
            return
        if record.phase not in (Phase.WAITING, Phase.BLOCKED):
            raise InputError(f"job {record.id}", "a job that waits", str(record.phase))
        self._withdraw(record)
        record.phase = Phase.HELD
        self.touch(record)
        self._awake.set()

    def release(self, record: Record) -> None:
        """Let a held job start again. Raises InputError for another."""
        if record.phase is not Phase.HELD:
            raise InputError(f"job {record.id}", "a job that is held", str(record.phase))
        record.phase = Phase.BLOCKED
        self.touch(record)
        self.block(record)
        self._awake.set()

    async def committed(self) -> None:
        """Wait until what was asked up to here is safe. Raises InputError where it cannot be."""
        answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._awake.set()
        await answer

    def _withdraw(self, record: Record) -> None:
        name = self.core_id.get(record.id)
        if name is not None:
            self.launcher.unplan(record)
            self.happen(JobCancelled(self.core.now, name))
            self.leave(record)

    # --- the loop -----------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Follow, decide, carry out, until told to stop. What runs then runs on."""
        ending = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                began = time.monotonic()
                wait = self.turn()
                await asyncio.sleep(max(PACE, time.monotonic() - began))
                waking = asyncio.create_task(self._awake.wait())
                await asyncio.wait({waking, ending}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                self._awake.clear()
            self.turn(last=True)
        finally:
            ending.cancel()
            self.launcher.forget()
            self.core.end()
            if self.settings.journals is not None:
                self.settings.journals.close()

    def turn(self, last: bool = False) -> float:
        """Take in, decide, write, carry out. Returns the seconds after which to turn again though nothing happens."""
        came, self._new = self._new[:BURST], self._new[BURST:]
        for record in came:
            self.records[record.id] = record
            self.touch(record)
            if record.phase is not Phase.HELD:
                self.block(record)
        ended, self._ended = self._ended, []
        for record, exit in ended:
            self.endings.settle(record, exit)
        wait = IDLE
        if not last:
            began = time.monotonic()
            plan = self.core.cycle()
            if self.telemetry is not None:
                self.telemetry.cycle(time.monotonic() - began, plan)
            decisions(log, plan, [node.name for node in self.settings.cluster.nodes])
            self.carrier.carry(plan)
            for record in self.launcher.ready():
                record.attempt += 1
                record.phase, record.started, record.ended = Phase.RUNNING, self.clock.micros(), -1
                record.code = record.signal = None
                record.reason = record.stopping = ""
                self.touch(record)
                if self.telemetry is not None:
                    self.telemetry.started(record)
            self.core.observe()
            self.core.attribute()
            if plan.review_at >= 0:
                wait = min(wait, max((plan.review_at - self.core.now) / 1e6, 0.0))
        if self._commit(came):
            for record, why in self.launcher.go():
                self.endings.not_begun(record, why)
        if self.settings.journals is not None:
            self.settings.journals.flush()
        stale = len(self.core.state.ids) > FORGET + 2 * len(self.records)
        if (stale or self._anew) and not last and not self.launcher.is_busy:
            self._anew = False
            self.build()
        return 0.0 if self._new or self._ended or (self.dirty and not self.trouble) else wait

    def alive(self) -> list[Record]:
        """All jobs that are not over, with those that are about to come in."""
        return [*self.records.values(), *self._new]

    def touch(self, record: Record) -> None:
        """The record has changed: it is written at the end of the turn."""
        self.dirty[record.id] = record

    def _commit(self, came: list[Record]) -> bool:
        """Write what has changed, and answer. False where it cannot be written: then nothing starts."""
        changed, answers = list(self.dirty.values()), self._answers
        for record in changed:
            if record.is_over:
                record.waited = self.waited_by(record.id) or record.waited
        try:
            if changed:
                self.book.write(changed)
        except OSError as error:
            if not self.trouble:
                said(log, "the store cannot be written", logging.ERROR, error=str(error))
            self.trouble = str(error)
            for record in came:  # nobody was told that they are taken
                self.launcher.unbegin(record)
                self._withdraw(record)
                self.records.pop(record.id, None)
                self.dirty.pop(record.id, None)
            self._answers = []
            for answer in answers:
                if not answer.done():
                    answer.set_exception(InputError("the store", f"a disk that can be written ({self.trouble})"))
            return False
        self.trouble = ""
        self.dirty.clear()
        if self._new:  # of a burst too long for one turn nobody is answered before all of it is safe
            answers = []
        else:
            self._answers = []
        for answer in answers:
            if not answer.done():
                answer.set_result(None)
        for record in changed:
            self.on_change(record)
            if record.is_over:
                self.records.pop(record.id, None)
                for other in self.waits_for.pop(record.id, {}):
                    if other in self.records:
                        self.block(self.records[other])
        return True

    # --- jobs that wait for others ------------------------------------------------------------------------------

    def block(self, record: Record) -> None:
        """Let a job wait for those it comes after, or go to the core."""
        if record.phase not in (Phase.BLOCKED, Phase.WAITING) or record.id in self.core_id:
            return
        for other, well in [(job, False) for job in record.after] + [(job, True) for job in record.after_ok]:
            ahead = self.records.get(other)
            phase = ahead.phase if ahead is not None else self.book.phase_of(other)
            if phase is not None and phase not in OVER:
                self.waits_for.setdefault(other, {})[record.id] = None
                self.notes[record.id] = f"it comes after job {other}, which has not ended"
                if record.phase is not Phase.BLOCKED:
                    record.phase = Phase.BLOCKED
                    self.touch(record)
                return
            if well and phase is not Phase.FINISHED:
                self.finish(record, Phase.CANCELLED, f"job {other}, on whose success it waits, has not ended well")
                return
        record.phase = Phase.WAITING
        self.notes.pop(record.id, None)
        self.touch(record)
        self._enter(record, self.core.now)
        self._awake.set()

    # --- how runs end ---------------------------------------------------------------------------------------------

    def _over(self, record: Record, exit: Exit) -> None:
        self._ended.append((record, exit))
        self._awake.set()

    def finish(self, record: Record, phase: Phase, reason: str) -> None:
        """A job is over."""
        record.phase, record.reason, record.ended = phase, reason, self.clock.micros()
        record.place = []
        self.notes.pop(record.id, None)
        self.endings.refusals.pop(record.id, None)
        self.touch(record)


def _is_inside(record: Record) -> bool:
    """Whether the core has a job: it waits or runs, or waits again once its run has been stopped."""
    if record.phase is not Phase.STOPPING:
        return record.phase in (Phase.WAITING, Phase.RUNNING)
    if record.stopping == "limit":
        return record.failures <= record.submission.retries
    return record.stopping != "cancelled"
