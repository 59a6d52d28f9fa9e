"""The cost of losing one replica of a service for some seconds: the same requests are run with and without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.columns import FOREVER
from kant.serving.engine import Engine
from kant.serving.fleet import new_fleet, served_by
from kant.serving.policies import policy_named
from kant.serving.requests import Requests
from kant.serving.routers import router_named
from kant.serving.routing import decide
from kant.serving.service import MINUTE_S, Service, late
from kant.serving.summary import Served

BEFORE_S = 2 * MINUTE_S
AFTER_S = 5 * MINUTE_S
"""Seconds of requests before the replica leaves, in which the engines fill, and after it returns."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of a replica's absence on `requests`, compared with a run in which the replica stays.

    `late` counts the additional requests outside the objectives, with the `lost` ones, which had begun on a stopped
    replica. `moved` had not begun, and were sent again elsewhere. `delay_s` is the sum of the delays of all ends. A
    replica that may `drain` is empty after `drained_s`; its GPUs are free only then.
    """

    requests: int
    late: int
    lost: int
    moved: int
    delay_s: float
    drained_s: float


def removal(
    service: Service, replicas: int, rate: float, seconds: float, seed: int = 0, *, drain: bool = True
) -> Removal:
    """Remove one of `replicas` engines for `seconds` while requests arrive at `rate` a second.

    With `drain` the engine completes its requests and gets no new ones. Otherwise it stops at once: requests that have
    begun on it are lost, since clients have seen part of their answers, and the others are sent elsewhere. When it
    returns, it is empty. Raises InputError if no engine would be left.
    """
    if not 2 <= replicas <= 10_000:
        raise InputError("--replicas", "a number from 2 to 10000, so that one is left", replicas)
    if not 0 < rate <= 1e6:
        raise InputError("--rate", "a number of requests a second above 0", rate)
    if not 0 <= seconds <= 1e6:
        raise InputError("--seconds", "a number of seconds from 0 on", seconds)
    if router_named(service.router).holds:
        raise InputError("--router", "a router that holds back no requests", service.router)
    coming = service.mix.during(BEFORE_S + seconds + AFTER_S, rate, seed)
    with_all = service.serve(coming, replicas, seed)
    absence = _Absence(service, coming, replicas, seed)
    without = absence.run(BEFORE_S, BEFORE_S + seconds, drain)
    late_then, late_else = (np.logical_or(*late(served, service.objectives)) for served in (without, with_all))
    done = ~np.isnan(without.finish)
    drained = np.flatnonzero((without.engine == replicas - 1) & (coming.arrival < BEFORE_S) & done)
    return Removal(
        len(coming),
        int(late_then.sum()) - int(late_else.sum()),
        int((~done).sum()),
        absence.moved,
        float((without.finish - with_all.finish)[done].sum()),
        max(float(without.finish[drained].max(initial=0.0)) - BEFORE_S, 0.0) if drain else 0.0,
    )


class _Absence:
    """A fleet whose last engine accepts no requests for a while."""

    def __init__(self, service: Service, coming: Requests, replicas: int, seed: int) -> None:
        router = router_named(service.router)
        self.fleet = new_fleet(coming, service.settings, replicas, policy_named(service.policy), router, seed)
        self.driven = list(self.fleet.engines)
        self.open = self.fleet.sites()
        self.moved = 0

    def run(self, gone: float, back: float, drain: bool) -> Served:
        """Send every request at its arrival, then run all to their end."""
        due = [gone, back]
        steps = [self._close, self._open] if drain else [self._stop, self._replace]
        for i, now in enumerate(self.fleet.requests.arrival.tolist()):
            while due and due[0] <= now:
                at = due.pop(0)
                self._reach(at)
                steps.pop(0)(at)
            self._reach(now)
            self._send(i, now)
        self._reach(FOREVER)
        return served_by(self.fleet, [])

    def _reach(self, until: float) -> None:
        for engine in self.driven:
            self.fleet.drive(engine, until)

    def _send(self, i: int, now: float) -> None:
        fleet = self.fleet
        request = fleet.incoming(i, now)
        site = self.open[decide(fleet.router, request, self.open, fleet.draw)]
        fleet.add(i, now, site.number, fleet.router.sent(request, site))

    def _close(self, now: float) -> None:
        self.open = self.open[:-1]

    def _open(self, now: float) -> None:
        self.open = self.fleet.sites()

    def _stop(self, now: float) -> None:
        """Stop the last engine, and send those of its requests that have not begun to other engines."""
        self._close(now)
        engine, k = self.driven.pop(), len(self.driven)
        for r, i in enumerate(self.fleet.origin[k]):
            if engine.requests[r, c.STATE] != c.FINISHED and engine.requests[r, c.DONE] == 0:
                self._send(i, now)
                self.moved += 1

    def _replace(self, now: float) -> None:
        """Add an empty engine in place of the one that stopped."""
        fleet = self.fleet
        fleet.engines.append(Engine(fleet.engines[0].settings))
        fleet.origin.append([])
        fleet.predicted.append(np.zeros(0))
        fleet.cached.append(np.zeros(0, dtype=np.int64))
        self.driven.append(fleet.engines[-1])
        self.open.append(fleet.sites()[-1])
