"""Allocates slots for front ends: resources that are assigned before a job needs them (local/slots.py).

The number of slots of a kind follows the short jobs of that kind in the last seconds. Slots take at most half of the
free capacity, and none while a job waits for capacity. Each slot is a job of the core, and only the core places jobs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from kant.local.driver import LocalDriver
from kant.local.record import JobPhase, JobRecord
from kant.local.slots import is_slot
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.service.loads import OfferedSlot, Report, loads_of, part_of
from kant.service.orders import LocalOrders
from kant.service.prune import remove
from kant.service.roles import Caller

MEMORY_S = 2.0
"""Seconds for which an arrival counts. If no job of a kind arrives in this time, the slots of the kind are released."""
MOST = 64
"""Maximum number of slots of one front end. Each slot is a small process."""
AGAIN_S = 1.0
"""Seconds in which no new slots are allocated after a job has waited for capacity."""


@dataclass
class Share:
    """The slots of one front end: `slots` have no job, by id; `announced` are the slots that the front end knows."""

    send: Callable[[tuple[OfferedSlot, ...]], None]
    slots: dict[str, JobRecord] = field(default_factory=dict)
    announced: tuple[OfferedSlot, ...] = ()
    arrivals: list[tuple[float, bytes, int]] = field(default_factory=list)


class SlotKeeper:
    """The slots of all front ends of a driver. `look` is called every few milliseconds."""

    def __init__(self, driver: LocalDriver, orders: LocalOrders, who: Caller) -> None:
        self.driver = driver
        self.orders = orders
        self.who = who
        self.shares: list[Share] = []
        self._over: list[str] = []
        self._not_before = 0.0

    def join(self, send: Callable[[tuple[OfferedSlot, ...]], None]) -> Share:
        """Add a front end; `send` tells it which slots it has."""
        share = Share(send)
        self.shares.append(share)
        return share

    def leave(self, share: Share) -> None:
        """Remove a front end that has ended: keep the slots that it filled, and release the rest."""
        self.shares.remove(share)
        self._take_back(share, share.slots)

    def report(self, share: Share, said: Report) -> None:
        """Process a report of a front end."""
        now = time.monotonic()
        share.arrivals += [(now, msgspec.json.encode(slot), count) for slot, count in said.arrivals]
        taken = [record for job in said.filled if (record := share.slots.pop(job, None)) is not None]
        filled = [record.id for record in taken if not is_slot(record) or self.driver.jobs.fill(record)]
        if filled:
            self.orders.store.note(self.driver.clock.micros(), self.who, "submit", ", ".join(filled))
            self.driver.wake()

    def changed(self, record: JobRecord) -> None:
        """Record that a slot has ended without a job, so that it is deleted soon (for `LocalDriver.on_change`)."""
        if is_slot(record) and record.is_over:
            self._over.append(record.id)

    def close(self) -> None:
        """Release all slots."""
        for share in self.shares:
            self._take_back(share, share.slots)

    def look(self) -> bool:
        """Assign, release and request slots. Return whether to call this again soon."""
        driver, now = self.driver, time.monotonic()
        self._forget()
        ours = {job for share in self.shares for job in share.slots}
        waits = any(driver.core.state.ids[row] not in self._core_ids(ours) for row in driver.core.state.pending)
        if waits or driver.paused or driver.trouble:
            self._not_before = now + AGAIN_S
        for share in self.shares:
            self._hand_out(share)
            share.arrivals = [each for each in share.arrivals if each[0] > now - MEMORY_S]
            kinds = Counter[bytes]()
            for _, kind, count in share.arrivals:
                kinds[kind] += count
            if now < self._not_before:
                kinds.clear()
            surplus = {
                job for job, record in share.slots.items() if msgspec.json.encode(record.submission) not in kinds
            }
            self._take_back(share, surplus)
            for kind, count in kinds.items():
                self._ask(share, kind, min(count, MOST - len(share.slots)))
        return any(share.slots or share.arrivals for share in self.shares)

    def _core_ids(self, jobs: set[str]) -> set[str]:
        return {self.driver.jobs.core_id.get(job, "") for job in jobs}

    def _hand_out(self, share: Share) -> None:
        """Tell the front end which slots have started. A slot that was not placed at once is released."""
        driver, begun, late = self.driver, list[OfferedSlot](), list[str]()
        for job, record in list(share.slots.items()):
            if record.is_over or not is_slot(record):
                del share.slots[job]
            elif job in driver.launcher.runs and record.phase is JobPhase.RUNNING:
                begun.append(OfferedSlot(job, str(driver.launcher.folder(record)), record.submission))
            elif record.phase is JobPhase.WAITING and not driver.launcher.is_planned(record):
                late.append(job)
                self._not_before = time.monotonic() + AGAIN_S
        self._take_back(share, late)
        if (slots := tuple(begun)) != share.announced:
            share.announced = slots
            share.send(slots)

    def _ask(self, share: Share, kind: bytes, wanted: int) -> None:
        """Request slots of a kind, from at most half of the free capacity, until `wanted` of them have no job."""
        there = sum(msgspec.json.encode(record.submission) == kind for record in share.slots.values())
        slot = msgspec.json.decode(kind, type=Submission)
        if wanted <= there:
            return
        nodes = loads_of(self.driver.jobs.records.values(), self.driver.settings.cluster, self.driver.clock.micros())
        free = 0
        for node in nodes:
            part = part_of(slot, node)
            held = max(
                node.held_gpus / node.gpus if node.gpus else 0, node.held_cores / node.cores if node.cores else 0
            )
            free += int((1 - held) / part) if part else MOST
        count = min(wanted - there, free // 2 // len(self.shares))
        if count > 0:
            with suppress(InputError):  # its queue may not allow it
                share.slots |= {record.id: record for record in self.orders.take_slots(slot, count, self.who)}

    def _take_back(self, share: Share, jobs: dict[str, JobRecord] | set[str] | list[str]) -> None:
        for job in list(jobs):
            record = share.slots.pop(job)
            with suppress(OSError):
                if is_slot(record) and not record.is_over and not self.driver.jobs.fill(record, closes=True):
                    self.driver.cancel(record, "no short job needed it")

    def _forget(self) -> None:
        """Delete the files and rows of slots that had no job."""
        over, self._over = self._over, []
        if over:
            remove([self.driver.settings.runs / job for job in over])
            with suppress(OSError):
                self.orders.store.prune(over)
