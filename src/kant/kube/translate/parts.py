"""Parts of a workload that start in sequence: which parts form one gang, and stand-ins for pods that come later.

A part that waits until another part is *ready* runs at the same time, so both form one gang. The gang starts once all
of it can be placed, and slots are kept for pods that are not yet created. A part that waits until another part is
*complete* is a separate gang, since the earlier part ends without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec
from msgspec.structs import replace

from kant.kube.objects.views import Meta, Pod, PodSpec, PodStatus, Toleration
from kant.kube.translate.group_spec import STANDS_IN, Part
from kant.model.errors import InputError


def gangs_of(parts: Sequence[Part]) -> list[list[Part]]:
    """Return the parts, grouped by gang.

    Two parts share a gang if one waits until the other is ready. So do all parts whose completion none awaits, since
    they may wait for each other. If a part of a gang that holds capacity waits for the completion of another part, that
    part joins the gang: else it might wait for this capacity. Parts of different schedulers never share a gang.
    """
    known = {part.name: part for part in parts}
    edges = [(part, known[name], complete) for part in parts for name, complete in part.after if name in known]
    gates: dict[str, frozenset[str]] = {part.name: frozenset() for part in parts}
    for _ in parts:  # as many passes as the longest chain may need
        for part, before, complete in edges:
            gates[part.name] |= gates[before.name] | (frozenset((before.name,)) if complete else frozenset())
    awaited = {before.name for _, before, complete in edges if complete}
    gang = {part.name: {part.name} for part in parts}

    def join(one: Part, other: Part) -> bool:
        if one.scheduler != other.scheduler or gang[one.name] is gang[other.name]:
            return False
        both = gang[one.name] | gang[other.name]
        gang.update((name, both) for name in both)
        return True

    for part, before, complete in edges:
        if not complete:
            join(part, before)
    free = [part for part in parts if part.name not in awaited]
    for part, other in combinations(free, 2):
        join(part, other)
    while any(
        join(part, known[gate])
        for part in parts
        for gate in sorted(gates[part.name])
        if any(gate not in gates[name] for name in gang[part.name])
    ):
        pass
    found = {min(at for at, one in enumerate(parts) if one.name in own): own for own in gang.values()}
    return [[part for part in parts if part.name in own] for _, own in sorted(found.items())]


def later_parts(gang: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts of a gang that are created only once other parts of the gang are ready or complete."""
    own = {part.name for part in gang}
    return tuple(part for part in gang if any(name in own for name, _ in part.after))


# --- stand-ins for pods that are not yet created ----------------------------------------------------------------------


def stand_ins(part: Part, count: int, group: str, sibling: Pod, same: Pod | None = None) -> list[Pod]:
    """Return `count` stand-ins for pods of a part: copies of its pod `same`, or if None, pods made from its template.

    A `sibling` in the gang supplies what a template lacks: owner, priority and time. Claims that are created with a pod
    are left out, since they do not exist yet. Raises InputError if the template is invalid.
    """
    if count <= 0:
        return []
    if same is None:
        where = f"the template of {part.name}, a part of {group}"
        try:
            meta = msgspec.convert(part.template.get("metadata") or {}, Meta)
            spec = msgspec.convert(part.template.get("spec") or {}, PodSpec)
        except msgspec.ValidationError as wrong:
            raise InputError(where, "a valid pod template", str(wrong)) from None
        spec = replace(spec, priority=sibling.spec.priority, tolerations=_tolerations(spec, sibling))
    else:
        meta, spec = same.metadata, same.spec
    volumes = tuple(one for one in spec.volumes if one.ephemeral is None)
    claims = tuple(one for one in spec.resource_claims if one.resource_claim_name)
    spec = replace(spec, node_name="", scheduling_gates=(), volumes=volumes, resource_claims=claims)
    meta = replace(
        meta,
        namespace=sibling.metadata.namespace,
        creation_timestamp=sibling.metadata.creation_timestamp,
        deletion_timestamp=None,
        owner_references=sibling.metadata.owner_references,
    )
    named = (f"{group}-{part.name}-{number}" for number in range(count))
    return [Pod(replace(meta, name=name, uid=f"{STANDS_IN}{name}"), spec, PodStatus()) for name in named]


def _tolerations(spec: PodSpec, sibling: Pod) -> tuple[Toleration, ...]:
    """Return the template's tolerations, and those that the API server adds (DefaultTolerationSeconds)."""
    given = (one for one in sibling.spec.tolerations if one.key.startswith("node.kubernetes.io/"))
    return tuple(dict.fromkeys((*spec.tolerations, *given)))
