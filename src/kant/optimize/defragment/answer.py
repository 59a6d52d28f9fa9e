"""What `kant defrag` answers: migrations in a feasible order, what they leave, and the bound (docs/solvers.md)."""

from __future__ import annotations

from msgspec import Struct

from kant.model.errors import InputError
from kant.optimize.defragment.assign import assign
from kant.optimize.defragment.cluster import SPREAD, Cluster, Layout, Move
from kant.optimize.defragment.greedy import greedy
from kant.optimize.defragment.instance import DefragInstance
from kant.optimize.defragment.order import ordered
from kant.optimize.defragment.plan_flow import plan_flow

ROUNDS = 4
"""How often a plan is continued from where the last one ends, if VMs cannot carry it out in full."""
MOST_MOVES = 100_000
LONGEST = 3600.0


class Migration(Struct, frozen=True):
    """The migration of one VM from a NUMA node of a host to another (None: spread over all of them)."""

    vm: str
    source: str
    source_numa: int | None
    target: str
    target_numa: int | None


class DefragAnswer(Struct, frozen=True):
    """A plan with its bound. Fragments are free cores beyond whole blocks; rates are over all free cores."""

    limit_s: float
    spent_s: float
    """Deterministic seconds of the solver."""
    moves_allowed: int
    free_cores: int
    fragments_before: int
    fragments_after: int
    fragments_bound: int
    """No plan with this many moves leaves fewer."""
    rate_before: float
    rate_after: float
    rate_bound: float
    proven: bool
    """No plan with this many moves is better."""
    moves: tuple[Migration, ...]


def defragment(instance: DefragInstance, moves: int, limit: float = 5.0) -> DefragAnswer:
    """At most `moves` migrations after which the fewest free cores are fragments, within `limit` deterministic seconds.

    The load of the machine does not matter. Raises InputError if a number is out of range, or if OR-Tools is not
    installed.
    """
    if not 0 <= moves <= MOST_MOVES:
        raise InputError("--moves", f"a whole number from 0 to {MOST_MOVES:,}", moves)
    if not 0.01 <= limit <= LONGEST:
        raise InputError("--limit", "a time from 10ms to 1h")
    cluster = Cluster.of(instance)
    made, bound, spent = plan(cluster, moves, limit)
    before, after = Layout(cluster), Layout(cluster)
    migrations = []
    for move in made:
        migrations.append(_migration(after, move))
        after.make(move)
    free = int(before.cores.sum())
    return DefragAnswer(
        limit_s=limit,
        spent_s=round(spent, 6),
        moves_allowed=moves,
        free_cores=free,
        fragments_before=before.fragments(),
        fragments_after=after.fragments(),
        fragments_bound=bound,
        rate_before=before.rate(),
        rate_after=after.rate(),
        rate_bound=bound / free if free else 0.0,
        proven=after.fragments() == bound,
        moves=tuple(migrations),
    )


def plan(cluster: Cluster, moves: int, limit: float) -> tuple[list[Move], int, float]:
    """Migrations in a feasible order, a lower bound of the fragments, and the solver's deterministic seconds.

    The flow is planned, assigned to VMs and ordered. If part of it was impossible, the remaining moves are planned from
    there, and greedy moves complete the plan. The shortest list with the fewest fragments is kept.
    """
    layout = Layout(cluster)
    made: list[Move] = []
    bound, spent = 0, 0.0
    for round_ in range(ROUNDS):
        flow = plan_flow(cluster, layout, moves - len(made), max(limit - spent, 0.01))
        spent += flow.spent
        if round_ == 0:
            bound = flow.bound
        if not flow.nets:
            break
        chosen, used = assign(cluster, layout, flow, max(limit - spent, 0.01))
        spent += used
        now = layout.fragments()
        tried = layout.copy()
        steps = ordered(tried, chosen, moves - len(made))
        if tried.fragments() >= now:
            break
        layout = tried
        made += steps
        if layout.fragments() <= bound or len(made) >= moves or spent >= limit:
            break
    made += greedy(layout, moves - len(made))
    return made, bound, spent


def _migration(layout: Layout, move: Move) -> Migration:
    hosts = layout.cluster.instance.hosts
    numa = int(layout.slot[move.vm])
    return Migration(
        layout.cluster.instance.vms[move.vm].name,
        hosts[int(layout.host[move.vm])].name,
        None if numa == SPREAD else numa,
        hosts[move.host].name,
        None if move.numa == SPREAD else move.numa,
    )
