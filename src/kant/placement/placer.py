"""The Placer: one shape in, one placement out, on the trial of the current cycle."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from kant.cluster.columns import Table, devices_of
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial, move
from kant.model.decision import NeverFits, NoFit
from kant.model.placement import WIDTH, Allocation
from kant.placement.domains import Domains
from kant.placement.engine import SLOT_WIDTH, kernel_of
from kant.placement.fits import mixed
from kant.placement.mending import Mended, mend
from kant.placement.policies.e_spread import ESpread
from kant.placement.policy import NodePolicy
from kant.placement.spreading import Spreading
from kant.placement.timeline import Timeline

SLOT_CELLS = 1 << 22
"""Most leaves that one index keeps over all its slots: 256 demands at 12,500 nodes, about 100 MB."""


class Candidates:
    """For one policy: what each node is worth to each demand, kept from cycle to cycle. Losing it costs time only."""

    def __init__(self, policy: NodePolicy, nodes: int, seed: int, mix: Table) -> None:
        self.kernel = kernel_of(type(policy))
        self.params = policy.numbers(mix)
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


def _group_of(shape: Shape) -> str:
    """The affinity group of a shape; empty for none."""
    return shape.company.group if shape.company is not None else ""


def roams(policy: NodePolicy, shape: Shape, table: Table) -> bool:
    """Whether the job fills a hole, wherever that is: one pod that is smaller than a node."""
    return policy.roams and shape.pods == 1 and shape.groups[0].demand.gpus < devices_of(table)


class Placer:
    """Places gangs on a snapshot. What it places stays taken until the trial is rolled back.

    `policy` places whatever no workload of the profile matches, `strategies` the jobs of each workload.
    """

    def __init__(
        self, snapshot: Snapshot, policy: NodePolicy, seed: int, strategies: tuple[NodePolicy, ...] = ()
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.policies = (policy, *strategies)
        self._zone = next((policy for policy in self.policies if isinstance(policy, ESpread)), None)
        self.seed = seed
        self.trial = Trial(snapshot)
        self._gpus = snapshot.state.spec.gpus
        self._candidates: dict[NodePolicy, Candidates] = {}
        self._choices: dict[tuple[int, int], tuple[Candidates, bool]] = {}
        self._mix = snapshot.mix
        self._pieces: Table = np.zeros((64, WIDTH), dtype=np.int64)
        self._domains: dict[tuple[NodePolicy, bool], Domains] = {}
        self._spreadings: dict[str, Spreading] = {}
        self._empty: Placer | None = None  # the same policies on the empty cluster
        self._never: dict[int, NeverFits | None] = {}
        self._alone = False  # no affinity group runs anywhere

    @cached_property
    def timeline(self) -> Timeline:
        """Commitments in time on the nodes of this snapshot; made when somebody first plans ahead."""
        state = self.snapshot.state
        return Timeline(state.empty, self.snapshot.table, state.shapes)

    def policy_of(self, shape: Shape) -> NodePolicy:
        """Who places jobs of this shape."""
        return self.policies[shape.ask.workload]

    def place(self, shape: Shape, salt: int = 0) -> Allocation | NoFit:
        """The whole gang placed and taken, or the first group that does not fit and how much of it would.

        `salt` is the row of the job.
        """
        self._prepare(shape)
        if shape.level < 0 and not shape.cuts and not shape.picky and self.policy_of(shape).spreads:
            found = self._spread(shape, salt)
            if found is not None:
                return found
        return self._place_together(shape, salt)

    def extend(self, shape: Shape, held: Allocation, salt: int = 0) -> Allocation | NoFit:
        """As `place`, for the further pods of a gang that holds `held` and stays: near them, as its level asks."""
        if shape.level < 0 and not self.policy_of(shape).wish:
            return self.place(shape, salt)
        self._prepare(shape)
        return self._place_by_domains(shape, salt, held)

    def mend(self, shape: Shape, held: Allocation, bad: tuple[int, ...], salt: int, bound: bool) -> Mended | None:
        """What is left of `held` and near it what is missing, taken on the trial (placement/mending.py)."""
        return mend(self._domains_of(self.policy_of(shape), False), shape, held, bad, salt, self.trial, bound)

    def _spread(self, shape: Shape, row: int) -> Allocation | NoFit | None:
        """A gang whose policy spreads, in the inference zone or everywhere; None where others have to place it."""
        policy = self.policy_of(shape)
        spreading = self._spreading(policy)
        packed = isinstance(policy, ESpread)
        if packed and (spreading.zone is None or not spreading.zone.admits(shape)):
            return None
        found = spreading.place(shape, row, packed, self._pieces)
        if isinstance(found, NoFit):  # several groups may fit in another order
            return found if len(shape.parts) == 1 else None
        if found is not None:
            self.trial.placed(found, _group_of(shape))
        return found

    def _spreading(self, policy: NodePolicy) -> Spreading:
        if policy.ties not in self._spreadings:
            order = tie_order(policy, len(self.snapshot.table), self.seed)
            self._spreadings[policy.ties] = Spreading(self.snapshot, self.trial, order, self._zone, self.policy_of)
        return self._spreadings[policy.ties]

    def _domains_of(self, policy: NodePolicy, outside: bool) -> Domains:
        """The domains of the fabric for a policy, those of the nodes outside the inference zone apart."""
        if (policy, outside) not in self._domains:
            order = tie_order(policy, len(self.snapshot.table), self.seed)
            self._domains[policy, outside] = Domains(self.snapshot, policy, order, self.seed)
        return self._domains[policy, outside]

    def _place_by_domains(self, shape: Shape, salt: int, held: Allocation | None = None) -> Allocation | NoFit:
        """A gang in the best of the domains, beside what it has `held` so far; outside the inference zone, if it fits
        there.
        """
        policy, group = self.policy_of(shape), _group_of(shape)
        others = self.trial.held_by(group) if group and shape.picky and not self._alone else ()
        found: Allocation | NoFit | None = None
        for outside in (True, False) if self._zone is not None else (False,):
            domains = self._domains_of(policy, outside)
            if outside and self._zone is not None:
                zone = self._spreading(self._zone).zone
                assert zone is not None
                zone.refresh()
                domains.rooms.close(zone.closed)
            found = domains.place(shape, salt, self._pieces, others, held)
            if not isinstance(found, NoFit):
                self.trial.placed(found, group)
                break
        assert found is not None
        return found

    def _place_together(self, shape: Shape, salt: int) -> Allocation | NoFit:
        """A gang by the scores of its policy: in the best of the domains, or on the best nodes of all."""
        if shape.level >= 0 or shape.cuts or shape.picky or (self.policy_of(shape).wish and not self._roams(shape)):
            return self._place_by_domains(shape, salt)
        order = list(range(len(shape.parts)))
        result = self._place_in_order(shape, order, salt)
        for _ in range(len(order) - 1):
            if not isinstance(result, NoFit) or order[0] == result.group:
                break
            # Groups before this one may have taken the only nodes that are good for it: let it choose first.
            order.remove(result.group)
            order.insert(0, result.group)
            result = self._place_in_order(shape, order, salt)
        if not isinstance(result, NoFit):
            self.trial.placed(result, _group_of(shape))
        return result

    def _roams(self, shape: Shape) -> bool:
        """Whether the job goes to the best node of all, wherever that is. Not where there is an inference zone."""
        return self._zone is None and roams(self.policy_of(shape), shape, self.trial.table)

    def _prepare(self, shape: Shape) -> None:
        """Room for all pieces of the gang; and with other typical pods every score may be another one."""
        if shape.pods >= len(self._pieces):
            self._pieces = np.zeros((max(self._most_pieces(shape), len(self._pieces)), WIDTH), dtype=np.int64)
        mix = self.snapshot.mix
        if mix is not self._mix:
            self._mix = mix
            self._candidates.clear()
            self._choices.clear()

    def _place_in_order(self, shape: Shape, order: list[int], salt: int) -> Allocation | NoFit:
        """Place the groups of a gang in the order given, or nothing."""
        table, log = self.trial.table, self.trial.log
        state, pieces, used = self.snapshot.state, self._pieces, 0
        for group in order:
            pods, demand = shape.parts[group]
            own, by_node = self._choices.get((shape.index, group)) or self._choose(shape, group)
            slot = own.slot(demand)
            result = own.kernel(
                table, log, state.shapes.demands, demand, self._mix, own.params, own.order, own.rank, own.scores,
                own.caps, own.winners, own.slots, slot, pods, by_node, self.seed, salt, pieces, used,
            )  # fmt: skip
            if result < 0:
                if used:
                    move(table, log, pieces[:used], False)
                return NoFit(group, pods, -1 - result)
            used = result
        return pieces[:used].copy()

    def _choose(self, shape: Shape, group: int) -> tuple[Candidates, bool]:
        """Who places this group of a gang, and whether node by node; asked once for each shape."""
        policy, by_node = self.policy_of(shape).chooser(group, len(shape.parts), shape.parts[group][0])
        if policy not in self._candidates:
            self._candidates[policy] = Candidates(policy, len(self.trial.table), self.seed, self._mix)
        choice = self._choices[shape.index, group] = (self._candidates[policy], by_node)
        return choice

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
                self._empty = Placer(self.snapshot.of_empty_cluster(), self.policy, self.seed, self.policies[1:])
                self._empty._alone = True
                self._empty._zone = None  # nobody runs there
            self._empty._prepare(shape)
            verdict = self._empty._place_together(shape, 0)
            self._empty.trial.rollback(0)
            self._never[shape.index] = (
                NeverFits(*(getattr(verdict, field) for field in verdict.__struct_fields__))
                if isinstance(verdict, NoFit)
                else None
            )
        return self._never[shape.index]
