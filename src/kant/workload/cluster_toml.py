"""The TOML cluster file: groups of identical nodes, and the fabric that joins them (docs/clusters.md)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Literal

from msgspec import Meta, Struct

from kant.model.errors import InputError
from kant.model.mig import GEOMETRIES
from kant.model.node import MAX_GPUS, Node
from kant.model.units import FOREVER
from kant.toml_file import mebibytes_of, parse_toml
from kant.workload.cluster_fabric import EXPECTED, Wires

MAX_NODES = 1_000_000
"""The maximum number of nodes of a cluster."""
MAX_MEMORY = 1 << 30
"""The maximum MiB of one node (1 PiB). The sum over MAX_NODES nodes is far below the limit of 64 bits."""
MAX_CPU = 1_000_000_000
"""The maximum thousandths of a core of one node (a million cores)."""

_INDEX = re.compile(r"\{index(?::0([0-9]{1,2})d)?\}")

Count = Annotated[int, Meta(ge=1, le=MAX_NODES)]


Block = Annotated[int, Meta(ge=1, le=MAX_GPUS)]


class FabricShape(Struct, frozen=True, forbid_unknown_fields=True):
    """A regular fabric: the size of one domain of each level. None: the level is not described."""

    nodes_per_hbd: Count | None = None
    nodes_per_leaf: Count | None = None
    leaves_per_spine: Count | None = None
    spines_per_superspine: Count | None = None


class NodeGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[nodes]]` table: `count` identical nodes."""

    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS)]
    count: Count = 1
    model: str = ""
    cpu: int | float | None = None
    memory: int | str | None = None
    queues: list[str] | None = None
    name: str = "node-{index:05d}"
    topology: FabricShape | None = None
    nvlink: Block | None = None
    numa: Block | None = None
    nic: Block | None = None
    mig: Literal[tuple(GEOMETRIES)] | None = None  # type: ignore[valid-type]
    flavor: str = ""


class ClusterFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole TOML cluster file."""

    nodes: list[NodeGroup]
    name: str | None = None
    topology: FabricShape = FabricShape()
    fabric: Wires = Wires()


_A_COUNT = f"a whole number from 1 to {MAX_NODES:,}"
A_NAME = "a name of 1 to 253 printable characters without spaces"
_SOME_TEXT = "text of 1 to 253 printable characters"
_EXPECTED = {
    "name": _SOME_TEXT,
    "nodes": "one or more [[nodes]] tables",
    "topology": "a table of nodes_per_hbd, nodes_per_leaf, leaves_per_spine and spines_per_superspine",
    "nodes_per_hbd": _A_COUNT,
    "nodes_per_leaf": _A_COUNT,
    "leaves_per_spine": _A_COUNT,
    "spines_per_superspine": _A_COUNT,
    "count": _A_COUNT,
    "gpus": f"a whole number of GPUs from 0 to {MAX_GPUS}",
    **dict.fromkeys(("nvlink", "numa", "nic"), f"a whole number of GPUs from 1 to {MAX_GPUS}"),
    "mig": f"a MIG geometry: {', '.join(GEOMETRIES)}",
    **dict.fromkeys(("model", "flavor"), _SOME_TEXT),
    "cpu": "cores as a number above 0 with at most three decimals",
    "memory": "memory as whole MiB above 0, or text such as 512GiB or 2TiB",
    "queues": "a list of queue names (leave it out to serve every queue)",
    **EXPECTED,
}


def parsed(where: str, text: str) -> ClusterFile:
    """Parse the file; `nodes_of` checks the fields of single nodes. Raises InputError."""
    file = parse_toml(where, text, ClusterFile, _EXPECTED)
    if file.name is not None and not is_text(file.name):
        raise InputError(f"{where}, name", _SOME_TEXT, file.name)
    if sum(group.count for group in file.nodes) > MAX_NODES:
        raise InputError(f"{where}, nodes", f"at most {MAX_NODES:,} nodes in all")
    return file


def nodes_of(where: str, file: ClusterFile) -> Iterator[tuple[str, Node]]:
    """Yield all nodes of the file, each with the location of its group in the file."""
    issued: Counter[str] = Counter()  # domains of each level named so far, in the whole file
    numbered: Counter[str] = Counter()  # nodes named so far, by pattern
    common = _Fabric(f"{where}, topology", file.topology, issued)
    for number, group in enumerate(file.nodes, start=1):
        place = f"{where}, [[nodes]] {number}"
        fabric = common if group.topology is None else _Fabric(f"{place}, topology", group.topology, issued)
        cpu, memory = _cpu(place, group.cpu), _memory(place, group.memory)
        queues = _queues(place, group.queues)
        for key, text in (("model", group.model), ("flavor", group.flavor)):
            if text and not is_text(text):
                raise InputError(f"{place}, {key}", _SOME_TEXT, text)
        blocks = _blocks(place, group)
        if group.mig and not group.gpus:
            raise InputError(f"{place}, mig", "a MIG geometry only if a node has GPUs", group.mig)
        pattern = _Pattern(f"{place}, name", group.name)
        for _ in range(group.count):
            hbd, leaf, spine, superspine = fabric.next_domains()
            name = pattern.name(numbered[group.name])
            numbered[group.name] += 1
            node = Node(
                name, group.gpus, group.model, cpu, memory, queues, leaf, spine, superspine, hbd, *blocks,
                group.mig or "", group.flavor,
            )  # fmt: skip
            yield f"{place}, name", node


class _Fabric:
    """Assigns domains of one regular shape, node by node; `issued` numbers the domains of the whole file."""

    def __init__(self, where: str, shape: FabricShape, issued: Counter[str]) -> None:
        sizes = (shape.nodes_per_leaf, shape.leaves_per_spine, shape.spines_per_superspine)
        fields = shape.__struct_fields__[1:]
        span = 1
        self.levels: list[tuple[int, str, int]] = []  # index, word, nodes in one domain
        for level, (word, size) in enumerate(zip(("leaf", "spine", "superspine"), sizes, strict=True), start=1):
            if size is None:
                continue
            if len(self.levels) < level - 1:
                raise InputError(where, f"{fields[level - 2]} if {fields[level - 1]} is given")
            span *= size
            self.levels.append((level, word, span))
        if shape.nodes_per_hbd is not None:
            if shape.nodes_per_leaf is not None and shape.nodes_per_leaf % shape.nodes_per_hbd:
                expected = f"a multiple of nodes_per_hbd ({shape.nodes_per_hbd})"
                raise InputError(f"{where}, nodes_per_leaf", expected, shape.nodes_per_leaf)
            self.levels.insert(0, (0, "hbd", shape.nodes_per_hbd))
        self.issued = issued
        self.placed = 0
        self.now = ["", "", "", ""]

    def next_domains(self) -> tuple[str, str, str, str]:
        """Return the HBD, leaf, spine and superspine of the next node."""
        for level, word, span in self.levels:
            if self.placed % span == 0:
                self.now[level] = f"{word}-{self.issued[word]}"
                self.issued[word] += 1
        self.placed += 1
        return self.now[0], self.now[1], self.now[2], self.now[3]


class _Pattern:
    """Creates node names from a pattern with `{index}` or `{index:05d}`. Nothing else may be in braces."""

    def __init__(self, where: str, pattern: str) -> None:
        field = _INDEX.search(pattern)
        self.head = pattern if field is None else pattern[: field.start()]
        self.tail = "" if field is None else pattern[field.end() :]
        self.width = -1 if field is None else int(field[1] or 0)
        if not is_name(pattern) or set("{}") & set(self.head + self.tail):
            expected = f"{A_NAME}, with at most one {{index}}, as in gpu-{{index:05d}}"
            raise InputError(where, expected, pattern)

    def name(self, index: int) -> str:
        return self.head if self.width < 0 else f"{self.head}{index:0{self.width}d}{self.tail}"


def _cpu(place: str, cores: float | None) -> int:
    """Return cores in thousandths of a core; FOREVER for None."""
    if cores is None:
        return FOREVER
    milli = Fraction(str(cores)) * 1000 if abs(cores) < FOREVER else Fraction(-1)
    if milli.denominator != 1 or not 0 < milli <= MAX_CPU:
        raise InputError(f"{place}, cpu", _EXPECTED["cpu"], cores)
    return int(milli)


def _memory(place: str, amount: int | str | None) -> int:
    """Return an amount of memory in MiB; FOREVER for None."""
    if amount is None:
        return FOREVER
    mib = mebibytes_of(amount) if isinstance(amount, str) else amount
    if mib is None or mib.denominator != 1 or not 0 < mib <= MAX_MEMORY:
        raise InputError(f"{place}, memory", _EXPECTED["memory"], amount)
    return int(mib)


def _blocks(place: str, group: NodeGroup) -> tuple[int, int, int]:
    """Return the GPUs of an NVLink island, of a NUMA node and under a PCIe switch; 0 for a value that is not given."""
    nvlink, numa, nic = group.nvlink or 0, group.numa or 0, group.nic or 0
    if not Node("", group.gpus, nvlink=nvlink, numa=numa, nic=nic).is_regular:
        given = ", ".join(str(size) for size in (nvlink, numa, nic) if size)
        expected = f"sizes that divide each other and the {group.gpus} GPUs of the node"
        raise InputError(f"{place}, nvlink, numa and nic", expected, given)
    return nvlink, numa, nic


def _queues(place: str, queues: list[str] | None) -> tuple[str, ...]:
    if queues is None:
        return ()
    if not queues or len(set(queues)) < len(queues) or not all(is_name(queue) for queue in queues):
        raise InputError(f"{place}, queues", _EXPECTED["queues"] + ", each once", queues)
    return tuple(queues)


def is_text(text: str) -> bool:
    return 1 <= len(text) <= 253 and text.isprintable()


def is_name(text: str) -> bool:
    return is_text(text) and " " not in text
