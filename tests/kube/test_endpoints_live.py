"""The endpoints of a Service on a real API server: followed as pods come and go, with no more rights than said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import ControlPlane
from tests.kube.live import role_of_page
from tests.kube.objects import Object
from tests.patience import PATIENCE_S

from kant.kube.connect.config import Config, load
from kant.kube.objects.views import Meta
from kant.kube.user.endpoints import Conditions, Endpoint, EndpointSlice, Port, ServiceEndpoints, addresses
from kant.model.errors import InputError

DOCS = Path(__file__).parent.parent.parent / "docs" / "routing.md"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"


def slice_of(name: str, pods: Mapping[str, Object], service: str = "chat", port: int = 8000) -> Object:
    """An EndpointSlice as its controller writes it; `pods` are addresses with their conditions."""
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "models", "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": [address], "conditions": said} for address, said in pods.items()],
        "ports": [{"name": "http", "port": port}, {"name": "metrics", "port": 9000}],
    }  # fmt: skip


async def test_a_service_is_followed_with_no_more_rights_than_said(plane: ControlPlane) -> None:
    told: list[Mapping[str, bool]] = []
    troubles: list[str] = []
    config = load(plane.kubeconfig("router"))
    chat = ServiceEndpoints(config, "models", "chat", "http", troubles.append)

    async def becomes(wanted: Mapping[str, bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while told[-1:] != [wanted]:
                await asyncio.sleep(0.02)

    async with Api(plane) as api, Api(plane, "router") as own:
        await api.namespace("models")
        with pytest.raises(InputError, match="the right to list and watch endpointslices"):
            await chat.now()
        await api.apply(role_of_page(DOCS, "router"))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(InputError):
                    assert await chat.now() == {}
                    break
                await asyncio.sleep(0.05)
        following = asyncio.create_task(chat.follow(told.append))
        await becomes({})
        await api.create(slice_of("chat-1", {"10.1.0.1": {"ready": True}, "10.1.0.2": {"ready": False}}))
        await api.create(slice_of("other-1", {"10.1.0.9": {"ready": True}}, "other"))
        first, second, third = (f"http://10.1.0.{k}:8000" for k in (1, 2, 3))
        await becomes({first: True, second: False})
        await api.patch(f"{SLICES}/chat-1", {"endpoints": [{"addresses": ["10.1.0.2"], "conditions": {}}]})
        await becomes({second: True})
        leaves = {"ready": False, "serving": True, "terminating": True}
        await api.create(slice_of("chat-2", {"10.1.0.3": leaves, "10.1.0.2": {"ready": True}}))
        await becomes({second: True, third: False})
        assert await chat.now() == {second: True, third: False}
        await api.delete(f"{SLICES}/chat-2")
        await becomes({second: True})
        assert not any("10.1.0.9" in url for known in told for url in known)
        await api.delete(f"{SLICES}/chat-1")
        await becomes({})
        with pytest.raises(RefusedError, match="403"):
            await own.list("pods", "models")
        with pytest.raises(RefusedError, match="403"):
            await own.delete(f"{SLICES}/other-1")
        following.cancel()
    assert not troubles


def test_addresses_are_of_one_port_and_of_one_family() -> None:
    def part(family: str, hosts: list[str], *ports: Port) -> EndpointSlice:
        endpoints = tuple(Endpoint((host,), Conditions()) for host in hosts)
        return EndpointSlice(Meta(), family, endpoints, ports)

    http, metrics = Port("http", 8000), Port("metrics", 9000)
    four, six = part("IPv4", ["10.1.0.1"], http, metrics), part("IPv6", ["fd00::1"], http, metrics)
    assert addresses([six, four], "http", "x") == {"http://10.1.0.1:8000": True}
    assert addresses([six], "9000", "x") == {"http://[fd00::1]:9000": True}
    assert addresses([part("IPv4", ["a"], Port(None, 80)), EndpointSlice()], "", "x") == {"http://a:80": True}
    for port in ("", "grpc"):
        with pytest.raises(InputError, match=r"--port: expected one port of x, .* of: http 8000, metrics 9000"):
            addresses([four], port, "x")
    for name in ("UP", "a/b", ""):
        with pytest.raises(InputError, match="--service: expected a name"):
            ServiceEndpoints(Config("http://none"), "default", name, "", print)
