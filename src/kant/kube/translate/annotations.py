"""What a pod's labels and annotations say about queue, run time and topology. Keys are Kant's and other schedulers'."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct

from kant.kube.objects import views as k
from kant.kube.objects.names import HOLD, MOVABLE, OWN
from kant.kube.objects.validation import MAX_TEXT, name_of, whole
from kant.kube.translate.group_spec import GroupSpec
from kant.kube.translate.levels import Levels, level_asked
from kant.model.errors import InputError
from kant.model.job import LEVELS, Level
from kant.model.training import Training
from kant.model.units import SECOND, parse_duration

QUEUES = (
    f"{OWN}/queue",
    "kai.scheduler/queue",
    "runai/queue",
    "kueue.x-k8s.io/queue-name",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    "yunikorn.apache.org/queue",
    "quota.scheduling.koordinator.sh/name",
)
REQUIRED = (
    f"{OWN}/topology-required",
    "kai.scheduler/topology-required-placement",
    "kueue.x-k8s.io/podset-required-topology",
)
PREFERRED = (
    f"{OWN}/topology-preferred",
    "kai.scheduler/topology-preferred-placement",
    "kueue.x-k8s.io/podset-preferred-topology",
)
SEGMENTS = f"{OWN}/segments"
"""Topology levels from outside to inside, each with the number of pods in one segment: `spine=16 leaf=4`."""

SLICE, SLICE_SIZE = "kueue.x-k8s.io/podset-slice-required-topology", "kueue.x-k8s.io/podset-slice-size"
SLICES = f"{SLICE}-constraints"
"""SLICE for several levels: the value is a list of objects (Kueue's feature gate TASMultiLayerTopology)."""

MAX_PODS = 10_000_000
PREEMPTIBLE = {
    f"{OWN}/preemptible": {"true": True, "false": False},
    "kai.scheduler/preemptibility": {"preemptible": True, "non-preemptible": False},
    "volcano.sh/preemptable": {"true": True, "false": False},
    "quota.scheduling.koordinator.sh/preemptible": {"true": True, "false": False},
}
"""Keys that say whether a job may be preempted, with the meaning of their values. A pod's first key counts."""

RUNTIME = f"{OWN}/expected-runtime"
TRAINING = f"{OWN}/training"
NODE_WAIT, PREEMPTION_DELAY = f"{OWN}/node-wait", "kai.scheduler/preemption-delay"
"""The annotations that say how long the job waits for a new node before it preempts other jobs."""

CHECKPOINTED, CHECKPOINT_EVERY = f"{OWN}/checkpointed-at", f"{OWN}/checkpoint-every"
"""The annotations with the time of the job's last checkpoint, and with the interval between its checkpoints."""

RESERVATION = f"{OWN}/reservation"
MAX_TIME = "kueue.x-k8s.io/max-exec-time-seconds"
FRACTIONS = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")
"""Annotations with which KAI's users request shares of a GPU.

The containers of such pods do not request a GPU from the kubelet. KAI's binder starts a placeholder pod that takes a
whole GPU, and so learns which GPU that is. The binder passes this GPU to the container by a config map, which KAI's
webhook adds to a pod at its creation, but only with KAI's own schedulerName. Source: KAI-Scheduler,
pkg/binder/binding/resourcereservation, pkg/binder/plugins/gpusharing, pkg/admission/webhook/v1alpha2/podhooks.
"""


class Slice(Struct, frozen=True, forbid_unknown_fields=True):
    """One level of SLICES."""

    topology: str
    size: int


class Annotations(NamedTuple):
    """As in `Job`. `cuts` has the level and pod count of each kind of segment. All pods of a gang have equal values."""

    queue: str
    preemptible: bool
    estimate: int
    limit: int
    within: Level
    within_required: bool
    cuts: tuple[tuple[Level, int], ...]
    training: Training | None
    reservation: str
    checkpoint: int
    node_wait: int


def annotations_of(pod: k.Pod, levels: Levels, spec: GroupSpec | None, where: str) -> Annotations:
    """Return the pod's values; where the pod has none, those of its group. Raises InputError for an invalid value."""
    said = _said(pod, where)
    group = spec or GroupSpec(0)
    for key in FRACTIONS:
        if key in said:
            enforced = "nvidia.com/gpumem or nvidia.com/gpumem-percentage"
            raise InputError(f"{where}, {key}", f"{enforced} and nodes with HAMi, since Kant lacks KAI's binder")
    for key in (HOLD, MOVABLE):
        if said.get(key, "") not in ("", "true", "false"):
            raise InputError(f"{where}, {key}", "true or false", said[key])
    queue = next((name_of(f"{where}, {key}", said[key]) for key in QUEUES if said.get(key)), "")
    queue = queue or group.queue or "default"
    wait = said.get(NODE_WAIT) or said.get(PREEMPTION_DELAY) or group.node_wait
    required, place = _first(said, REQUIRED, group.required)
    preferred, soft = _first(said, PREFERRED, group.preferred)
    within: Level = ""
    if required:
        within = level_asked(levels, required, f"{where}, {place}")
    elif preferred:
        within = level_asked(levels, preferred, f"{where}, {soft}")
    return Annotations(
        queue, _preemptible(pod, said, group, where), _runtime(said, where), _limit(pod, said, where),
        within, bool(required), _cuts(said, levels, where),
        _training(said, where),
        name_of(f"{where}, {RESERVATION}", said[RESERVATION]) if said.get(RESERVATION) else "",
        _checkpoint(said, where), parse_duration(wait, f"{where}, {NODE_WAIT}") if wait else 0,
    )  # fmt: skip


def _cuts(said: dict[str, str], levels: Levels, where: str) -> tuple[tuple[Level, int], ...]:
    """Return the levels by which a gang is cut into segments, from outside to inside. Raises InputError."""
    key = SEGMENTS if SEGMENTS in said else SLICES if SLICES in said else SLICE
    if key not in said:
        return ()
    place, sizes = f"{where}, {key}", list[tuple[str, str | int]]()
    if key == SEGMENTS:
        sizes = [(level, size) for level, _, size in (word.partition("=") for word in said[key].split())]
    elif key == SLICES:
        try:
            sizes = [(one.topology, one.size) for one in msgspec.json.decode(said[key], type=list[Slice])]
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InputError(place, f"a list of objects with topology and size ({error})") from None
    else:
        sizes = [(said[key], said.get(SLICE_SIZE, ""))]
    found = list[tuple[Level, int]]()
    for name, size in sizes:
        level = level_asked(levels, name, place)
        pods = whole(f"{where}, {SLICE_SIZE}" if key == SLICE else place, size, 1, MAX_PODS)
        if found and (LEVELS.index(level) >= LEVELS.index(found[-1][0]) or found[-1][1] % pods):
            raise InputError(
                place, f"a level narrower than {found[-1][0]}, with a number of pods that divides {found[-1][1]}", name
            )
        found.append((level, pods))
    if not found:
        raise InputError(place, "one level or more, such as spine=16 leaf=4", said[key])
    return tuple(found)


def queue_said(said: dict[str, str]) -> str:
    """Return the queue that a pod's labels and annotations (`said`) name, else `default`."""
    return next((said[key] for key in QUEUES if said.get(key)), "default")


def names_reservation(pod: k.Pod) -> bool:
    """Whether a pod names a reservation, by a label or an annotation."""
    return RESERVATION in (pod.metadata.labels or {}) or RESERVATION in (pod.metadata.annotations or {})


def _said(pod: k.Pod, where: str) -> dict[str, str]:
    """Return labels and annotations; an annotation takes precedence over a label of the same key."""
    notes = pod.metadata.annotations or {}
    if sum(len(key) + len(value) for key, value in notes.items()) > MAX_TEXT:
        raise InputError(f"{where}, annotations", f"at most {MAX_TEXT >> 10} KiB in all")
    return {**(pod.metadata.labels or {}), **notes}


def _first(said: dict[str, str], keys: tuple[str, ...], otherwise: str) -> tuple[str, str]:
    """Return the first value among `keys`, and its key; if no key has a value: `otherwise` and "its group"."""
    return next(((said[key], key) for key in keys if said.get(key)), (otherwise, "its group"))


def _preemptible(pod: k.Pod, said: dict[str, str], group: GroupSpec, where: str) -> bool:
    """Return what the pod or its group says. If neither says anything: whether a controller would re-create the pod."""
    for key, meaning in PREEMPTIBLE.items():
        if key in said:
            if said[key] not in meaning:
                raise InputError(f"{where}, {key}", " or ".join(meaning), said[key])
            return meaning[said[key]]
    if group.preemptible is not None:
        return group.preemptible
    return bool(pod.metadata.controller.name)


def _training(said: dict[str, str], where: str) -> Training | None:
    """Return how the job is trained. Raises InputError."""
    if not said.get(TRAINING):
        return None
    from kant.workload.training_text import parse_training  # imported here, since few jobs have it

    return parse_training(f"{where}, {TRAINING}", said[TRAINING])


def _runtime(said: dict[str, str], where: str) -> int:
    return parse_duration(said[RUNTIME], f"{where}, {RUNTIME}") if RUNTIME in said else -1


def _checkpoint(said: dict[str, str], where: str) -> int:
    place = f"{where}, {CHECKPOINT_EVERY}"
    every = parse_duration(said[CHECKPOINT_EVERY], place) if CHECKPOINT_EVERY in said else -1
    if not every:
        raise InputError(place, "a duration above zero", said[CHECKPOINT_EVERY])
    return every


def _limit(pod: k.Pod, said: dict[str, str], where: str) -> int:
    deadline = pod.spec.active_deadline_seconds
    limits = [whole(f"{where}, spec.activeDeadlineSeconds", deadline, 1)] if deadline is not None else []
    if MAX_TIME in said:
        limits.append(whole(f"{where}, {MAX_TIME}", said[MAX_TIME], 1))
    return min(limits) * SECOND if limits else -1
