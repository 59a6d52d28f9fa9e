"""What `kant kube manifests` prints, applied to a real API server: what the role allows, the fence, the gates."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.helm.chart import PLACES, WRITTEN, chart_profiles, chart_templates
from deploy.helm.dashboard import config_map, known_metrics
from tests.kube.api import Api, RefusedError
from tests.kube.binaries import Binaries
from tests.kube.control_plane import ControlPlane
from tests.kube.device_objects import CLAIMS, claim
from tests.kube.objects import make_node, make_pod
from tests.patience import PATIENCE_S

from kant import __version__
from kant.cli.app import run
from kant.cli.kubectl import cluster_answers, kubectl_app
from kant.kube.manifests import IMAGE, PARTS, RESOURCES, ManifestSettings, definitions, part, render
from kant.kube.objects import views as k
from kant.kube.translate.groups import INDEX, KUBEFLOW, group_of
from kant.model.errors import InputError
from kant.scheduler.profile import builtin_texts

ROOT = Path(__file__).parents[2]

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kant-system/leases"
PODS = "/api/v1/namespaces/default/pods"
EVERYTHING = ManifestSettings(gates=True, network_policy=True, dashboard=True)  # the rest needs Prometheus' operator


def test_all_that_is_printed_is_objects_with_the_settings_in_their_places() -> None:
    text = render(
        ManifestSettings(
            namespace="ml", image="registry.example/kant:1", replicas=3, gates=True, network_policy=True,
            service_monitor=True, prometheus_rule=True, dashboard=True,
        )
    )  # fmt: skip
    things = [thing for thing in yaml.safe_load_all(text) if thing]
    kinds = [thing["kind"] for thing in things]
    wanted = {
        "MutatingAdmissionPolicy",
        "CustomResourceDefinition",
        "NetworkPolicy",
        "ServiceMonitor",
        "PrometheusRule",
    }
    assert wanted <= set(kinds) and kinds.count("ConfigMap") == 2
    assert kinds[0] == "Namespace" and things[0]["metadata"]["name"] == "ml"
    elsewhere = [thing["kind"] for thing in things if thing["metadata"].get("namespace", "ml") != "ml"]
    assert elsewhere == ["Lease", "Role", "RoleBinding"], "the claim on the scheduler name, in kube-system"
    assert "kant-system" not in text and "${" not in text
    deployment = things[kinds.index("Deployment")]["spec"]
    assert deployment["replicas"] == 3
    assert {each["image"] for each in deployment["template"]["spec"]["containers"]} == {"registry.example/kant:1"}
    plain = render(ManifestSettings())
    assert "kant-quota-gate" not in plain
    assert not [word for word in ("ServiceMonitor", "PrometheusRule", "NetworkPolicy", "grafana") if word in plain]


def test_the_dashboard_has_a_panel_for_each_metric_and_alerts_ask_for_no_other() -> None:
    assert part("dashboard") == config_map(), "run python deploy/helm/make.py"
    board = json.loads(yaml.safe_load(part("dashboard"))["data"]["kant.json"])
    panels = {panel["title"]: panel for panel in board["panels"]}
    served = {metric.name: metric for metric in known_metrics()}
    assert panels.keys() == served.keys() and len({panel["id"] for panel in panels.values()}) == len(panels)
    for name, panel in panels.items():
        asked = " ".join(target["expr"] for target in panel["targets"])
        assert name in asked and all(label in asked for label in served[name].labels), asked
        assert panel["description"] == served[name].words
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels.values()]
    assert len(set(places)) == len(places)
    page = (ROOT / "docs" / "kubernetes-metrics.md").read_text(encoding="utf-8")
    assert [name for name in served if f"`{name}`" not in page] == []
    rules = yaml.safe_load(part("prometheus-rule"))["spec"]["groups"][0]["rules"]
    buckets = {f"{name}_bucket" for name, metric in served.items() if metric.kind == "histogram"}
    for rule in rules:
        named = set(re.findall(r"kant_\w+", rule["expr"]))
        assert named and named <= served.keys() | buckets, rule["alert"]
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["alert"] in page


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (ManifestSettings(namespace="No"), "--namespace"),
        (ManifestSettings(image="a b"), "--image"),
        (ManifestSettings(replicas=0), "--replicas"),
        (ManifestSettings(profile="[order]\npolicy = 'none'"), "--profile"),
    ],
)
def test_settings_that_no_cluster_takes_are_refused(settings: ManifestSettings, where: str) -> None:
    with pytest.raises(InputError, match=re.escape(where)):
        render(settings)


def test_pods_of_kant_have_no_privileges() -> None:
    things = {thing["kind"]: thing for thing in yaml.safe_load_all(render(ManifestSettings()))}
    pod = things["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
    for container in [*pod["containers"], *pod["initContainers"]]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
    wide = [rule for thing in yaml.safe_load_all(render(ManifestSettings())) for rule in thing.get("rules") or []]
    assert not [rule for rule in wide if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]]


# --- against a real API server ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane on which everything has been applied, with strict validation of fields."""

    async def install(plane: ControlPlane) -> None:
        async with Api(plane) as api:
            await api.apply(render(EVERYTHING))
            await api.create(make_node("node"))

    with ControlPlane(binaries) as plane:
        asyncio.run(install(plane))
        yield plane


async def may(api: Api, verb: str, group: str, resource: str, **where: str) -> bool:
    """Whether the user of `api` may do this."""
    resource, _, part = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": part, **where}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body = review | {"spec": {"resourceAttributes": attributes}}
    answer = await api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


async def test_kant_may_do_what_it_does_and_nothing_else(installed: ControlPlane) -> None:
    own, claim = {"namespace": "kant-system"}, {"namespace": "kube-system", "name": "scheduler-name-kant"}
    allowed: list[tuple[str, str, str, dict[str, str]]] = [
        *((verb, "", "pods", {}) for verb in ("get", "list", "watch", "patch")),
        *(("create", "", f"pods/{part}", {}) for part in ("binding", "eviction")),
        ("patch", "", "pods/status", {}),
        ("watch", "", "nodes", {}),
        *((verb, "", "namespaces", {}) for verb in ("list", "watch")),
        *((verb, "", "persistentvolumeclaims", {}) for verb in ("list", "watch", "patch")),
        *((verb, "", "persistentvolumes", {}) for verb in ("list", "watch", "patch")),
        *(
            (verb, "storage.k8s.io", kind, {})
            for kind in ("storageclasses", "csidrivers", "csinodes", "csistoragecapacities", "volumeattachments")
            for verb in ("list", "watch")
        ),
        *((verb, "resource.k8s.io", "resourceclaims", {}) for verb in ("get", "list", "watch", "patch", "update")),
        *((verb, "resource.k8s.io", "resourceclaims", {}) for verb in ("create", "delete")),
        *((verb, "resource.k8s.io", "resourceslices", {}) for verb in ("list", "watch")),
        *((verb, "resource.k8s.io", "deviceclasses", {}) for verb in ("list", "watch")),
        *((verb, "resource.k8s.io", "devicetaintrules", {}) for verb in ("list", "watch")),
        ("patch", "resource.k8s.io", "resourceclaims/status", {}),
        ("patch", "resource.k8s.io", "resourceclaims/binding", {}),
        *((verb, "policy", "poddisruptionbudgets", {}) for verb in ("list", "watch")),
        *(("get", "scheduling.k8s.io", kind, {}) for kind in ("podgroups", "workloads")),
        ("create", "events.k8s.io", "events", {}),
        ("patch", "scheduling.kant.dev", "queues/status", {}),
        ("create", "coordination.k8s.io", "leases", own),
        ("update", "coordination.k8s.io", "leases", own | {"name": "kant"}),
        *((verb, "coordination.k8s.io", "leases", claim) for verb in ("get", "update")),
    ]
    refused: list[tuple[str, str, str, dict[str, str]]] = [
        *((verb, "", "pods", {}) for verb in ("create", "update", "delete", "deletecollection")),
        *((verb, "", "nodes", {}) for verb in ("patch", "update", "delete", "create")),
        *((verb, "", "secrets", own) for verb in ("get", "list", "create")),
        ("get", "", "configmaps", own),
        *((verb, "", "namespaces", {}) for verb in ("get", "create", "patch", "delete")),
        ("create", "", "pods/exec", {}),
        ("create", "", "bindings", {}),
        ("patch", "", "nodes/status", {}),
        *((verb, "", "persistentvolumes", {}) for verb in ("create", "update", "delete")),
        *((verb, "", "persistentvolumeclaims", {}) for verb in ("create", "update", "delete")),
        *((verb, "policy", "poddisruptionbudgets", {}) for verb in ("create", "patch", "delete")),
        ("patch", "policy", "poddisruptionbudgets/status", {}),
        ("create", "", "serviceaccounts/token", own),
        ("patch", "scheduling.kant.dev", "queues", {}),
        ("update", "coordination.k8s.io", "leases", own | {"name": "other"}),
        ("update", "coordination.k8s.io", "leases", {"namespace": "kube-system", "name": "kube-scheduler"}),
        *((verb, "coordination.k8s.io", "leases", {"namespace": "kube-system"}) for verb in ("create", "list")),
        ("patch", "admissionregistration.k8s.io", "validatingadmissionpolicies", {"name": "kant-fencing"}),
        ("escalate", "rbac.authorization.k8s.io", "clusterroles", {}),
    ]
    async with Api(installed, "kant") as kant:
        assert [each for each in allowed if not await may(kant, *each[:3], **each[3])] == []
        assert [each for each in refused if await may(kant, *each[:3], **each[3])] == []


def test_pods_and_nodes_may_be_changed_only_where_that_is_asked_for() -> None:
    def changes(resource: str, **asked: bool) -> list[str]:
        things = [thing for thing in yaml.safe_load_all(render(ManifestSettings(**asked))) if thing]
        roles = {thing["metadata"]["name"]: thing["rules"] for thing in things if thing["kind"] == "ClusterRole"}
        bound = [thing["roleRef"]["name"] for thing in things if thing["kind"] == "ClusterRoleBinding"]
        rules = [(name, rule) for name in bound for rule in roles[name]]
        return [name for name, rule in rules if rule["resources"] == [resource] and "patch" in rule["verbs"]]

    assert changes("pods") == changes("nodes") == []
    assert changes("pods", gates=True) == ["kant-gates"] and changes("nodes", hami=True) == ["kant-hami"]


async def test_kant_may_read_the_object_of_every_group_that_a_pod_can_name(installed: ControlPlane) -> None:
    def owned(kind: str, version: str, **labels: str) -> k.Pod:
        owner = k.Owner(kind=kind, api_version=version, name="x", controller=True)
        return k.Pod(k.Meta(namespace="default", labels=labels, owner_references=(owner,)))

    def labelled(key: str) -> k.Pod:
        return k.Pod(k.Meta(namespace="default", labels={key: "x"}, annotations={key: "x"}))

    pods = [
        k.Pod(k.Meta(namespace="default"), k.PodSpec(scheduling_group=k.SchedulingGroup("x"))),
        *map(labelled, ("pod-group-name", "scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group")),
        *map(labelled, ("jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name", "ray.io/cluster")),
        *(owned(kind, "kubeflow.org/v1", **{"training.kubeflow.org/job-name": "x"}) for kind in (*KUBEFLOW, "Job")),
        owned("Job", "batch/v1", **{INDEX: "0"}),
    ]
    groups = [group_of(pod) for pod in pods]
    paths = {path for group in groups if group is not None for path in group.paths}
    assert len(paths) >= len(pods) - 1 and all(group is not None and group.paths for group in groups)
    async with Api(installed, "kant") as kant:
        for path in paths:
            _, _, group, _, _, namespace, plural, _ = path.split("/")
            assert await may(kant, "get", group, plural, namespace=namespace), path


async def test_an_inspector_can_ask_and_a_tenant_cannot(
    installed: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["top", "--json", "--kubeconfig", str(installed.kubeconfig("tenant"))]

    def ask() -> int:
        return run(words, kubectl_app(cluster_answers))

    assert await asyncio.to_thread(ask) == 2
    assert "may list pods of namespace default, or the role kant-inspector" in capsys.readouterr().err
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kant-inspector"}
    subjects = [{"kind": "User", "name": "tenant", "apiGroup": "rbac.authorization.k8s.io"}]
    async with Api(installed) as admin:
        await admin.call("POST", path, {"metadata": {"name": "ask"}, "roleRef": role, "subjects": subjects})
    assert await asyncio.to_thread(ask) == 0
    assert '"pools"' in capsys.readouterr().out


def binding(pod: str, token: str | None) -> dict[str, Any]:
    """A binding to the one node, with the leader's token or without any."""
    notes = {} if token is None else {"annotations": {"scheduling.kant.dev/leader": token}}
    target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod} | notes, "target": target}


def eviction(pod: str, token: str) -> dict[str, Any]:
    notes = {"annotations": {"scheduling.kant.dev/leader": token}}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod} | notes}


def ungated(name: str) -> dict[str, Any]:
    """A pod for Kant that the policy of gates lets alone."""
    pod = make_pod(name)
    pod["metadata"].setdefault("annotations", {})["scheduling.kant.dev/no-gate"] = "true"
    return pod


def lease(holder: str, transitions: int) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseTransitions": transitions}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kant"}, "spec": spec}


async def test_the_api_server_refuses_the_bindings_of_a_deposed_leader(installed: ControlPlane) -> None:
    async def refused(api: Api, token: str | None, pod: str = "fenced", **query: str) -> bool:
        try:
            await api.call("POST", f"{PODS}/{pod}/binding", binding(pod, token), **query)
        except RefusedError as error:
            assert error.code in (403, 422) and "kant-fencing" in str(error)
            return True
        return False

    async with Api(installed) as admin, Api(installed, "kant") as kant:
        await admin.create_all([ungated("fenced"), ungated("free")])
        await kant.call("POST", LEASES, lease("a", 0))
        async with asyncio.timeout(PATIENCE_S):  # the API server takes a moment to know a new policy
            while not await refused(kant, "b/0", dryRun="All"):
                await asyncio.sleep(0.1)
        await kant.call("PATCH", f"{LEASES}/kant", lease("b", 1), kind="application/merge-patch+json")
        async with asyncio.timeout(PATIENCE_S):  # the policy sees the Lease through a watch: milliseconds behind
            while not await refused(kant, "a/0", dryRun="All"):
                await asyncio.sleep(0.002)
        for token in ("a/0", "a/1", "b/0", "b/1/", "", None):
            assert await refused(kant, token), token
        with pytest.raises(RefusedError, match="kant-fencing"):
            await kant.call("POST", f"{PODS}/free/eviction", eviction("free", "a/0"))
        await kant.call("POST", f"{PODS}/free/eviction", eviction("free", "b/1"), dryRun="All")
        await check_claims(admin, kant)
        assert not await refused(kant, "b/1")
        await admin.call("POST", f"{PODS}/free/binding", binding("free", None))
        await admin.create(ungated("of-others"))
        await admin.delete(f"{LEASES}/kant")  # nobody leads Kant, and others bind their pods, such as Kant's own
        async with asyncio.timeout(PATIENCE_S):
            while await refused(kant, "a/0", "of-others", dryRun="All"):
                assert not await refused(admin, None, "of-others", dryRun="All")
                await asyncio.sleep(0.01)
        assert not await refused(admin, None, "of-others")


async def check_claims(admin: Api, kant: Api) -> None:
    """Claims to devices are written by who leads (b/1), and by others than Kant."""
    kind, path = "application/merge-patch+json", f"{CLAIMS}/one"

    async def refused(method: str, path: str, body: dict[str, Any]) -> bool:
        try:
            await kant.call(method, path, body, **({"kind": kind} if method == "PATCH" else {}))
        except RefusedError as error:
            assert "kant-fencing" in str(error)
            return True
        return False

    def signed(token: str) -> dict[str, Any]:
        return {"metadata": {"annotations": {"scheduling.kant.dev/leader": token}}}

    pod = {"resource": "pods", "name": "p", "uid": "u"}
    allocated: dict[str, Any] = {"status": {"allocation": {"devices": {"results": []}}, "reservedFor": [pod]}}
    await admin.create(claim("one"))
    assert await refused("PATCH", path, signed("a/0"))
    assert await refused("PATCH", f"{path}/status", allocated | signed("b/1"))  # its status cannot sign it
    assert not await refused("PATCH", path, signed("b/1"))
    assert not await refused("PATCH", f"{path}/status", allocated)
    await admin.call("PATCH", path, signed("a/0"), kind=kind)  # as a leader before has left it
    for method, where, body in (("PATCH", f"{path}/status", {"status": {"reservedFor": None}}), ("DELETE", path, {})):
        assert await refused(method, where, body)
    other = claim("two")
    other["metadata"] |= signed("a/0")["metadata"]
    assert await refused("POST", CLAIMS, other)
    await admin.delete(path)


async def test_pods_for_kant_get_the_gate_and_no_others(installed: ControlPlane) -> None:
    gate, other = {"name": "scheduling.kant.dev/quota"}, {"name": "example.com/own"}
    async with Api(installed) as admin, Api(installed, "kant") as kant:

        async def gates(name: str, **spec: Any) -> list[dict[str, str]]:
            pod = make_pod(name)
            notes = spec.pop("annotations", {})
            pod["metadata"].setdefault("annotations", {}).update(notes)
            pod["spec"].update(spec)
            created = await admin.create(pod)
            found: list[dict[str, str]] = created["spec"].get("schedulingGates", [])
            return found

        async with asyncio.timeout(PATIENCE_S):  # the API server takes a moment to know a new policy
            attempts = count()
            while await gates(f"plain-{next(attempts)}") != [gate]:
                await asyncio.sleep(0.1)
        assert await gates("has-another", schedulingGates=[other]) == [other, gate]
        assert await gates("has-it", schedulingGates=[gate]) == [gate]
        assert await gates("bypass", annotations={"scheduling.kant.dev/no-gate": "true"}) == []
        assert await gates("theirs", schedulerName="default-scheduler") == []
        assert await gates("bound", nodeName="node") == []
        path = f"{PODS}/has-another"
        lifted = [{"op": "remove", "path": "/spec/schedulingGates/1"}]
        answer = await kant.call("PATCH", path, lifted, kind="application/json-patch+json")
        assert answer["spec"]["schedulingGates"] == [other]


# --- the chart ---------------------------------------------------------------------------------------------------

CHART = ROOT / "deploy" / "helm" / "kant"


def test_the_chart_is_made_of_the_same_files() -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir()}
    made = {name: text for name, text in there.items() if name not in WRITTEN}
    assert made == chart_templates() and len(there) == len(made) + len(WRITTEN), "run python deploy/helm/make.py"
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(re.findall(r"\.Values\.(\w+)", "".join(there.values()))) == set(values)
    assert (values["profile"], values["image"], values["replicas"]) == (builtin_texts()["kant"], IMAGE, 2)
    assert yaml.safe_load(RESOURCES) == values["resources"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__


def test_the_chart_has_the_profiles_that_it_knows_by_name() -> None:
    there = {path.stem: path.read_text(encoding="utf-8") for path in (CHART / "profiles").iterdir()}
    assert there == chart_profiles(), "run python deploy/helm/make.py"
    assert {"kant", "teams"} <= there.keys() and "helios-fifo" not in there


def test_the_schema_of_the_chart_knows_each_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert schema["properties"].keys() == values.keys() | {"global"} and schema["additionalProperties"] is False
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list}
    for name, value in values.items():
        assert type(value) is kinds[schema["properties"][name]["type"]], name


@pytest.fixture
def helm(tmp_path: Path, helm_program: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = [CHART] if verb == "lint" else ["kant", CHART, "--kube-version", "1.36.0"]
        command = [helm_program, verb, *where, "--namespace", "ml", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={"HOME": str(tmp_path)}, check=False)

    return run


Helm = Callable[..., subprocess.CompletedProcess[str]]


def named(text: str) -> dict[tuple[str, str], Any]:
    things = [thing for thing in yaml.safe_load_all(text) if thing]
    system = [thing["metadata"].get("namespace") == "kube-system" for thing in things]
    return {
        (thing["kind"], "kube-system/" * of_system + thing["metadata"]["name"]): thing
        for thing, of_system in zip(things, system, strict=True)
    }


@pytest.mark.long
def test_helm_renders_what_is_printed(helm: Helm) -> None:
    values = "gates=true,networkPolicy=true,serviceMonitor=true,prometheusRule=true,dashboard=true"
    done = helm("template", "--set", values)
    assert done.returncode == 0, done.stderr
    settings = ManifestSettings(
        namespace="ml", gates=True, network_policy=True, service_monitor=True, prometheus_rule=True, dashboard=True
    )
    charted, printed = named(done.stdout), named(render(settings))
    for thing in charted.values():
        if thing["kind"] == "CustomResourceDefinition":
            assert thing["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        else:
            labels = thing["metadata"]["labels"]
            more = {f"app.kubernetes.io/{key}": labels.pop(f"app.kubernetes.io/{key}") for key in STANDARD}
            assert list(more.values()) == ["kant", __version__, "scheduler", "Helm"]
            assert labels.pop("helm.sh/chart") == f"kant-{__version__}"
    assert charted == {key: thing for key, thing in printed.items() if key[0] != "Namespace"}


STANDARD = ("instance", "version", "component", "managed-by")
WRONG = [
    "gates=yes", "replicas=0", "replicas=two", "image=", "tolerations=x", "journal.sizeLimit=4", "extraArgs={listen}",
    "nodeselector.a=b", "resources.request.cpu=1", "resources.limits.memory=lots", "journal.limitMiB=4096",
    "extraArgs={--listen=:1}",
]  # fmt: skip


@pytest.mark.long
def test_the_chart_passes_helm_lint_and_refuses_wrong_values(helm: Helm) -> None:
    done = helm("lint", "--strict")
    assert done.returncode == 0, done.stdout
    for wrong in (*WRONG, "--set-string gates=false"):
        words = wrong.split() if wrong.startswith("--") else ["--set", wrong]
        done = helm("template", *words)
        assert done.returncode and re.split("[.=]", words[-1])[0] in done.stderr, (wrong, done.stderr)


@pytest.mark.long
def test_what_people_choose_of_the_deployment_is_in_its_place(helm: Helm) -> None:
    done = helm(
        "template", "--set", "nodeSelector.pool=system,tolerations[0].operator=Exists,priorityClassName=high",
        "--set", "extraArgs[0]=--log-format=logfmt,journal.limitMiB=10,journal.sizeLimit=1Gi",
        "--set", "imagePullSecrets[0].name=registry,resources.limits.memory=8Gi",
        "--set", "extraArgs[1]=--scheduler-name=theirs",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    things = named(done.stdout)
    spec = things["Deployment", "kant"]["spec"]["template"]["spec"]
    assert things["Role", "kube-system/kant"]["rules"][0]["resourceNames"] == ["scheduler-name-theirs"]
    assert ("Lease", "kube-system/scheduler-name-theirs") in things
    (container,) = spec["containers"]
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "system"}, [{"operator": "Exists"}])
    assert (spec["priorityClassName"], spec["imagePullSecrets"]) == ("high", [{"name": "registry"}])
    more = ["--log-format=logfmt", "--scheduler-name=theirs"]
    assert container["args"][-4:] == ["--journal-limit=10", "--listen=0.0.0.0:8080", *more]
    assert container["resources"]["limits"] == {"memory": "8Gi"} and container["resources"]["requests"]["cpu"] == "1"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["journal"]["emptyDir"]["sizeLimit"] == "1Gi"


# --- the image ---------------------------------------------------------------------------------------------------


def test_the_image_runs_as_nobody_from_a_base_that_is_named() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert bases == ["${BASE}"] * 2
    assert [line for line in lines if re.fullmatch(r"ARG BASE=\S+:\d[\w.-]+", line)]
    last = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    users = [line.split()[1] for line in last if line.startswith("USER ")]
    account = {thing["kind"]: thing for thing in yaml.safe_load_all(render(ManifestSettings()))}["Deployment"]
    security = account["spec"]["template"]["spec"]["securityContext"]
    assert users[-1:] == [f"{security['runAsUser']}:{security['runAsGroup']}"]
    assert not [line for line in lines if re.match(r"(ADD|EXPOSE|VOLUME) ", line)]
    assert last[-1] == 'ENTRYPOINT ["kant"]'


def test_a_place_of_the_chart_is_one_of_the_manifests() -> None:
    places = {match for name in [*PARTS, *definitions()] for match in re.findall(r"\$\{(\w+)\}", part(name))}
    assert places == PLACES.keys()


# --- the documentation ---------------------------------------------------------------------------------------------


def test_objects_in_the_documentation_are_taken_as_they_stand(installed: ControlPlane) -> None:
    pages = sorted((ROOT / "docs").glob("kubernetes*.md"))
    blocks = [(page.name, text) for page in pages for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)]
    given = [(page, thing) for page, text in blocks for thing in yaml.safe_load_all(text) if "apiVersion" in thing]

    async def refusals() -> list[str]:
        found = []
        async with Api(installed) as admin:
            for page, thing in given:
                thing["metadata"].pop("namespace", None)
                try:
                    path = await admin._place(thing)
                    await admin.call("POST", path, thing, dryRun="All", fieldValidation="Strict")
                except (RefusedError, LookupError) as refused:
                    found.append(f"{page}: {thing['kind']} {thing['metadata']['name']}: {refused}")
        return found

    refused = asyncio.run(refusals())
    assert len(given) > 4 and not refused, refused


def test_the_chart_takes_a_profile_by_its_name_and_refuses_one_that_is_unknown(
    helm: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    def profile(text: str) -> tuple[str, str]:
        """The profile of the ConfigMap, or what helm says where it refuses."""
        file = tmp_path / "values.yaml"
        file.write_text(json.dumps({"profile": text}))
        done = helm("template", "--values", str(file))
        if done.returncode:
            return "", done.stderr
        objects = [each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "ConfigMap"]
        return next(each["data"]["profile.toml"] for each in objects if "profile.toml" in each["data"]), ""

    for name in ("teams", "easy"):
        text, _ = profile(name)
        assert text.strip() == builtin_texts()[name].strip()
    own = builtin_texts()["teams"].replace("1000", "7")
    assert profile(own)[0].strip() == own.strip()
    _, refused = profile("temas")
    assert "profile: expected a profile in TOML, or one of aged, backfill" in refused
    assert "teams, tiresias, worst-fit, got temas" in refused and "helios-fifo" not in refused
    assert "profile: expected TOML (toml: line 1" in profile('name = "x')[1]
    assert "profile: expected placement with a policy" in profile(own.replace("[placement]", "[elsewhere]"))[1]
