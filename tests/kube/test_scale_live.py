"""Services with objectives on a real API server: Kant sets the replicas of what was named, and may do nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.gateway.rig import start
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.live import bound, profile, role_of_page, until
from tests.kube.objects import Object, make_gang, make_node, make_pod, make_priority_class
from tests.kube.running import Kant
from tests.local.test_services import MODELS, ask, router
from tests.patience import PATIENCE_S

from kant.cli import app
from kant.cli.kube_options import Kube
from kant.cli.serve_run import _place as place_of
from kant.kube.user.scale import scale_path
from kant.model.errors import InputError
from kant.service.follow_services import ServiceFollower
from kant.serving.live_services import read_live_services

DOCS = Path(__file__).parent.parent.parent / "docs" / "serving.md"
NOON = 1795348800.0  # 2026-11-22T12:00:00Z, a moment of the forecast
DEPLOYMENTS = "/apis/apps/v1/namespaces/models/deployments"


def deployment(name: str, replicas: int, namespace: str = "models") -> Object:
    pod = {"schedulerName": "kant", "containers": [{"name": "engine", "image": "engine"}]}
    labels = {"app": name}
    spec = {
        "replicas": replicas, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }  # fmt: skip
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def write_service(folder: Path, bursts: str = "deployments/chat-burst") -> Path:
    rows = "".join(f"{hour},{3.0 if hour >= 12 else 1.0}\n" for hour in range(24))
    (folder / "expected.csv").write_text("hour,rate\n" + rows)
    file = folder / "services.toml"
    file.write_text(f"""
[[service]]
name = "chat"
model = "llama-3-8b"
gpu = "a100"
ttft_s = 2
tpot_s = 0.1
core = 1
most = 6
capacity = [[1, 0.5], [2, 1.0], [4, 3.0]]
forecast = "expected.csv"
begins = 2026-11-22T00:00:00Z
[service.kubernetes]
bursts = "{bursts}"
namespace = "models"
""")
    return file


async def has_rights(own: Api) -> None:
    """Wait until the API server has heard of the new Role."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(RefusedError):
                await own.get(f"{DEPLOYMENTS}/chat-burst/scale")
                return
            await asyncio.sleep(0.05)


async def test_the_bursts_of_a_service_follow_its_forecast_with_no_more_rights_than_said(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_service(tmp_path)
    (service,) = read_live_services(file, NOON, tmp_path)
    kubeconfig = plane.kubeconfig("scaler")
    there = Kube(kubeconfig=kubeconfig)

    def refused(file: Path, sentence: str) -> None:
        words = ["serve", "run", str(file), "--kubeconfig", str(kubeconfig), "--home", str(tmp_path / "home")]
        assert app.run(words) != 0
        assert sentence in capsys.readouterr().err

    async with Api(plane) as api, Api(plane, "scaler") as own:
        await api.namespace("models")
        await api.create_all([deployment("chat-core", 1), deployment("chat-burst", 0)])

        async def wanted(name: str) -> int:
            return int((await api.get(f"{DEPLOYMENTS}/{name}"))["spec"]["replicas"])

        await asyncio.to_thread(refused, file, "the right to get and patch its scale")
        await api.apply(role_of_page(DOCS, "scaler"))
        await has_rights(own)
        follower = ServiceFollower(service, await asyncio.to_thread(place_of, service, tmp_path, None, there))
        await asyncio.to_thread(follower.turn, NOON)
        assert await wanted("chat-burst") == 3 and await wanted("chat-core") == 1
        before = (await api.get(f"{DEPLOYMENTS}/chat-burst"))["metadata"]["resourceVersion"]
        await asyncio.to_thread(follower.turn, NOON + 5)
        assert (await api.get(f"{DEPLOYMENTS}/chat-burst"))["metadata"]["resourceVersion"] == before
        await api.patch(f"{DEPLOYMENTS}/chat-burst", {"spec": {"replicas": 5}})
        await asyncio.to_thread(follower.turn, NOON + 10)  # somebody else has turned it
        assert await wanted("chat-burst") == 3
        await asyncio.to_thread(follower.turn, NOON + 12 * 3600)
        assert await wanted("chat-burst") == 1 and not follower.trouble
        # It may touch nothing else.
        for path, change in (("chat-core/scale", {"spec": {"replicas": 0}}), ("chat-burst", {"spec": {"replicas": 0}})):
            with pytest.raises(RefusedError, match="403"):
                await own.patch(f"{DEPLOYMENTS}/{path}", change)
        with pytest.raises(RefusedError, match="403"):
            await own.list("pods", "models")
        await asyncio.to_thread(refused, write_service(tmp_path, "deployments/other"), "the right to get")
        await api.delete(f"{DEPLOYMENTS}/chat-burst")
        follower.due = 0
        await asyncio.to_thread(follower.turn, NOON + 13 * 3600)
        assert "an existing workload with a scale subresource" in follower.trouble


def test_what_can_be_scaled_is_named_in_full_or_is_of_apps() -> None:
    path = "/apis/apps/v1/namespaces/a/deployments/b/scale"
    assert scale_path("deployments/b", "a", "x") == scale_path("apps/v1/deployments/b", "a", "x") == path
    for wrong in ("b", "pods/b", "deployments/../b", "deployments/B", "a/b/c/d/e"):
        with pytest.raises(InputError, match="x: expected deployments/NAME"):
            scale_path(wrong, "a", "x")


# --- two models and training on one pool -----------------------------------------------------------------------------

YES, PARTS = {"scheduling.kant.dev/preemptible": "true"}, ("core", "burst")


@asynccontextmanager
async def deployments(api: Api) -> AsyncIterator[None]:
    """What the controller of Deployments does: as many pods as each says, those with the highest numbers go first."""

    async def follow() -> None:
        while True:
            there = {pod["metadata"]["name"]: pod for pod in await api.list("pods", "pool")}
            for one in (await api.get("/apis/apps/v1/namespaces/pool/deployments"))["items"]:
                name, count = one["metadata"]["name"], one["spec"]["replicas"]
                may_stop = YES if name.endswith("burst") else {"scheduling.kant.dev/preemptible": "false"}
                for k in range(8):
                    pod = f"{name}-{k}"
                    if k < count and pod not in there:
                        await api.create(
                            make_pod(pod, 1, namespace="pool", priority_class="serving", annotations=may_stop)
                        )
                    elif k >= count and pod in there and "deletionTimestamp" not in there[pod]["metadata"]:
                        await api.delete(f"/api/v1/namespaces/pool/pods/{pod}")
            await asyncio.sleep(0.1)

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        assert not task.done(), task.exception()
        task.cancel()


def write_two(folder: Path, operators: dict[str, str]) -> Path:
    (folder / "expected.csv").write_text("hour,rate\n0,0.05\n")
    tables = [
        f"""
[[service]]
name = "{name}"
model = "{MODELS[name]}"
gpu = "a100"
ttft_s = 2
tpot_s = 0.1
most = 3
capacity = [[1, 0.1], [2, 0.2], [3, 0.4]]
forecast = "expected.csv"
begins = 2026-11-22T00:00:00Z
operators = ["{address}"]
[service.kubernetes]
bursts = "deployments/{name}-burst"
namespace = "pool"
"""
        for name, address in operators.items()
    ]
    (folder / "services.toml").write_text("".join(tables))
    return folder / "services.toml"


async def test_two_models_and_training_on_one_pool_where_traffic_exceeds_its_forecast(
    api: Api, kant: Kant, plane: ControlPlane, tmp_path: Path
) -> None:
    preempting, there = (
        profile("[preemption]\npriority = true\nmin_run_s = 0\n"),
        Kube(kubeconfig=plane.kubeconfig("admin")),
    )
    mock = start("mock")
    port = int(mock.url.rpartition(":")[2])
    await api.namespace("pool")
    await api.create_all([make_priority_class("serving", 1000), make_node("n0")])
    try:
        with router(port, 1) as (chat, to_chat), router(port, 1) as (code, to_code):
            file = write_two(tmp_path, {"chat": to_chat, "code": to_code})
            services = read_live_services(file, NOON, tmp_path)
            async with FakeKubelet(api), ReplicaController(api) as jobs, deployments(api), kant(profile=preempting):
                both = [
                    deployment(f"{name}-{part}", int(part == "core"), "pool")
                    for name in ("chat", "code")
                    for part in PARTS
                ]
                await api.create_all(both)
                places = [await asyncio.to_thread(place_of, service, tmp_path, None, there) for service in services]
                followers = [ServiceFollower(*pair) for pair in zip(services, places, strict=True)]

                async def turn(now: float) -> list[int]:
                    for follower in followers:
                        await asyncio.to_thread(follower.turn, now)
                        assert not follower.trouble
                    return [follower.wanted for follower in followers]

                async def stands(bursts: int, training: int) -> None:
                    serve = ["chat-core-0", "code-core-0", *(f"chat-burst-{k}" for k in range(bursts))]

                    def holds(pods: list[Object]) -> bool:
                        there = bound(pods)
                        trains = [name for name in there if name.startswith("train")]
                        return len(trains) == training and sorted(serve) == [n for n in there if n not in trains]

                    await until(api, holds)

                await jobs.run([pod for k in range(6) for pod in make_gang(f"train-{k}", 1, annotations=YES)])
                assert await turn(NOON) == [1, 1]
                await stands(0, 6)
                assert await ask(code, 1) == [200]
                await turn(NOON + 60)
                assert await ask(chat, 18) == [200] * 18
                assert await turn(NOON + 120) == [3, 1]  # three minutes before its time
                await stands(2, 4)
                assert await turn(NOON + 20 * 60) == [1, 1]
                await stands(0, 6)
    finally:
        mock.kill()
