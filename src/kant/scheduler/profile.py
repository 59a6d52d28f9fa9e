"""A Profile: the chosen policies and their parameters. It is defined by one TOML file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from kant.cluster.state import ClusterState
from kant.model.errors import InputError
from kant.model.matching import Match
from kant.model.node import ClusterSpec
from kant.placement.policy import NodePolicy
from kant.placement.preference_weights import PreferenceWeights
from kant.queueing.cycle_plan import Evictor
from kant.queueing.discipline import Discipline
from kant.queueing.estimates import Estimates
from kant.queueing.growth import Elastic
from kant.queueing.order import Order
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.scheduler.registry import KINDS, make_policy, make_settings, policies
from kant.scheduler.solvers import Defragment, Fallback
from kant.scheduler.strategies import Strategy, parse_strategies

if TYPE_CHECKING:
    from kant.queueing.router import PolicyRouter

SETTINGS: dict[str, type] = {
    "preemption": Preemption, "requeue": Requeue, "estimates": Estimates, "elastic": Elastic,
    "fallback": Fallback, "defragment": Defragment, "preferences": PreferenceWeights,
}  # fmt: skip
"""Optional tables of a profile that configure one feature, without a choice of policies."""

PARTS = ("name", "about", *KINDS, "workloads", *SETTINGS, "router", "simulation")


@dataclass(frozen=True, slots=True)
class Profile:
    """Which job goes first (`order`), what a blocked job means for others (`discipline`), where jobs go (`placement`).

    The first of `strategies` that matches a job places it instead of `placement`.
    Without `preemption` only the discipline itself may stop jobs. `requeue` says when a job that returned is tried
    again, `estimates` which run time disciplines that plan ahead use, `elastic` when running gangs grow.
    `preferences` weighs the node preferences of pods.
    `fallback` and `defragment` say when a solver is asked for improvements (`scheduler/solvers.py`). `simulation` is
    for the simulator only: how jobs run, and how an experiment differs from a cluster.
    `text` is the TOML that the profile was read from.
    """

    name: str
    about: str
    order: Order
    discipline: Discipline
    placement: NodePolicy
    strategies: tuple[Strategy, ...] = ()
    preemption: Preemption | None = None
    requeue: Requeue = field(default_factory=Requeue)
    estimates: Estimates = field(default_factory=Estimates)
    elastic: Elastic = field(default_factory=Elastic)
    fallback: Fallback | None = None
    defragment: Defragment | None = None
    preferences: PreferenceWeights = field(default_factory=PreferenceWeights)
    simulation: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    router: PolicyRouter | None = None
    routes: dict[str, Profile] = field(default_factory=dict)

    @property
    def keeps_priority(self) -> bool:
        """Whether a job may not pass a blocked job of higher priority that it might delay."""
        return self.order.by_priority and self.discipline.passing_evictor is not None

    @property
    def quotas(self) -> bool:
        """Whether quotas, back-offs and burst replicas are honoured, whichever policy acts."""
        return not self.without_quotas

    @property
    def without_quotas(self) -> str:
        """The first discipline that does not honour quotas; empty if all do."""
        every = (each.discipline for each in (self, *self.routes.values()))
        return next((each.__struct_config__.tag for each in every if not each.quotas), "")  # type: ignore[return-value]

    @property
    def looks_at_running(self) -> bool:
        """Whether a cycle may decide about running jobs even if no job waits."""
        order, discipline = self.order, self.discipline
        return bool(self.routes) or discipline.forecasts or not discipline.buckets or order.moving or order.remembers

    @property
    def asks(self) -> bool:
        """Whether a driver has to ask for proposals: of a solver, or of a look-ahead for the router."""
        routes = self.router is not None and bool(self.router.rules) and not self.router.pin
        return routes or self.fallback is not None or self.defragment is not None

    @property
    def evictors(self) -> tuple[Evictor | None, Evictor | None]:
        """The evictors for a job that does not fit: the first if all jobs have one priority, the second otherwise."""
        return self.preemption, self.preemption or self.discipline.passing_evictor

    @property
    def matches(self) -> tuple[Match, ...]:
        """The jobs that each strategy matches."""
        return tuple(strategy.match for strategy in self.strategies)

    def new_state(self, cluster: ClusterSpec) -> ClusterState:
        """Return the initial state of a cluster, with all that the policies need."""
        return ClusterState(cluster, learn=self.estimates.learns, workloads=self.matches, usage_hours=self.order.shares)

    @property
    def placements(self) -> tuple[NodePolicy, ...]:
        """The placement of each strategy."""
        return tuple(strategy.placement for strategy in self.strategies)


def parse_profile(text: str, where: str) -> Profile:
    """Parse a profile from a TOML text. Raises InputError naming `where` and the field."""
    try:
        data = msgspec.toml.decode(text)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise InputError(where, f"a TOML file: {error}") from None
    unknown = sorted(set(data) - set(PARTS))
    if unknown:
        raise InputError(f"{where}: {unknown[0]}", f"one of {', '.join(PARTS)}")
    for part in KINDS:
        if not isinstance(data.get(part), dict):
            raise InputError(f"{where}: {part}", "a table with a `policy`", data.get(part))
    for part in ("name", "about"):
        if not isinstance(data.get(part, ""), str):
            raise InputError(f"{where}: {part}", "text", data[part])
    if not isinstance(data.get("simulation", {}), dict):
        raise InputError(f"{where}: simulation", "a table", data["simulation"])
    made = {part: make_policy(part, data[part], f"{where}: {part}") for part in KINDS}
    if made["order"].shares and not made["discipline"].quotas:
        honouring = ", ".join(name for name, policy in policies("discipline").items() if policy.type.quotas)  # type: ignore[attr-defined]
        raise InputError(
            f"{where}: discipline",
            f"one of {honouring}, as the order ranks queues by share",
            data["discipline"]["policy"],
        )
    made |= {part: make_settings(SETTINGS[part], data[part], f"{where}: {part}") for part in SETTINGS if part in data}
    made["strategies"] = parse_strategies(data.get("workloads", []), made["placement"], where)
    profile = Profile(
        name=data.get("name", where),
        about=data.get("about", ""),
        simulation=data.get("simulation", {}),
        text=text,
        **made,
    )
    return _routed(profile, data["router"], f"{where}: router") if "router" in data else profile


def _routed(profile: Profile, table: Any, where: str) -> Profile:
    """Return the profile with the policies of its router: each replaces its order, its discipline or both.

    The profile itself is the `floor`. Raises InputError for policies that cannot alternate on one state.
    """
    from kant.queueing.router import PolicyRouter  # few profiles have one

    table = dict(table) if isinstance(table, dict) else {}
    tables = table.pop("policies", {})
    router: PolicyRouter = make_settings(PolicyRouter, table, where)
    if not isinstance(tables, dict) or router.floor in tables:
        raise InputError(f"{where}.policies", f"a table with policies other than the floor {router.floor}", tables)
    routes = {router.floor: profile}
    for name, parts in tables.items():
        if not isinstance(parts, dict) or not set(parts) <= {"order", "discipline"}:
            raise InputError(f"{where}.policies.{name}", "an order, a discipline or both", parts)
        own = {part: make_policy(part, parts[part], f"{where}.policies.{name}.{part}") for part in parts}
        routes[name] = found = replace(profile, **own)
        if found.order.shares != profile.order.shares or found.discipline.forecasts or profile.discipline.forecasts:
            expected = "policies without reservations, of which all or none rank queues by shares"
            raise InputError(f"{where}.policies.{name}", expected)
    for name in (router.pin or router.floor, *(rule.policy for rule in router.rules)):
        if name not in routes:
            raise InputError(where, f"one of {', '.join(routes)}", name)
    return replace(profile, router=router, routes=routes)


@cache
def builtin_texts() -> dict[str, str]:
    """Return the TOML of every built-in profile, by name."""
    folder = resources.files("kant.scheduler") / "profiles"
    return {
        entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def builtin_abouts() -> dict[str, str]:
    """Return the description of every built-in profile, by name, without loading any policy."""
    return {name: str(msgspec.toml.decode(text)["about"]) for name, text in builtin_texts().items()}


def builtin_profile(name: str) -> Profile:
    """Return a built-in profile. Raises InputError, with the known names, for an unknown one."""
    texts = builtin_texts()
    if name not in texts:
        raise InputError("profile", f"a TOML file or one of {', '.join(texts)}", name)
    return parse_profile(texts[name], f"profile {name}")


def draws(policy: object) -> bool:
    """Return whether a placement, or a policy in it, draws a new random score for each pod."""
    fields: tuple[str, ...] = getattr(policy, "__struct_fields__", ())
    return bool(getattr(policy, "fresh", False)) or any(draws(getattr(policy, name)) for name in fields)
