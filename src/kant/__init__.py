"""Kant: one scheduling core for AI clusters, live and in simulated time.

Each name below is loaded at its first use, so that `import kant` is fast. docs/python.md describes the names.
"""

from __future__ import annotations

__version__ = "0.3.0"

_PLACES = {
    "Cluster": "kant.api.cluster",
    "Discipline": "kant.queueing.discipline",
    "InputError": "kant.model.errors",
    "NodePolicy": "kant.placement.policy",
    "Order": "kant.queueing.order",
    "Profile": "kant.api.profile",
    "Result": "kant.api.result",
    "Workload": "kant.api.workload",
    "check_policy": "kant.testing.conformance",
    "columns": "kant.cluster",
    "compare": "kant.api.result",
    "inlined": "kant.compiled",
    "plot": "kant.api",
    "policies": "kant.api.policies",
    "simulate": "kant.api.simulate",
    "tagged": "kant.model.taxonomy",
}
"""The module in which each name of `__all__` is defined, or the package whose module of that name it is."""

__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'kant' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_PLACES[name])
    found = getattr(module, name, None)
    globals()[name] = found if found is not None else import_module(f"{_PLACES[name]}.{name}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
