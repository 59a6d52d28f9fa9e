"""Checks policies by name: those that a profile can use, of Kant and of other packages."""

from __future__ import annotations

from collections.abc import Sequence

from kant.model.errors import InputError
from kant.scheduler.registry import KINDS, OWN, KnownPolicy, policies
from kant.testing.conformance import NonconformanceError, check_policy


def policies_named(names: Sequence[str]) -> list[KnownPolicy]:
    """Return the policies called KIND.NAME, or NAME where it is unique; without names those of other packages.

    Raises InputError for a name with no match or several.
    """
    every = [policy for kind in KINDS for policy in policies(kind).values()]
    if not names:
        return [policy for policy in every if policy.package != OWN]
    return [_named(name, every) for name in names]


def _named(name: str, every: Sequence[KnownPolicy]) -> KnownPolicy:
    found = [policy for policy in every if name in (policy.name, f"{policy.kind}.{policy.name}")]
    if len(found) == 1:
        return found[0]
    several = [f"{policy.kind}.{policy.name}" for policy in found]
    expected = " or ".join(several) or f"KIND.NAME of a policy (see `kant policies`), with {', '.join(KINDS)} as KIND"
    raise InputError("policy", expected, name)


def broken_rule(policy: KnownPolicy, rounds: int, seed: int) -> str:
    """Return the rule that a policy with its default fields breaks, as a sentence; empty if it breaks none."""
    try:
        check_policy(policy.type(), rounds=rounds, seed=seed)
    except NonconformanceError as error:
        return str(error)
    except Exception as error:  # foreign code may raise anything
        return f"expected no exception, got {type(error).__name__}: {error}".splitlines()[0]
    return ""
