"""The workload files of scheduler_perf, Kubernetes' own benchmark of schedulers, read where its repository has them.

They lie in the Go module `k8s.io/kubernetes`, of the version that the tests run, under test/integration/scheduler_perf.
The module comes through the Go module proxy when a run asks for it. Nothing of it is kept here: the files are the
Kubernetes authors', under the Apache License 2.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.kube.binaries import go_module

Object = dict[str, Any]

TOPICS = ("misc", "affinity", "topology_spreading", "volumes", "dra", "dra/extendedresource")
FOLDER = Path("test") / "integration" / "scheduler_perf"
LOCKED = ("SchedulerQueueingHints",)
"""Gates that this release does not let anybody change, though the files have workloads with and without them."""
PLACE = re.compile(r"\{\{\s*(.*?)\s*\}\}")


@dataclass(frozen=True)
class Workload:
    """One workload of one test case, with its parameters put in."""

    topic: str
    case: str
    name: str
    folder: Path
    """Paths of templates begin here."""
    labels: frozenset[str] = frozenset()
    gates: Mapping[str, bool] = field(default_factory=dict)
    ops: tuple[Object, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.case}/{self.name}"

    def template(self, path: str) -> str:
        return _text(self.folder / path)


def workloads(topics: tuple[str, ...] = TOPICS) -> list[Workload]:
    """All of them, in the order of the files. Raises NoBinariesError where the module cannot be had."""
    root = go_module("k8s.io/kubernetes") / FOLDER
    found = []
    for topic in topics:
        path = root / topic / "performance-config.yaml"
        for case in yaml.safe_load(path.read_text(encoding="utf-8")):
            found += [_workload(topic, case, each, path.parent) for each in case["workloads"]]
    return found


def scaled(workload: Workload, name: str, **params: int) -> Workload:
    """The same test case under another name, with parameters of our own."""
    path = workload.folder / "performance-config.yaml"
    cases = yaml.safe_load(path.read_text(encoding="utf-8"))
    case = next(each for each in cases if each["name"] == workload.case)
    given = next(each for each in case["workloads"] if each["name"] == workload.name)
    return _workload(
        workload.topic,
        case,
        {**given, "name": name, "labels": [], "params": {**given["params"], **params}},
        workload.folder,
    )


def _workload(topic: str, case: Object, given: Object, folder: Path) -> Workload:
    default = case.get("defaultPodTemplatePath")
    ops = tuple(_with_params(op, given["params"], default) for op in case["workloadTemplate"])
    gates = {**case.get("featureGates", {}), **given.get("featureGates", {})}
    labels = frozenset(case.get("labels", ())) | frozenset(given.get("labels", ()))
    free = {name: on for name, on in gates.items() if name not in LOCKED}
    return Workload(topic, case["name"], given["name"], folder, labels, free, ops)


def _with_params(op: Object, params: Mapping[str, Any], default: str | None) -> Object:
    """An op whose `countParam: $n` has become `count: <n>`, and so with every other field of that form."""
    made: Object = {}
    for key, value in op.items():
        if key.endswith("Param"):
            made[key.removesuffix("Param")] = params[str(value).removeprefix("$")]
        else:
            made[key] = _with_params(value, params, default) if key == "createPodsOp" else value
    if made["opcode"] == "createPods" and default is not None:
        made.setdefault("podTemplatePath", default)
    return made


# --- templates ---------------------------------------------------------------------------------------------------


def rendered(text: str, index: int = 0, count: int = 1) -> Object:
    """The object of a template, as Go's text/template makes it with .Index, .Count and the functions of the files."""
    values = {".Index": float(index), ".Count": float(count)}

    def put(found: re.Match[str]) -> str:
        first, *rest = found[1].split()
        if not rest:
            return f"{values[first]:.0f}"
        return f"{FUNCTIONS[first](*(values[each] if each in values else float(each) for each in rest)):g}"

    made: Object = yaml.load(PLACE.sub(put, text), Loader=_Loader)
    return made


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

FUNCTIONS: dict[str, Callable[..., float]] = {
    "AddInt": lambda *numbers: int(sum(numbers)),
    "SubtractInt": lambda a, b: int(a - b),
    "MultiplyInt": lambda a, b: int(a * b),
    "DivideInt": lambda a, b: int(a / b),
    "Mod": lambda a, b: int(a) % int(b),
}


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
