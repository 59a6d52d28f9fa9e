"""Questions to the leader. The API server forwards them to the Service `kant` (right: `get` on services/proxy).

The Service selects all replicas, and chooses one for each request. Replicas on standby refuse at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.connect.ticket import NOT_LEADING, NOT_YET, PATH, UNASKABLE, signed
from kant.kube.user.jobs import ServerMessageError

SERVICE = "kant:http"
"""The Service of Kant and its port, as in `kant kube manifests`."""

TRIES = 12
"""Maximum number of requests that may reach a replica on standby. With two or three replicas this is enough."""

ANSWERS = 4.0
"""Timeout of one request in seconds. After it the API server is assumed to be unable to reach the pods."""

FORECAST = 120.0
"""Seconds to wait for a forecast. This process would not make a forecast faster than the leader."""

SOON = 2.0
"""Seconds of waiting for an answer to `why`. After that, an answer without a forecast is requested."""


async def answer_of_leader(
    config: Config,
    system: str,
    ticket: str,
    path: str,
    params: Mapping[str, str],
    within: float = FORECAST,
    answers: float = ANSWERS,
) -> bytes | None:
    """Return the leader's answer. None if it cannot be reached in time. Raises InputError if the question is invalid.

    `ticket` is that on the leader's Lease in the namespace `system`. `answers`: the timeout of a request in seconds.
    """
    place = f"/api/v1/namespaces/{quote(system, safe='')}/services/{SERVICE}/proxy"
    began, met = time.monotonic(), 0
    async with ApiClient(config, concurrency=1, timeout=answers) as client:
        while met < TRIES and (waited := time.monotonic() - began) < within:
            own = dict(params) | ({"brief": ""} if path == f"{PATH}why" and waited > SOON else {})
            target = path + (f"?{urlencode(own)}" if own else "")
            try:
                return await client.call("GET", place + signed(ticket, target))
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
