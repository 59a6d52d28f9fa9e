"""Which volume each claim gets if its StorageClass has no provisioner: a local volume that was created in advance.

A volume is for one claim. A volume fits a claim if it is free, large enough, usable on the node, of the same class and
mode, and has the access modes and labels that the claim asks for. A volume reserved for a claim goes to that claim.

Source: kube-scheduler's plugin VolumeBinding, and FindMatchingVolume of k8s.io/component-helpers. kube-scheduler gives
each claim of one pod, the smallest claim first, the smallest volume that fits, and so may miss a solution. Kant changes
earlier choices if that gives every claim a volume, and matches the claims of a whole gang together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kant.kube.objects import views as k
from kant.kube.objects.quantity import milli
from kant.kube.translate.node_facts import meets
from kant.kube.translate.selectors import selects, terms_of
from kant.kube.translate.volumes import ClaimName, key_of
from kant.model.errors import InputError


def is_kept_for(volume: k.PersistentVolume, claim: k.Claim) -> bool:
    """Whether a volume is already bound to this claim, or reserved for it."""
    ref = volume.spec.claim_ref
    return ref is not None and (ref.namespace, ref.name) == key_of(claim) and ref.uid in ("", claim.metadata.uid)


def fits(volume: k.PersistentVolume, claim: k.Claim) -> bool:
    """Whether a volume is free for a claim and meets its requests, regardless of nodes."""
    spec, own = volume.spec, claim.spec
    if volume.metadata.deletion_timestamp is not None:
        return False
    if spec.claim_ref is not None and not is_kept_for(volume, claim):
        return False
    if spec.claim_ref is None and volume.status.phase not in ("", "Available"):
        return False
    same = spec.storage_class_name == (own.storage_class_name or "") and spec.volume_mode == own.volume_mode
    modes = set(own.access_modes) <= set(spec.access_modes)
    labelled = own.selector is None or selects(own.selector, volume.metadata.labels or {})
    return same and modes and labelled and size_of(volume) >= asked_of(claim)


def size_of(volume: k.PersistentVolume) -> int:
    """Return the size of a volume in thousandths of a byte; 0 if it is not stated."""
    return _bytes(volume.spec.capacity or {}, f"persistentvolume {volume.metadata.name}, spec.capacity", up=False)


def asked_of(claim: k.Claim) -> int:
    """Return the minimum size that a claim asks for, in thousandths of a byte."""
    return _bytes(claim.spec.resources.requests or {}, f"claim {claim.metadata.name}, spec.resources.requests", up=True)


def _bytes(amounts: Mapping[str, str | int | float], where: str, up: bool) -> int:
    try:
        return milli(amounts.get("storage", 0), f"{where}.storage", up=up)
    except InputError:
        return 0


def reaches(volume: k.PersistentVolume, node: k.Node) -> bool:
    """Whether a volume can be used on a node."""
    required = volume.spec.node_affinity.required if volume.spec.node_affinity is not None else None
    where = f"persistentvolume {volume.metadata.name}, spec.nodeAffinity"
    try:
        terms = terms_of(required, where) if required is not None else None
    except InputError:
        return False
    return meets(terms, node)


Wants = Sequence[tuple[k.Claim, Sequence[k.Node]]]
"""Claims, each with the nodes of the pods that are to use it."""


def match(
    wants: Wants, volumes: Iterable[k.PersistentVolume], taken: Collection[str] = ()
) -> dict[ClaimName, str] | None:
    """Return a volume for each claim, usable on all of its nodes and not `taken`. None if some claim gets none.

    Small claims choose first: the smallest volume, of equals the first by name. A reserved volume goes to its claim.
    """
    free = [one for one in volumes if one.metadata.name not in taken]
    free.sort(key=lambda one: (size_of(one), one.metadata.name))
    order = sorted(wants, key=lambda want: (asked_of(want[0]), key_of(want[0])))
    options: dict[ClaimName, list[str]] = {}
    for claim, nodes in order:
        able = [one for one in free if fits(one, claim) and all(reaches(one, node) for node in nodes)]
        kept = any(is_kept_for(one, claim) for one in free)
        options[key_of(claim)] = [one.metadata.name for one in able if not kept or is_kept_for(one, claim)]
    holder: dict[str, ClaimName] = {}

    def give(claim: ClaimName, seen: set[str]) -> bool:
        for name in options[claim]:
            if name not in holder:
                holder[name] = claim
                return True
        for name in options[claim]:
            if name not in seen:
                seen.add(name)
                if give(holder[name], seen):
                    holder[name] = claim
                    return True
        return False

    if not all(give(claim, set()) for claim in options):
        return None
    return {claim: name for name, claim in holder.items()}
