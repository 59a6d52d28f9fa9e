"""Requirements of a pod for its node besides amounts: selectors, node affinity, tolerations. Some are rejected.

Source: k8s.io/component-helpers, scheduling/corev1 (nodeaffinity, helpers): the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kant.kube.objects import views as k
from kant.model.errors import InputError

NAME = "metadata.name"
"""The field of a node that `matchFields` may name. Its value is kept among the node's labels."""

DEVICE = "resource:"
"""Prefix of the key under which a node's amount of another resource is kept among its labels."""

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
Taint = tuple[str, str, str]
"""Key, value and effect of a taint."""


class Term(NamedTuple):
    """A set of requirements, all of which a node must meet."""

    requirements: tuple[k.Requirement, ...]


class Selection(NamedTuple):
    """The requirements of a pod: all of `always`; one of `terms` (None: no terms); and its tolerations."""

    always: tuple[k.Requirement, ...]
    terms: tuple[Term, ...] | None
    tolerations: tuple[k.Toleration, ...]

    def selects(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether a node with these labels and this name is selected, regardless of taints and amounts of resources."""
        own = tuple(one for one in self.always if not one.key.startswith(DEVICE))
        return self._replace(always=own).admits({**labels, NAME: name}, ())

    def admits(self, labels: Mapping[str, str], taints: Iterable[Taint]) -> bool:
        """Whether a pod with this selection may run on a node with these labels and hard taints."""
        if not all(matches(labels, requirement) for requirement in self.always):
            return False
        if self.terms is not None and not any(
            term.requirements and all(matches(labels, one) for one in term.requirements) for term in self.terms
        ):
            return False
        return all(any(tolerates(one, taint) for one in self.tolerations) for taint in taints)


def selection_of(
    spec: k.PodSpec, where: str = "spec", devices: tuple[tuple[str, int], ...] = (), models: str = ""
) -> Selection:
    """Return a pod's requirements, including amounts of `devices`, except for the label `models`. Raises InputError."""
    always = [
        k.Requirement(key, "In", (value,)) for key, value in sorted((spec.node_selector or {}).items()) if key != models
    ]
    always += [k.Requirement(f"{DEVICE}{name}", "Gt", (str(number - 1),)) for name, number in devices]
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    terms = None
    if required is not None:
        terms = terms_of(required, f"{where}.affinity.nodeAffinity")
    return Selection(tuple(always), terms, spec.tolerations)


def terms_of(required: k.NodeSelector, where: str) -> tuple[Term, ...]:
    """Return the terms; a node must meet at least one of them. Raises InputError if a term is malformed."""
    terms = tuple(checked_term(term, where) for term in required.node_selector_terms)
    if not terms:
        raise InputError(where, "at least one term in nodeSelectorTerms")
    return terms


def checked_term(term: k.SelectorTerm, where: str) -> Term:
    """Return the requirements of a term. Raises InputError if one of them is malformed."""
    for field in term.match_fields:
        if field.key != NAME or field.operator not in ("In", "NotIn"):
            raise InputError(f"{where}.matchFields", f"{NAME} with In or NotIn", f"{field.key} {field.operator}")
    for requirement in term.match_expressions:
        _check(requirement, f"{where}.matchExpressions, {requirement.key}")
    return Term((*term.match_expressions, *term.match_fields))


def _check(requirement: k.Requirement, where: str) -> None:
    if requirement.operator not in OPERATORS:
        raise InputError(f"{where}, operator", f"one of {', '.join(OPERATORS)}", requirement.operator)
    numbers = [_number(value) for value in requirement.values]
    if requirement.operator in ("Gt", "Lt") and (len(numbers) != 1 or numbers[0] is None):
        raise InputError(f"{where}, values", "one whole number", ", ".join(requirement.values))


def _number(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else None


def matches(labels: Mapping[str, str], requirement: k.Requirement) -> bool:
    """Whether labels meet a requirement. A missing label meets NotIn and DoesNotExist, but neither Gt nor Lt."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    number, bound = _number(value) if value is not None else None, _number(requirement.values[0])
    if number is None or bound is None:
        return False
    return number > bound if requirement.operator == "Gt" else number < bound


def tolerates(toleration: k.Toleration, taint: Taint) -> bool:
    """Whether a toleration tolerates this taint."""
    key, value, effect = taint
    if (toleration.effect and toleration.effect != effect) or (toleration.key and toleration.key != key):
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == value


# --- rules among pods --------------------------------------------------------------------------------------------


def check_neighbours(pod: k.Pod, where: str) -> None:
    """Raise InputError for required affinity rules that Kant cannot enforce."""
    spec = pod.spec
    for constraint in spec.topology_spread_constraints:
        for requirement in constraint.label_selector.match_expressions if constraint.label_selector else ():
            _check(requirement, f"{where}.topologySpreadConstraints, {requirement.key}")
    affinity = spec.affinity or k.Affinity()
    for terms, word in ((affinity.pod_affinity, "podAffinity"), (affinity.pod_anti_affinity, "podAntiAffinity")):
        for term in terms.required_during_scheduling_ignored_during_execution if terms else ():
            place = f"{where}.affinity.{word}"
            if term.namespace_selector not in (None, k.LabelSelector()):
                raise InputError(
                    f"{place}, namespaceSelector", "no such selector: Kant has no permission to list namespaces"
                )
            for requirement in term.label_selector.match_expressions if term.label_selector else ():
                _check(requirement, f"{place}, {requirement.key}")


def selects(selector: k.LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches these labels. An empty selector matches all labels."""
    return all(labels.get(key) == value for key, value in (selector.match_labels or {}).items()) and all(
        matches(labels, requirement) for requirement in selector.match_expressions
    )
