"""Strategies: placements chosen for each workload, the `[[workloads]]` tables of a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import fields

from kant.model.errors import InputError
from kant.model.matching import Match
from kant.placement.policies.e_spread import ESpread
from kant.placement.policy import NodePolicy
from kant.scheduler.registry import make_policy, policies


@dataclass(frozen=True, slots=True)
class Strategy:
    """The placement of the jobs of `match`, instead of the profile's `[placement]`."""

    name: str
    match: Match
    placement: NodePolicy


def parse_strategies(tables: Any, placement: NodePolicy, where: str) -> tuple[Strategy, ...]:
    """Parse the `[[workloads]]` of a profile. Raises InputError naming the table, counted from 1."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{where}: workloads", "[[workloads]] tables", tables)
    strategies = tuple(_strategy(dict(table), f"{where}: workloads {i}") for i, table in enumerate(tables, 1))
    check_zone((placement, *(strategy.placement for strategy in strategies)), where)
    return strategies


def _strategy(table: dict[str, Any], where: str) -> Strategy:
    name, choice = table.pop("name", ""), table.pop("placement", None)
    if not isinstance(name, str):
        raise InputError(f"{where}.name", "text", name)
    if not isinstance(choice, dict):
        raise InputError(f"{where}.placement", "a table with a `policy`", choice)
    try:
        match = msgspec.convert(table, Match)
    except msgspec.ValidationError as error:
        allowed = ", ".join(("name", "placement", *(field.name for field in fields(Match))))
        raise InputError(where, f"a table of valid fields ({allowed}): {error}") from None
    return Strategy(name, match, make_policy("placement", choice, f"{where}.placement"))


def check_zone(placements: tuple[NodePolicy, ...], where: str) -> None:
    """Check that there is at most one inference zone, and that the other placements can avoid it. Raises InputError."""
    zones = {placement for placement in placements if isinstance(placement, ESpread)}
    if not zones:
        return
    if len(zones) > 1:
        raise InputError(f"{where}: workloads", "one inference zone, that is, the same fields in every e-spread")
    others = [placement for placement in placements if not placement.preferred_level]
    if others:
        able = ", ".join(name for name, policy in policies("placement").items() if policy.type.preferred_level)  # type: ignore[attr-defined]
        tag = others[0].__struct_config__.tag
        raise InputError(f"{where}: placement", f"one of {able}, as another workload has e-spread", str(tag))
