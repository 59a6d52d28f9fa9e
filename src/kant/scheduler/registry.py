"""The registry of policies: Kant's own, one file each, and those of installed packages, found by entry point.

A package offers a policy under the entry point group `kant.policies`. The name is the kind and the tag, the value is
the class: `"order.largest-first" = "kant_largest_first:LargestFirst"`. A package is imported only if a profile names
its policy, or all policies are listed.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, get_args

import msgspec
from msgspec.structs import FieldInfo, fields

from kant.model.errors import InputError
from kant.placement.policy import NodePolicy
from kant.queueing.discipline import Discipline
from kant.queueing.order import Order

KINDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "order": (Order, ("kant.queueing.orders",)),
    "discipline": (Discipline, ("kant.queueing.disciplines", "kant.reproduce")),
    "placement": (NodePolicy, ("kant.placement.policies",)),
}
"""For each part of a profile: the base class of its policies, and the packages whose modules hold Kant's own."""

GROUP = "kant.policies"
"""The entry point group of policies from other packages."""

OWN = "kant"
"""The package of Kant's own policies."""

TAG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""The syntax of a policy's name in a profile: words of lower-case letters and digits, joined by hyphens."""


@dataclass(frozen=True, slots=True)
class KnownPolicy:
    """The public description of a policy, and the package that it comes from."""

    kind: str
    name: str
    type: type
    about: str
    source: str
    fields: tuple[FieldInfo, ...]
    package: str


@cache
def policies(kind: str) -> dict[str, KnownPolicy]:
    """Return the policies of a kind (a key of KINDS), by name. Raises InputError if a package's policy is unusable."""
    for point in entry_points(group=GROUP):
        if point.name.partition(".")[0] not in KINDS or not TAG.fullmatch(point.name.partition(".")[2]):
            expected = f"an entry point of {GROUP} named KIND.TAG, with {', '.join(KINDS)} as KIND"
            raise InputError(f"package {_package(point)}", expected, point.name)
    return {tag: _policy(kind, tag) for tag in _tags(kind)}


def _tags(kind: str) -> list[str]:
    """Return the names of all policies of one kind, sorted, without importing the packages that offer policies."""
    own = {_tag(policy) for module in _modules(kind) for policy in _policies_in(module, kind)}
    return sorted(own | {tag for offered_kind, tag in _offers() if offered_kind == kind})


def is_offered(kind: str, tag: str) -> bool:
    """Return whether a policy of that name exists, without importing the packages that offer policies."""
    return _own(kind, tag) is not None or (kind, tag) in _offers()


@cache
def _policy(kind: str, tag: str) -> KnownPolicy:
    """Return the policy that one package offers. Raises InputError if several packages do, or its class is unusable."""
    own, points = _own(kind, tag), _offers().get((kind, tag), ())
    packages = [OWN] * (own is not None) + [_package(point) for point in points]
    if len(packages) > 1:
        names = " and ".join(dict.fromkeys(packages)) if len(set(packages)) > 1 else f"{packages[0]} twice"
        raise InputError(f"{kind} {tag}", f"one package that offers it, but {names} do: uninstall one")
    return _describe(kind, own, OWN) if own is not None else _load(kind, tag, points[0])


# --- Kant's own ------------------------------------------------------------------------------------------------------


def _own(kind: str, tag: str) -> type | None:
    """Return Kant's own policy of that name: from the module of that name, or else from any module of its kind."""
    for package in KINDS[kind][1]:
        name = f"{package}.{tag.replace('-', '_')}"
        if TAG.fullmatch(tag) and importlib.util.find_spec(name) is not None:
            for policy in _policies_in(importlib.import_module(name), kind):
                if _tag(policy) == tag:
                    return policy
    every = (policy for module in _modules(kind) for policy in _policies_in(module, kind))
    return next((policy for policy in every if _tag(policy) == tag), None)


def _modules(kind: str) -> list[ModuleType]:
    """Return the modules of Kant's own policies."""
    return [
        importlib.import_module(f"{package}.{module.name}")
        for package in KINDS[kind][1]
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]


def _policies_in(module: ModuleType, kind: str) -> list[type]:
    """Return the policies that a module defines."""
    base = KINDS[kind][0]
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]


# --- of other packages -----------------------------------------------------------------------------------------------


@cache
def _offers() -> dict[tuple[str, str], tuple[EntryPoint, ...]]:
    """Return the policies of installed packages, by kind and tag, in order of name, without importing any."""
    found: dict[tuple[str, str], tuple[EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, _package(point), point.value)):
        kind, _, tag = point.name.partition(".")
        found[kind, tag] = (*found.get((kind, tag), ()), point)
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "?"


def _load(kind: str, tag: str, point: EntryPoint) -> KnownPolicy:
    """Import a policy of another package. Raises InputError if it cannot be imported or does not conform."""
    base, package = KINDS[kind][0], _package(point)
    where = f"{kind} {tag} of package {package}"
    try:
        policy = point.load()
    except Exception as error:  # a foreign module may raise anything
        raise InputError(
            where, f"a class that can be imported ({type(error).__name__}: {error})", point.value
        ) from None
    if not (isinstance(policy, type) and issubclass(policy, base)):
        raise InputError(where, f"a subclass of {base.__module__}.{base.__name__}", point.value)
    if _tag(policy) != tag:
        raise InputError(where, f'a class with tag="{tag}"', point.value)
    if any(field.required for field in fields(policy)):  # type: ignore[arg-type]
        raise InputError(where, "a default for each of its fields", point.value)
    return _describe(kind, policy, package)


# --- profiles --------------------------------------------------------------------------------------------------------


def _tag(policy: type) -> str:
    return str(policy.__struct_config__.tag)  # type: ignore[attr-defined]


def _describe(kind: str, policy: type, package: str) -> KnownPolicy:
    about = " ".join((policy.__doc__ or "").split("\n\n")[0].split())
    source: str = policy.source  # type: ignore[attr-defined]
    return KnownPolicy(kind, _tag(policy), policy, about, source, fields(policy), package)


def make_policy(kind: str, settings: dict[str, Any], where: str) -> Any:
    """Return the policy that a table of a profile describes.

    `policy` names the policy, `package` may name its package, the other keys are its fields. A field that is a policy,
    such as the order of backfilling, is a nested table. Raises InputError for an unknown policy, an unknown field or a
    value of the wrong type.
    """
    settings = dict(settings)
    name, package = settings.get("policy"), settings.pop("package", None)
    if package is not None and not isinstance(package, str):
        raise InputError(f"{where}.package", "the name of a package", package)
    if not isinstance(name, str) or not is_offered(kind, name):
        raise _unknown(kind, name, package, where)
    policy = _policy(kind, name)
    if package is not None and package != policy.package:
        raise InputError(f"{where}.package", f"{policy.package}, the package that offers {name}", package)
    try:
        return convert_policy(settings, policy.type, where)
    except (msgspec.ValidationError, ValueError) as error:
        allowed = ", ".join(field.name for field in policy.fields) or "none"
        raise InputError(where, f"valid fields of {name} ({allowed}): {error}") from None


def convert_policy(settings: dict[str, Any], policy: type, where: str) -> Any:
    """Return the policy of this type that `settings` describe, with a nested table for each field that is a policy.

    Raises ValueError (the base of msgspec's errors) for unknown fields or wrong values; InputError for a nested policy.
    """
    nested: dict[str, Any] = {}
    for field in fields(policy) if any(isinstance(value, dict) for value in settings.values()) else ():
        inner = _kind_of(field) if isinstance(settings.get(field.name), dict) else None
        if inner is not None:
            nested[field.name] = make_policy(inner, settings[field.name], f"{where}.{field.name}")
    made: Any = msgspec.convert({key: value for key, value in settings.items() if key not in nested}, policy)
    return msgspec.structs.replace(made, **nested) if nested else made


def _kind_of(field: FieldInfo) -> str | None:
    """Return the kind of a field that is, or may be, a policy; None for any other field."""
    return next((kind for kind, (base, _) in KINDS.items() if base in (field.type, *get_args(field.type))), None)


def _unknown(kind: str, name: object, package: str | None, where: str) -> InputError:
    """Return the error for an unknown policy. It says which package may be missing."""
    if isinstance(name, str) and package is not None:
        return InputError(f"{where}.policy", f"the package {package}, which offers it, to be installed", name)
    known = ", ".join(_tags(kind))
    others = f", or a package to be installed that offers {kind}.{name}" if isinstance(name, str) else ""
    return InputError(f"{where}.policy", f"one of {known}{others}", name)


def make_settings(kind: type, settings: Any, where: str) -> Any:
    """Convert a table of a profile to the configuration type `kind`. Raises InputError if it is invalid."""
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        allowed = ", ".join(field.name for field in fields(kind))
        raise InputError(where, f"a table of valid fields ({allowed}): {error}") from None
