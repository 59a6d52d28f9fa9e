"""Carries out the defragmentations that operators request (`kind: Defragmentation`), one after the other.

The solver process computes the moves, in steps. Each step is proposed to the core, which checks it again; its pods are
evicted through the Eviction API. A user who stops the defragmentation prevents its next step. Before a step its jobs
are counted as moved in the status, so that a new leader never moves more jobs than allowed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.insight.moment import moment_of
from kant.kube.follow.mirror import Mirror
from kant.kube.reconcile.workload import Phase
from kant.kube.reconcile.workloads import Workloads
from kant.kube.translate.defragmentations import FINAL, AskedRound, DefragmentationSpec, asked_round
from kant.live.core import Core
from kant.live.solver import Solver, SolverTask, failure
from kant.model.decision import Plan, Preempt
from kant.model.errors import InputError
from kant.model.event import PlanProposed, ProposedPlace
from kant.model.status import NodeStatus
from kant.model.units import GPU, HOUR
from kant.optimize.answers import DefragmentMove, DefragmentOrder, DefragmentPlan
from kant.scheduler.solvers import Defragment

SHOWN = 100
"""Maximum number of moves in a status."""

Status = dict[str, Any]
Step = tuple[DefragmentMove, ...]


@dataclass(slots=True)
class _Round:
    """The progress of one Defragmentation. `moved` counts the jobs evicted so far or in the current step."""

    asked: AskedRound
    phase: str = "Pending"
    why: str = "the solver looks for jobs to move"
    moved: int = 0
    plan: DefragmentPlan | None = None
    core: Core | None = None  # the core for which the plan was made
    asking: asyncio.Task[bytes] | None = None
    steps: deque[Step] = field(default_factory=deque)
    said: bool = False  # whether `moved` counts the jobs of the next step
    going: dict[str, list[str]] = field(default_factory=dict)  # uids of the pods to evict, by job
    moves: dict[str, Status] = field(default_factory=dict)
    facts: Status = field(default_factory=dict)

    def ends(self, phase: str, why: str) -> None:
        """End the defragmentation: `phase` and `why` go into its status."""
        self.phase, self.why = phase, why
        self.steps.clear()
        if self.asking is not None:
            self.asking.cancel()


class Defragmentations:
    """The progress of each Defragmentation, by its uid. The loop calls `turn`, and is woken when the solver is done."""

    def __init__(self, mirror: Mirror, solver: Solver | None, wake: Callable[[], None]) -> None:
        self.mirror = mirror
        self.solver = solver
        self.wake = wake
        self.rounds: dict[str, _Round] = {}

    def close(self) -> None:
        """Cancel all requests to the solver."""
        for one in self.rounds.values():
            if one.asking is not None:
                one.asking.cancel()

    def statuses(self) -> Iterator[tuple[str, Status, str, str]]:
        """Yield for each Defragmentation its name, its status, its error ("": none), and an explanation."""
        for one in self.rounds.values():
            wrong = one.why if one.phase == "Refused" else ""
            moves = list(one.moves.values())[:SHOWN]
            yield one.asked.name, {"phase": one.phase, "moved": one.moved, "moves": moves, **one.facts}, wrong, one.why

    def turn(self, core: Core, workloads: Workloads, busy: bool) -> PlanProposed | None:
        """Return the next step of the first unfinished Defragmentation, or None. `busy`: evictions are in flight."""
        self._follow()
        one = next((one for one in self.rounds.values() if one.phase not in FINAL), None)
        if one is None:
            return None
        if one.going and not busy:
            self._judge(one, core, workloads)
        if one.asked.spec.stop and not busy:
            one.ends("Stopped", f"it was stopped; {_jobs(one.moved)} moved")
            return None
        if busy or one.going:
            return None
        if one.plan is None or (one.core is not core and one.steps):
            self._plan(one, core, workloads)
            return None
        return self._next(one, core, workloads)

    def record(self, plan: Plan) -> None:
        """Note whether the core's `plan` carries out the proposed step or refuses it."""
        one = next(one for one in self.rounds.values() if one.going)
        if not any(isinstance(decision, Preempt) for decision in plan.decisions):
            for job in one.going:
                self._mark(one, job, "Refused", "it has changed since the step was planned, or may not be stopped now")
            one.moved -= len(one.going)
            one.going = {}

    # --- one round ------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Update `rounds` from the Defragmentations in the mirror."""
        objects, seen = self.mirror.kind("defragmentations"), set[str]()
        for item in sorted(objects.values(), key=lambda one: (one.metadata.creation_timestamp, one.metadata.name)):
            uid = item.metadata.uid
            seen.add(uid)
            try:
                asked = asked_round(item)
            except InputError as wrong:
                self.rounds[uid] = _Round(AskedRound(item.metadata.name, DefragmentationSpec()), "Refused", str(wrong))
                continue
            if uid in self.rounds:
                self.rounds[uid].asked = asked
            elif asked.status.phase not in FINAL:
                self.rounds[uid] = _Round(asked, moved=asked.status.moved)
        for uid in [uid for uid in self.rounds if uid not in seen]:
            self.rounds.pop(uid).ends("Stopped", "")

    def _plan(self, one: _Round, core: Core, workloads: Workloads) -> None:
        """Ask the solver for moves, or process its result."""
        asked = one.asked.spec
        if one.asking is not None and one.core is core and one.asking.done():
            task, one.asking = one.asking, None
            try:
                answer = task.result()
                if sentence := failure(answer):
                    raise InputError("the solver", f"one that answers ({sentence})")
                self._take(one, core, msgspec.json.decode(answer, type=DefragmentPlan))
            except (InputError, msgspec.DecodeError) as error:
                one.ends("Refused", str(error))
            return
        left = asked.most_moves - one.moved
        if left <= 0:
            one.ends("Done", f"{_jobs(one.moved)} moved, the most that it allows")
        elif self.solver is None:
            one.ends("Refused", "this replica has no solver to find moves")
        elif one.asking is None or one.core is not core:
            nodes = self._nodes(one, core)
            own = core.profile.defragment or Defragment()
            order = DefragmentOrder(replace(own, moves=left, floor=1.0), nodes)
            moment = moment_of(core.scheduler, core.past, core.now, core.zero)
            task_ = SolverTask("defragment", moment, movable=workloads.movable(), order=order)
            one.core, one.steps = core, deque()
            one.asking = asyncio.ensure_future(self.solver(task_))
            one.asking.add_done_callback(lambda _: self.wake())

    def _take(self, one: _Round, core: Core, plan: DefragmentPlan) -> None:
        """Take the steps from the solver's plan, and put its figures into the status."""
        first, one.plan = one.plan is None, plan
        if first and not one.moved:
            one.facts = {
                "nodes": plan.nodes,
                "gfrBefore": _share(plan.fragmented, plan.nodes),
                "gfrPlanned": _share(plan.fragmented_after, plan.nodes),
                "emptied": list(plan.emptied[:SHOWN]),
                "costGPUHours": _hours(plan.price),
                "worthGPUHours": _hours(plan.worth),
            }
        one.moves = {job: said for job, said in one.moves.items() if said["state"] != "Planned"}
        for move in (move for step in plan.steps for move in step):
            said = {"job": move.job, "pods": move.pods, "gpus": move.gpus, "from": move.source, "to": move.target}
            one.moves[move.job] = said | {"state": "Planned"}
        one.steps = deque(plan.steps)
        count = sum(map(len, plan.steps))
        if not count:
            done = f"{_jobs(one.moved)} moved, and no further move pays"
            one.ends("Done" if one.moved else "Refused", done if one.moved else _why_nothing(plan))
            return
        pays = (
            f"{_jobs(count)} would move, so that {len(plan.emptied)} more nodes are idle: worth "
            f"{_hours(plan.worth)} GPU-hours, for {_hours(plan.price)} of lost work and restarts"
        )
        if one.asked.spec.dry_run:
            one.ends("Planned", pays)
        else:
            one.phase, one.why = "Moving", pays

    def _next(self, one: _Round, core: Core, workloads: Workloads) -> PlanProposed | None:
        """Return the next step. None until the written status counts its jobs as moved, and after the last step."""
        if not one.steps:
            one.facts["gfrAfter"] = self._gfr(one, core)
            one.ends("Done", f"{_jobs(one.moved)} moved")
            return None
        if not one.said:
            one.moved, one.said = one.moved + len(one.steps[0]), True
        if one.asked.status.moved < one.moved:
            return None  # the status has not been written yet
        step, one.said = one.steps.popleft(), False
        slots = {move.job: workloads.by_job[move.job].slots for move in step if move.job in workloads.by_job}
        one.going = {move.job: [slot.pod for slot in slots.get(move.job, ())] for move in step}
        places = tuple(ProposedPlace(move.job, {move.target: move.pods}) for move in step)
        return PlanProposed(core.now, "defragment", places)

    def _judge(self, one: _Round, core: Core, workloads: Workloads) -> None:
        """Once all evictions are answered and no pod is leaving any more, record which jobs of the step have moved and
        which stay."""
        members, stay = workloads.members, dict[str, bool]()
        for job, pods in one.going.items():
            there = [uid for uid in pods if uid in self.mirror.pods]
            found = [members.by_key.get(members.key_of.get(uid, "")) for uid in there]
            stay[job] = any(workload is not None and workload.phase is not Phase.LEAVING for workload in found)
            if there and not stay[job]:
                return
        one.going = {}
        for job, stays in stay.items():
            if stays:
                one.moved -= 1
                self._mark(one, job, "Refused", "the Eviction API refuses to evict its pods")
            else:
                self._mark(one, job, "Moved", "")
        one.facts["gfrAfter"] = self._gfr(one, core)

    def _mark(self, one: _Round, job: str, state: str, reason: str) -> None:
        one.moves[job] |= {"state": state} | ({"reason": reason} if reason else {})

    def _nodes(self, one: _Round, core: Core) -> frozenset[str] | None:
        """Return the names of the nodes to defragment; None for all nodes."""
        asked = one.asked.spec
        if not asked.node_selector and not asked.model:
            return None
        return frozenset(
            node.name
            for node in core.state.nodes
            if (not asked.model or node.model == asked.model)
            and node.name in self.mirror.nodes
            and asked.selects(self.mirror.nodes[node.name].metadata.labels or {})
        )

    def _gfr(self, one: _Round, core: Core) -> str:
        """Return the share of the nodes to defragment that are partly used now, as text from 0.000 to 1.000."""
        table, nodes = core.state.table, self._nodes(one, core)
        rows = [
            row
            for node, row in zip(core.state.nodes, table, strict=True)
            if (nodes is None or node.name in nodes) and row[c.STATUS] == NodeStatus.IN_SERVICE and row[c.GPUS] > 0
        ]
        return _share(sum(0 < row[c.FREE] < row[c.GPUS] * GPU for row in rows), len(rows))


def _why_nothing(plan: DefragmentPlan) -> str:
    if not plan.fragmented:
        return f"none of {plan.nodes} nodes is partly in use"
    stays = f", of which {plan.staying} may not be moved now" if plan.staying else ""
    return f"no move pays: {plan.fragmented} of {plan.nodes} nodes are partly in use, by {_jobs(plan.lodgers)}{stays}"


def _jobs(count: int) -> str:
    return f"{count} {'job' if count == 1 else 'jobs'}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "0.000"


def _hours(milli_gpu_seconds: int) -> str:
    return f"{milli_gpu_seconds / GPU / (HOUR / 1e6):.2f}"
