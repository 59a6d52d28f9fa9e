"""Questions to the leader through the API server, which passes them on to the Service `kant`: `get` on services/proxy.

A Service has every replica behind it, and picks one each time. Those that stand by say so at once.
"""

from __future__ import annotations

import asyncio
import time
from urllib.parse import quote, urlencode

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.connect.ticket import NOT_LEADING, NOT_YET, PATH, UNASKABLE, signed
from kant.kube.user.jobs import ServerMessageError

SERVICE = "kant:http"
"""The Service of Kant and its port, as `kant kube manifests` has them."""

TRIES = 12
"""Questions until one meets the leader, of two or three replicas."""

ANSWERS = 4.0
"""Seconds after which the API server is taken not to reach the pods."""

FORECAST = 20.0
"""Seconds for a forecast to be made."""


async def words_of_leader(
    config: Config, system: str, ticket: str, word: str, params: dict[str, str], within: float = FORECAST
) -> bytes | None:
    """What the leader answers; None where it cannot be asked. Raises InputError where the question is wrong.

    `ticket` is that on its Lease in the namespace `system`.
    """
    target = f"{PATH}{word}" + (f"?{urlencode(params)}" if params else "")
    path = f"/api/v1/namespaces/{quote(system, safe='')}/services/{SERVICE}/proxy{signed(ticket, target)}"
    end, met = time.monotonic() + within, 0
    async with ApiClient(config, concurrency=1, timeout=ANSWERS) as client:
        while met < TRIES and time.monotonic() < end:
            try:
                return await client.call("GET", path)
            except ApiError as error:
                if error.reason == UNASKABLE:
                    raise ServerMessageError(error.message) from None
                if error.reason == NOT_YET:
                    await asyncio.sleep(0.1)
                elif error.reason == NOT_LEADING:
                    met += 1
                else:
                    return None
    return None
