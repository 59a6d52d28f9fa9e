"""The Placer: one shape in, one placement out, on the trial of the current cycle."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial, move
from kant.model.decision import NeverFits, NoFit
from kant.model.placement import WIDTH, Allocation
from kant.placement.domains import Domains
from kant.placement.engine import SLOT_WIDTH, kernel_of
from kant.placement.fits import mixed
from kant.placement.policy import NodePolicy
from kant.placement.timeline import Timeline

SLOT_CELLS = 1 << 22
"""Most leaves that one index keeps over all its slots: 256 demands at 12,500 nodes, about 100 MB."""


class Candidates:
    """For one policy: what each node is worth to each demand, kept from cycle to cycle. Losing it costs time only."""

    def __init__(self, policy: NodePolicy, nodes: int, seed: int) -> None:
        self.kernel = kernel_of(type(policy))
        self.params = np.array(policy.params or (0,), dtype=np.int64)
        self.order = tie_order(policy, nodes, seed)
        self.rank = np.argsort(self.order)
        self.size = 1 << max(nodes - 1, 1).bit_length()
        self.slot_of: dict[int, int] = {}
        self._allot(4)

    def _allot(self, slots: int) -> None:
        self.scores = np.full((slots, self.size), -1, dtype=np.int64)
        self.caps = np.zeros((slots, self.size), dtype=np.int64)
        self.winners = np.zeros((slots, self.size), dtype=np.int64)
        self.slots = np.tile(np.array([-1, 0], dtype=np.int64), (slots, 1))
        assert self.slots.shape[1] == SLOT_WIDTH

    def slot(self, demand: int) -> int:
        """The slot of a demand. When there are too many, all are given up and made again as they are asked for."""
        slot = self.slot_of.get(demand)
        if slot is None:
            slot = len(self.slot_of)
            if slot == len(self.slots):
                if 2 * slot * self.size <= SLOT_CELLS:
                    old = (self.scores, self.caps, self.winners, self.slots)
                    self._allot(2 * slot)
                    for new, kept in zip((self.scores, self.caps, self.winners, self.slots), old, strict=True):
                        new[:slot] = kept
                else:
                    self.slot_of.clear()
                    self._allot(slot)
                    slot = 0
            self.slot_of[demand] = slot
        return slot


def tie_order(policy: NodePolicy, nodes: int, seed: int) -> Table:
    """Nodes in the order in which equals are taken: by index, or one random order for the whole run."""
    if policy.ties == "index":
        return np.arange(nodes, dtype=np.int64)
    drawn = [mixed(mixed(seed, -1), node) for node in range(nodes)]
    return np.argsort(np.array(drawn, dtype=np.int64), kind="stable").astype(np.int64)


class Placer:
    """Places gangs on a snapshot under one policy. What it places stays taken until the trial is rolled back."""

    def __init__(self, snapshot: Snapshot, policy: NodePolicy, seed: int) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.seed = seed
        self.trial = Trial(snapshot)
        self._gpus = snapshot.state.spec.gpus
        self._candidates: dict[NodePolicy, Candidates] = {}
        self._choices: dict[tuple[int, int], tuple[Candidates, bool]] = {}
        self._mix = snapshot.state.mix
        self._pieces: Table = np.zeros((64, WIDTH), dtype=np.int64)
        self._empty: Placer | None = None  # the same policy on the empty cluster
        self._never: dict[int, NeverFits | None] = {}

    @cached_property
    def timeline(self) -> Timeline:
        """Commitments in time on the nodes of this snapshot; made when somebody first plans ahead."""
        state = self.snapshot.state
        return Timeline(state.empty, self.snapshot.table, state.shapes)

    @cached_property
    def _domains(self) -> Domains:
        """The domains of the fabric; made when the first gang asks for them."""
        order = tie_order(self.policy, len(self.snapshot.table), self.seed)
        return Domains(self.snapshot, self.policy, order, self.seed)

    def place(self, shape: Shape, salt: int = 0) -> Allocation | NoFit:
        """The whole gang placed and taken, or the first group that does not fit and how much of it would."""
        if shape.pods >= len(self._pieces):
            self._make_pieces(shape)
        if shape.level >= 0 or self.policy.wish:
            found = self._domains.place(shape, salt, self._pieces)
            if not isinstance(found, NoFit):
                self.trial.placed(found)
            return found
        order = list(range(len(shape.parts)))
        result = self._place_in_order(shape, order, salt)
        for _ in range(len(order) - 1):
            if not isinstance(result, NoFit) or order[0] == result.group:
                break
            # Groups before this one may have taken the only nodes that are good for it: let it choose first.
            order.remove(result.group)
            order.insert(0, result.group)
            result = self._place_in_order(shape, order, salt)
        return result

    def extend(self, shape: Shape, held: Allocation, salt: int = 0) -> Allocation | NoFit:
        """As `place`, for the further pods of a gang that holds `held` and stays: near them, as its level asks."""
        if shape.level < 0 and not self.policy.wish:
            return self.place(shape, salt)
        if shape.pods >= len(self._pieces):
            self._make_pieces(shape)
        found = self._domains.place(shape, salt, self._pieces, held)
        if not isinstance(found, NoFit):
            self.trial.placed(found)
        return found

    def _place_in_order(self, shape: Shape, order: list[int], salt: int) -> Allocation | NoFit:
        """Place the groups of a gang in the order given, or nothing."""
        table, log = self.trial.table, self.trial.log
        state, pieces, used = self.snapshot.state, self._pieces, 0
        if state.mix is not self._mix:  # every score may be another one now
            self._mix = state.mix
            self._candidates.clear()
            self._choices.clear()
        for group in order:
            pods, demand = shape.parts[group]
            own, by_node = self._choices.get((shape.index, group)) or self._choose(shape, group)
            slot = own.slot(demand)
            result = own.kernel(
                table, log, state.shapes.demands, demand, state.mix, own.params, own.order, own.rank, own.scores,
                own.caps, own.winners, own.slots, slot, pods, by_node, self.seed, salt, pieces, used,
            )  # fmt: skip
            if result < 0:
                if used:
                    move(table, log, pieces[:used], False)
                return NoFit(group, pods, -1 - result)
            used = result
        allocation = pieces[:used].copy()
        self.trial.placed(allocation)
        return allocation

    def _choose(self, shape: Shape, group: int) -> tuple[Candidates, bool]:
        """Who places this group of a gang, and whether node by node; asked once for each shape."""
        policy, by_node = self.policy.chooser(group, len(shape.parts), shape.parts[group][0])
        if policy not in self._candidates:
            self._candidates[policy] = Candidates(policy, len(self.trial.table), self.seed)
        choice = self._choices[shape.index, group] = (self._candidates[policy], by_node)
        return choice

    def _make_pieces(self, shape: Shape) -> None:
        self._pieces = np.zeros((max(self._most_pieces(shape), len(self._pieces)), WIDTH), dtype=np.int64)

    def _most_pieces(self, shape: Shape) -> int:
        """Rows that a placement of `shape` can have: one a pod, but GPU pods no more than there are places for."""
        rows = 1
        for group in shape.groups:
            places = self._gpus * (1000 // group.demand.milli) if group.demand.gpus else group.count
            rows += min(group.count, places)
        return rows

    def never_fits(self, shape: Shape) -> NeverFits | None:
        """Why `shape` could not start even on the empty cluster with every node in service; None where it could."""
        if shape.index not in self._never:
            if self._empty is None:
                self._empty = Placer(self.snapshot.of_empty_cluster(), self.policy, self.seed)
            verdict = self._empty.place(shape)
            self._empty.trial.rollback(0)
            self._never[shape.index] = (
                NeverFits(verdict.group, verdict.pods, verdict.fits, verdict.level)
                if isinstance(verdict, NoFit)
                else None
            )
        return self._never[shape.index]
