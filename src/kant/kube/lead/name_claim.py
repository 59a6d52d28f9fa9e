"""The claim on a scheduler name: of two Kants in two namespaces that are to schedule the same pods, one waits.

Each Kant has its Lease in a namespace of its own, so those do not know of each other. The claim is one Lease more, of
the whole cluster: `kube-system/scheduler-name-NAME`. It is held by a namespace, not by a process: whoever leads in that
namespace renews it, so a change of leader costs nobody a wait. It is never given back, and it stands as long as four
Leases: no Kant of another namespace comes in between two leaders.

Where this Lease may not be written, Kant goes on without a claim, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.connect.errors import advice
from kant.kube.lead.lease import Lease
from kant.kube.lead.lease_thread import LeaseThread
from kant.kube.objects.names import NAME_CLAIM
from kant.model.errors import InputError

CLAIMS = "kube-system"
"""The namespace of the claims: tenants write nothing there."""

LONGER = 4
"""How many times as long as a Lease a claim stands."""

LOOK = 0.1  # seconds between two looks whether whoever waits for the claim is still elected


class NameClaim:
    """Use as `async with NameClaim(...) as claim: if await claim.granted(elected): ...`.

    `namespace` is this Kant's; `lease` says how long its own Lease lasts, its holder may not renew it, and between
    two tries (seconds). `on_taken` is told why this Kant waits, or "" when it waits no more.
    """

    def __init__(
        self,
        config: Config,
        scheduler_name: str,
        namespace: str,
        lease: tuple[float, float, float],
        in_flight: float,
        on_trouble: Callable[[Exception], None],
        on_taken: Callable[[str], None],
    ) -> None:
        self._config = config
        self._scheduler_name = scheduler_name
        self._namespace = namespace
        self._times = [LONGER * seconds for seconds in lease]
        self._in_flight = in_flight
        self._on_trouble = on_trouble
        self._on_taken = on_taken
        self._waived = False
        self._thread = LeaseThread(config, self._lease, self._trouble, keep=True)

    async def __aenter__(self) -> Self:
        await self._thread.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_taken("")
        await self._thread.__aexit__(kind, error, trace)

    async def granted(self, elected: Callable[[], bool]) -> bool:
        """Wait until the name is ours, or nobody can say whose it is. False: `elected` is not so any more."""
        claimed = asyncio.ensure_future(self._thread.elected())
        try:
            while elected() and not self._waived and not claimed.done():
                await asyncio.wait({claimed}, timeout=LOOK)
            if claimed.done():
                claimed.result()  # raises what the thread has met
            self._on_taken("")
            return elected()
        finally:
            claimed.cancel()
            with suppress(asyncio.CancelledError):
                await claimed

    def holds(self) -> bool:
        """Whether no Kant of another namespace may lead by this name."""
        return self._waived or self._thread.holds()

    def _lease(
        self, client: ApiClient, on_acquired: Callable[[str], None], on_trouble: Callable[[Exception], None]
    ) -> Lease:
        duration, deadline, retry = self._times
        name = NAME_CLAIM + self._scheduler_name

        def look(_: dict[str, str]) -> None:
            other = f"the Kant in the namespace {lease.leader} schedules these pods"
            expected = f"a name of its own, as {other} (Lease {CLAIMS}/{name}) and this one waits until it is gone"
            on_trouble(InputError("--scheduler-name", expected, self._scheduler_name))

        lease = Lease(
            client,
            CLAIMS,
            name,
            self._namespace,
            duration=duration,
            renew_deadline=deadline,
            retry=retry,
            in_flight=self._in_flight,
            on_acquired=on_acquired,
            on_trouble=on_trouble,
            on_rival=look,
        )
        return lease

    def _trouble(self, error: Exception) -> None:
        if isinstance(error, InputError):
            self._waived = False  # now it is known
            self._on_taken(str(error))
            self._on_trouble(error)
        elif isinstance(error, ApiError) and error.code in (403, 404, 422):
            if not self._waived:
                self._waived = True
                why = advice(error, self._config.source)
                what = f"whether another Kant schedules the pods of {self._scheduler_name} is not known"
                self._on_trouble(UnclaimedError(f"{what}: {why}"))
        else:
            self._on_trouble(error)


class UnclaimedError(Exception):
    """The claim may not be written: Kant goes on without."""
