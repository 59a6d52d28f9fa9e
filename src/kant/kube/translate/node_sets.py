"""Node sets: the nodes on which pods may run by their selectors and tolerations, updated as nodes change.

A set stands for the selection of the pods of one group (`kant.model.job.Role`); equal selections share a set. For each
value of a label, resource or taint, a bit mask has the nodes with the value. So a new selection costs a few operations
on integers, and a change of a node affects only the selections that name what has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import compress
from operator import and_, or_
from typing import NamedTuple

from kant.kube.objects import views as k
from kant.kube.translate.node_facts import SoftTaint, facts_of, lasting, soft_taints_of, taints_of
from kant.kube.translate.selectors import Selection, Taint, matches, tolerates
from kant.model.job import Job

EVERYWHERE = ""
"""The name that stands for all nodes. Pods without a selection have it as long as no node has had a taint."""

NEW_TAINT = "taints"
"""The name in the change that reports that a soft taint is new."""

LEAST_SETS = 64
"""Up to this number of sets, no set is forgotten."""


class SetChange(NamedTuple):
    """A change of a set's nodes. `is_new`: the first report of the set. `is_empty`: the set has no nodes now.

    A change of `EVERYWHERE` is reported when a node first has a taint: from then on pods without a selection need sets.
    A change of `NEW_TAINT` is reported when a new soft taint appears, which pods may prefer to avoid.
    """

    name: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    is_new: bool = False
    is_empty: bool = False


@dataclass(slots=True, eq=False)
class _Set:
    """A selection and its `nodes`, as a bit mask. `reported` is the mask of the nodes last reported to the core."""

    name: str
    reported: int
    selection: Selection
    nodes: int = 0
    is_new: bool = True


@dataclass(slots=True, eq=False)
class _Tolerant:
    """The nodes (a bit mask) whose taints certain tolerations allow, and the sets that have these tolerations."""

    nodes: int
    sets: dict[_Set, None] = field(default_factory=dict)


class NodeSets:
    """The node sets of one state. `tainted`: some node has or had a taint, so that all pods have sets.

    Names of forgotten sets are reused, so the core's tables of sets do not grow.
    """

    def __init__(self) -> None:
        self.tainted = False
        self._names: list[str] = []  # names of nodes, by bit
        self._bit: dict[str, int] = {}
        self._free: list[int] = []  # bits of deleted nodes
        self._gone: dict[str, None] = {}  # deleted nodes, whose bits are released once the deletion has been reported
        self._facts: dict[str, dict[str, str]] = {}
        self._taints: dict[str, tuple[Taint, ...]] = {}
        self._read: dict[str, tuple[k.Node | None, Collection[str]]] = {}  # what the facts were read from
        self._said: dict[str, tuple[k.Node, dict[str, str], tuple[Taint, ...]]] = {}
        self._having: dict[str, dict[str, int]] = {}  # nodes by key and value, as bit masks
        self._tainted_with: dict[tuple[Taint, ...], int] = {}
        self._naming: dict[tuple[str, str | None], dict[_Set, None]] = {}  # sets by key and value; None: any value
        self._tolerant: dict[tuple[k.Toleration, ...], _Tolerant] = {}
        self._sets: dict[Selection, _Set] = {}
        self._by_name: dict[str, _Set] = {}
        self._spare: list[tuple[str, int]] = []  # reusable names, each with the nodes last reported under it
        self._changed: dict[_Set, None] = {}
        self._reported_tainted = self._reported_soft = False
        self.soft_taints: dict[SoftTaint, None] = {}  # soft taints that nodes have or had
        self._most = LEAST_SETS

    # --- nodes ------------------------------------------------------------------------------------------------------

    def follow(self, name: str, view: k.Node | None, failing: Collection[str] = ()) -> None:
        """Update a node from its object (None: it is gone). Its labels include the `failing` node filters."""
        seen = self._read.get(name)
        if seen is not None and seen[0] is view and seen[1] == failing:
            return
        self._read[name] = view, failing
        facts, taints = self.said(view) if view is not None else ({}, ())
        if view is None:
            self._said.pop(name, None)
            self._gone[name] = None
        elif failing:
            facts = facts | dict.fromkeys(failing, "yes")
        if name not in self._bit:
            at = self._bit[name] = self._free.pop() if self._free else len(self._names)
            self._names[at : at + 1] = [name]
        bit = 1 << self._bit[name]
        was, before = name in self._taints, self._facts.get(name, {})
        naming = self._sets_naming(before, facts) if was and view is not None else dict.fromkeys(self._sets.values())
        tolerant: dict[_Set, None] = {}
        self._note_facts(bit, before, facts)
        if not was or view is None or taints != self._taints[name]:
            tolerant = self._note_taints(bit, was, self._taints.get(name, ()), taints if view is not None else None)
        if view is not None:
            self._facts[name], self._taints[name] = facts, taints
        elif was:
            del self._facts[name], self._taints[name]
        self.tainted = self.tainted or bool(taints)
        new = [one for one in soft_taints_of(view) if one not in self.soft_taints] if view is not None else ()
        if new:
            self.soft_taints |= dict.fromkeys(new)
            self._reported_soft = False
        for one in naming | tolerant:
            had, one.nodes = one.nodes, self._nodes_of(one.selection)
            otherwise = not one.nodes and (one in naming or one.selection.admits(facts, ()))
            if one.nodes != had or otherwise:  # a set may still be empty, but for another reason
                self._changed[one] = None

    def said(self, view: k.Node) -> tuple[dict[str, str], tuple[Taint, ...]]:
        """Return facts and hard taints of a node, cached while its object is unchanged."""
        known = self._said.get(view.metadata.name)
        if known is None or known[0] is not view:
            known = self._said[view.metadata.name] = view, facts_of(view), taints_of(view)
        return known[1], known[2]

    def count(self, labels: Mapping[str, str]) -> int:
        """Return how many nodes have all of these labels. There must be at least one label."""
        return reduce(and_, (self._having.get(key, {}).get(value, 0) for key, value in labels.items())).bit_count()

    def _sets_naming(self, before: Mapping[str, str], facts: Mapping[str, str]) -> dict[_Set, None]:
        """Return the sets whose selections name a changed fact."""
        found: dict[_Set, None] = {}
        for key in before.keys() | facts.keys():
            old, new = before.get(key), facts.get(key)
            if old != new:
                for value in (old, new) if old is None or new is None else (old, new, None):
                    found |= self._naming.get((key, value), {})
        return found

    def _note_facts(self, bit: int, before: Mapping[str, str], facts: Mapping[str, str]) -> None:
        for key in before.keys() | facts.keys():
            old, new = before.get(key), facts.get(key)
            if old == new:
                continue
            having = self._having.setdefault(key, {})
            if old is not None:
                having[old] ^= bit
                if not having[old]:
                    del having[old]
            if new is not None:
                having[new] = having.get(new, 0) | bit
            if not having:
                del self._having[key]

    def _note_taints(
        self, bit: int, was: bool, before: tuple[Taint, ...], taints: tuple[Taint, ...] | None
    ) -> dict[_Set, None]:
        """Update the taints of a node (None: it is gone). Returns the sets that it enters or leaves by its taints."""
        if was:
            self._tainted_with[before] ^= bit
            if not self._tainted_with[before]:
                del self._tainted_with[before]
        if taints is not None:
            self._tainted_with[taints] = self._tainted_with.get(taints, 0) | bit
        found: dict[_Set, None] = {}
        for tolerations, tolerant in self._tolerant.items():
            now = bit if taints is not None and _tolerated(tolerations, taints) else 0
            if now != tolerant.nodes & bit:
                tolerant.nodes ^= bit
                found |= tolerant.sets
        return found

    # --- selections -------------------------------------------------------------------------------------------------

    def name_of(self, selection: Selection) -> str:
        """Return the name of the set of nodes on which pods with this selection may run; create the set if needed."""
        asked = lasting(selection)
        if not self.tainted and not asked.always and asked.terms is None:
            return EVERYWHERE
        found = self._sets.get(asked)
        if found is None:
            name, reported = self._spare.pop() if self._spare else (f"set-{len(self._by_name) + 1}", 0)
            found = self._sets[asked] = self._by_name[name] = _Set(name, reported, asked)
            self._begin(found)
            self._changed[found] = None
        return found.name

    def is_nowhere(self, job: Job) -> bool:
        """Whether some pod of a job may run on no node, even if all nodes were empty."""
        sets = (self._by_name[name] for name in names_in(job) if name)
        return any(not one.nodes for one in sets)

    def _begin(self, one: _Set) -> None:
        tolerations = one.selection.tolerations
        tolerant = self._tolerant.get(tolerations)
        if tolerant is None:
            able = (own for taints, own in self._tainted_with.items() if _tolerated(tolerations, taints))
            tolerant = self._tolerant[tolerations] = _Tolerant(reduce(or_, able, 0))
        tolerant.sets[one] = None
        for named in _named(one.selection):
            self._naming.setdefault(named, {})[one] = None
        one.nodes = self._nodes_of(one.selection)

    def _nodes_of(self, selection: Selection) -> int:
        """Return the nodes that the selection admits, as a bit mask."""
        nodes = reduce(and_, map(self._meeting, selection.always), self._tolerant[selection.tolerations].nodes)
        if selection.terms is not None and nodes:
            each = (term.requirements for term in selection.terms if term.requirements)
            nodes &= reduce(or_, (reduce(and_, map(self._meeting, one)) for one in each), 0)
        return nodes

    def _meeting(self, one: k.Requirement) -> int:
        """Return the nodes that meet a requirement, as a bit mask. Bits that belong to no node may be set, too."""
        having = self._having.get(one.key, {})
        if one.operator in ("In", "NotIn"):
            able = reduce(or_, (having.get(value, 0) for value in one.values), 0)
        elif one.operator in ("Exists", "DoesNotExist"):
            able = reduce(or_, having.values(), 0)
        else:
            return reduce(or_, (own for value, own in having.items() if matches({one.key: value}, one)), 0)
        return ~able if one.operator in ("NotIn", "DoesNotExist") else able

    # --- changes ----------------------------------------------------------------------------------------------------

    def take_changes(self) -> list[SetChange]:
        """Return the changes since the last call. A set that stays empty is included if it names a changed fact."""
        found = [SetChange(EVERYWHERE)] if self.tainted and not self._reported_tainted else []
        self._reported_tainted = self._reported_tainted or bool(found)
        if self.soft_taints and not self._reported_soft:
            found.append(SetChange(NEW_TAINT))
            self._reported_soft = True
        changed, self._changed = self._changed, {}
        for one in changed:
            added, removed = self._names_of(one.nodes & ~one.reported), self._names_of(one.reported & ~one.nodes)
            if added or removed or not one.nodes:
                found.append(SetChange(one.name, added, removed, one.is_new, not one.nodes))
            one.reported, one.is_new = one.nodes, False
        gone, self._gone = [name for name in self._gone if name not in self._facts], {}
        return found + self._free_bits(gone) if gone else found

    def _free_bits(self, gone: list[str]) -> list[SetChange]:
        """Release the bits of deleted nodes for reuse. Returns the changes of spare sets that had these nodes."""
        mask, found = 0, list[SetChange]()
        for name in gone:
            del self._read[name]
            self._free.append(self._bit.pop(name))
            mask |= 1 << self._free[-1]
        for number, (name, reported) in enumerate(self._spare):
            if reported & mask:
                found.append(SetChange(name, (), self._names_of(reported & mask), False, not reported & ~mask))
                self._spare[number] = name, reported & ~mask
        return found

    def _names_of(self, nodes: int) -> tuple[str, ...]:
        if not nodes:
            return ()
        first = (nodes & -nodes).bit_length() - 1
        return tuple(compress(self._names[first:], map(int, f"{nodes >> first:b}"[::-1])))

    @property
    def are_many(self) -> bool:
        """Whether there are so many sets that unused ones should be forgotten (see `keep`)."""
        return len(self._sets) > self._most

    def keep(self, used: Collection[str]) -> None:
        """Forget the sets whose names are not in `used`."""
        for asked, one in list(self._sets.items()):
            if one.name in used:
                continue
            del self._sets[asked], self._by_name[one.name]
            self._changed.pop(one, None)
            self._spare.append((one.name, one.reported))
            self._forget(one)
        self._most = max(LEAST_SETS, 2 * len(self._sets))

    def _forget(self, one: _Set) -> None:
        tolerations = one.selection.tolerations
        tolerant = self._tolerant[tolerations]
        del tolerant.sets[one]
        if not tolerant.sets:
            del self._tolerant[tolerations]
        for named in _named(one.selection):
            del self._naming[named][one]
            if not self._naming[named]:
                del self._naming[named]


def names_in(job: Job) -> set[str]:
    """Return the names of the sets of a job's pods. `EVERYWHERE` is among them if some pods have no set."""
    return {role.node_set or job.node_set for role in job.roles} or {job.node_set}


def preferred_in(job: Job) -> set[str]:
    """Return the names of the sets of nodes that a job prefers or avoids."""
    each = job.preferences
    return {name for one in each for name in (*one.avoided, *(liked.node_set for liked in one.nodes))}


def _named(selection: Selection) -> set[tuple[str, str | None]]:
    """Return the facts (key, value) on which a selection depends. Value None: any value of the key."""
    asked = [*selection.always, *(one for term in selection.terms or () for one in term.requirements)]
    listed = ((one.key, one.values if one.operator in ("In", "NotIn") else (None,)) for one in asked)
    return {(key, value) for key, values in listed for value in values}


def _tolerated(tolerations: tuple[k.Toleration, ...], taints: tuple[Taint, ...]) -> bool:
    return all(any(tolerates(one, taint) for one in tolerations) for taint in taints)
