"""Flavors: nodes are told apart by their taints and by those labels that some pod selects on, and by nothing else.

The word is Kueue's (ResourceFlavor). A cluster has at most 62 pools; a pod that selects on a label that would make more
is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from kant.kube import objects as k
from kant.kube.nodes import STATE_TAINTS, model_of
from kant.kube.quantity import count
from kant.kube.selectors import DEVICE, NAME, Selection, Taint
from kant.model.errors import InputError
from kant.model.node import MAX_POOLS

NOWHERE = "(no flavor)"
"""The one flavor that a pod accepts for which no node will do: no node has it."""

OTHER = "(other)"
"""Any value that no pod names; no label can have it."""

_EFFECTS = ("NoSchedule", "NoExecute")
Parts = tuple[tuple[tuple[str, str], ...], tuple[Taint, ...]]
"""Labels and taints of a flavor."""


class Flavors:
    """Follows what pods select on. `rebuild` gives every node its flavor; `learn` says when that is due.

    Of a key with too many values, such as the host, only those that pods name are told apart, the rest are one.
    """

    def __init__(self, most: int = MAX_POOLS) -> None:
        self.most = most
        self.wanted: set[str] = set()
        self.named: set[tuple[str, str]] = set()
        self.keys: tuple[str, ...] = ()
        self.coarse: frozenset[str] = frozenset()
        self.refused: frozenset[str] = frozenset()
        self.blunt: frozenset[str] = frozenset()  # keys of taints whose values are too many to be told apart
        self._told: frozenset[tuple[str, str]] = frozenset()
        self._parts: dict[str, Parts] = {}
        self._accepted: dict[Selection, tuple[str, ...]] = {}

    def learn(self, selection: Selection) -> bool:
        """Note what a pod selects on. True: some of that is new, and the flavors are stale until `rebuild`."""
        fresh = bool(selection.keys - self.wanted)
        values = selection.values - self.named
        self.wanted |= selection.keys
        self.named |= values
        return fresh or any(key in self.coarse for key, _ in values)

    def rebuild(self, nodes: Iterable[k.Node]) -> dict[str, str]:
        """The flavor of each node by its name. Keys that would make too many pools are left out, and refused."""
        views = sorted(nodes, key=lambda view: view.metadata.name)
        models = [model_of(view) for view in views]
        facts = [_facts(view) for view in views]
        chosen = self._rebuild_taints(views, models)
        self._told, self.coarse = frozenset(self.named), frozenset()
        kept: list[str] = []
        coarse: set[str] = set()
        for key in sorted(self.wanted, key=lambda key: (len({own.get(key) for own in facts}), key)):
            for attempt in (frozenset[str](), frozenset((key,))):
                self.coarse = attempt
                tried = [(*parts, self._value(key, own)) for parts, own in zip(chosen, facts, strict=True)]
                if _pools(models, tried) <= self.most:
                    chosen = tried
                    kept.append(key)
                    coarse |= attempt
                    break
        self.keys, self.coarse = tuple(sorted(kept)), frozenset(coarse)
        self.refused = frozenset(self.wanted.difference(kept))
        self._parts, self._accepted = {}, {}
        return {view.metadata.name: self.flavor_of(view) for view in views}

    def _rebuild_taints(self, views: list[k.Node], models: list[str]) -> list[tuple[object, ...]]:
        self.blunt = frozenset()
        taints = [self._taints(view) for view in views]
        if _pools(models, taints) > self.most:
            self.blunt = frozenset(taint[0] for found in taints for taint in found)
            taints = [self._taints(view) for view in views]
        if _pools(models, taints) > self.most:
            raise InputError("GPU models and taints of the nodes", f"at most {self.most} pools", _pools(models, taints))
        return [(found,) for found in taints]

    def _value(self, key: str, facts: dict[str, str]) -> str | None:
        value = facts.get(key)
        return OTHER if value is not None and key in self.coarse and (key, value) not in self._told else value

    def flavor_of(self, view: k.Node) -> str:
        """The flavor of a node, by the keys in use; `rebuild` must have seen it, or one like it, to admit pods."""
        facts = _facts(view)
        parts = (
            tuple((key, value) for key in self.keys if (value := self._value(key, facts)) is not None),
            self._taints(view),
        )
        name = ", ".join(
            [*(f"{key}={value}" for key, value in parts[0]),
             *(f"taint {key}{'=' if value else ''}{value}:{effect}" for key, value, effect in parts[1])]
        )  # fmt: skip
        if name not in self._parts:
            self._parts[name] = parts
            self._accepted = {}
        return name

    def accepted(self, selection: Selection, where: str) -> tuple[str, ...]:
        """The flavors that the pod accepts; empty: all there are. Raises InputError for a key that is refused."""
        known = self._accepted.get(selection)
        if known is not None:
            return known
        for key in sorted((selection.keys & self.refused) | (selection.compared & self.coarse)):
            raise InputError(
                where, f"a selection of nodes by labels that divide them into at most {self.most} pools", key
            )
        admitted = [name for name, (labels, taints) in self._parts.items() if selection.admits(dict(labels), taints)]
        found = () if len(admitted) == len(self._parts) else tuple(sorted(admitted)) or (NOWHERE,)
        self._accepted[selection] = found
        return found

    def _taints(self, view: k.Node) -> tuple[Taint, ...]:
        return tuple(
            sorted(
                {
                    (taint.key, "*" if taint.key in self.blunt else taint.value, taint.effect)
                    for taint in view.spec.taints
                    if taint.effect in _EFFECTS and taint.key not in STATE_TAINTS
                }
            )
        )


def _pools(models: list[str], parts: list[tuple[object, ...]] | list[tuple[Taint, ...]]) -> int:
    return len(set(zip(models, parts, strict=True)))


def _facts(view: k.Node) -> dict[str, str]:
    """Labels, name and devices of a node under the keys that selections have for them."""
    facts = dict(view.metadata.labels or {})
    facts[NAME] = view.metadata.name
    for name, amount in (view.status.allocatable or {}).items():
        try:
            facts[DEVICE + name] = str(count(amount, name))
        except InputError:
            continue  # cpu and memory may be fractions; nobody selects on them
    return facts
