"""Stories on a real API server: our kinds installed, Kant at work, and every journal replayed at the end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

import yaml
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.objects import Object
from tests.patience import PATIENCE_S

import kant.kube
from kant.kube.lead.driver import KubeDriver
from kant.kube.translate.crds import API
from kant.scheduler.profile import Profile, parse_profile
from kant.sim.replay import replay

MANIFESTS = Path(kant.kube.__file__).parent / "manifests"
OWN = "scheduling.kant.dev"
GATE = f"{OWN}/quota"
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEFT: WeakKeyDictionary[ControlPlane, dict[str, tuple[Object, tuple[str, int]]]] = WeakKeyDictionary()
"""The kinds of each control plane: how they were applied, and the version that came of it."""
Objects = list[Object]


def replayed(journals: Path) -> None:
    """Every journal in the folder has to come out of the simulator with the same digest."""
    files = sorted(journals.glob("*.jsonl"))
    assert files
    for file in files:
        again = replay(file)
        assert again.equal, (file, again.difference)


async def install(api: Api) -> None:
    """Our kinds, until they can be listed."""
    for definition in our_kinds():
        await install_kind(api, definition)


@cache
def our_kinds() -> Objects:
    return [yaml.safe_load(file.read_text()) for file in sorted(MANIFESTS.glob("crd-*.yaml"))]


async def install_kind(api: Api, definition: Object) -> None:
    """A kind, until it can be listed; nothing where it is there as it was left: to apply it is dear."""
    path, left = f"{KINDS}/{definition['metadata']['name']}", LEFT.setdefault(api.plane, {})
    if left.get(path) == (definition, await version(api, path)):
        return
    await apply_kind(api, definition)
    left[path] = definition, await version(api, path)


async def version(api: Api, path: str) -> tuple[str, int]:
    """Another one whenever what is wished of an object has changed, or the object is another one."""
    try:
        meta = (await api.get(path))["metadata"]
    except RefusedError as refused:
        if refused.code != 404:
            raise
        return "", 0
    return meta["uid"], meta["generation"]


async def apply_kind(api: Api, definition: Object) -> None:
    await api.apply([definition])
    spec = definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await api.list(path)
                return
            except Exception:
                await asyncio.sleep(0.05)


async def reachable(api: Api, host: str, port: int) -> None:
    """The Service of Kant, with what controllers and kubelets would write of the one pod behind it."""
    of = {"name": "kant", "namespace": NAMESPACE}
    spec = {"containers": [{"name": "kant", "image": "kant"}], "nodeName": "elsewhere", "hostNetwork": True}
    pod = {"kind": "Pod", "name": "kant-0", "namespace": NAMESPACE}
    ports = [{"name": "http", "port": port}]
    await api.apply(
        [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": of | {"name": "default"}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": of | {"name": "kant-0"}, "spec": spec},
            {"apiVersion": "v1", "kind": "Service", "metadata": of, "spec": {"ports": ports}},
            {
                "apiVersion": "v1", "kind": "Endpoints", "metadata": of,
                "subsets": [{"addresses": [{"ip": host, "targetRef": pod}], "ports": ports}],
            },
        ]
    )  # fmt: skip
    status = {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}]}
    await api.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/kant-0/status", {"status": status})


def address_of_host() -> str:
    """An address of this machine to which an API server passes requests on, "" where there is but the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        try:
            out.connect(("192.0.2.1", 9))  # sends nothing
            found = str(out.getsockname()[0])
        except OSError:
            return ""
    return "" if found.startswith("127.") else found


def role_of_page(page: Path, user: str) -> Objects:
    """The Role of a page of the documentation, as people copy it, for a user."""
    text = page.read_text()
    begin = text.index("kind: Role\n")
    block = text[text.rindex("```yaml", 0, begin) : text.index("```", begin)]
    role, binding = yaml.safe_load_all(block.removeprefix("```yaml"))
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    return [role, {**binding, "subjects": [subject]}]


async def deputy_of_kant(api: Api, but_for: str = "nothing") -> None:
    """The user `deputy` may do what the shipped role of Kant allows, but for one group of the API, or one resource."""
    group = "rbac.authorization.k8s.io"
    shipped = yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text())
    role = next(one for one in shipped if one["kind"] == "ClusterRole")
    rules = [rule for rule in role["rules"] if but_for not in (*rule["apiGroups"], *rule["resources"])]
    named = {"metadata": {"name": "deputy-of-kant"}, "apiVersion": f"{group}/v1"}
    subject = {"kind": "User", "name": "deputy", "apiGroup": group}
    ref = {"kind": "ClusterRole", "name": "deputy-of-kant", "apiGroup": group}
    await api.apply([named | {"kind": "ClusterRole", "rules": rules}])
    await api.apply([named | {"kind": "ClusterRoleBinding", "roleRef": ref, "subjects": [subject]}])


def kind(group: str, version: str, name: str, plural: str) -> Object:
    """The definition of somebody else's kind, that takes whatever it is given."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": name, "plural": plural, "singular": name.lower(), "listKind": f"{name}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def ours(kind: str, name: str, **spec: object) -> Object:
    """A Queue, Topology or Reservation."""
    return {"apiVersion": f"{OWN}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def queue(name: str, gpus: int | None = None, *, quota: Object | None = None, **spec: object) -> Object:
    """A Queue with a quota of GPUs; `quota` has the other fields of it."""
    quotas = [] if gpus is None else [{"resource": "gpu", "nominal": gpus} | (quota or {})]
    return ours("Queue", name, quotas=quotas, **spec)


def profile(text: str = "", *, order: str = "fifo") -> Profile:
    """A small profile: backfill with best fit, and `text` behind."""
    head = f'name = "test"\norder = {{policy = "{order}"}}\ndiscipline = {{policy = "backfill"}}\n'
    return parse_profile(head + 'placement = {policy = "best-fit"}\n' + text, "test")


# --- pods ------------------------------------------------------------------------------------------------------------


def name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def bound(pods: Iterable[Object]) -> list[str]:
    return sorted(name(pod) for pod in pods if pod["spec"].get("nodeName"))


def where(pods: Iterable[Object]) -> dict[str, str]:
    return {name(pod): pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}


def waiting(pods: Iterable[Object]) -> list[str]:
    return sorted(name(pod) for pod in pods if not pod["spec"].get("nodeName"))


def condition(thing: Object, which: str = "PodScheduled") -> Object:
    found = [one for one in thing.get("status", {}).get("conditions", []) if one["type"] == which]
    return found[0] if found else {}


def says(pods: Iterable[Object], pod: str, words: str) -> bool:
    """Whether this pod is there, waits, and says why in these words."""
    return any(
        name(one) == pod and not one["spec"].get("nodeName") and words in condition(one).get("message", "")
        for one in pods
    )


def gates(pods: Iterable[Object], pod: str) -> list[str]:
    return [gate["name"] for one in pods if name(one) == pod for gate in one["spec"].get("schedulingGates", [])]


def of_queue(queue: str) -> dict[str, str]:
    return {f"{OWN}/queue": queue}


async def seen(driver: KubeDriver, node: str, changed: Object) -> None:
    """Wait until the leader has been told of this change of a node."""
    async with asyncio.timeout(PATIENCE_S):
        while driver.mirror.nodes[node].metadata.resource_version != changed["metadata"]["resourceVersion"]:
            await asyncio.sleep(0.02)


async def change(api: Api, kind: str, name: str, **spec: object) -> None:
    """Other fields in the spec of an object of ours."""
    await api.patch(f"{API}/{kind}/{name}", {"spec": spec})


async def status(api: Api, kind: str, name: str, holds: Callable[[Object], bool]) -> Object:
    """The status of an object of ours, once it is so. Raises AssertionError with the last one."""
    last: Object = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                last = (await api.get(f"{API}/{kind}/{name}")).get("status", {})
                if last and holds(last):
                    return last
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(last) from None


async def events(api: Api, reason: str) -> Objects:
    return [event for event in await api.list("/apis/events.k8s.io/v1/events") if event["reason"] == reason]


async def until(api: Api, holds: Callable[[Objects], bool]) -> Objects:
    """The pods, once it is so. Raises AssertionError that says how each of them stands."""
    seen: Objects = []

    def look(pods: Objects) -> bool:
        seen[:] = pods
        return holds(pods)

    try:
        return await api.until(look)
    except TimeoutError:
        lines = [
            f"{name(pod)}: {pod['spec'].get('nodeName') or condition(pod).get('reason', '')} "
            f"{'deleting ' if pod['metadata'].get('deletionTimestamp') else ''}{condition(pod).get('message', '')}"
            for pod in seen
        ]
        raise AssertionError("\n".join(lines)) from None
