"""`check_policy`: the rules that every policy must keep, whoever wrote it.

For your own policy, in a test of yours:

    from kant.testing import check_policy

    def test_my_policy_keeps_the_rules() -> None:
        check_policy(MyPolicy(weight=3))

It raises `NonconformanceError` with one sentence that says which rule is broken and where. What is checked:

- every policy: a frozen struct with a docstring, a source and tags of the taxonomy, whose fields survive a round trip
  through a profile's TOML; an unknown field is refused;
- a placement policy: a gang is placed completely or not at all, on nodes that are in service and admit it, on devices
  that are free, exactly as demanded, in one domain of the level that it requires; "does not fit" is true; the
  same seed gives the same placement; undoing a placement leaves no trace; state kept from cycle to cycle changes
  no decision;
- an order: all keys can be compared, the keys of many jobs are those of each job alone, no key depends on the other
  jobs in the queue, and the key of a waiting job does not change while it waits;
- a discipline: random runs, with a driver that refuses and one that does not, keep every invariant of the state,
  lose no job, never stop or start one twice, and end; no job overtakes another where the buckets forbid it, and no job
  that fits is left waiting where they say that all are tried.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kant.model.errors import InputError
from kant.model.taxonomy_keys import wrong_tags
from kant.placement.policy import NodePolicy
from kant.queueing.discipline import Discipline
from kant.queueing.order import Order
from kant.scheduler.registry import convert_policy

Policy = Order | Discipline | NodePolicy


class NonconformanceError(AssertionError):
    """A policy breaks a rule of all policies."""


def say(holds: bool, rule: str) -> None:
    """Raise NonconformanceError with `rule` unless it holds."""
    if not holds:
        raise NonconformanceError(rule)


def check_policy(policy: Policy, *, rounds: int = 12, seed: int = 0) -> None:
    """Raise NonconformanceError unless `policy` keeps every rule of its kind, on `rounds` random cases from `seed`."""
    from kant.testing.conformance_discipline import check_discipline
    from kant.testing.conformance_order import check_order
    from kant.testing.conformance_placement import check_placement

    check_definition(policy)
    if isinstance(policy, NodePolicy):
        check_placement(policy, rounds, seed)
    elif isinstance(policy, Order):
        check_order(policy, rounds, seed)
    else:
        check_discipline(policy, rounds, seed)


def check_definition(policy: Policy) -> None:
    """Check the class: docstring and source make up its reference page, and the fields its table in a profile."""
    kind = type(policy)
    name = kind.__name__
    say(bool((kind.__doc__ or "").strip()), f"{name}: a policy must have a docstring")
    say(bool(policy.source), f"{name}: a policy must name the source of its idea (`source`)")
    wrong = wrong_tags(policy.tags)
    say(not wrong, f"{name}: a policy must state its place in the taxonomy (`tags`): {wrong}")
    say(kind.__struct_config__.frozen, f"{name}: a policy must be frozen")
    say(isinstance(kind.__struct_config__.tag, str), f"{name}: a policy must have a tag, its name in a profile")
    table = msgspec.to_builtins(policy)
    say(hash(policy) == hash(convert_policy(table, kind, name)), f"{name}: equal policies must have equal hashes")
    text = "".join(f"{key} = {toml_value(value)}\n" for key, value in table.items() if value is not None)
    try:
        back = convert_policy(msgspec.toml.decode(text), kind, name)
    except (ValueError, InputError) as error:
        raise NonconformanceError(f"{name}: its fields must survive a round trip through TOML: {error}") from error
    say(back == policy, f"{name}: its fields must survive a round trip through TOML: {policy} became {back}")
    try:
        convert_policy({**table, "no_such_field": 1}, kind, name)
    except msgspec.ValidationError:
        return
    raise NonconformanceError(f"{name}: a field that it does not have must be refused")


def toml_value(value: Any) -> str:
    """`value` as TOML, with inline tables."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key} = {toml_value(part)}" for key, part in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(toml_value(part) for part in value) + "]"
        case _:
            return json.dumps(value)
