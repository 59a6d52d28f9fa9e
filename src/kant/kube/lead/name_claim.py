"""The claim on a scheduler name. If two installations of Kant are set up to schedule the same pods, one of them waits.

Each installation has its Lease in its own namespace, so they do not see each other. The claim is another Lease, one per
cluster: `kube-system/scheduler-name-NAME`. Its holder is a namespace, not a process: the leader in that namespace
renews it, so a change of leader causes no wait. The claim is never given up, and expires only after four times the
duration of a Lease: no other installation can take the name between two leaders.

If this Lease may not be written, Kant continues without a claim, and reports this.
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
"""The namespace of the claims: tenants cannot write there."""

LONGER = 4
"""The duration of a claim, as a multiple of the duration of a Lease."""

LOOK = 0.1  # seconds between checks that the waiting replica is still elected


class NameClaim:
    """Use as `async with NameClaim(...) as claim: if await claim.granted(elected): ...`.

    `namespace` is that of this installation. `lease` has the duration, renew deadline and retry interval (seconds) of
    this installation's own Lease. `on_taken` gets the reason why this replica waits, or "" when it no longer waits.
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
        self._thread = LeaseThread(config, self._lease, self._trouble, keep=lambda: True)

    async def __aenter__(self) -> Self:
        await self._thread.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_taken("")
        await self._thread.__aexit__(kind, error, trace)

    async def granted(self, elected: Callable[[], bool]) -> bool:
        """Wait until this namespace holds the name, or claims may not be written. False: `elected()` became false."""
        claimed = asyncio.ensure_future(self._thread.elected())
        try:
            while elected() and not self._waived and not claimed.done():
                await asyncio.wait({claimed}, timeout=LOOK)
            if claimed.done():
                claimed.result()  # raises the exception of the thread
            self._on_taken("")
            return elected()
        finally:
            claimed.cancel()
            with suppress(asyncio.CancelledError):
                await claimed

    def holds(self) -> bool:
        """Whether no installation in another namespace may lead under this name."""
        return self._waived or self._thread.holds()

    def _lease(
        self, client: ApiClient, on_acquired: Callable[[str], None], on_trouble: Callable[[Exception], None]
    ) -> Lease:
        duration, deadline, retry = self._times
        name = NAME_CLAIM + self._scheduler_name

        def look(_: dict[str, str]) -> None:
            other = f"the Kant in the namespace {lease.leader} schedules these pods"
            expected = f"a name of its own: {other} (Lease {CLAIMS}/{name}), and this one waits until that one is gone"
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
            self._waived = False  # the claim can be read again
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
    """The claim may not be written: Kant continues without one."""
