"""Requirements of a pod's volumes on its node, and whether the pod's claims can be used.

A bound claim has the requirements of its PersistentVolume: node affinity, and the zone labels of older volumes. An
unbound claim (WaitForFirstConsumer) requires a topology that its StorageClass allows.

Source: the plugins VolumeBinding, VolumeZone and VolumeRestrictions of kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from kant.kube.objects import views as k
from kant.kube.objects.refusals import NotYetError
from kant.kube.translate.selectors import NAME, Selection, Term, terms_of
from kant.model.errors import InputError

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
"""The annotation of a claim whose binding to a volume is complete."""

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""The annotation by which a scheduler tells the provisioner the node of the first pod that uses a claim."""

FIRST_CONSUMER = "WaitForFirstConsumer"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
ONE_POD = "ReadWriteOncePod"
ZONES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
MOST_TERMS = 64

ClaimName = tuple[str, str]
"""Namespace and name of a claim."""


class Storage(NamedTuple):
    """Claims, volumes and StorageClasses of the cluster, and its nodes. `known`: Kant may read all of them.

    `devices` returns terms for each device claim of a pod: a node that meets one of the terms can use the devices.
    """

    claims: Mapping[ClaimName, k.Claim]
    volumes: Mapping[str, k.PersistentVolume]
    classes: Mapping[str, k.StorageClass]
    nodes: Mapping[str, k.Node]
    known: bool = True
    devices: Callable[[k.Pod], Sequence[tuple[Term, ...]]] = lambda pod: ()

    def existing_claims(self, pod: k.Pod) -> Iterator[k.Claim]:
        """Yield the existing claims that a pod uses."""
        found = (self.claims.get((pod.metadata.namespace, name)) for name in claims_of(pod))
        return (claim for claim in found if claim is not None)

    def class_of(self, claim: k.Claim) -> k.StorageClass | None:
        """Return the StorageClass of a claim; None if it does not exist."""
        return self.classes.get(claim.spec.storage_class_name or "")


NO_STORAGE = Storage({}, {}, {}, {})


def claims_of(pod: k.Pod) -> tuple[str, ...]:
    """Return the names of the claims that a pod uses. The claim of an ephemeral volume begins with the pod's name."""
    if not pod.spec.volumes:
        return ()
    names = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            names.append(f"{pod.metadata.name}-{volume.name}")
    return tuple(names)


def is_bound(claim: k.Claim) -> bool:
    """Whether the binding of a claim to a volume is complete."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in (claim.metadata.annotations or {})


def check_claims(pod: k.Pod, storage: Storage) -> None:
    """Raise NotYetError if a claim of the pod cannot be used yet, InputError if Kant cannot bind it."""
    for name in claims_of(pod):
        where = f"pod {pod.metadata.namespace}/{pod.metadata.name}, claim {name}"
        if not storage.known:
            raise InputError(
                where, "permission for Kant to list persistentvolumeclaims, persistentvolumes and storage.k8s.io"
            )
        claim = storage.claims.get((pod.metadata.namespace, name))
        if claim is None:
            raise NotYetError(f"its claim {name} does not exist")
        if claim.metadata.deletion_timestamp is not None:
            raise NotYetError(f"its claim {name} is being deleted")
        if claim.status.phase == "Lost":
            raise NotYetError(f"its claim {name} has lost its volume {claim.spec.volume_name}")
        if is_bound(claim):
            if claim.spec.volume_name not in storage.volumes:
                raise NotYetError(f"the volume {claim.spec.volume_name} of its claim {name} does not exist")
            continue
        own = storage.class_of(claim)
        if own is None or own.volume_binding_mode != FIRST_CONSUMER:
            raise NotYetError(f"its claim {name} is not bound to a volume yet")


def unbound_claims(pod: k.Pod, storage: Storage) -> Iterator[k.Claim]:
    """Return the existing claims of a pod that are not bound yet. They are bound once the pod has a node."""
    return (claim for claim in storage.existing_claims(pod) if not is_bound(claim))


def selected_node(claim: k.Claim, storage: Storage) -> str:
    """Return the existing node for which an unbound claim's volume is being provisioned; "" if there is none."""
    name = (claim.metadata.annotations or {}).get(SELECTED_NODE, "")
    return name if name in storage.nodes else ""


def reaching(selection: Selection, pod: k.Pod, storage: Storage) -> Selection:
    """Return the selection combined with the requirements of the pod's volumes and devices. Raises InputError."""
    terms = None if selection.terms is None else tuple(term for term in selection.terms if term.requirements)
    found = [own for claim in storage.existing_claims(pod) if (own := demanded(claim, storage)) is not None]
    for own in [*found, *storage.devices(pod)]:
        both = product(terms, own) if terms is not None else (((), term) for term in own)
        merged = (Term(tuple(dict.fromkeys(one for part in pair for one in _requirements(part)))) for pair in both)
        terms = tuple(dict.fromkeys(merged))
        if len(terms) > MOST_TERMS:
            where = f"pod {pod.metadata.namespace}/{pod.metadata.name}, volumes and affinity.nodeAffinity"
            raise InputError(where, f"at most {MOST_TERMS} combinations of their terms", len(terms))
    return selection if terms == selection.terms else selection._replace(terms=terms)


def _requirements(part: Term | tuple[()]) -> tuple[k.Requirement, ...]:
    return part.requirements if isinstance(part, Term) else ()


def demanded(claim: k.Claim, storage: Storage) -> tuple[Term, ...] | None:
    """Return terms for the nodes on which a claim is usable: a node must meet one of them. None: all nodes."""
    if not is_bound(claim):
        node = selected_node(claim, storage)
        if node:
            return (Term((k.Requirement(NAME, "In", (node,)),)),)
        own = storage.class_of(claim)
        if own is None or not own.allowed_topologies:
            return None
        return tuple(
            Term(tuple(k.Requirement(one.key, "In", one.values) for one in term.match_label_expressions))
            for term in own.allowed_topologies
            if term.match_label_expressions
        )
    volume = storage.volumes.get(claim.spec.volume_name)
    if volume is None:
        return None
    zones = tuple(
        k.Requirement(key, "In", tuple(value.split("__")))
        for key, value in sorted((volume.metadata.labels or {}).items())
        if key in ZONES
    )
    required = volume.spec.node_affinity.required if volume.spec.node_affinity is not None else None
    if required is None:
        return (Term(zones),) if zones else None
    found = terms_of(required, f"persistentvolume {volume.metadata.name}, spec.nodeAffinity")
    return tuple(Term((*term.requirements, *zones)) for term in found if term.requirements)


def why_out_of_reach(pod: k.Pod, storage: Storage) -> str:
    """Return, as text, what the volumes of a pod require of a node; "" for nothing."""
    said = []
    for claim in storage.existing_claims(pod):
        terms = demanded(claim, storage)
        if terms is None:
            continue
        what = " or ".join(" and ".join(_words(one) for one in term.requirements) for term in terms[:2])
        source = f"volume {claim.spec.volume_name}" if is_bound(claim) else f"class {claim.spec.storage_class_name}"
        said.append(f"claim {claim.metadata.name} ({source}) needs a node with {what or 'labels that no node has'}")
    return "; ".join(said)


def _words(requirement: k.Requirement) -> str:
    return f"{requirement.key} {requirement.operator} {', '.join(requirement.values[:3])}".strip()


def chosen_claims(pod: k.Pod, storage: Storage) -> list[k.Claim]:
    """Return the claims of a pod for which Kant chooses volumes, because their StorageClass has no provisioner."""
    classes = ((claim, storage.class_of(claim)) for claim in unbound_claims(pod, storage))
    return [claim for claim, own in classes if own is not None and own.provisioner == NO_PROVISIONER]


def key_of(claim: k.Claim) -> ClaimName:
    """Return the namespace and the name of a claim."""
    return claim.metadata.namespace, claim.metadata.name
