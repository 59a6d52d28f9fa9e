"""The policies there are: every class with a tag in the policy folders. A new file is a new policy."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import FieldInfo, fields

from kant.placement.policy import NodePolicy
from kant.queueing.discipline import Discipline
from kant.queueing.order import Order

KINDS: dict[str, tuple[type, str]] = {
    "order": (Order, "kant.queueing.orders"),
    "discipline": (Discipline, "kant.queueing.disciplines"),
    "placement": (NodePolicy, "kant.placement.policies"),
}
"""For each part of a profile: the base class of its policies, and the package whose modules hold them."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy as people see it."""

    kind: str
    name: str
    type: type
    about: str
    source: str
    fields: tuple[FieldInfo, ...]


@cache
def policies(kind: str) -> dict[str, Policy]:
    """The policies of one kind (a key of KINDS), by name."""
    base, package_name = KINDS[kind]
    package = importlib.import_module(package_name)
    found: dict[str, Policy] = {}
    for module_info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package_name}.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__:
                found[_tag(value)] = _describe(kind, value)
    return dict(sorted(found.items()))


def _tag(policy: type) -> str:
    return str(policy.__struct_config__.tag)  # type: ignore[attr-defined]


def _describe(kind: str, policy: type) -> Policy:
    about = " ".join((policy.__doc__ or "").split("\n\n")[0].split())
    source: str = policy.source  # type: ignore[attr-defined]
    return Policy(kind, _tag(policy), policy, about, source, fields(policy))


def make_policy(kind: str, settings: dict[str, Any], where: str) -> Any:
    """The policy that a table of a profile describes: `policy` names it, the other keys are its fields.

    Raises InputError for an unknown policy, an unknown field or a value of the wrong type.
    """
    from kant.model.errors import InputError

    known = policies(kind)
    name = settings.get("policy")
    if not isinstance(name, str) or name not in known:
        raise InputError(f"{where}.policy", f"one of {', '.join(known)}", name)
    try:
        return msgspec.convert(settings, known[name].type)
    except msgspec.ValidationError as error:
        allowed = ", ".join(field.name for field in known[name].fields) or "none"
        raise InputError(where, f"a valid configuration of {name} (fields: {allowed}): {error}") from None


def make_settings(kind: type, settings: Any, where: str) -> Any:
    """A table of a profile as the configuration that `kind` is. Raises InputError for what it cannot be."""
    from kant.model.errors import InputError

    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        allowed = ", ".join(field.name for field in fields(kind))
        raise InputError(where, f"a table of valid fields ({allowed}): {error}") from None
