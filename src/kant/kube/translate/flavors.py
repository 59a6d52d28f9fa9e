"""Flavors: nodes are told apart by their taints and by those labels that some pod selects on, and by nothing else.

The word is Kueue's (ResourceFlavor). A cluster has at most 62 pools. Where labels and taints would make more, nodes are
told apart by which of the requests of waiting pods they meet (`served`), and requests take turns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from kant.kube.objects import views as k
from kant.kube.translate.nodes import STATE_TAINTS, model_of
from kant.kube.translate.resources import amount_of, is_bytes
from kant.kube.translate.selectors import DEVICE, NAME, Selection, Taint, matches, tolerates
from kant.kube.translate.sharing import KIND, LEAST_MEMORY, SHARING, kind_of, sharing_of
from kant.model.errors import InputError
from kant.model.node import MAX_POOLS

NOWHERE = "(no flavor)"
"""The one flavor that a pod accepts for which no node will do: no node has it."""

OTHER = "(other)"
"""Any value that no pod names; no label can have it."""

PLAIN = Selection((), None, ())
"""The request of pods that ask for nothing but amounts. It is always served."""

_EFFECTS = ("NoSchedule", "NoExecute")
Parts = tuple[tuple[tuple[str, str], ...], tuple[Taint, ...]]
"""Labels and taints of a flavor."""


class Flavors:
    """Follows what pods select on. `rebuild` gives every node its flavor; `learn` says when that is due.

    Of a key with too many values, such as the host, only those that pods name are told apart, the rest are one.

    `served` has the requests that take their turn, None where nodes are told apart by labels and taints. `turns` counts
    how often each request was served: those served least come first. `turned_away`: a pod has to wait for its turn.

    `failing` has, by node, what stands beside its labels for now: conditions of pods that it does not meet. `bounds`
    are the amounts of a device that pods ask for: nodes are told apart by which of them they have.
    """

    def __init__(self, most: int = MAX_POOLS, turns: Mapping[Selection, int] | None = None) -> None:
        self.most = most
        self.served: list[Selection] | None = None
        self.turns: dict[Selection, int] = {}
        self.turned_away = False
        self._earlier = turns or {}
        self._meets: dict[str, frozenset[Selection]] = {}
        self.failing: Mapping[str, Collection[str]] = {}
        self.bounds: dict[str, set[int]] = {}
        self.wanted: set[str] = set()
        self.named: set[tuple[str, str]] = set()
        self.keys: tuple[str, ...] = ()
        self.coarse: frozenset[str] = frozenset()
        self._told: frozenset[tuple[str, str]] = frozenset()
        self._read: dict[str, tuple[k.Node, dict[str, str]]] = {}  # what nodes say, each as it was read
        self._parts: dict[str, Parts] = {}
        self._accepted: dict[Selection, tuple[str, ...]] = {}

    def learn(self, selection: Selection) -> bool:
        """Note what a pod selects on. True: some of that is new, and the flavors are stale until `rebuild`."""
        request = _request(selection)
        fresh = bool(selection.keys - self.wanted) or bool(selection.compared & self.coarse)
        fresh = fresh or (self.served is not None and request not in self.turns)
        self.turns.setdefault(request, self._earlier.get(request, 0))
        for key, amount in selection.amounts:
            bounds = self.bounds.setdefault(key, set())
            fresh = fresh or amount not in bounds
            bounds.add(amount)
        values = selection.values - self.named
        self.wanted |= selection.keys
        self.named |= values
        return fresh or any(key in self.coarse for key, _ in values)

    def rebuild(self, nodes: Iterable[k.Node]) -> dict[str, str]:
        """The flavor of each node by its name."""
        views = sorted(nodes, key=lambda view: view.metadata.name)
        models = [model_of(view) for view in views]
        facts = [self._facts(view) for view in views]
        self.served, self._parts, self._accepted = None, {}, {}
        chosen: list[tuple[object, ...]] = [(_taints(view),) for view in views]
        if _pools(models, chosen) > self.most:
            return self._serve_requests(views, models)
        self._told, self.coarse = frozenset(self.named), frozenset()
        kept: list[str] = []
        coarse: set[str] = set()
        for key in sorted(self.wanted, key=lambda key: (len({own.get(key) for own in facts}), key)):
            compared = any(key in request.compared for request in self.turns)
            for attempt in (frozenset[str](),) if compared else (frozenset[str](), frozenset((key,))):
                self.coarse = attempt
                tried = [(*parts, self._value(key, own)) for parts, own in zip(chosen, facts, strict=True)]
                if _pools(models, tried) <= self.most:
                    chosen = tried
                    kept.append(key)
                    coarse |= attempt
                    break
            else:
                return self._serve_requests(views, models)
        self.keys, self.coarse = tuple(sorted(kept)), frozenset(coarse)
        return {view.metadata.name: self.flavor_of(view) for view in views}

    def _serve_requests(self, views: list[k.Node], models: list[str]) -> dict[str, str]:
        """Tell nodes apart by as many requests as can be served at once, those first that were served least."""
        self.keys, self.coarse, self.served, self._meets = (), frozenset(), [], {}
        kinds: list[tuple[object, ...]] = [()] * len(views)
        seen = [(self._facts(view), _taints(view)) for view in views]
        for request in sorted(self.turns, key=lambda one: (one != PLAIN, self.turns[one])):
            tried = [(*kind, request.admits(*own)) for kind, own in zip(kinds, seen, strict=True)]
            if _pools(models, tried) <= self.most or len(self.served) < 2:  # at least one besides the plain one
                kinds = tried
                self.served.append(request)
                self.turns[request] += 1
        return {view.metadata.name: self.flavor_of(view) for view in views}

    def _value(self, key: str, facts: dict[str, str]) -> str | None:
        value = facts.get(key)
        if value is not None and key in self.bounds:
            return str(max((amount for amount in self.bounds[key] if amount <= int(value)), default=0))
        return OTHER if value is not None and key in self.coarse and (key, value) not in self._told else value

    def _facts(self, view: k.Node) -> dict[str, str]:
        name = view.metadata.name
        known = self._read.get(name)
        if known is None or known[0] is not view:
            known = self._read[name] = view, _facts(view)
        return known[1] | dict.fromkeys(self.failing.get(name, ()), "yes")

    def flavor_of(self, view: k.Node) -> str:
        """The flavor of a node, by the keys in use; `rebuild` must have seen it, or one like it, to admit pods."""
        facts, taints = self._facts(view), _taints(view)
        if self.served is not None:
            met = [number for number, request in enumerate(self.served) if request.admits(facts, taints)]
            name = _name_of(met)
            if name not in self._meets:
                self._meets[name], self._accepted = frozenset(self.served[number] for number in met), {}
            return name
        parts = tuple((key, value) for key in self.keys if (value := self._value(key, facts)) is not None), taints
        name = ", ".join(
            [*(f"{key}={value}" for key, value in parts[0]),
             *(f"taint {key}{'=' if value else ''}{value}:{effect}" for key, value, effect in parts[1])]
        )  # fmt: skip
        if name not in self._parts:
            self._parts[name] = parts
            self._accepted = {}
        return name

    def has_turn(self, selection: Selection) -> bool:
        """Whether the request is told apart now; if not it waits for its turn."""
        return self.served is None or _request(selection) in self.served

    def accepted(self, selection: Selection, where: str) -> tuple[str, ...]:
        """The flavors that the pod accepts; empty: all there are. Raises InputError for a pod that waits its turn."""
        known = self._accepted.get(selection)
        if known is not None:
            return known
        if self.served is not None:
            request = _request(selection)
            if not self.has_turn(selection):
                self.turned_away = True
                raise InputError(
                    where, f"a turn: pods that wait ask for more kinds of nodes than {self.most} at a time"
                )
            names = list(self._meets)
            admitted = [name for name in names if request in self._meets[name]]
        else:
            names = list(self._parts)
            admitted = [name for name, (own, taints) in self._parts.items() if selection.admits(dict(own), taints)]
        found = () if len(admitted) == len(names) else tuple(sorted(admitted)) or (NOWHERE,)
        self._accepted[selection] = found
        return found


def admits(selection: Selection, view: k.Node) -> bool:
    """Whether a node will do."""
    return selection.admits(_facts(view), _taints(view))


def why_nowhere(selections: Iterable[Selection], nodes: Iterable[k.Node]) -> str:
    """Why no node will do for pods with these requests, in one sentence."""
    seen = [(_facts(view), _taints(view)) for view in nodes]
    for one in selections:
        taints = [own for facts, own in seen if one.admits(facts, ())]
        if not taints:
            return f"no node has the labels and devices that it asks for: {_lacking(one, [own for own, _ in seen])}"
        hard = [[taint for taint in own if not any(tolerates(t, taint) for t in one.tolerations)] for own in taints]
        if all(hard):
            key, value, effect = hard[0][0]
            taint = f"{key}{'=' if value else ''}{value}:{effect}"
            return f"each node with the labels that it asks for has a taint that it does not tolerate, such as {taint}"
    return "no node has the labels, taints and devices that all of its pods ask for"


def _lacking(selection: Selection, facts: list[dict[str, str]]) -> str:
    """The first of what a pod demands that no node has; or all of it, where each is had by some."""
    for one in selection.always:
        if not any(matches(own, one) for own in facts):
            return f"none has {_words(one)}"
    if selection.terms is not None and not any(selection._replace(always=()).admits(own, ()) for own in facts):
        return "none meets its nodeAffinity"
    every = [_words(one) for one in selection.always]
    rest = ["what its nodeAffinity asks for"] if selection.terms is not None else []
    return f"none has all of {', '.join([*every[:3], *(['…'] if len(every) > 3 else []), *rest])}"


def _words(one: k.Requirement) -> str:
    if one.key.startswith(DEVICE):
        name = one.key.removeprefix(DEVICE)
        return f"{int(one.values[0]) + 1}{' MiB' if is_bytes(name) else ''} of {name}"
    return f"{one.key}={one.values[0]}" if one.operator == "In" and len(one.values) == 1 else one.key


def _request(selection: Selection) -> Selection:
    """A selection without tolerations of what is no taint of a flavor: the API server adds some to every pod."""
    kept = tuple(one for one in selection.tolerations if one.key not in STATE_TAINTS or not one.key)
    return selection._replace(tolerations=kept)


def _name_of(met: list[int]) -> str:
    return f"(meets request {', '.join(map(str, met))})" if met else "(meets no request)"


def _taints(view: k.Node) -> tuple[Taint, ...]:
    found = (
        (taint.key, taint.value, taint.effect)
        for taint in view.spec.taints
        if taint.effect in _EFFECTS and taint.key not in STATE_TAINTS
    )
    return tuple(sorted(set(found)))


def _pools(models: list[str], parts: list[tuple[object, ...]]) -> int:
    return len(set(zip(models, parts, strict=True)))


def _facts(view: k.Node) -> dict[str, str]:
    """Labels, name and devices of a node under the keys that selections have for them."""
    facts = dict(view.metadata.labels or {})
    facts[NAME] = view.metadata.name
    if kind := kind_of(view):
        facts[KIND] = kind
    with suppress(InputError):  # then nothing is placed there
        sharing = sharing_of(view)
        if sharing.word:
            facts[SHARING] = sharing.word
        if sharing.devices:
            facts[LEAST_MEMORY] = str(min(device.memory for device in sharing.devices))
    for name, amount in (view.status.allocatable or {}).items():
        try:
            facts[DEVICE + name] = str(amount_of(name, amount, name, up=False))
        except InputError:
            continue  # cpu and memory may be fractions; nobody selects on them
    return facts
