"""Which group a pod belongs to, by the conventions of many schedulers and controllers. A group is one gang.

The first match counts. Sources: the labels and annotations of upstream Kubernetes (KEP-4671), KAI, Volcano,
scheduler-plugins, Koordinator, Kueue, YuniKorn, JobSet, LeaderWorkerSet, Kubeflow's training operator and KubeRay.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

import msgspec

from kant.kube.objects import views as k
from kant.kube.objects.validation import name_of, whole
from kant.model.errors import InputError

OWN = "scheduling.kant.dev"
GROUP, MIN_AVAILABLE = f"{OWN}/pod-group", f"{OWN}/min-available"
UPSTREAM, RUNAI = "scheduling.k8s.io", "scheduling.run.ai"
COMPOSITE = "compositepodgroups.scheduling.k8s.io"
WORKLOAD = "workloads.scheduling.k8s.io"
VOLCANO, PLUGINS = "scheduling.volcano.sh", "scheduling.x-k8s.io"
_SIGS = "pod-group.scheduling.sigs.k8s.io"
_KOORDINATOR = "gang.scheduling.koordinator.sh"
_KUEUE = "kueue.x-k8s.io/pod-group"
_YUNIKORN = "yunikorn.apache.org"
TASK = "volcano.sh/task-spec"
"""The annotation of Volcano that names the task of a pod."""

TASK_GROUP = "yunikorn.apache.org/task-group-name"
"""The annotation of YuniKorn that names the task of a pod."""

ROLE = "training.kubeflow.org/replica-type"
"""The label that names the role of a pod of a Kubeflow job."""

RAY_GROUP = "ray.io/group"
"""The label that names the group of workers, or the head, to which a pod of a Ray cluster belongs."""

NODE_POOL = "kai.scheduler/node-pool"
"""The label by which KAI restricts pods to the nodes on which the label has the same value."""

LEADER, WORKERS = "leader", "workers"
"""The parts of a group of a LeaderWorkerSet."""

ORDERED = "jobset", "leaderworkerset"
"""Sources of groups whose parts may be created one after the other."""

_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"

INDEX = "batch.kubernetes.io/job-completion-index"
KUBEFLOW = {
    "PyTorchJob": "pytorchjobs", "MPIJob": "mpijobs", "TFJob": "tfjobs", "XGBoostJob": "xgboostjobs",
    "PaddleJob": "paddlejobs", "JAXJob": "jaxjobs",
}  # fmt: skip


class GroupRef(NamedTuple):
    """A group: the convention that names it (`source`), and its name.

    `paths` are API paths at which the object with the group's details may be; the first that exists counts (none: the
    pods have them). `part` is the name of the group in that object, if it has several; for a JobSet, of the gang's
    first job. `least` is the minimum number of running pods that this pod states (0: none), `tasks` that of each task.
    """

    namespace: str
    source: str
    name: str
    paths: tuple[str, ...] = ()
    least: int = 0
    tasks: tuple[tuple[str, int], ...] = ()
    part: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the group: equal for all of its pods, different for all others."""
        return self.namespace, self.source, self.name


def group_of(pod: k.Pod) -> GroupRef | None:
    """Return the group of a pod; None for a single pod. Raises InputError if its group is malformed."""
    return _found(pod, f"pod {pod.metadata.namespace}/{pod.metadata.name}")


def composite_of(namespace: str, name: str) -> GroupRef:
    """Return a reference to a composite group of Kubernetes (KEP-6012)."""
    name_of(f"the group of groups {namespace}/{name}", name)
    path = _path(f"{UPSTREAM}/v1alpha3/compositepodgroups", namespace, name)
    return GroupRef(namespace, COMPOSITE, name, (path,))


def part_of(pod: k.Pod) -> str:
    """Return the part of its group for which a pod was created: a job of a JobSet, leader or workers; "": no part."""
    labels = pod.metadata.labels or {}
    if index := labels.get(_WORKER_INDEX):
        return LEADER if index == "0" else WORKERS
    return labels.get(_REPLICATED_JOB, "")


def _found(pod: k.Pod, where: str) -> GroupRef | None:
    labels, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    space = pod.metadata.namespace
    either = (labels | {key: said for key, said in notes.items() if said} if notes else labels).get

    def least(key: str) -> int:
        said = either(key)
        return whole(f"{where}, {key}", said, 1) if said else 0

    def named(source: str, name: str, *kinds: str, least: int = 0) -> GroupRef:
        name_of(f"{where}, its group", name)
        paths = tuple(_path(kind, space, name) for kind in kinds)
        return GroupRef(space, source, name, paths, own or least)

    own = least(MIN_AVAILABLE)
    group = pod.spec.scheduling_group
    if group is not None and group.pod_group_name:
        kinds = (f"{UPSTREAM}/{version}/podgroups" for version in ("v1beta1", "v1alpha3", "v1alpha2"))
        return named(UPSTREAM, group.pod_group_name, *kinds)
    if (ref := pod.spec.workload_ref) is not None and ref.name:
        whole_name = "/".join(part for part in (ref.name, ref.pod_group, ref.pod_group_replica_key) if part)
        found = named(WORKLOAD, ref.name, f"{UPSTREAM}/v1alpha1/workloads")
        return found._replace(name=name_of(f"{where}, its group", whole_name), part=ref.pod_group)
    if name := either(GROUP):
        return named(OWN, name)
    if name := either("pod-group-name"):
        return named(RUNAI, name, f"{RUNAI}/v2alpha2/podgroups")
    if name := either("scheduling.k8s.io/group-name") or either("scheduling.volcano.sh/group-name"):
        return named(VOLCANO, name, f"{VOLCANO}/v1beta1/podgroups")
    if name := either("scheduling.x-k8s.io/pod-group"):
        return named(PLUGINS, name, f"{PLUGINS}/v1alpha1/podgroups")
    if name := either(f"{_SIGS}/name"):
        return named(PLUGINS, name, least=least(f"{_SIGS}/min-available"))
    if name := either(f"{_KOORDINATOR}/name"):
        return named("koordinator.sh", name, least=least(f"{_KOORDINATOR}/min-available"))
    if name := either(f"{_KUEUE}-name"):
        return named("kueue.x-k8s.io", name, least=least(f"{_KUEUE}-total-count"))
    if notes.get(f"{_YUNIKORN}/task-group-name"):
        name = either(f"{_YUNIKORN}/app-id") or either("applicationId")
        text = notes.get(f"{_YUNIKORN}/task-groups", "")
        if name:
            tasks = _task_groups(text, where) if text else ()
            found = named("yunikorn", name, least=sum(pods for _, pods in tasks))
            return found if own else found._replace(tasks=tasks)
    return _by_owner(pod, own)


def _task_groups(text: str, where: str) -> tuple[tuple[str, int], ...]:
    """Return the task groups of a YuniKorn application, each with its minimum number of pods."""
    place = f"{where}, {_YUNIKORN}/task-groups"
    try:
        groups = msgspec.json.decode(text.encode(), type=list[dict[str, object]])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise InputError(place, "a JSON list of task groups", text) from None
    read = ((str(group.get("name", "")), whole(f"{place}, minMember", group.get("minMember"))) for group in groups)
    return tuple((name, pods) for name, pods in read if pods)


def _by_owner(pod: k.Pod, own: int) -> GroupRef | None:
    """Return the group defined by the controller of the pod; None if it defines none. If the pod states a minimum
    number of pods (`own`), the controller's object is not read, unless it is a Job."""
    labels, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    space = pod.metadata.namespace
    owner = pod.metadata.controller

    def named(source: str, name: str, kind: str, group: str = "") -> GroupRef:
        return GroupRef(space, source, group or name, () if own else (_path(kind, space, name),), own)

    if name := labels.get("jobset.sigs.k8s.io/jobset-name"):
        return named("jobset", name, "jobset.x-k8s.io/v1alpha2/jobsets")
    if name := labels.get("leaderworkerset.sigs.k8s.io/name"):
        group = f"{name}-{labels.get('leaderworkerset.sigs.k8s.io/group-index', '0')}"
        return named("leaderworkerset", name, "leaderworkerset.x-k8s.io/v1/leaderworkersets", group)
    if name := labels.get("training.kubeflow.org/job-name"):
        plural = KUBEFLOW.get(owner.kind)
        if plural is None:  # the launcher of an MPIJob is the pod of a Job
            return named("mpijobs", name, "kubeflow.org/v2beta1/mpijobs")
        return named(plural, name, f"{owner.api_version}/{plural}")
    if name := labels.get("ray.io/cluster"):
        return named("rayclusters", name, "ray.io/v1/rayclusters")
    if owner.kind == "Job" and owner.api_version == "batch/v1" and (INDEX in notes or INDEX in labels):
        return named("jobs", owner.name, "batch/v1/jobs")._replace(paths=(_path("batch/v1/jobs", space, owner.name),))
    return None


def _path(kind: str, namespace: str, name: str) -> str:
    """Return the API path of an object; `kind` is group/version/plural."""
    prefix, plural = kind.rsplit("/", 1)
    return f"/apis/{prefix}/namespaces/{quote(namespace, safe='')}/{plural}/{quote(name, safe='')}"
