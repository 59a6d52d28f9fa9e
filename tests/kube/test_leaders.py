"""Two replicas as processes, with the shipped role: leaders are killed, stopped, told to go, and cut off.

The API server freezes, tokens are rotated, and clocks differ.

KANT_CHAOS_KILLS=N kills N leaders (2) while KANT_CHAOS_PODS=N pods arrive (240); KANT_CHAOS_SEED=N has another mixture
of gangs.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from socket import socket

import aiohttp
import pytest
import yaml
from tests.kube.api import Api, RefusedError
from tests.kube.audit import Auditor, summary
from tests.kube.binaries import Binaries
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.faults import Fault, FaultProxy
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.live import bound, says, until, where
from tests.kube.objects import Object, make_gang, make_node
from tests.kube.running import KantProcess
from tests.kube.running import kant as running
from tests.kube.terms import LEASES, Terms
from tests.patience import PATIENCE_S

import kant
from kant.kube.act import binder
from kant.kube.connect.config import load
from kant.kube.lead.name_claim import NameClaim
from kant.kube.manifests import ManifestSettings, render
from kant.live.journal_walk import read_journal

KILLS = int(os.environ.get("KANT_CHAOS_KILLS", "2"))
PODS = int(os.environ.get("KANT_CHAOS_PODS", "240"))
SEED = int(os.environ.get("KANT_CHAOS_SEED", "0"))
RECOVERY_S = 3.0
RELEASES = Path(__file__).parent / "releases"
"""What past releases left behind (see record_release.py): objects of a control plane, and the journal."""

CLAIM = next(one for one in yaml.safe_load_all(render(ManifestSettings())) if one["kind"] == "Lease")
"""The Lease of the scheduler name, which `clean` takes away."""


@pytest.fixture(scope="module")
def installed(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane on which `kant kube manifests` has been applied: RBAC, the fence."""

    async def install(plane: ControlPlane) -> None:
        async with Api(plane) as api:
            await api.apply(render(ManifestSettings()))

    with ControlPlane(binaries) as plane:
        asyncio.run(install(plane))
        yield plane


@pytest.fixture
def api(installed: ControlPlane, loop: asyncio.Runner) -> Iterator[Api]:
    """A client of the control plane, which is empty but for what is installed."""

    async def begin() -> None:
        await client.__aenter__()
        await client.clean()
        await client.apply([CLAIM])

    client = Api(installed)
    loop.run(begin())
    yield client
    loop.run(client.__aexit__())


@asynccontextmanager
async def fenced(api: Api, fence: bool) -> AsyncIterator[None]:
    """With or without the policy by which the API server itself refuses the bindings of who does not lead."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/kant-fencing"
    if not fence:
        await api.patch(path, {"spec": {"validationActions": ["Warn"]}})
    try:
        yield
    finally:
        if not fence:
            await api.patch(path, {"spec": {"validationActions": ["Deny"]}})


class Replicas:
    """Two processes of Kant; who is killed is replaced."""

    def __init__(self, plane: ControlPlane, *, server: str = "", lease_s: float = 2.0) -> None:
        self.start = lambda: KantProcess(plane, "--recovery", str(RECOVERY_S), server=server, lease_s=lease_s)
        self.living: list[KantProcess] = []

    def __enter__(self) -> Replicas:
        self.living = [self.start(), self.start()]
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for one in self.living:
                stack.callback(one.kill)

    async def stand(self) -> None:
        """Wait until both stand for election, or lead."""
        for one in self.living:
            await one.says("waits for the Lease")

    def by_pid(self, pid: int) -> KantProcess:
        return next(one for one in self.living if one.process.pid == pid)

    def kill(self, pid: int) -> None:
        one = self.by_pid(pid)
        one.kill()
        self.living.remove(one)
        self.living.append(self.start())


def mixture(count: int, seed: int) -> list[list[Object]]:
    """Gangs of 1, 4, 8 and 32 pods, `count` pods in all; most of them end after a while."""
    rng = random.Random(seed)
    gangs: list[list[Object]] = []
    while count:
        size = min(rng.choice((1, 1, 1, 4, 4, 8, 8, 32)), count)
        gpus = rng.choice((1, 2, 4, 8) if size < 8 else (1, 1, 2, 8) if size == 8 else (1, 2))
        ends = {"run_s": rng.uniform(0.2, 2.0)} if rng.random() < 0.97 else {}
        gangs.append(make_gang(f"gang-{len(gangs)}", size, gpus, **ends))
        count -= size
    return gangs


async def test_leaders_are_killed_while_pods_arrive_and_nothing_is_half_or_twice_or_lost(
    api: Api, installed: ControlPlane
) -> None:
    rng = random.Random(SEED)
    gangs = mixture(PODS, SEED)
    await api.create_all([make_node(f"n{i}") for i in range(90)])
    async with FakeKubelet(api), ReplicaController(api) as jobs, Auditor(api) as auditor, Terms(api) as terms:
        with Replicas(installed) as kants:
            await kants.stand()
            waves = [gangs[part :: KILLS + 1] for part in range(KILLS + 1)]
            for number, wave in enumerate(waves):
                arriving = asyncio.create_task(jobs.run([pod for gang in wave for pod in gang]))
                if number < KILLS:
                    await terms.bound_more(rng.randint(1, PODS // (2 * KILLS + 2)))
                    token, pid = terms.token, terms.leader_pid
                    kants.kill(pid)
                    await arriving
                    await terms.another(token)
                    await kants.stand()
                await arriving
            await terms.none_waits()
            pods = await api.list("pods")
            report = await auditor.report()
    print(summary(report), "recreated", jobs.recreated, "terms", len(terms.tokens))
    report.assert_kept(all_bound=True)
    assert {pod["metadata"]["name"] for pod in pods} == {p["metadata"]["name"] for gang in gangs for p in gang}
    assert not terms.out_of_term(), terms.out_of_term()[:5]


async def test_who_is_told_to_go_hands_over_at_once(api: Api, installed: ControlPlane) -> None:
    """The Lease runs out when everybody has lost patience; the other one leads since it was let go."""
    await api.create_all([make_node(f"n{i}") for i in range(20)])
    async with Auditor(api) as auditor, Terms(api) as terms:
        with Replicas(installed, lease_s=2 * PATIENCE_S) as kants:
            token = await terms.another()
            await kants.stand()
            await api.create_all([pod for i in range(20) for pod in make_gang(f"gang-{i}", 8)])
            leader = kants.by_pid(terms.leader_pid)
            leader.process.send_signal(signal.SIGTERM)
            await terms.another(token)
            assert await asyncio.to_thread(leader.process.wait, PATIENCE_S) == 0
            await terms.none_waits()
            report = await auditor.report()
    print(summary(report))
    report.assert_kept(all_bound=True)
    first, nobody, second = (known.split("/")[0] for _, known in terms.tokens[-3:])
    assert first == token.split("/")[0] and not nobody and second not in ("", first)
    assert not terms.out_of_term(), terms.out_of_term()[:5]


async def test_a_leader_whose_bindings_are_unanswered_keeps_its_lease_when_it_goes(
    api: Api, installed: ControlPlane
) -> None:
    """The API server may carry them out later: they must not meet those of the next leader."""
    await api.create_all([make_node(f"n{i}") for i in range(20)])
    async with (
        ReplicaController(api) as jobs,
        Auditor(api) as auditor,
        Terms(api) as terms,
        FaultProxy(installed) as proxy,
    ):
        with Replicas(installed, server=proxy.url) as kants:
            await terms.another()
            await kants.stand()
            proxy.faults = [Fault("late", 1.0, "create", "pods/binding")]
            await jobs.run([pod for i in range(10) for pod in make_gang(f"gang-{i}", 8)])
            async with asyncio.timeout(PATIENCE_S):
                while not proxy.count("create", "pods/binding"):
                    await asyncio.sleep(0.01)
            token, leader = terms.token, kants.by_pid(terms.leader_pid)
            leader.process.send_signal(signal.SIGTERM)
            await terms.another(token)
            assert await asyncio.to_thread(leader.process.wait, PATIENCE_S) == 0
            proxy.faults = []
            proxy.deliver.set()
            await terms.none_waits()
            report = await auditor.report()
    report.assert_kept(all_bound=True)
    known = [known for _, known in terms.tokens]
    assert not known[known.index(token) + 1].startswith("/"), f"nobody had the Lease after {token}: {known}"
    assert not terms.out_of_term(), terms.out_of_term()[:5]


@pytest.mark.parametrize("fence", [True, False])
async def test_a_leader_that_was_stopped_binds_nothing_when_it_goes_on(
    api: Api, installed: ControlPlane, fence: bool
) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(15)])
    slow = [Fault("delay", 1.0, "create", "pods/binding", seconds=0.5)]  # so that much is still to be sent
    async with (
        fenced(api, fence),
        ReplicaController(api) as jobs,
        Auditor(api) as auditor,
        Terms(api) as terms,
        FaultProxy(installed, slow) as proxy,
    ):
        with Replicas(installed, server=proxy.url) as kants:
            token = await terms.another()
            await kants.stand()
            await jobs.run([pod for i in range(12) for pod in make_gang(f"gang-{i}", 8)])
            await terms.bound_in_all(1)
            token, leader = terms.token, kants.by_pid(terms.leader_pid)
            leader.process.send_signal(signal.SIGSTOP)
            await terms.bound_by(await terms.another(token))
            before = len([one for one in terms.bound if one.token == token])
            leader.process.send_signal(signal.SIGCONT)
            await terms.none_waits()
            await leader.says("the Lease is lost")
            report = await auditor.report()
    print(summary(report), "bound by the first", before, "of", len(terms.bound))
    report.assert_kept(all_bound=True)
    assert len([one for one in terms.bound if one.token == token]) == before < 12 * 8
    assert not terms.out_of_term(), terms.out_of_term()[:5]


async def test_bindings_that_the_network_delivers_late_are_refused(api: Api, installed: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(20)])
    async with (
        ReplicaController(api) as jobs,
        Auditor(api) as auditor,
        Terms(api) as terms,
        FaultProxy(installed) as proxy,
    ):
        with Replicas(installed, server=proxy.url) as kants:
            await terms.another()
            await kants.stand()
            proxy.faults = [Fault("late", 1.0, "create", "pods/binding")]
            await jobs.run([pod for i in range(10) for pod in make_gang(f"gang-{i}", 8)])
            async with asyncio.timeout(PATIENCE_S):
                while not proxy.count("create", "pods/binding"):
                    await asyncio.sleep(0.01)
            token = terms.token  # it may be the second one already, where the machine is busy
            kants.by_pid(terms.leader_pid).process.send_signal(signal.SIGSTOP)
            await terms.another(token)
            await asyncio.sleep(1.0)  # the policies of the server follow the Lease within milliseconds
            proxy.faults = []
            proxy.deliver.set()
            await terms.none_waits()
            async with asyncio.timeout(PATIENCE_S):
                while not proxy.late_refused:
                    await asyncio.sleep(0.05)
            report = await auditor.report()
    report.assert_kept(all_bound=True)
    assert not terms.out_of_term(), terms.out_of_term()[:5]


@asynccontextmanager
async def claim(
    plane: ControlPlane, namespace: str, user: str = "admin", name: str = "shared"
) -> AsyncIterator[tuple[NameClaim, list[str]]]:
    """Who claims a scheduler name for a namespace, and what it says: why it waits, or what troubles it."""
    said: list[str] = []
    lease, config = (2.0, 1.0, 0.2), load(plane.kubeconfig(user))
    async with NameClaim(config, name, namespace, lease, 3.0, lambda error: said.append(str(error)), said.append) as it:
        yield it, said


def elected() -> bool:
    return True


async def test_a_scheduler_name_is_held_by_one_namespace_until_its_leader_is_long_gone(
    api: Api, installed: ControlPlane
) -> None:
    async with AsyncExitStack() as there:
        first, _ = await there.enter_async_context(claim(installed, "kant-a"))
        assert await first.granted(elected) and first.holds()
        async with claim(installed, "kant-b") as (second, said):
            waiting = asyncio.create_task(second.granted(elected))
            async with claim(installed, "kant-a") as (successor, _):  # the next leader there does not wait
                assert await successor.granted(elected) and first.holds()
            async with asyncio.timeout(PATIENCE_S):
                while not said:
                    await asyncio.sleep(0.01)
            assert "the Kant in the namespace kant-a schedules these pods" in said[0]
            assert not await second.granted(lambda: False), "its own Lease is lost meanwhile"
            assert not waiting.done() and not second.holds()
            await there.aclose()
            assert await waiting and second.holds() and said[-1] == ""
            assert not first.holds()


async def test_a_name_that_its_role_may_not_claim_is_taken_and_said(api: Api, installed: ControlPlane) -> None:
    async with claim(installed, "kant-c", "kant") as (third, said):  # the claim of a name that its role has not
        assert await third.granted(elected) and third.holds()
        assert said[0].startswith("whether another Kant schedules the pods of shared is not known: no permission")


async def test_a_name_that_another_has_is_let_go_as_soon_as_it_is_known(api: Api, installed: ControlPlane) -> None:
    await api.delete("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/scheduler-name-kant")
    async with claim(installed, "kant-c", "kant", "kant") as (third, said):  # it may not make that Lease
        assert await third.granted(elected) and third.holds()
        await api.apply([CLAIM | {"spec": {"holderIdentity": "kant-z", "leaseDurationSeconds": 600}}])
        async with asyncio.timeout(PATIENCE_S):
            while third.holds():
                await asyncio.sleep(0.05)
        assert "the Kant in the namespace kant-z schedules these pods" in said[-1] + said[-2]


async def test_a_second_kant_of_the_name_in_another_namespace_binds_nothing(api: Api, installed: ControlPlane) -> None:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def second_says(path: str) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}{path}") as reply:
            return await reply.text()

    await api.namespace("kant-b")
    await api.create_all([make_node(f"n{i}") for i in range(4)])
    async with Auditor(api) as auditor, Terms(api) as terms:
        first = KantProcess(installed)
        try:
            await first.says('"leads"')
            options = ("--namespace", "kant-b", "--listen", f"127.0.0.1:{port}")
            second = KantProcess(installed, *options, user="admin")
            try:
                await second.says("the Kant in the namespace kant-system schedules these pods")
                assert "kant_name_taken 1.0" in await second_says("/metrics")
                assert "kant-system" in await second_says("/readyz")
                await api.create_all([pod for i in range(8) for pod in make_gang(f"g-{i}", 4)])
                await terms.none_waits()
                assert {one.token for one in terms.bound} == {terms.token}
                first.kill()
                await second.says('"leads"')
                assert "kant_name_taken 0.0" in await second_says("/metrics")
                (await auditor.report()).assert_kept(all_bound=True)
            finally:
                second.kill()
        finally:
            first.kill()


async def left_by(api: Api, release: str, journal: Path) -> None:
    """Put a cluster there as a release left it when its leader was killed: a gang of 2, one of 4 and a pod run.

    A gang of 3 waits for its quota.
    """
    found = json.loads(gzip.decompress((RELEASES / f"{release}.json.gz").read_bytes()))
    await api.apply(found["manifests"])
    await api.create_all([*found["nodes"], *found["queues"], *found["leases"], *found["pods"]])
    journal.mkdir()
    (journal / "20261122T231351.186487.jsonl").write_text(found["journal"])


@pytest.mark.parametrize("release", sorted(path.name.removesuffix(".json.gz") for path in RELEASES.glob("*.json.gz")))
async def test_a_new_release_takes_over_what_a_release_left(
    api: Api, installed: ControlPlane, tmp_path: Path, release: str
) -> None:
    """Its manifests over the old ones; nobody who runs is moved or doubled, and who waited starts."""
    journal = tmp_path / "journal"
    await left_by(api, release, journal)
    before = {pod["metadata"]["name"]: pod for pod in await api.list("pods")}
    await api.apply(render(ManifestSettings()))
    async with FakeKubelet(api), Auditor(api) as auditor:
        leader = KantProcess(installed, "--recovery", "0.5", "--journal", str(journal))
        try:
            await leader.says("state built")
            await until(api, lambda pods: says(pods, "waits-0", "quota"))
            for pod in await api.list("pods"):
                old = before[pod["metadata"]["name"]]
                assert pod["metadata"]["uid"] == old["metadata"]["uid"]
                assert pod["spec"].get("nodeName") == old["spec"].get("nodeName")
            for name in ("whole-0", "whole-1", "parts-0", "parts-1", "parts-2", "parts-3"):
                await api.delete(f"/api/v1/namespaces/default/pods/{name}", grace_s=0)
            pods = await until(api, lambda pods: {"waits-0", "waits-1", "waits-2"} <= {*bound(pods)})
            assert where(pods)["one"] == before["one"]["spec"]["nodeName"]
            (await auditor.report()).assert_kept()
        finally:
            leader.kill()
    first, second = sorted(journal.glob("*.jsonl"))
    assert read_journal(first).header.version == release
    assert read_journal(second).header.version == kant.__version__


@asynccontextmanager
async def frozen(plane: ControlPlane) -> AsyncIterator[None]:
    """The API server stands still with its connections open."""
    plane.pause()
    try:
        yield
    finally:
        plane.resume()


@asynccontextmanager
async def full(plane: ControlPlane) -> AsyncIterator[None]:
    """etcd has no space left: whatever is asked is answered, and nothing can be written."""
    async with aiohttp.ClientSession(plane.etcd) as http:

        async def ask(what: str, **words: str) -> Object:
            async with http.post(f"/v3/maintenance/{what}", json=words) as reply:
                answer: Object = await reply.json()
                assert reply.status == 200, answer
                return answer

        member = (await ask("status"))["header"]["member_id"]
        alarm = {"memberID": member, "alarm": "NOSPACE"}
        await ask("alarm", action="ACTIVATE", **alarm)
        try:
            yield
        finally:
            await ask("alarm", action="DEACTIVATE", **alarm)


@pytest.mark.parametrize("trouble", [frozen, full])
async def test_an_api_server_that_does_nothing_for_longer_than_the_lease_costs_nothing_but_time(
    api: Api, installed: ControlPlane, trouble: Callable[[ControlPlane], AbstractAsyncContextManager[None]]
) -> None:
    """Nobody leads meanwhile, and what was under way is neither lost nor done twice when it goes on."""
    await api.create_all([make_node(f"n{i}") for i in range(30)])
    async with ReplicaController(api) as jobs, Auditor(api) as auditor, Terms(api) as terms:
        await jobs.run([pod for i in range(25) for pod in make_gang(f"g-{i}", 8)])
        with Replicas(installed) as kants:
            await terms.bound_in_all(1)
            token, leader = terms.token, kants.by_pid(terms.leader_pid)
            async with trouble(installed):
                await leader.says("the Lease is lost")
                before = len(terms.bound)
            await terms.another(token)
            await terms.none_waits()
            report = await auditor.report()
    print(summary(report), "bound before", before, "of", len(terms.bound))
    report.assert_kept(all_bound=True)
    assert not terms.out_of_term(), terms.out_of_term()[:5]


def denying(namespace: str) -> list[Object]:
    """An admission policy that lets nobody bind a pod of this namespace."""
    api, name = "admissionregistration.k8s.io/v1", {"metadata": {"name": "no-bindings"}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"], "operations": ["CREATE"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
        "validations": [{"expression": "false", "message": "the audit of this namespace is not over"}],
    }
    bound = {"policyName": "no-bindings", "validationActions": ["Deny"]}
    return [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "spec": spec, **name},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound, **name},
    ]


async def test_bindings_that_are_denied_in_one_namespace_hold_up_no_other(
    api: Api, installed: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods say who denies it, and start when nobody does any more; meanwhile others get its place."""
    monkeypatch.setattr(binder, "PATIENCE", 1.0)
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmission"
    gang = [pod | {"metadata": pod["metadata"] | {"namespace": "locked"}} for pod in make_gang("first", 8)]

    async def denied(api: Api) -> bool:
        try:
            target = {"apiVersion": "v1", "kind": "Node", "name": "n0"}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "first-0"}, "target": target}
            await api.call("POST", "/api/v1/namespaces/locked/pods/first-0/binding", body, dryRun="All")
        except RefusedError as error:
            return "no-bindings" in str(error)
        return False

    await api.namespace("locked")
    await api.create_all([make_node("n0")])
    await api.apply(denying("locked"))
    try:
        await api.create_all(gang)
        async with asyncio.timeout(PATIENCE_S):  # the API server takes a moment to know a new policy
            while not await denied(api):
                await asyncio.sleep(0.1)
        async with Auditor(api) as auditor, running(installed):
            await until(api, lambda pods: says(pods, "first-0", "the audit of this namespace is not over"))
            await api.create_all(make_gang("other", 8))
            pods = await until(api, lambda pods: len(bound(pods)) == 8)
            assert {name.split("-")[0] for name in bound(pods)} == {"other"}
            await api.delete(f"{policies}policybindings/no-bindings")
            await api.delete(f"{policies}policies/no-bindings")
            await api.create(make_node("n1"))
            await until(api, lambda pods: len(bound(pods)) == 16)
            (await auditor.report()).assert_kept(all_bound=True)
    finally:
        with suppress(RefusedError):
            await api.delete(f"{policies}policybindings/no-bindings")


class ServiceTokens:
    """Tokens of Kant's service account, each for as long as its Secret is there: who deletes that ends the token."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def issue(self, name: str) -> str:
        spaced = f"/api/v1/namespaces/{NAMESPACE}"
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}}
        made = await self.api.create(secret)
        bound_to = {"kind": "Secret", "apiVersion": "v1", "name": name, "uid": made["metadata"]["uid"]}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound_to}}
        answer = await self.api.call("POST", f"{spaced}/serviceaccounts/kant/token", asked)
        return str(answer["status"]["token"])

    async def end(self, name: str, token: str) -> None:
        """Returns when the API server refuses the token; it remembers those that it knew for ten seconds."""
        await self.api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
        ask = aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"})
        async with asyncio.timeout(PATIENCE_S), ask as http:
            while True:
                async with http.get(f"{self.api.url}/api/v1/nodes", ssl=self.api.plane.tls()) as reply:
                    if reply.status == 401:
                        return
                await asyncio.sleep(0.2)


async def test_a_token_that_is_rotated_and_refused_interrupts_nobody(
    api: Api, installed: ControlPlane, tmp_path: Path
) -> None:
    """As the kubelet does: another token lies in the file, and some time later the server takes the old one no more."""
    file, config = tmp_path / "token", tmp_path / "kubeconfig"
    tokens = ServiceTokens(api)
    first = await tokens.issue("first")
    file.write_text(first)
    known = yaml.safe_load(installed.kubeconfig().read_text())
    known["users"][0]["user"] = {"tokenFile": str(file)}
    config.write_text(yaml.safe_dump(known))
    await api.create_all([make_node(f"n{i}") for i in range(4)])
    async with Auditor(api) as auditor, Terms(api) as terms:
        leader = KantProcess(installed, config=config, lease_s=30.0)
        try:
            token = await terms.another()
            await api.create_all(make_gang("before", 8))
            await terms.bound_in_all(8)
            file.write_text(await tokens.issue("second"))
            await tokens.end("first", first)
            await api.create_all(make_gang("after", 8))
            await terms.bound_in_all(16)
            report = await auditor.report()
        finally:
            leader.kill()
    report.assert_kept(all_bound=True)
    assert terms.token == token, "it leads on in the same term"
    await api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/second")


async def test_replicas_whose_clocks_differ_by_hours_follow_each_other_as_others_do(
    api: Api, installed: ControlPlane
) -> None:
    """Times of the Lease are written for people: whoever waits counts by its own clock, from when it saw a change."""
    await api.create_all([make_node(f"n{i}") for i in range(8)])
    async with Auditor(api) as auditor, Terms(api) as terms:
        behind, ahead = None, None
        try:
            behind = KantProcess(installed, ahead_s=-7200)
            token = await terms.another()
            ahead = KantProcess(installed, ahead_s=7200)
            await ahead.says("waits for the Lease")
            await renewed(api, 12)
            assert terms.token == token, "what looks two hours old is no reason to take over"
            await api.create_all(make_gang("one", 16))
            await terms.none_waits()
            behind.kill()
            second = await terms.another(token)
            behind = KantProcess(installed, ahead_s=-7200)
            await behind.says("waits for the Lease")
            await renewed(api, 6)
            assert terms.token == second, "nor what looks as if it were hours ahead"
            ahead.kill()
            await terms.another(second)
            await api.create_all(make_gang("two", 16))
            await terms.none_waits()
            report = await auditor.report()
        finally:
            for one in (behind, ahead):
                if one is not None:
                    one.kill()
    report.assert_kept(all_bound=True)
    assert not terms.out_of_term(), terms.out_of_term()[:5]


async def renewed(api: Api, times: int) -> None:
    """Wait until the Lease has been renewed so many times more."""
    seen: set[str] = set()
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) <= times:
            seen.add((await api.get(f"{LEASES}/kant"))["metadata"]["resourceVersion"])
            await asyncio.sleep(0.05)
