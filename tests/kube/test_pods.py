"""Pods as jobs of the model; what is malformed is a complaint on that pod, and never a traceback."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.asks import cuts_of
from kant.cluster.state import ClusterState
from kant.kube.objects import views as k
from kant.kube.translate import annotations, groups
from kant.kube.translate.group_spec import GroupSpec
from kant.kube.translate.levels import Levels
from kant.kube.translate.node_sets import NodeSets
from kant.kube.translate.nodes import PRODUCT
from kant.kube.translate.pods import GangJob, Setting, job_of
from kant.model.errors import InputError
from kant.model.event import JobSubmitted
from kant.model.job import Demand, Level, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.units import HOUR, MINUTE, SECOND

LEVELS = Levels("", "row", "rack", "", "test")
MADE = "2026-01-31T12:00:00Z"
OWN = "scheduling.kant.dev"


def pod(name: str = "p", gpus: int = 8, cpu: str = "4", notes: Any = None, labels: Any = None, **spec: Any) -> k.Pod:
    owners = (k.Owner("batch/v1", "Job", "train-bert-29384", controller=True),)
    meta = k.Meta(name, "ml", creation_timestamp=MADE, labels=labels, annotations=notes, owner_references=owners)
    limits: dict[str, str | int | float] = {"nvidia.com/gpu": gpus, "cpu": cpu}
    return k.Pod(meta, k.PodSpec(containers=(k.Container(k.Resources(None, limits)),), **spec))


def setting(*views: k.Node, sets: NodeSets | None = None) -> Setting:
    sets = sets or NodeSets()
    for view in views or (k.Node(k.Meta(name="n0", labels={"kubernetes.io/hostname": "n0"})),):
        sets.follow(view.metadata.name, view)
    return Setting(LEVELS, sets.name_of)


def job(*pods: k.Pod, spec: GroupSpec | None = None) -> GangJob:
    found = job_of("ml/g", pods, setting(), spec)
    assert isinstance(found, GangJob), found
    return found


@given(st.lists(st.sampled_from((0, 1, 8)), min_size=1, max_size=12))
def test_a_gang_has_a_group_for_each_demand_and_its_pods_in_the_order_of_ranks(gpus: list[int]) -> None:
    pods = [pod(f"w-{number}", count) for number, count in enumerate(gpus)]
    found = job(*pods[::-1])
    assert sum(group.count for group in found.job.groups) == len(pods) == len(found.pods)
    start = 0
    for group in found.job.groups:
        own = found.pods[start : start + group.count]
        assert list(own) == [f"w-{number}" for number, count in enumerate(gpus) if count == group.demand.gpus]
        start += group.count
    state = ClusterState(ClusterSpec("test", (Node("n0", 8),)))
    state.apply(JobSubmitted(found.job.submit, found.job, -1))


READ = sorted({
    *annotations.QUEUES, *annotations.REQUIRED, *annotations.PREFERRED, *annotations.PREEMPTIBLE,
    *annotations.FRACTIONS, annotations.RUNTIME, annotations.TRAINING, annotations.MAX_TIME, annotations.SLICE,
    annotations.SLICES, annotations.SEGMENTS,
    groups.GROUP, groups.MIN_AVAILABLE, "pod-group-name", "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name", "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io/name",
    "gang.scheduling.koordinator.sh/name", "kueue.x-k8s.io/pod-group-name",
})  # fmt: skip


@pytest.mark.parametrize("key", READ)
def test_junk_in_any_annotation_that_is_read_is_a_short_complaint(key: str) -> None:
    one = pod(notes={key: "x" * (200 << 10)})
    with pytest.raises(InputError) as wrong:
        groups.group_of(one)
        job_of("ml/p", [one], setting())
    assert len(str(wrong.value)) < 400 and "pod ml/p, " in str(wrong.value)


def test_only_one_owner_of_an_object_controls_it() -> None:
    owners = (k.Owner(name="of-its-node", uid="1"), k.Owner(name="set", uid="2", controller=True))
    assert k.Meta(owner_references=owners).controller == owners[1]
    assert k.Meta(owner_references=owners[:1]).controller == k.Owner()


def test_what_a_job_takes_from_its_pods() -> None:
    notes = {f"{OWN}/queue": "research", f"{OWN}/expected-runtime": "1h30m", "kai.scheduler/queue": "other"}
    labels = {"kueue.x-k8s.io/max-exec-time-seconds": "7200", "kai.scheduler/topology-required-placement": "rack"}
    one = pod(notes=notes, labels=labels, priority=5, active_deadline_seconds=9000, node_selector={PRODUCT: "H100"})
    found = job(one).job
    assert found.groups == (PodGroup(1, Demand(8, 1000, 4000, 0)),)
    assert (found.queue, found.user, found.name, found.priority) == ("research", "ml", "train-bert", 5)
    assert (found.estimate, found.limit, found.preemptible) == (90 * MINUTE, 2 * HOUR, True)
    assert (found.within, found.within_required, found.models, found.node_set) == ("leaf", True, ("H100",), "")
    assert found.submit == 1_769_860_800 * SECOND


def test_what_a_job_takes_from_its_group() -> None:
    spec = GroupSpec(2, queue="q", priority=9, preferred="row", preemptible=False, node_wait="10m0s")
    found = job(pod("a"), pod("b"), spec=spec).job
    own = job(pod("a", labels={"kai.scheduler/preemption-delay": "1h"}), spec=spec).job
    assert (found.node_wait, own.node_wait, job(pod("a")).job.node_wait) == (10 * MINUTE, HOUR, 0)
    assert (found.queue, found.priority, found.preemptible) == ("q", 9, False)
    assert (found.within, found.within_required) == ("spine", False)


def test_a_gang_says_what_it_trains() -> None:
    notes = {f"{OWN}/training": "mixtral-8x7b tensor=8 expert=8"}
    training = job(pod("a", notes=notes), pod("b", notes=notes)).job.training
    assert training is not None
    assert (training.layers, training.tensor, training.expert) == (32, 8, 8)
    assert job(pod("a")).job.training is None


def test_slices_of_kueue_are_segments() -> None:
    notes = {"kueue.x-k8s.io/podset-slice-required-topology": "rack", "kueue.x-k8s.io/podset-slice-size": "2"}
    (group,) = job(pod("a", notes=notes), pod("b", notes=notes)).job.groups
    assert (group.count, group.within, group.segment) == (2, "leaf", 2)


KUEUE = '[{"topology": "spine", "size": 4}, {"topology": "rack", "size": 2}]'
CONSTRAINTS = "kueue.x-k8s.io/podset-slice-required-topology-constraints"


@pytest.mark.parametrize("notes", [{CONSTRAINTS: KUEUE}, {f"{OWN}/segments": " spine=4  leaf=2"}])
def test_segments_in_segments(notes: dict[str, str]) -> None:
    pods = [pod(f"p-{number}", notes=notes) for number in range(8)]
    (group,) = job(*pods).job.groups
    assert (group.within, group.segment, group.inner) == ("spine", 4, (("leaf", 2),))
    (alone,) = job(pods[0]).job.groups
    assert cuts_of((alone,)) == () and cuts_of((group,)) == (((4, 3), (2, 2)),)


def test_a_group_inside_the_gang_lies_in_one_domain_and_its_segments_inside() -> None:
    def child(one: k.Pod) -> tuple[str, Level]:
        return (one.metadata.name[0], "spine") if one.metadata.name[0] != "x" else ("", "")

    own = {f"{OWN}/segments": "leaf=2"}
    pods = [pod(f"{group}-{number}", notes=own) for group in "abx" for number in range(4)]
    found = job_of("ml/g", pods, setting()._replace(child=child))
    assert isinstance(found, GangJob)
    cuts = [(group.count, group.within, group.segment, group.inner) for group in found.job.groups]
    assert cuts == [(4, "spine", 0, (("leaf", 2),))] * 2 + [(4, "leaf", 2, ())]
    assert found.pods == tuple(one.metadata.name for one in pods)
    pods[0] = pod("a-0", 4, notes=own)
    with pytest.raises(InputError, match="PodGroup a: expected pods with equal requests, or no topology constraint"):
        job_of("ml/g", pods, setting()._replace(child=child))


OF_TEAM = k.PodTerm(k.LabelSelector({"a": "b"}), "rack", (), k.LabelSelector({"team": "x"}))
WITH = k.PodAffinity((OF_TEAM,))
FAR = k.Affinity(pod_anti_affinity=k.PodAffinity((OF_TEAM,)))
REFUSED = [
    (pod(cpu="lots"), "pod ml/p, spec.containers[0].resources.limits.cpu: expected a quantity"),
    (
        pod(notes={f"{OWN}/topology-required": "pod"}),
        "expected a level of the fabric (node, leaf, spine) or a label: rack",
    ),
    (pod(notes={f"{OWN}/segments": "leaf=2 spine=2"}), f"{OWN}/segments: expected a level narrower than leaf"),
    (pod(notes={f"{OWN}/segments": "spine=8 leaf=3"}), "narrower than spine, with a number of pods that divides 8"),
    (pod(notes={f"{OWN}/segments": "leaf=4 leaf=2"}), "expected a level narrower than leaf"),
    (pod(notes={CONSTRAINTS: '[{"topology": "rack", "size": 2, "sizes": [2]}]'}), "unknown field `sizes`"),
    (pod(notes={f"{OWN}/segments": "spine"}), f"{OWN}/segments: expected a whole number from 1"),
    (pod(notes={f"{OWN}/segments": " "}), f"{OWN}/segments: expected one level or more, such as spine=16 leaf=4"),
    (
        pod(notes={CONSTRAINTS: '[{"topology": "rack", "sizes": [1, 3]}]'}),
        "expected a list of objects with topology and",
    ),
    (pod(notes={f"{OWN}/expected-runtime": "soon"}), f"pod ml/p, {OWN}/expected-runtime: expected a duration"),
    (pod(notes={f"{OWN}/training": "gpt-9"}), f"pod ml/p, {OWN}/training, field model: expected one of llama-3-8b"),
    (pod(notes={f"{OWN}/preemptible": "yes"}), "expected true or false, got 'yes'"),
    (pod(notes={f"{OWN}/hold": "True"}), f"{OWN}/hold: expected true or false, got 'True'"),
    (pod(notes={f"{OWN}/movable": "yes"}), f"{OWN}/movable: expected true or false, got 'yes'"),
    (pod(notes={"x": "y" * (257 << 10)}), "pod ml/p, annotations: expected at most 256 KiB in all"),
    (pod(notes={"gpu-fraction": "0.5"}), "expected nvidia.com/gpumem or nvidia.com/gpumem-percentage"),
    (pod(affinity=k.Affinity(pod_affinity=WITH)), "podAffinity, namespaceSelector: expected no such selector"),
    (pod(affinity=FAR), "podAntiAffinity, namespaceSelector: expected no such selector: Kant has no permission"),
    (pod(active_deadline_seconds=0), "spec.activeDeadlineSeconds: expected a whole number from 1"),
]


@pytest.mark.parametrize(("one", "sentence"), REFUSED)
def test_what_cannot_be_read_or_kept_is_a_complaint_on_the_pod(one: k.Pod, sentence: str) -> None:
    with pytest.raises(InputError) as wrong:
        job_of("ml/p", [one], setting())
    assert sentence in str(wrong.value) and len(str(wrong.value)) < 400


def test_pods_of_one_gang_agree() -> None:
    with pytest.raises(InputError) as wrong:
        job_of("ml/g", [pod("a"), pod("b", notes={f"{OWN}/queue": "q"})], setting())
    assert str(wrong.value) == "pod ml/b, queue: expected the value of pod ml/a in its gang, 'default', got 'q'"


def nodes_of(sets: NodeSets) -> dict[str, set[str]]:
    """The nodes of each set that has come."""
    return {change.name: set(change.added) for change in sets.take_changes()}


def on(name: str, key: str, *values: str, gpus: int = 8) -> k.Pod:
    term = k.SelectorTerm((k.Requirement(key, "In", values),))
    return pod(name, gpus, affinity=k.Affinity(k.NodeAffinity(k.NodeSelector((term,)))))


def test_unlike_pods_of_a_gang_have_nodes_of_their_own() -> None:
    views = [k.Node(k.Meta(name=pool, labels={"pool": pool})) for pool in ("cpu", "gpu", "any")]
    sets = NodeSets()
    given_ = setting(*views, sets=sets)
    pods = (
        on("head", "pool", "cpu", "any", gpus=0),
        on("worker-0", "pool", "gpu", gpus=4),
        on("worker-1", "pool", "gpu", "any", gpus=4),
    )
    found = job_of("ml/g", pods, given_)
    assert isinstance(found, GangJob) and found.pods == ("head", "worker-0", "worker-1")
    nodes = nodes_of(sets)
    assert [nodes[role.node_set] for role in found.job.roles] == [{"cpu", "any"}, {"gpu"}, {"gpu", "any"}]
    assert not found.job.node_set and [group.count for group in found.job.groups] == [1, 1, 1]
    found = job_of("ml/g", (pods[0], on("worker-0", "pool", "tape", gpus=4)), given_)
    assert isinstance(found, GangJob) and sets.is_nowhere(found.job)


texts = st.text(max_size=12)
keys = st.sampled_from((
    f"{OWN}/queue", f"{OWN}/expected-runtime", f"{OWN}/preemptible", f"{OWN}/topology-preferred", "gpu-memory",
    f"{OWN}/training", f"{OWN}/node-wait",
    "kueue.x-k8s.io/max-exec-time-seconds", "kueue.x-k8s.io/podset-slice-required-topology", "volcano.sh/preemptable",
    "kueue.x-k8s.io/podset-slice-size", f"{OWN}/segments", CONSTRAINTS))  # fmt: skip


@given(
    st.dictionaries(keys, st.one_of(texts, st.sampled_from(("rack", "true", "3", "5m", "leaf=3", KUEUE)))), texts, texts
)
def test_whatever_a_pod_says_it_is_read_or_complained_about(notes: dict[str, str], cpu: str, made: str) -> None:
    one = pod(notes=notes, cpu=cpu or "1")
    one = k.Pod(k.Meta("p", "ml", creation_timestamp=made or MADE, annotations=notes), one.spec)
    try:
        found = job_of("ml/p", [one], setting())
    except InputError as wrong:
        assert str(wrong).startswith("pod ml/p") and "\n" not in str(wrong)
    else:
        state = ClusterState(ClusterSpec("test", (Node("n0", 8),)))
        state.apply(JobSubmitted(max(found.job.submit, 0), found.job, -1))
