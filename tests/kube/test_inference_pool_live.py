"""An InferencePool and its objectives on a real API server: followed as pods come and go, with the rights as said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import ControlPlane
from tests.kube.live import install_kind, kind
from tests.kube.objects import Object, make_pod
from tests.patience import PATIENCE_S, until

from kant.kube.connect.config import Config, load
from kant.kube.user.inference_pool import PoolEndpoints
from kant.model.errors import InputError

DOCS = Path(__file__).parent.parent.parent / "docs" / "routing.md"
GROUP, BESIDE = "inference.networking.k8s.io", "inference.networking.x-k8s.io"
POOL = f"/apis/{GROUP}/v1/namespaces/models/inferencepools/chat"
PODS = "/api/v1/namespaces/models/pods"


def string(**more: object) -> Object:
    return {"type": "string", **more}


def fields(required: list[str], **properties: Object) -> Object:
    return {"type": "object", "required": required, "properties": properties}


PORT: Object = {"type": "integer", "minimum": 1, "maximum": 65535}
POOL_SPEC = fields(
    ["selector", "targetPorts", "endpointPickerRef"],
    selector=fields(["matchLabels"], matchLabels={"type": "object", "additionalProperties": string(maxLength=63)}),
    targetPorts={"type": "array", "minItems": 1, "maxItems": 8, "items": fields(["number"], number=PORT)},
    appProtocol=string(enum=["http", "kubernetes.io/h2c"]),
    endpointPickerRef=fields(
        ["name"], group=string(default=""), kind=string(default="Service"), name=string(), port=fields([], number=PORT),
        failureMode=string(default="FailClose", enum=["FailOpen", "FailClose"]),
    ),
)  # fmt: skip
OBJECTIVE_SPEC = fields(
    ["poolRef"], priority={"type": "integer"},
    poolRef=fields(["name"], group=string(default=GROUP), kind=string(default="InferencePool"), name=string()),
)  # fmt: skip


def described(definition: Object, spec: Object) -> Object:
    """A kind with the fields of https://gateway-api-inference-extension.sigs.k8s.io/reference/spec."""
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = fields(["spec"], spec=spec)
    return definition


def objective(name: str, pool: str = "chat", group: str = f"{BESIDE}/v1alpha2", **spec: object) -> Object:
    meta = {"name": name, "namespace": "models"}
    return {
        "apiVersion": group,
        "kind": "InferenceObjective",
        "metadata": meta,
        "spec": {"poolRef": {"name": pool}, **spec},
    }


def rights() -> list[Object]:
    """The Role of the page, as people copy it, for the user `router`."""
    text = DOCS.read_text()
    begin = text.index("metadata: {name: kant-picker")
    block = text[text.rindex("```yaml", 0, begin) : text.index("```", begin)]
    role, binding = yaml.safe_load_all(block.removeprefix("```yaml"))
    return [
        role,
        {**binding, "subjects": [{"kind": "User", "name": "router", "apiGroup": "rbac.authorization.k8s.io"}]},
    ]


async def pod(api: Api, name: str, address: str, ready: bool, app: str = "vllm") -> None:
    """A pod as its kubelet reports it."""
    await api.create(make_pod(name, 0, namespace="models", labels={"app": app, "model": "m"}, node="elsewhere"))
    await says(api, name, address, ready)


async def says(api: Api, name: str, address: str, ready: bool) -> None:
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
    await api.patch(f"{PODS}/{name}/status", {"status": status})


async def test_a_pool_is_followed_with_no_more_rights_than_said(plane: ControlPlane) -> None:
    told: list[Mapping[str, bool]] = []
    troubles: list[str] = []
    chat = PoolEndpoints(load(plane.kubeconfig("router")), "models", "chat", troubles.append)

    async def becomes(wanted: Mapping[str, bool]) -> None:
        await until(lambda: told[-1:] == [wanted])

    async def refused(why: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with pytest.raises(InputError) as error:
                    await chat.now()
                if why in str(error.value):
                    return
                await asyncio.sleep(0.05)

    async with Api(plane) as api, Api(plane, "router") as own:
        await api.namespace("models")
        await api.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "models"}}
        )
        await refused("the rights to list and watch inferencepools, inferenceobjectives and pods")
        await install_kind(api, described(kind(GROUP, "v1", "InferencePool", "inferencepools"), POOL_SPEC))
        await install_kind(
            api, described(kind(BESIDE, "v1alpha2", "InferenceObjective", "inferenceobjectives"), OBJECTIVE_SPEC)
        )
        await api.apply(rights())
        await refused(f"pool models/chat: expected an InferencePool of that name ({GROUP}/v1)")
        spec = {
            "selector": {"matchLabels": {"app": "vllm", "model": "m"}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        }
        pool = {"apiVersion": f"{GROUP}/v1", "kind": "InferencePool", "spec": spec}
        await api.create(pool | {"metadata": {"name": "chat", "namespace": "models"}})
        await pod(api, "one", "10.1.0.1", True)
        await pod(api, "two", "10.1.0.2", False)
        await pod(api, "else", "10.1.0.3", True, "else")
        assert await chat.now() == {"http://10.1.0.1:8000": True, "http://10.1.0.2:8000": False}
        assert chat.failure_mode == "FailClose"  # which the API server filled in

        following = asyncio.create_task(chat.follow(told.append))
        await becomes({"http://10.1.0.1:8000": True, "http://10.1.0.2:8000": False})
        await says(api, "two", "10.1.0.2", True)
        await becomes({"http://10.1.0.1:8000": True, "http://10.1.0.2:8000": True})
        await api.delete(f"{PODS}/one")  # its grace period begins
        await becomes({"http://10.1.0.1:8000": False, "http://10.1.0.2:8000": True})
        await api.delete(f"{PODS}/one", grace_s=0)
        await becomes({"http://10.1.0.2:8000": True})
        ports = {"targetPorts": [{"number": 8000}, {"number": 8001}], "endpointPickerRef": {"failureMode": "FailOpen"}}
        await api.patch(POOL, {"spec": ports})
        await becomes({"http://10.1.0.2:8000": True, "http://10.1.0.2:8001": True})
        assert chat.failure_mode == "FailOpen"
        await api.patch(POOL, {"spec": {"selector": {"matchLabels": {"app": "else"}}}})
        await becomes({"http://10.1.0.3:8000": True, "http://10.1.0.3:8001": True})
        await says(api, "two", "10.1.0.2", False)  # of nobody's interest now

        await api.create(objective("urgent", priority=10))
        await api.create(objective("batch", priority=-5))
        await api.create(objective("plain"))
        await api.create(objective("theirs", "another", priority=99))
        await until(lambda: chat.priorities == {"urgent": 10, "batch": -5, "plain": 0})
        path = f"/apis/{BESIDE}/v1alpha2/namespaces/models/inferenceobjectives"
        await api.patch(f"{path}/batch", {"spec": {"priority": -7}})
        await api.delete(f"{path}/urgent")
        await until(lambda: chat.priorities == {"batch": -7, "plain": 0})

        await api.delete(POOL)
        await becomes({})
        assert troubles == [f"pool models/chat: expected an InferencePool of that name ({GROUP}/v1)"]
        for mine in (own.list("secrets", "models"), own.delete(f"{PODS}/two")):
            with pytest.raises(RefusedError, match="403"):
                await mine
        following.cancel()
    assert {url for known in told for url in known} == {
        f"http://10.1.0.{k}:{port}" for k in (1, 2, 3) for port in (8000, 8001)
    } - {"http://10.1.0.1:8001"}


@pytest.mark.parametrize("name", ["UP", "a/b", ""])
def test_a_name_that_no_pool_can_have_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="--pool: expected a name of lower-case letters"):
        PoolEndpoints(Config("http://none"), "default", name, print)
