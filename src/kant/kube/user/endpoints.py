"""The addresses behind a Service, listed and watched by its EndpointSlices (discovery.k8s.io/v1).

A pod may get new requests while it is ready and not terminating. Otherwise it is leaving, and it is gone once no slice
names it. If a Service has addresses of two families, only the IPv4 addresses count, so that each pod appears once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.follow.reflector import Reflector
from kant.kube.follow.store import Store, own_name
from kant.kube.objects.views import Meta, PartialMetadata, View
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.connect.config import Config

LABEL = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
Seen = TypeVar("Seen", bound=PartialMetadata)
RIGHT = "the right to list and watch endpointslices (docs/routing.md)"
FAMILIES = ("IPv4", "IPv6", "FQDN")


class Conditions(View, frozen=True):
    ready: bool | None = None  # absent: ready
    terminating: bool | None = None


class Endpoint(View, frozen=True):
    addresses: tuple[str, ...] = ()  # all addresses are equivalent
    conditions: Conditions = Conditions()

    @property
    def open(self) -> bool:
        """Whether the endpoint may get new requests."""
        return self.conditions.ready is not False and not self.conditions.terminating


class Port(View, frozen=True):
    name: str | None = None
    port: int | None = None


class EndpointSlice(PartialMetadata, frozen=True):
    """Some of the endpoints of a Service."""

    address_type: str = ""
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None


def addresses(slices: Iterable[EndpointSlice], port: str, where: str) -> dict[str, bool]:
    """Return the URL of each endpoint, and whether it may get new requests.

    `port` is the name or the number of a port; "" if there is only one. Raises InputError unless one port matches.
    """
    slices = [part for part in slices if part.endpoints]
    family = next((family for family in FAMILIES if any(part.address_type == family for part in slices)), "")
    found: dict[str, bool] = {}
    for part in slices:
        if part.address_type == family:
            number = _number(part.ports or (), port, where)
            for endpoint in part.endpoints or ():
                if not endpoint.addresses:
                    continue
                host = endpoint.addresses[0]
                url = f"http://{f'[{host}]' if ':' in host else host}:{number}"
                found[url] = found.get(url, False) or endpoint.open
    return found


def _number(ports: Iterable[Port], port: str, where: str) -> int:
    known = [known for known in ports if known.port is not None]
    meant = [known.port for known in known if not port or port in (known.name, str(known.port))]
    if len(meant) != 1 or meant[0] is None:
        names = ", ".join(f"{known.name or '(no name)'} {known.port}" for known in known) or "none"
        raise InputError("--port", f"one port of {where}, by name or number, of: {names}", port or "no port")
    return meant[0]


def mirror(
    client: ApiClient,
    path: str,
    view: type[Seen],
    look: Callable[[], None],
    on_trouble: Callable[[ApiError | InputError], None],
    fields: str = "",
) -> tuple[Store[str, Seen], Reflector[Seen]]:
    """Return the objects at `path` by name, and their reflector. While the reflector runs, changes call `look`."""
    known: Store[str, Seen] = Store(own_name, lambda *_: None)

    def replace(objects: list[Seen]) -> None:
        known.replace(objects)
        look()

    def sink(change: str, one: Seen) -> None:
        if known.change(change, one):
            look()

    def malformed(metadata: Meta, why: str) -> None:
        on_trouble(InputError(f"{path}: {metadata.name}", "an object with the fields of its kind", why))

    return known, Reflector(
        client, path, view, sink, on_replace=replace, on_malformed=malformed, on_trouble=on_trouble, fields=fields
    )


def unread(error: ApiError | InputError, where: str, right: str, kind: str = "") -> InputError:
    """Return the error that an object cannot be read: `right` is missing (403), or there is no `kind` (404)."""
    if isinstance(error, InputError):
        return error
    expected = {403: right, 404: kind}.get(error.code)
    return InputError(where, expected or "an API server that answers", error.message if expected else str(error))


class ServiceEndpoints:
    """The endpoints of one Service. Needs the rights to list and watch endpointslices in its namespace.

    `on_trouble` is called with one sentence if they cannot be read. The endpoints last known then stay valid.
    """

    def __init__(
        self, config: Config, namespace: str, service: str, port: str, on_trouble: Callable[[str], None]
    ) -> None:
        for where, name in (("--service", service), ("--namespace", namespace)):
            if not LABEL.fullmatch(name):
                raise InputError(where, "a name of lower-case letters, digits and hyphens", name)
        self.config, self.port, self.on_trouble = config, port, on_trouble
        self.where = f"service {namespace}/{service}"
        selector = quote(f"kubernetes.io/service-name={service}")
        self.path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}"

    async def now(self) -> Mapping[str, bool]:
        """Return whether each endpoint, by URL, may get requests. Raises InputError if they cannot be read."""
        try:
            async with ApiClient(self.config, concurrency=1, timeout=30.0) as client:
                found = await client.list(self.path, EndpointSlice)
        except ApiError as error:
            raise unread(error, self.where, RIGHT) from None
        return addresses(found, self.port, self.where)

    async def follow(self, tell: Callable[[Mapping[str, bool]], None]) -> None:
        """Follow the endpoints forever. After each change call `tell` with all of them, in the form of `now`."""
        current: Mapping[str, bool] | None = None

        def look() -> None:
            nonlocal current
            try:
                found = addresses(slices.values(), self.port, self.where)
            except InputError as error:
                self.on_trouble(str(error))
                return
            if found != current:
                current = found
                tell(found)

        async with ApiClient(self.config, concurrency=2, timeout=30.0) as client:
            slices, reflector = mirror(client, self.path, EndpointSlice, look, self._trouble)
            await reflector.run()

    def _trouble(self, error: ApiError | InputError) -> None:
        self.on_trouble(str(unread(error, self.where, RIGHT)))
