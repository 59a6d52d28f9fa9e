"""Composite groups: which PodGroups of a CompositePodGroup start together, as one gang with a task for each PodGroup.

A composite group with the policy `gang` needs `minGroupCount` of its member groups. Kant knows a member group once it
has a pod. The first `minGroupCount` members by name start together; pods of other members may join later, as in any
gang that grows. Below a composite group with the policy `basic` each group starts separately. Source: KEP-6012.
"""

from __future__ import annotations

from collections.abc import Sequence

from kant.kube.objects.refusals import MalformedError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.tasks import Tasks
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.group_spec import GroupSpec
from kant.kube.translate.groups import GroupRef, composite_of, group_of

DEEPEST = 8  # maximum levels of groups; deeper nesting counts as circular
Chain = list[tuple[str, GroupSpec]]


def chain_of(translation: Translation, ref: GroupRef, spec: GroupSpec) -> Chain | GroupRef:
    """Return the composite groups that start with a group, innermost first, or a group to read first. InputError."""
    found: Chain = []
    while spec.parent and len(found) < DEEPEST:
        outer = composite_of(ref.namespace, spec.parent)
        known = translation.group_spec(outer)
        if known is None:
            return outer
        if not known.least:
            return found
        found.append((outer.name, known))
        spec = known
    if spec.parent:
        raise MalformedError(f"group {ref.name}: expected groups nested at most {DEEPEST} levels deep")
    return found


def needed(translation: Translation, namespace: str, pods: Sequence[Pod]) -> tuple[int, Tasks]:
    """Return how many pods a composite group needs to start, in total and by PodGroup. Raises InputError."""
    within: dict[str, dict[str, None]] = {}  # members by the name of the composite group
    least_of: dict[str, int] = {}
    top = ""
    for ref in dict.fromkeys(group for pod in pods if (group := group_of(pod)) is not None):
        spec = translation.group_spec(ref)
        chain = chain_of(translation, ref, spec) if spec is not None else []
        if spec is None or not isinstance(chain, list) or not chain:
            continue
        wrong = next((name for name, own in chain[:-1] if own.required not in ("", chain[-1][1].required)), "")
        if wrong:
            raise MalformedError(
                f"group {wrong}: expected no topology constraint; {chain[-1][0]} and PodGroups may have one"
            )
        inner, least_of[f"/{ref.name}"] = f"/{ref.name}", max(spec.least, 1)
        for name, own in chain:
            within.setdefault(name, {})[inner] = None
            least_of[name], inner, top = own.least, name, name
    tasks: list[tuple[str, int]] = []
    missing: list[tuple[str, int]] = []

    def need(name: str) -> None:
        inside = sorted(within[name])
        for one in inside[: least_of[name]]:
            if one.startswith("/"):
                tasks.append((one[1:], least_of[one]))
            else:
                need(one)
        if len(inside) < least_of[name]:
            missing.append((f"another group of {name}", 1))

    need(top)
    return sum(count for _, count in tasks), (*tasks, *missing)
