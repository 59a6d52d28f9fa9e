"""The control plane as tests ask for it. One for each process of pytest, started when first asked for.

    async def test_x(api: Api, kant: Kant) -> None:
        await api.create_all([make_node("a"), *make_gang("train", 8)])
        async with FakeKubelet(api), Auditor(api) as auditor, kant(profile=profile()) as driver:
            await until(api, lambda pods: len(bound(pods)) == 8)
            (await auditor.report()).assert_kept()

Every journal that such a Kant has written is replayed at the end of the test. Namespaces are never deleted, as nobody
would finish that: the control plane is emptied before each test instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
from tests.kube import running
from tests.kube.api import Api
from tests.kube.binaries import Binaries, NoBinariesError, find, find_helm
from tests.kube.control_plane import ControlPlane
from tests.kube.live import install, replayed
from tests.kube.running import Kant

from kant.kube.lead import driver

driver.gc = SimpleNamespace(collect=int, freeze=int, unfreeze=int)  # type: ignore[assignment]
"""A leader that builds its state anew collects garbage in all of its process: half a second with all modules of tests.
`test_turns.py` has it do so."""
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
def plane(request: pytest.FixtureRequest, binaries: Binaries) -> Iterator[ControlPlane]:
    """The control plane with nothing in it, or with the mark `plane(gates=(), flags=())` one of the test's own."""
    if own := request.node.get_closest_marker("plane"):
        with ControlPlane(binaries, **own.kwargs) as plane:
            yield plane
        return
    plane = request.getfixturevalue("shared_plane")

    async def clean() -> None:
        async with Api(plane) as api:
            await api.clean()

    asyncio.run(clean())
    yield plane


@pytest.fixture
def api(plane: ControlPlane, loop: asyncio.Runner) -> Iterator[Api]:
    """A client of the empty control plane, which has the kinds of Kant."""
    client = Api(plane)
    loop.run(client.__aenter__())
    loop.run(install(client))
    yield client
    loop.run(client.__aexit__())


@pytest.fixture
def kant(plane: ControlPlane, tmp_path: Path) -> Iterator[Kant]:
    """Starts Kants on it, in the loop of the test. Their journals have to come out of the simulator the same."""
    yield partial(running.kant, plane, journal=tmp_path)
    replayed(tmp_path)
