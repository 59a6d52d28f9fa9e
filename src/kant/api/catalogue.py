"""The catalogue of all policies in Kant, of every kind, with their tags; and filtering by tags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import msgspec

from kant.model.errors import InputError
from kant.model.taxonomy import Tags
from kant.model.taxonomy_keys import TAXONOMY
from kant.scheduler import registry

KINDS = (*registry.KINDS, "engine", "router", "workflow", "dispatcher", "optimiser")
"""The kinds: three parts of a profile; kant-lab's engine policies, request routers, workflow rules, schedulers of short
tasks, planners."""


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy, described for people. `fields` are its settings with their defaults, `package` is its origin."""

    kind: str
    policy: str
    about: str
    source: str
    tags: Tags
    fields: Mapping[str, Any] = field(default_factory=dict)
    package: str = registry.OWN


def catalogue() -> list[PolicyEntry]:
    """Return every policy, kind by kind. Raises InputError for a package whose policy is unusable."""
    return [
        *(_of_profile(policy) for kind in registry.KINDS for policy in registry.policies(kind).values()),
        *_of_the_lab(),
    ]


def _of_the_lab() -> list[PolicyEntry]:
    """Return the policies of kant-lab, if it is installed."""
    if find_spec("kant.api.lab_policies") is None:
        return []
    from kant.api.lab_policies import entries

    return entries()


def _of_profile(policy: registry.KnownPolicy) -> PolicyEntry:
    defaults = msgspec.to_builtins(policy.type())
    fields = {field.name: defaults[field.name] for field in policy.fields}
    tags: Tags = policy.type.tags  # type: ignore[attr-defined]
    tags = tags if isinstance(tags, Mapping) else {}  # of another package; `kant check policy` reports it
    return PolicyEntry(policy.kind, policy.name, policy.about, policy.source, tags, fields, policy.package)


def of_object(kind: str, name: str, made: Any) -> PolicyEntry:
    """Return the entry of a policy that is an object with a docstring, `source` and `tags`."""
    parts = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
    fields = {part.name: getattr(made, part.name) for part in parts if part.init}
    about = " ".join((type(made).__doc__ or "").split("\n\n")[0].split())
    return PolicyEntry(kind, name, about, made.source, made.tags, fields)


def parse_where(texts: Sequence[str], where: str = "--where") -> list[tuple[str, str]]:
    """Return the pairs of `KEY=VALUE` texts. Raises InputError with the valid keys or values."""
    return [check_tag(*text.partition("=")[::2], where) for text in texts]


def check_tag(key: str, value: str, where: str) -> tuple[str, str]:
    """Return the pair, if the taxonomy has it. Raises InputError with the valid keys or values."""
    if key not in TAXONOMY:
        raise InputError(where, f"a tag such as method=learned, with a key of {', '.join(TAXONOMY)}", key)
    if value not in TAXONOMY[key]:
        raise InputError(where, f"{key}= and one of {', '.join(TAXONOMY[key])}", value)
    return key, value


def chosen(entries: Sequence[PolicyEntry], where: Sequence[tuple[str, str]]) -> list[PolicyEntry]:
    """Return the entries that have every one of the tags, in the same order."""
    return [entry for entry in entries if all(value in entry.tags.get(key, ()) for key, value in where)]


def own_tags(entry: PolicyEntry) -> str:
    """Return a policy's tags for people, without the most common ones."""
    keys = ("objective", "method", "knowledge", "preemption", "resources")
    found = ((key, entry.tags.get(key, ("none",))) for key in keys)
    return " · ".join(f"{key} {' '.join(values)}" for key, values in found if values != ("none",))
