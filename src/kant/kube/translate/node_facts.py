"""Node facts: what decides whether a pod may run on a node, apart from amounts; and why no node is suitable.

Facts are labels, the name, the names of other resources, how GPUs are shared, and soft taints (PreferNoSchedule), each
under its own key. Hard taints are kept separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from kant.kube.objects import views as k
from kant.kube.translate.nodes import STATE_TAINTS
from kant.kube.translate.resources import amount_of, is_bytes
from kant.kube.translate.selectors import DEVICE, NAME, Selection, Taint, Term, matches, tolerates
from kant.kube.translate.sharing import KIND, LEAST_MEMORY, SHARING, kind_of, sharing_of
from kant.model.errors import InputError

ANY_TAINT = (k.Toleration(operator="Exists"),)
_EFFECTS = ("NoSchedule", "NoExecute")

SoftTaint = tuple[str, str]
"""Key and value of a soft taint (PreferNoSchedule)."""

SOFTLY_TAINTED = "taint:"
"""Prefix of the key under which a soft taint (`key=value`) is kept among the labels of a node."""


def admits(selection: Selection, view: k.Node) -> bool:
    """Whether a node matches a selection."""
    return selection.admits(facts_of(view), taints_of(view))


def meets(terms: tuple[Term, ...] | None, view: k.Node) -> bool:
    """Whether a node meets one of these terms, regardless of its taints. None: every node does."""
    return terms is None or admits(Selection((), terms, ANY_TAINT), view)


def why_nowhere(selections: Iterable[Selection], seen: Sequence[tuple[dict[str, str], tuple[Taint, ...]]]) -> str:
    """Return one sentence on why no node is suitable for these selections. `seen`: facts and taints of all nodes."""
    for one in selections:
        lacking = next((own for own in one.always if not any(matches(facts, own) for facts, _ in seen)), None)
        taints = [own for facts, own in seen if one.admits(facts, ())] if lacking is None else []
        if not taints:
            why = f"none has {_words(lacking)}" if lacking is not None else _lacking(one, [own for own, _ in seen])
            return f"no node has the labels and devices that it asks for: {why}"
        hard = [[taint for taint in own if not any(tolerates(t, taint) for t in one.tolerations)] for own in taints]
        if all(hard):
            key, value, effect = hard[0][0]
            taint = f"{key}{'=' if value else ''}{value}:{effect}"
            return f"each node with the labels that it asks for has a taint that it does not tolerate, such as {taint}"
    return "no node has the labels, taints and devices that all of its pods ask for"


def _lacking(selection: Selection, facts: list[dict[str, str]]) -> str:
    """Return, as text, the requirements of a pod that no node meets all at once."""
    if selection.terms is not None and not any(selection._replace(always=()).admits(own, ()) for own in facts):
        return "none matches its nodeAffinity"
    every = [_words(one) for one in selection.always]
    rest = ["what its nodeAffinity asks for"] if selection.terms is not None else []
    return f"none has all of {', '.join([*every[:3], *(['…'] if len(every) > 3 else []), *rest])}"


def _words(one: k.Requirement) -> str:
    if one.key.startswith(DEVICE):
        name = one.key.removeprefix(DEVICE)
        return f"{int(one.values[0]) + 1}{' MiB' if is_bytes(name) else ''} of {name}"
    return f"{one.key}={one.values[0]}" if one.operator == "In" and len(one.values) == 1 else one.key


def lasting(selection: Selection) -> Selection:
    """Return a selection without tolerations of state taints, which the API server adds to every pod."""
    kept = tuple(one for one in selection.tolerations if one.key not in STATE_TAINTS or not one.key)
    return selection._replace(tolerations=kept)


def taints_of(view: k.Node) -> tuple[Taint, ...]:
    """Return the hard taints of a node (NoSchedule, NoExecute), except taints that describe its state."""
    found = (
        (taint.key, taint.value, taint.effect)
        for taint in view.spec.taints
        if taint.effect in _EFFECTS and taint.key not in STATE_TAINTS
    )
    return tuple(sorted(set(found)))


def soft_taints_of(view: k.Node) -> list[SoftTaint]:
    """Return the soft taints of a node (PreferNoSchedule)."""
    return [(taint.key, taint.value) for taint in view.spec.taints if taint.effect == "PreferNoSchedule"]


def facts_of(view: k.Node) -> dict[str, str]:
    """Return the facts of a node, under the keys that selections use for them."""
    facts = dict(view.metadata.labels or {})
    facts[NAME] = view.metadata.name
    facts |= {f"{SOFTLY_TAINTED}{key}={value}": "yes" for key, value in soft_taints_of(view)}
    if kind := kind_of(view):
        facts[KIND] = kind
    with suppress(InputError):  # a malformed node gets no pods
        sharing = sharing_of(view)
        if sharing.word:
            facts[SHARING] = sharing.word
        if sharing.devices:
            facts[LEAST_MEMORY] = str(min(device.memory for device in sharing.devices))
    for name, amount in (view.status.allocatable or {}).items():
        try:
            facts[DEVICE + name] = str(amount_of(name, amount, name, up=False))
        except InputError:
            continue  # cpu may be fractional; no pod selects by it
    return facts
