"""Groups in the words of other schedulers and controllers, and what their objects say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.kube.objects import views as k
from kant.kube.objects.views import Meta, Unstructured
from kant.kube.translate.group_objects import group_spec
from kant.kube.translate.group_spec import GroupSpec, Part
from kant.kube.translate.groups import GroupRef, group_of
from kant.kube.translate.queues import queue_config_of
from kant.kube.translate.topology_objects import levels_of
from kant.model.errors import InputError
from kant.model.tenant import validated


def pod(
    labels: dict[str, str] | None = None, notes: dict[str, str] | None = None, owner: str = "", **spec: Any
) -> k.Pod:
    owners = (k.Owner(owner.rsplit("/", 1)[0], owner.rsplit("/", 1)[1], "own", controller=True),) if owner else ()
    return k.Pod(Meta("p", "ml", labels=labels, annotations=notes, owner_references=owners), k.PodSpec(**spec))


def at(group: str, plural: str, name: str) -> str:
    return f"/apis/{group}/namespaces/ml/{plural}/{name}"


CASES = [
    (pod(), None),
    (pod(scheduling_group=k.SchedulingGroup("g"), labels={"scheduling.kant.dev/pod-group": "other"}),
     GroupRef("ml", "scheduling.k8s.io", "g", (at("scheduling.k8s.io/v1beta1", "podgroups", "g"),
                                               at("scheduling.k8s.io/v1alpha3", "podgroups", "g"),
                                               at("scheduling.k8s.io/v1alpha2", "podgroups", "g")))),
    (pod(workload_ref=k.WorkloadRef("g", "workers", "3")),
     GroupRef("ml", "workloads.scheduling.k8s.io", "g/workers/3",
              (at("scheduling.k8s.io/v1alpha1", "workloads", "g"),), part="workers")),
    (pod({"scheduling.kant.dev/pod-group": "g", "scheduling.kant.dev/min-available": "4"}),
     GroupRef("ml", "scheduling.kant.dev", "g", (), 4)),
    (pod(notes={"pod-group-name": "g"}),
     GroupRef("ml", "scheduling.run.ai", "g", (at("scheduling.run.ai/v2alpha2", "podgroups", "g"),))),
    (pod(notes={"scheduling.k8s.io/group-name": "g"}),
     GroupRef("ml", "scheduling.volcano.sh", "g", (at("scheduling.volcano.sh/v1beta1", "podgroups", "g"),))),
    (pod({"scheduling.x-k8s.io/pod-group": "g"}),
     GroupRef("ml", "scheduling.x-k8s.io", "g", (at("scheduling.x-k8s.io/v1alpha1", "podgroups", "g"),))),
    (pod({"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}),
     GroupRef("ml", "scheduling.x-k8s.io", "g", (), 2)),
    (pod(notes={"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "3"}),
     GroupRef("ml", "koordinator.sh", "g", (), 3)),
    (pod({"kueue.x-k8s.io/pod-group-name": "g"}, {"kueue.x-k8s.io/pod-group-total-count": "5"}),
     GroupRef("ml", "kueue.x-k8s.io", "g", (), 5)),
    (pod({"applicationId": "g"}, {"yunikorn.apache.org/task-group-name": "w", "yunikorn.apache.org/task-groups":
          '[{"name": "w", "minMember": 3}, {"name": "d", "minMember": 1}]'}),
     GroupRef("ml", "yunikorn", "g", (), 4, (("w", 3), ("d", 1)))),
    (pod({"jobset.sigs.k8s.io/jobset-name": "g"}, owner="batch/v1/Job"),
     GroupRef("ml", "jobset", "g", (at("jobset.x-k8s.io/v1alpha2", "jobsets", "g"),))),
    (pod({"leaderworkerset.sigs.k8s.io/name": "g", "leaderworkerset.sigs.k8s.io/group-index": "3"}),
     GroupRef("ml", "leaderworkerset", "g-3", (at("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "g"),))),
    (pod({"training.kubeflow.org/job-name": "g"}, owner="kubeflow.org/v1/PyTorchJob"),
     GroupRef("ml", "pytorchjobs", "g", (at("kubeflow.org/v1", "pytorchjobs", "g"),))),
    (pod({"ray.io/cluster": "g"}), GroupRef("ml", "rayclusters", "g", (at("ray.io/v1", "rayclusters", "g"),))),
    (pod(notes={"batch.kubernetes.io/job-completion-index": "0"}, owner="batch/v1/Job"),
     GroupRef("ml", "jobs", "own", (at("batch/v1", "jobs", "own"),))),
    (pod({"scheduling.kant.dev/min-available": "4"}, {"batch.kubernetes.io/job-completion-index": "0"},
         owner="batch/v1/Job"), GroupRef("ml", "jobs", "own", (at("batch/v1", "jobs", "own"),), 4)),
    (pod({"ray.io/cluster": "g", "scheduling.kant.dev/min-available": "1"}), GroupRef("ml", "rayclusters", "g", (), 1)),
    (pod(owner="batch/v1/Job"), None),
    (pod(owner="apps/v1/ReplicaSet"), None),
]  # fmt: skip


@pytest.mark.parametrize(("one", "group"), CASES)
def test_the_group_of_a_pod(one: k.Pod, group: GroupRef | None) -> None:
    assert group_of(one) == group


def loose(spec: Any, **meta: Any) -> Unstructured:
    return Unstructured("v1", "Thing", Meta("g", "ml", **meta), msgspec.Raw(msgspec.json.encode(spec)))


JOB = {"template": {"spec": {"parallelism": 4, "completions": 4}}}
SPECS = [
    ("scheduling.k8s.io", {"schedulingPolicy": {"gang": {"minCount": 8}}, "priority": 7,
                           "schedulingConstraints": {"topology": [{"key": "rack"}]}},
     GroupSpec(8, priority=7, required="rack")),
    ("scheduling.k8s.io", {"schedulingPolicy": {"basic": {}}}, GroupSpec(0)),
    ("scheduling.run.ai", {"minMember": 4, "queue": "q", "preemptibility": "non-preemptible",
                           "topologyConstraint": {"requiredTopologyLevel": "rack"}},
     GroupSpec(4, "q", required="rack", preemptible=False)),
    ("scheduling.run.ai", {"minMember": 4, "preemptionDelay": "10m0s"}, GroupSpec(4, node_wait="10m0s")),
    ("scheduling.volcano.sh", {"minMember": 3, "queue": "q"}, GroupSpec(3, "q")),
    ("scheduling.x-k8s.io", {"minMember": 3}, GroupSpec(3)),
    ("jobs", {"completionMode": "Indexed", "parallelism": 8, "completions": 8}, GroupSpec(0)),
    ("jobs", {"parallelism": 8, "completions": 8, "scheduling": {"schedulingPolicy": {"gang": {}}}}, GroupSpec(8)),
    ("jobs", {"parallelism": 8, "completions": 8, "scheduling": {
        "schedulingPolicy": {"gang": {"minCount": 6}}, "disruptionMode": {"all": {}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]}}}, GroupSpec(6, required="rack", together=True)),
    ("jobs", {"parallelism": 8, "completions": 8, "scheduling": {"schedulingPolicy": {"basic": {}}}}, GroupSpec(0)),
    ("jobs", {"parallelism": 8, "completions": 200, "scheduling": {"schedulingPolicy": {"gang": {}}}},
     GroupSpec(0, alone=True)),
    ("jobs", {"parallelism": 8, "completions": 8, "backoffLimitPerIndex": 0}, GroupSpec(0, alone=True)),
    ("jobset", {"replicatedJobs": [{"replicas": 2, **JOB}, {**JOB}]}, GroupSpec(12)),
    ("jobset", {"replicatedJobs": [{"name": "d", **JOB}, {"name": "w", "replicas": 2, **JOB}],
                "startupPolicy": {"startupPolicyOrder": "InOrder"}},
     GroupSpec(12, later=(Part("w", 8, {}, (("d", False),)),))),
    ("jobset", {"replicatedJobs": [{"name": "i", **JOB}, {"name": "n", **JOB, "dependsOn": [
        {"name": "i", "status": "Complete"}]}]}, GroupSpec(0, gangs=(("i",), ("n",)))),
    ("jobset", {"replicatedJobs": []}, GroupSpec(0)),
    ("leaderworkerset", {"leaderWorkerTemplate": {"size": 4}}, GroupSpec(4)),
    ("leaderworkerset", {"leaderWorkerTemplate": {"size": 4}, "startupPolicy": "LeaderReady"},
     GroupSpec(4, later=(Part("workers", 3, {}, (("leader", False),)),))),
    ("leaderworkerset", {"leaderWorkerTemplate": {"size": 1}, "startupPolicy": "LeaderReady"}, GroupSpec(1)),
    ("pytorchjobs", {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 7}}}, GroupSpec(8)),
    ("mpijobs", {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 7}},
                 "launcherCreationPolicy": "WaitForWorkersReady"}, GroupSpec(7)),
    ("tfjobs", {"tfReplicaSpecs": {"Worker": {"replicas": 7}},
                "runPolicy": {"schedulingPolicy": {"minAvailable": 5, "queue": "q"}}}, GroupSpec(5, "q")),
    ("rayclusters", {"workerGroupSpecs": [{"replicas": 3, "minReplicas": 1, "numOfHosts": 2}]}, GroupSpec(7)),
    ("rayclusters", {"workerGroupSpecs": [
        {"groupName": "a", "replicas": 3}, {"groupName": "b", "replicas": 4, "suspend": True}]}, GroupSpec(4)),
    ("rayclusters", {"enableInTreeAutoscaling": True, "workerGroupSpecs": [{"replicas": 3, "minReplicas": 1}]},
     GroupSpec(2, tasks=(("headgroup", 1),))),
    ("rayclusters", {"enableInTreeAutoscaling": True, "workerGroupSpecs": [
        {"groupName": "a", "minReplicas": 2, "numOfHosts": 2}, {"groupName": "b", "minReplicas": 0}]},
     GroupSpec(5, tasks=(("headgroup", 1), ("a", 4)))),
    ("pytorchjobs", {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 9},
                     "pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 7}}},
     GroupSpec(3, tasks=(("master", 1), ("worker", 2)))),
]  # fmt: skip


@pytest.mark.parametrize(("source", "spec", "expected"), SPECS)
def test_what_the_object_of_a_group_says(source: str, spec: Any, expected: GroupSpec) -> None:
    assert group_spec(source, loose(spec)) == expected


def test_the_groups_of_three_releases_of_kubernetes() -> None:
    """1.35 has them inside Workloads; 1.36 and 1.37 as PodGroups, which say in different words how they go."""
    gang = {"gang": {"minCount": 3}}
    workload = loose({"podGroups": [{"name": "loose", "policy": {"basic": {}}}, {"name": "workers", "policy": gang}]})
    assert group_spec("workloads.scheduling.k8s.io", workload, "workers") == GroupSpec(3)
    assert group_spec("workloads.scheduling.k8s.io", workload, "loose") == GroupSpec(0)
    with pytest.raises(InputError, match="a group driver, which its pods name"):
        group_spec("workloads.scheduling.k8s.io", workload, "driver")
    for mode in ("PodGroup", {"all": {}}):
        found = group_spec("scheduling.k8s.io", loose({"schedulingPolicy": gang, "disruptionMode": mode}))
        assert found == GroupSpec(3, together=True)
    for mode in ("Pod", {"single": {}}, None):
        assert group_spec("scheduling.k8s.io", loose({"schedulingPolicy": gang, "disruptionMode": mode})) == GroupSpec(
            3
        )
    polite = loose({"schedulingPolicy": gang, "preemptionPolicy": "Never", "schedulingConstraints": {"topology": [
        {"key": "rack"}]}})  # fmt: skip
    assert group_spec("scheduling.k8s.io", polite) == GroupSpec(3, required="rack", preempts=False)
    inner = loose({"schedulingPolicy": gang, "parentCompositePodGroupName": "all"})
    assert group_spec("scheduling.k8s.io", inner) == GroupSpec(3, parent="all")
    outer = loose({"schedulingPolicy": {"gang": {"minGroupCount": 2}}, "disruptionMode": {"all": {}}})
    assert group_spec("compositepodgroups.scheduling.k8s.io", outer) == GroupSpec(2, together=True)


def test_a_gang_of_a_jobset_is_named_by_its_first_job() -> None:
    jobs = [{"name": "i", **JOB}, {"name": "l", **JOB, "dependsOn": [{"name": "i", "status": "Complete"}]},
            {"name": "w", "replicas": 2, **JOB, "dependsOn": [{"name": "l", "status": "Ready"}]}]  # fmt: skip
    found = loose({"replicatedJobs": jobs})
    assert group_spec("jobset", found).gangs == (("i",), ("l", "w"))
    assert group_spec("jobset", found, "i") == GroupSpec(4)
    gang = group_spec("jobset", found, "l")
    assert gang.least == 12 and [part.name for part in gang.later] == ["w"]
    assert group_spec("jobset", found, "gone") == GroupSpec(0)
    alone = loose({"replicatedJobs": jobs}, annotations={"scheduling.kant.dev/min-available": "1"})
    assert group_spec("jobset", alone) == GroupSpec(1)


def test_our_own_label_on_the_object_goes_before_its_fields() -> None:
    number = {"scheduling.kant.dev/min-available": "6"}
    assert group_spec("jobs", loose({"parallelism": 8, "completions": 8}, labels=number)).least == 6
    assert group_spec("jobs", loose({"parallelism": 8, "completions": 9}, labels=number)).least == 0


json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 1 << 40), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from((
        "minMember", "replicatedJobs", "template", "spec", "workerGroupSpecs", "leaderWorkerTemplate",
        "schedulingPolicy", "gang", "runPolicy", "dependsOn", "startupPolicy", "name",
        "tfReplicaSpecs", "parallelism", "completionMode",
        "schedulingConstraints", "topology",
        "topologyConstraint", "priority")), inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from([source for source, _, _ in SPECS]), json)
def test_whatever_an_object_holds_it_is_read_or_refused_in_one_sentence(source: str, spec: Any) -> None:
    try:
        assert group_spec(source, loose(spec)).least >= 0
    except InputError as error:
        assert str(error).startswith("Thing ml/g, spec") and "\n" not in str(error)


@given(st.text(max_size=30))
def test_malformed_numbers_are_refused(text: str) -> None:
    one = pod({"scheduling.kant.dev/pod-group": "g", "scheduling.kant.dev/min-available": text})
    try:
        found = group_of(one)
        assert found is not None and (found.least >= 1 or not text)
    except InputError as error:
        assert str(error).startswith("pod ml/p, scheduling.kant.dev/min-available: expected a whole number from 1")


# --- queues ------------------------------------------------------------------------------------------------------

QUEUES = ("a", "b", "c", "d")
specs = st.fixed_dictionaries(
    {}, optional={"parent": st.sampled_from((*QUEUES, "nobody", 7)), "weight": st.sampled_from((1, 2, 0, "x")),
                  "quotas": st.sampled_from(([{"nominal": 8}], [{"nominal": "lots"}]))}
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(QUEUES), specs))
def test_a_malformed_queue_is_reported_and_the_others_stay_as_they_are(given_: dict[str, Any]) -> None:
    objects = [
        Unstructured("", "Queue", Meta(name), msgspec.Raw(msgspec.json.encode(spec))) for name, spec in given_.items()
    ]
    queue_config, wrong = queue_config_of(objects)
    validated(queue_config)  # always a forest
    assert {queue.name for queue in queue_config.queues} == set(given_)
    by_name = {queue.name: queue for queue in queue_config.queues}
    for name, spec in given_.items():
        if name not in wrong:
            assert by_name[name].parent == spec.get("parent", "") and by_name[name].weight == spec.get("weight", 1)
            assert by_name[name].state == "open"
        else:
            assert name in wrong[name] and "expected" in wrong[name]
        alone = spec.get("weight", 1) in (1, 2) and spec.get("parent", "") != 7
        alone = alone and spec.get("quotas", [{"nominal": 8}]) == [{"nominal": 8}]
        assert alone or (name in wrong and by_name[name].state == "hold")


def test_one_topology_is_in_force_and_ours_goes_first() -> None:
    def topology(version: str, name: str, *levels: Any) -> Unstructured:
        return Unstructured(version, "Topology", Meta(name), msgspec.Raw(msgspec.json.encode({"levels": list(levels)})))

    kueue = topology("kueue.x-k8s.io/v1beta1", "a", {"nodeLabel": "block"}, {"nodeLabel": "rack"})
    ours = topology("scheduling.kant.dev/v1alpha1", "b", {"level": "leaf", "nodeLabel": "tor"})
    bad = topology("scheduling.kant.dev/v1alpha1", "c", {"level": "rack", "nodeLabel": "tor"})
    found, wrong = levels_of([kueue, bad, ours])
    assert found is not None and found.leaf == "tor" and sorted(wrong) == ["a (kueue.x-k8s.io)", "c"]
    assert wrong["a (kueue.x-k8s.io)"] == "Topology a: expected one Topology in the cluster: Topology b is in force"
    found, wrong = levels_of([kueue])
    assert found is not None and (found.leaf, found.spine, wrong) == ("rack", "block", {})
    assert "Topology c" in levels_of([bad])[1]["c"]
