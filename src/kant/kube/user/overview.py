"""A first look at a cluster, with few requests and imports: its size, what runs there, and what the user may read.

For users who may read only their own pods, it has what Kant reports on those pods.
"""

from __future__ import annotations

import time
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.connect.errors import advice
from kant.kube.objects.names import PROFILE, TICKET, VERSION, lease_path
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import LeaseObject, PartialMetadata, Pod, View
from kant.kube.user.own_jobs import OwnJob, jobs_of
from kant.model.errors import InputError
from kant.model.units import show_duration

CLOCKS = 60.0
"""Maximum seconds by which the leader's clock is assumed to differ from this machine's."""


class Overview(NamedTuple):
    """`nodes` is the number of nodes; None if the user may not list them. The leader's Lease has the text of the
    leader's profile, its version, and the ticket for questions to the leader; "" if the user may not read it. `unled`
    is a sentence if no replica leads; "" if one leads, or if that is unknown.
    """

    nodes: int | None
    profile: str = ""
    version: str = ""
    ticket: str = ""
    unled: str = ""


class _ListMeta(View, frozen=True):
    remaining_item_count: int = 0


class _Count(View, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[msgspec.Raw, ...] = ()


async def overview(config: Config, system: str) -> Overview:
    """Read the overview. `system` is Kant's namespace. Raises InputError if the API server rejects the user."""
    async with ApiClient(config, concurrency=2, timeout=30.0) as client:
        nodes: int | None = None
        try:
            for path in ("/api/v1/pods", "/api/v1/nodes"):
                found = await client.get(path, _Count, params={"limit": "1"})
                nodes = len(found.items) + found.metadata.remaining_item_count
        except ApiError as error:
            if error.code != 403:
                raise refused(error, config) from None
            nodes = None
        try:
            lease = await client.get(lease_path(system), LeaseObject)
        except ApiError as error:
            return Overview(nodes, unled=f"there is no Lease {system}/kant" if error.code == 404 else "")
        said = lease.metadata.annotations or {}
        return Overview(
            nodes, said.get(PROFILE, ""), said.get(VERSION, ""), said.get(TICKET, ""), _unled(lease, system)
        )


async def ticket_of(config: Config, system: str) -> str:
    """Return the ticket for questions to the leader; "" for none. Raises InputError if the Lease cannot be read."""
    async with ApiClient(config, concurrency=2, timeout=30.0) as client:
        try:
            lease = await client.get(lease_path(system), PartialMetadata)
        except ApiError as error:
            if error.code not in (403, 404):
                raise refused(error, config) from None
            raise InputError(
                f"the Lease {system}/kant", f"one that we may read ({advice(error, config.source)})"
            ) from None
    return (lease.metadata.annotations or {}).get(TICKET, "")


def _unled(lease: LeaseObject, system: str) -> str:
    """Return a sentence if no replica holds the Lease, or it has expired; "" otherwise."""
    spec, name = lease.spec, f"the Lease {system}/kant"
    if not spec.holder_identity:
        return f"nobody holds {name}"
    try:
        age = time.time() - microseconds(spec.renew_time or "", name) / 1e6
    except InputError:
        return ""
    lasts = (spec.lease_duration_seconds or 0) + CLOCKS
    return f"{name} was last renewed {show_duration(int(age * 1e6))} ago" if age > lasts else ""


async def own_jobs(config: Config, namespace: str, scheduler_name: str = "kant") -> list[OwnJob]:
    """Return the jobs of one namespace from its pods alone. Needs only `pods: list` there. Raises InputError."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    async with ApiClient(config, concurrency=2, timeout=30.0) as client:
        try:
            pods = await client.list(path, Pod)
        except ApiError as error:
            if error.code == 403:
                expected = f"an account that may list pods of namespace {namespace}, or the role kant-inspector"
                raise InputError("Kubernetes", expected) from None
            raise refused(error, config) from None
    return jobs_of(pod for pod in pods if pod.spec.scheduler_name == scheduler_name)


def refused(error: ApiError, config: Config) -> InputError:
    """Return the error for an API server that does not answer, or that rejects the user's credentials."""
    expected = "one that answers" if error.code == 0 else "one that accepts our credentials"
    return InputError("the API server", f"{expected} ({advice(error, config.source)})")
