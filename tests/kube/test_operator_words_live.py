"""What an operator reads of a cluster that is not as Kant needs it, on a real API server: one true sentence."""

from __future__ import annotations

import asyncio
import json
from itertools import count

import pytest
import yaml
from tests.kube.api import Api
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.live import MANIFESTS, install, queue
from tests.kube.objects import make_node
from tests.kube.test_orders_live import People
from tests.patience import PATIENCE_S

from kant.kube.connect.client import ApiClient
from kant.kube.connect.config import load
from kant.kube.lead.replica import Replica, ReplicaOptions
from kant.scheduler.profile import builtin_profile

KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def test_kinds_that_are_not_installed_or_of_an_older_kant_are_named(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    people = People(plane, capsys)
    async with Api(plane) as api:
        try:
            await install(api)
            await api.create_all([make_node("n0"), queue("vision", 8)])
            older = yaml.safe_load((MANIFESTS / "crd-queues.yaml").read_text())
            fields = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            del fields["state"]
            await api.apply([older])
            attempts = count()
            async with asyncio.timeout(PATIENCE_S):  # the API server takes a moment to serve what it was told
                while (await api.create(queue(f"q{next(attempts)}", state="hold")))["spec"].get("state"):
                    await asyncio.sleep(0.1)
            answer = await people("admin", "hold", "queue/vision", code=2)
            assert "queues have no spec.state, as in an older Kant: apply the output of `kant kube manifests`" in answer
            await api.delete(f"{KINDS}/reservations.scheduling.kant.dev")
            async with asyncio.timeout(PATIENCE_S):
                while "installed" not in (answer := await people("admin", "drain", "node/n0", code=2)):
                    await asyncio.sleep(0.1)
            assert "Kant's kinds are not installed: apply the output of `kant kube manifests`" in answer
            top = json.loads(await people("admin", "top", "--json"))
            assert "reservations have no effect: these kinds are not installed" in top["unread"][0]
        finally:
            await install(api)


async def test_a_kant_of_another_name_says_whose_lease_it_waits_for(plane: ControlPlane) -> None:
    config, said = load(plane.kubeconfig("admin")), list[str]()
    async with Api(plane) as api, ApiClient(config) as client:
        await api.namespace(NAMESPACE)
        for name in ("kant", "kant", "other"):
            replica = Replica(ReplicaOptions(builtin_profile("kant"), scheduler_name=name), config)
            lease = replica._lease(client, lambda token: None, lambda error: said.append(str(error)))
            await lease._attempt(lease._acquire)
    assert said == [
        "--scheduler-name: expected kant, which holds the Lease kant-system/kant, or a --namespace with a Lease "
        "of its own, got 'other'"
    ]
