"""A small client of the API server for tests, apart from Kant's own, so that no client is tested by itself.

async with Api(plane) as api:
    await api.create(make_node("node-0"))
    await api.create_all(make_gang("train", 16))
    pods = await api.list("pods")
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import yaml
from tests.kube.control_plane import GANG_API, NAMESPACE, ControlPlane
from tests.kube.objects import Object
from tests.patience import PATIENCE_S

from kant.kube.lead.calibration_store import LEARNED

Objects = list[Object]
Words = list[str]

AT_ONCE = 64
MERGE, STRATEGIC, APPLY = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
CORE = {"pods", "nodes", "namespaces", "events", "services", "secrets", "configmaps", "serviceaccounts"}
CORE |= {"endpoints", "persistentvolumeclaims", "persistentvolumes"}
FOLDERS = {"nodes": "minions"}
"""What etcd calls a kind, where it is another word than the last of its path."""
OWN_GROUPS = {"apiextensions.k8s.io", "apiregistration.k8s.io"}
"""Folders of etcd that are named as those of a CRD."""
FINALLY = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}


class RefusedError(Exception):
    """The API server said no."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message


class Api:
    """One user at one API server. Paths are written whole ("/apis/batch/v1/jobs"), or as the plural ("pods")."""

    def __init__(self, plane: ControlPlane, user: str = "admin", *, url: str = "") -> None:
        self.plane, self.url = plane, url or plane.url
        self._user = user
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}

    async def __aenter__(self) -> Api:
        trust = self.plane.tls() if self.url.startswith("https") else True
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=AT_ONCE + 16),
            headers={"Authorization": f"Bearer {self.plane.token(self._user)}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE_S),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    # --- requests ------------------------------------------------------------------------------------------------

    async def call(self, verb: str, path: str, body: Any = None, *, kind: str = "", **query: Any) -> Any:
        """One request. Raises RefusedError for a code of 400 and above."""
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()  # as kubectl does
        headers = {"Content-Type": kind or "application/json"} if data is not None else {}
        words = {key: str(value) for key, value in query.items()}
        async with self._http.request(verb, self.url + path, data=data, headers=headers, params=words) as reply:
            text = await reply.text()
            answer = json.loads(text) if text.startswith("{") else {"message": text}
            if reply.status >= 400:
                raise RefusedError(reply.status, answer.get("reason", ""), answer.get("message", ""))
            return answer

    async def get(self, path: str, **query: Any) -> Object:
        answer: Object = await self.call("GET", path, **query)
        return answer

    async def list(self, what: str, namespace: str = "", **query: Any) -> Objects:
        """All objects of a kind in a namespace, or in all of them."""
        return list((await self.get(collection(what, namespace), **query))["items"])

    async def create(self, thing: Object) -> Object:
        """POST, where its kind belongs."""
        answer: Object = await self.call("POST", await self._place(thing), thing)
        return answer

    async def patch(self, path: str, change: Object, *, kind: str = MERGE) -> Object:
        answer: Object = await self.call("PATCH", path, change, kind=kind)
        return answer

    async def delete(self, path: str, *, grace_s: int | None = None, uid: str = "") -> None:
        """With `uid`, only that very object: 409 where the name belongs to another by now."""
        options: Object = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        if uid:
            options["preconditions"] = {"uid": uid}
        await self.call("DELETE", path, options)

    async def create_all(self, things: Iterable[Object]) -> None:
        """Many POSTs at once. Groups come before pods; else the order between them is open."""
        given = list(things)
        for batch in ([t for t in given if t["kind"] != "Pod"], [t for t in given if t["kind"] == "Pod"]):
            await at_once(self.create(thing) for thing in batch)

    async def apply(self, manifests: str | Path | Objects, *, owner: str = "tests") -> None:
        """Server-side apply of YAML, with the kinds that a manifest before brings (CRDs)."""
        if isinstance(manifests, Path):
            manifests = manifests.read_text()
        things = list(yaml.safe_load_all(manifests)) if isinstance(manifests, str) else manifests
        for thing in things:
            if thing:
                path = f"{await self._place(thing, wait_s=PATIENCE_S)}/{thing['metadata']['name']}"
                await self.call("PATCH", path, thing, kind=APPLY, fieldManager=owner, force="true")

    async def namespace(self, name: str) -> None:
        """Make sure that there is one. There is no namespace controller: never delete one, it would stay for good."""
        try:
            await self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except RefusedError as refused:
            if refused.code != 409:
                raise

    # --- pods ----------------------------------------------------------------------------------------------------

    async def bind(self, pod: str, node: str, *, namespace: str = "default", uid: str = "") -> None:
        """What a scheduler does."""
        meta = {"name": pod} | ({"uid": uid} if uid else {})
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": node}}
        await self.call("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", binding)

    async def evict(self, pod: str, *, namespace: str = "default") -> None:
        """Through the Eviction API, which asks the budgets."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        await self.call("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)

    async def allow(self, budget: str, allowed: int, *, namespace: str = "default") -> None:
        """What the disruption controller would write: so many evictions are allowed now."""
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{budget}"
        seen = (await self.get(path))["metadata"]["generation"]
        counts = {"currentHealthy": allowed, "desiredHealthy": 0, "expectedPods": allowed}
        change = {"status": {"disruptionsAllowed": allowed, "observedGeneration": seen, **counts}}
        await self.patch(f"{path}/status", change)

    async def until(self, condition: Callable[[Objects], bool], what: str = "pods", **query: Any) -> Objects:
        """List until the condition holds; the list then. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(found := await self.list(what, **query)):
                await asyncio.sleep(0.1)
        return found

    async def requests(self) -> Counter[str]:
        """How many requests of each kind the API server has answered so far, whoever asked: `POST pods/binding 201`."""
        text = (await self.call("GET", "/metrics"))["message"]
        counts: Counter[str] = Counter()
        for line in text.splitlines():
            if line.startswith("apiserver_request_total{"):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                what = f"{labels['resource']}/{labels['subresource']}".strip("/")
                counts[f"{labels['verb']} {what} {labels['code']}"] += int(float(line.rpartition(" ")[2]))
        return counts

    # --- watching ------------------------------------------------------------------------------------------------

    async def watch(self, path: str, version: str, **query: Any) -> AsyncIterator[tuple[str, Object]]:
        """Changes since a version, until the server ends it. Raises RefusedError where it is too old (410)."""
        words = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        words |= {key: str(value) for key, value in query.items()}
        async with self._http.get(self.url + path, params=words) as reply:
            if reply.status >= 400:
                raise RefusedError(reply.status, "", await reply.text())
            rest = b""
            async for piece in reply.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RefusedError(event["object"].get("code", 500), event["object"].get("reason", ""), "")
                    yield event["type"], event["object"]

    async def follow(self, what: str, **query: Any) -> AsyncIterator[tuple[str, Object]]:
        """For ever: ("LISTED", the list), then changes; listed again where changes may be missing."""
        path, version = collection(what), ""
        while True:
            try:
                if not version:
                    answer = await self.get(path, **query)
                    version = answer["metadata"]["resourceVersion"]
                    yield "LISTED", answer
                async for kind, thing in self.watch(path, version, **query):
                    version = thing["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield kind, thing
            except RefusedError as refused:
                if refused.code < 500 and refused.code not in (410, 429):
                    raise
                version = "" if refused.code == 410 else version
                await asyncio.sleep(0.1)
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)  # an outage

    # --- cleaning ------------------------------------------------------------------------------------------------

    async def clean(self) -> None:
        """As after the start: no pods, nodes, groups, budgets, priorities of tests, objects of ours; CRDs stay."""
        everywhere = ("pods", "/apis/policy/v1/poddisruptionbudgets", "/apis/coordination.k8s.io/v1/leases")
        groups = ("/apis/events.k8s.io/v1/events", "/apis/apps/v1/replicasets", "/apis/batch/v1/jobs")
        classes = ("storageclasses", "csidrivers", "csinodes", "csistoragecapacities", "volumeattachments")
        csi = (f"/apis/storage.k8s.io/v1/{kind}" for kind in classes)
        storage = ("persistentvolumeclaims", "persistentvolumes", *csi)
        groups += tuple(
            f"/apis/resource.k8s.io/v1/{kind}"
            for kind in ("resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses")
        )
        native = [f"/apis/{GANG_API}/{kind}" for kind in ("podgroups", "workloads") if self.plane.gates]
        there = await self._kinds_in_etcd()
        custom = await self._custom() if any("." in folder for folder in there.keys() - OWN_GROUPS) else []
        every = [*everywhere, *groups, *storage, *native, *custom, "nodes"]
        some = [path for path in every if FOLDERS.get(path, path.rpartition("/")[2]) in there]
        await at_once((self._empty(path) for path in some), limit=4)  # each at once more is a handshake more
        own = [name for name in there["priorityclasses"] if not name.startswith("system-")]
        await at_once(self.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}") for name in own)
        if f"{NAMESPACE}/{LEARNED}" in there["configmaps"]:
            await self.delete(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{LEARNED}")

    async def _kinds_in_etcd(self) -> defaultdict[str, list[str]]:
        """The objects of each kind that has any: one question to etcd in place of some forty to the API server.

        Keys are /registry/pods/default/a, and /registry/scheduling.kant.dev/queues/vision of what a CRD has made.
        """
        first, end = (base64.b64encode(text).decode() for text in (b"/registry/", b"/registry0"))
        asked = {"key": first, "range_end": end, "keys_only": True}
        async with self._http.post(f"{self.plane.etcd}/v3/kv/range", json=asked) as reply:
            keys = [base64.b64decode(row["key"]).decode() for row in (await reply.json())["kvs"]]
        found = defaultdict[str, list[str]](list)
        for key in keys:
            folder, _, rest = key.removeprefix("/registry/").partition("/")
            if "." in folder and folder not in OWN_GROUPS:
                found[folder].append(rest)
                folder, _, rest = rest.partition("/")
            found[folder].append(rest)
        return found

    async def _custom(self) -> Words:
        found = await self.list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        return [
            f"/apis/{crd['spec']['group']}/{next(v['name'] for v in crd['spec']['versions'] if v['storage'])}"
            f"/{crd['spec']['names']['plural']}"
            for crd in found
        ]

    async def _empty(self, what: str) -> None:
        """Delete all objects of a kind, in every namespace where there are any, whatever their finalizers say."""
        while True:
            try:
                found = await self.list(what)
                break
            except RefusedError as refused:
                if refused.code == 404:
                    return
                if refused.code != 429:  # a kind that is new: its storage is being opened
                    raise
                await asyncio.sleep(0.1)
        kept = [thing for thing in found if thing["metadata"].get("finalizers")]
        await at_once(self._unfinalize(what, thing) for thing in kept)
        namespaces = sorted({thing["metadata"].get("namespace", "") for thing in found})
        await at_once(self.call("DELETE", collection(what, name), FINALLY) for name in namespaces)

    async def _unfinalize(self, what: str, thing: Object) -> None:
        meta = thing["metadata"]
        path = f"{collection(what, meta.get('namespace', ''))}/{meta['name']}"
        await self.patch(path, {"metadata": {"finalizers": None}})

    # --- where kinds live ----------------------------------------------------------------------------------------

    async def _place(self, thing: Object, wait_s: float = 0.0) -> str:
        """The collection of an object, by its apiVersion and kind."""
        version, kind = thing["apiVersion"], thing["kind"]
        base = "/api/v1" if version == "v1" else f"/apis/{version}"
        end = asyncio.get_running_loop().time() + wait_s
        while (version, kind) not in self._resources:
            try:
                for resource in (await self.get(base))["resources"]:
                    if "/" not in resource["name"]:
                        self._resources[version, resource["kind"]] = resource["name"], resource["namespaced"]
            except RefusedError as refused:
                if refused.code != 404:
                    raise
            if (version, kind) not in self._resources:
                if asyncio.get_running_loop().time() >= end:
                    raise LookupError(f"the API server knows no {kind} in {version}")
                await asyncio.sleep(0.1)
        plural, namespaced = self._resources[version, kind]
        namespace = thing["metadata"].get("namespace", "default") if namespaced else ""
        return collection(plural if version == "v1" else f"{base}/{plural}", namespace)


def collection(what: str, namespace: str = "") -> str:
    """The path of a collection: "pods" or "/apis/batch/v1/jobs", in one namespace or in all."""
    path = f"/api/v1/{what}" if what in CORE else what
    if not namespace:
        return path
    base, plural = path.rsplit("/", 1)
    return f"{base}/namespaces/{quote(namespace)}/{plural}"


async def at_once(calls: Iterable[Any], limit: int = AT_ONCE) -> None:
    """Await many, so many at a time; the first failure ends the rest."""
    gate = asyncio.Semaphore(limit)

    async def one(call: Any) -> None:
        async with gate:
            await call

    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            tasks.create_task(one(call))
