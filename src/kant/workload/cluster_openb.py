"""Nodes of an openb node list: one production cluster of Alibaba with GPUs of several models.

Published with FGD (Weng et al., "Beware of Fragmentation", USENIX ATC'23). It does not describe the fabric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kant.model.errors import InputError
from kant.model.node import MAX_GPUS, Node

HEADER = ("sn", "cpu_milli", "memory_mib", "gpu", "model")

_WHOLE = re.compile(r"[0-9]{1,15}")
_MOST = 1 << 30


def nodes_of(rows: Iterable[tuple[str, dict[str, str]]]) -> Iterator[tuple[str, Node]]:
    """Yield the nodes with GPUs in file order, each with its line. Machines without GPUs are left out."""
    for line, row in rows:
        gpus = _whole(line, row, "gpu", MAX_GPUS)
        cpu = _whole(line, row, "cpu_milli", _MOST)
        memory = _whole(line, row, "memory_mib", _MOST)
        model = row["model"]
        if gpus and not (model and model.isprintable() and len(model) <= 253):
            raise InputError(f"{line}, model", "the GPU model of a node with GPUs", model)
        if gpus:
            yield line, Node(name=row["sn"], gpus=gpus, model=model, cpu=cpu, memory=memory)


def _whole(line: str, row: dict[str, str], column: str, most: int) -> int:
    text = row[column]
    value = int(text) if _WHOLE.fullmatch(text) else -1
    if not 0 <= value <= most:
        raise InputError(f"{line}, {column}", f"a whole number from 0 to {most:,}", text)
    return value
