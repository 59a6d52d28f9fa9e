"""`kant ops --kube` and `kant mcp --kube` on a real API server: two people plan, apply and undo by their own rights."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("mcp")

from mcp.client import Client
from playwright.sync_api import expect
from tests.browser import launched, opened
from tests.cli.command import kant
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.job_controller import JobController
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import MANIFESTS, address_of_host, bound, install, of_queue, queue, reachable, says
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.processes import Forked, free_port
from tests.kube.running import KantProcess
from tests.kube.test_orders_live import TEAM, granted, policy
from tests.kube.test_page_orders import picture, sign_in
from tests.kube.test_rebuilt_state import fetched
from tests.ops.test_mcp import call
from tests.ops.test_mcp import talk as assist
from tests.ops.test_processes import listens, over_http
from tests.patience import PATIENCE_S

from kant.cli.app import run
from kant.kube.connect.config import load
from kant.kube.manifests import ManifestSettings, render
from kant.kube.translate.crds import API
from kant.kube.user.operations import OPERATIONS, operation
from kant.model.errors import InputError
from kant.ops import look
from kant.ops.desk import Desk, RefusalError
from kant.ops.kube_audit import KubeAudit
from kant.ops.kubernetes import KubeWorld
from kant.ops.opening import KubeCluster, Opening
from kant.ops.orders import Cancel, Defragment, Drain, Hold, Order, Preempt, Quota, Reserve, Resume, Submit, Unreserve
from kant.ops.world import Done
from kant.service.roles import Role


def people() -> list[Object]:
    """The shipped roles, and what a namespace's owner and who runs a cluster have besides."""
    shipped = [one for one in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()) if one["kind"] == "ClusterRole"]
    rules = {one["metadata"]["name"]: one["rules"] for one in shipped}
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch", "delete"]}
    evict = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    jobs = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]}
    own = jobs | {"verbs": ["get", "list", "create", "patch", "delete"]}
    services = {"apiGroups": [""], "resources": ["services"], "verbs": ["create"]}
    return [
        *granted("plans-tenant", "tenant", rules["kant-planner"]),
        *granted("red-edit", "tenant", [pods, own, services], TEAM),
        *granted("operates", "operator", [*rules["kant-planner"], *rules["kant-operator"], pods, evict, nodes, jobs]),
    ]


async def as_installed(api: Api, port: int, journals: Path) -> list[str]:
    """The shipped rights of Kant are in force; the arguments of its Deployment, with places of this machine."""
    objects = [one for one in yaml.safe_load_all(render(ManifestSettings())) if one]
    await api.apply([one for one in objects if "Role" in one["kind"] or one["kind"] in ("ServiceAccount", "Lease")])
    (deployment,) = (one for one in objects if one["kind"] == "Deployment")
    kube, run, *options = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert (kube, run) == ("kube", "run")
    here = {"--journal": str(journals), "--listen": f"0.0.0.0:{port}", "--profile": "kant"}
    named = (option.split("=") for option in options)
    return [f"{name}={here.get(name, value)}" for name, value in named]


def desk(plane: ControlPlane, user: str) -> Desk:
    world = KubeWorld(load(plane.kubeconfig(user)))
    return Desk(world, world.caller(), KubeAudit(world), via="test")


def refused(code: str, act: Any, *given: Any) -> str:
    with pytest.raises(RefusalError) as error:
        act(*given)
    assert error.value.code == code, str(error.value)
    return str(error.value)


async def test_people_plan_apply_and_undo_by_their_own_rights(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KANT_IMAGE", "registry.example.com/train:1")
    host, port = address_of_host(), free_port()
    if not host:
        pytest.skip("this machine has but its loopback, to which API servers pass nothing on")
    async with Api(plane) as api, FakeKubelet(api), JobController(api):
        await install(api)
        for space in (NAMESPACE, TEAM):
            await api.namespace(space)
        await policy(api, people())
        await api.create_all([make_node("n0"), make_node("n1"), queue("vision", 12), queue("infer", 4)])
        process = KantProcess(plane, *await as_installed(api, port, tmp_path), lease_s=15.0)
        try:
            await process.says("state built")
            marks = of_queue("vision")
            yes = {"scheduling.kant.dev/preemptible": "true"}
            await api.create(make_pod("first", 8, labels=marks, annotations=yes))
            await api.create(make_pod("kept", 4, labels=of_queue("infer")))
            await api.until(lambda pods: bound(pods) == ["first", "kept"])
            await api.create_all(make_gang("train", 2, 4, namespace=TEAM, labels=marks))
            await api.until(lambda pods: says(pods, "train-1", "quota"))
            await reachable(api, host, port)
            for path in ("view", "past?asked=%7B%22usage%22%3A%22user%22%7D", "view?proof=0"):
                assert await asyncio.to_thread(fetched, f"http://{host}:{port}/v1/ops/{path}") == 403
            await asyncio.to_thread(talk, plane)
            await submitted(api, plane, tmp_path)
            await written(api, plane)
            await asyncio.to_thread(browse, f"http://127.0.0.1:{port}", plane.token("operator"))
            await each_order(api, plane)
            pod = await api.get(f"/api/v1/namespaces/{TEAM}/pods/train-0")
            assert pod["metadata"]["annotations"]["scheduling.kant.dev/priority"] == "5"
        finally:
            process.stop()


def talk(plane: ControlPlane) -> None:
    """What a tenant and an operator see, plan, apply and undo, and what they are refused."""
    boss, ida = desk(plane, "operator"), desk(plane, "tenant")
    assert (boss.who.role, ida.who.role) == (Role.OPERATOR, Role.TENANT)
    train = f"{TEAM}/train"
    rows = {row["id"]: row for row in look.jobs(ida)["jobs"]}
    assert rows["default/first"]["nodes"] == {"n0": 8.0} and rows["default/first"]["preemptible"]
    assert rows["default/kept"]["preemptible"] is False
    assert (rows[train]["phase"], rows[train]["pods"], rows[train]["gpus"]) == ("waiting", 2, 8.0)
    assert "queue vision has 4 GPUs left" in rows[train]["waits"] and rows[train]["untrusted"] == {"name": "train"}
    assert look.why(ida, train)["reason"]["why"] == "over-quota" and look.eta(ida)["jobs"][0]["job"] == train
    assert look.job(ida, train)["priority"] == 0
    with pytest.raises(InputError, match="a job that Kant schedules"):
        look.job(ida, f"{TEAM}/none")
    # The tenant holds what is theirs; a plan that was made before is void; of others they may touch nothing.
    plan = ida.plan(
        [{"op": "hold", "job": train}, {"op": "cancel", "job": "default/first"}, {"op": "drain", "node": "n1"}]
    )
    said = [(each["rule"], each["sentence"]) for each in plan["violations"]]
    assert said == [
        ("own", "cancel needs the permission to delete pods in namespace default"),
        ("own", "drain needs the permission to patch nodes"),
    ]
    refused("violations", ida.apply, plan["plan_id"], "I can")
    hold = ida.plan([{"op": "hold", "job": train}])
    quota = boss.plan([{"op": "quota", "queue": "vision", "gpus": 20}])
    assert quota["violations"][0]["rule"] == "quota", "quotas together promise no more than there is"
    priority = boss.plan([{"op": "priority", "job": train, "value": 5}])
    done = ida.apply(hold["plan_id"], "its data is late")
    assert boss.world.view().jobs[train].phase == "held"
    refused("stale", boss.apply, priority["plan_id"], "it is urgent")
    refused("role", lambda: look.audit(ida))
    assert ida.undo(done["txn"], "it is there")["state"] == "applied"
    assert boss.world.view().version == hold["version"], "all is as it was"
    # A server that is gone between plan and apply: another one knows the plan, and what became of the first.
    where = ("--kubeconfig", str(plane.kubeconfig("operator")))
    drain = kant("ops", "plan", "--drain", "n1", *where, "--json").json()["plan_id"]
    assert desk(plane, "operator").apply(drain, "its fan is loud")["state"] == "applied"
    assert {node.node: node.status for node in boss.world.view().nodes} == {"n0": "in service", "n1": "cordoned"}
    again = kant("ops", "apply", drain, "--reason", "once more", *where, "--json").json()
    assert again["state"] == "applied" and again["txn"] == f"t{drain[1:]}", "it is not applied again"
    assert [row["what"] for row in look.audit(boss)["entries"]][:4] == ["applied", "done", "apply", "plan"]

    # An assistant sees the same.

    async def assistant(client: Client) -> None:
        assert (await call(client, "whoami"))["world"] == "kubernetes"
        rows = (await call(client, "nodes"))["nodes"]
        assert [(row["node"], row["status"]) for row in rows] == [("n0", "in service"), ("n1", "cordoned")]
        assert (await call(client, "undo", txn="t0-0", reason="a trial"))["refused"] == "unknown"

    assist(ida, assistant)
    # Over HTTP each token of the cluster has a desk of its own.
    desks = Opening(cluster=KubeCluster(load(plane.kubeconfig("nobody")), NAMESPACE, "")).desks("mcp")
    assert [desks(plane.token(user)).who.user for user in ("operator", "tenant")] == ["operator", "tenant"]
    assert isinstance(desks(plane.token("tenant")).audit, KubeAudit)
    with pytest.raises(InputError, match="does not accept the credentials"):
        desks("nonsense")
    assert "no --journal" in kant("ops", "audit", "--scenario", "lab.toml", *where).refusal()
    elsewhere = kant("ops", "plan", "--drain", "n1", "--kube-system", "elsewhere", *where).refusal()
    assert "the Lease elsewhere/kant" in elsewhere


async def submitted(api: Api, plane: ControlPlane, folder: Path) -> None:
    """An assistant and a person submit a Job by the rights of a tenant, see its gang, and take it back."""
    jobs = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
    job = {"gpus": 4, "pods": 2, "time": "2h", "queue": "vision", "name": "tune", "command": ["tune", "--fast"]}

    async def submits(client: Client) -> dict[str, Any]:
        first = await call(client, "submit", job=job, key="once")
        assert first.get("state") == "applied", first
        assert await call(client, "submit", job=job, key="once") == first, "not a second time"
        return first

    async def takes_back(client: Client) -> None:
        assert (await call(client, "job", job=done["jobs"][0]))["gpus"] == 8
        assert (await call(client, "undo", txn=done["txn"], reason="not now"))["state"] == "applied"

    address = f"127.0.0.1:{free_port()}"
    own = ("--kubeconfig", str(plane.kubeconfig("nobody")), "--namespace", TEAM)
    server = Forked(partial(run, ["mcp", "--http", address, *own]), folder / "mcp.log")
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not listens(int(address.rpartition(":")[2])):
                assert server.poll() is None
                await asyncio.sleep(0.1)
        done = await asyncio.to_thread(over_http, address, plane.token("tenant"), submits)
        (made,) = await api.list(jobs)
        assert done["jobs"] == [f"{TEAM}/{made['metadata']['name']}"] and made["spec"]["completions"] == 2
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert (container["image"], container["command"]) == ("registry.example.com/train:1", ["tune", "--fast"])
        await asyncio.to_thread(over_http, address, plane.token("tenant"), takes_back)
    finally:
        server.kill()
        server.wait()
    await api.until(lambda pods: not [pod for pod in pods if pod["metadata"]["name"].startswith("tune")])
    # At the terminal the same; in another's namespace the tenant may not.
    where = ("--kubeconfig", str(plane.kubeconfig("tenant")), "--namespace")
    words = ("ops", "plan", "--submit", "gpus=2,time=1h,queue=infer,name=note", *where)
    elsewhere = await asyncio.to_thread(kant, *words, NAMESPACE, "--json", "--", "work")
    assert elsewhere.json()["violations"] == [
        {"rule": "own", "sentence": f"submit needs the permission to create jobs in namespace {NAMESPACE}", "order": 1}
    ]
    plan = await asyncio.to_thread(kant, *words, TEAM, "--json", "--", "work")
    assert plan.json()["can_be_applied"] and await api.list(jobs) == []
    for act in ("apply", "undo"):
        done = await asyncio.to_thread(kant, "ops", act, "last", "--reason", "a trial", *where, TEAM, "--json")
        assert not done.err and done.json()["state"] == "applied", done
        assert await api.list(jobs) or act == "undo"
    async with asyncio.timeout(PATIENCE_S):
        while await api.list(jobs):
            await asyncio.sleep(0.1)


async def written(api: Api, plane: ControlPlane) -> None:
    """Nobody writes in the name of another, and nobody changes what stands there."""
    (first, *_) = await api.list(OPERATIONS)
    with pytest.raises(RefusedError, match="an entry of the audit log cannot be changed"):
        await api.patch(f"{OPERATIONS}/{first['metadata']['name']}", {"spec": {"who": "nobody"}})
    world = KubeWorld(load(plane.kubeconfig("tenant")))
    body = operation(9999, "operator", "plan", b"{}")
    with pytest.raises(InputError, match="expected the name of the user who writes the entry"):
        await asyncio.to_thread(world.run, lambda client: client.create(OPERATIONS, body))


async def each_order(api: Api, plane: ControlPlane) -> None:
    """What each order changes in the cluster, and what takes it back."""
    world = KubeWorld(load(plane.kubeconfig("admin")))
    who = await asyncio.to_thread(world.caller)

    async def give(*orders: Order) -> list[Done]:
        return [await asyncio.to_thread(world.carry_out, order, who) for order in orders]

    async def fails(order: Order, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            await give(order)

    async def spec(path: str) -> Object:
        found: Object = (await api.get(path))["spec"]
        return found

    quota, booked, drained = await give(
        Quota("vision", 6.5), Reserve("course", 4, "1h", "30h"), Drain("n1", evict=True)
    )
    assert quota.undo == (Quota("vision", 12.0),)
    assert (await spec(f"{API}/queues/vision"))["quotas"] == [{"resource": "gpu", "model": "", "nominal": "6500m"}]
    assert (await spec(f"{API}/reservations/course"))["gpus"] == 4
    assert (await spec(f"{API}/reservations/drain-n1"))["nodeSelector"] == {"kubernetes.io/hostname": "n1"}
    assert (booked.undo, drained.undo) == ((Unreserve("course"),), (Resume("n1"),))
    gone, back, closed = await give(Unreserve("course"), Resume("n1"), Resume("n1"))
    assert (back.undo, closed.undo) == ((Drain("n1", evict=True),), (Drain("n1"),)), (
        "it was drained, and cordoned before"
    )
    (again,) = gone.undo
    assert isinstance(again, Reserve) and (again.gpus, again.time) == (4, "3600s")
    assert await api.list(f"{API}/reservations") == []
    assert not (await spec("/api/v1/nodes/n1")).get("unschedulable")
    await give(Defragment(3))
    (defragmentation,) = await api.list(f"{API}/defragmentations")
    assert defragmentation["spec"]["mostMoves"] == 3
    await fails(Quota("vision", 1, "H100"), "a queue with a quota of GPUs of H100")
    await fails(Hold("first"), "NAMESPACE/NAME")
    await fails(Submit(1, "1h"), "a command, and its container image in the variable KANT_IMAGE")
    await fails(Preempt("default/first"), "whose pods are re-created by their owner")
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": "1", "controller": True}
    owned = make_pod("owned", 0)
    owned["metadata"]["ownerReferences"] = [job | {"apiVersion": "example.com/v1", "kind": "Trial"}]
    owned["spec"]["nodeName"] = "n0"
    await api.create(owned)
    await fails(Cancel("default/owned"), "to cancel this one, delete Trial owner")
    await give(Preempt("default/owned"), Cancel("default/first"))
    await api.until(lambda pods: not {pod["metadata"]["name"] for pod in pods} & {"first", "owned"})


def browse(url: str, operator: str) -> None:
    """The page shows who planned what and what became of it; who signs in plans, applies and undoes there."""
    with launched() as browser, opened(browser, url, width=1280) as page:
        page.get_by_role("tab", name="Plans").click()
        page.wait_for_selector("[data-plan]")
        assert page.locator("#new-plan").count() == 0, "who has not signed in only looks"
        held = page.locator("[data-plan]", has_text=f"hold job {TEAM}/train").last
        expect(held).to_contain_text("tenant (tenant, test)")
        sign_in(page, operator)
        page.get_by_role("tab", name="Plans").click()
        page.locator("#new-plan select").select_option("priority")
        page.locator("#new-plan input").first.fill(f"{TEAM}/train")
        page.locator("#new-plan input[type=number]").fill("5")
        page.get_by_role("button", name="Plan it").click()
        plan = page.locator("[data-plan]", has_text=f"job {TEAM}/train gets priority 5").first
        expect(plan.locator(".phase")).to_have_text("planned")
        expect(plan).to_contain_text("Stops: default/first")
        plan.get_by_label("Why").fill("the talk is tomorrow")
        plan.get_by_role("button", name="Apply").click()
        expect(plan.locator(".phase")).to_have_text("applied")
        expect(page.locator("#audit")).to_contain_text("the talk is tomorrow")
        picture(page, "kube-plans")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        picture(page, "kube-plans-390")
