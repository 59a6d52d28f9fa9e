"""The columns of a record's tables, as the page reads them (docs/record.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kant.cluster.columns import Table
from kant.model.node import ClusterSpec

JOB_COLUMNS = (
    "queue", "milli", "submit", "start", "end", "wait", "since", "status", "preemptions", "fewest_nodes",
    "fewest_leaves",
)  # fmt: skip
PIECE_COLUMNS = ("job", "node", "mask", "milli", "start", "end")
NODE_COLUMNS = ("node", "status", "since", "lost_low", "lost_high")
SERIES_COLUMNS = ("time", "allocated", "in_service", "fragmented", "nodes", "waiting_jobs", "waiting_milli")
SUBMIT, START, END, WAIT, SINCE, STATUS, PREEMPTIONS = (JOB_COLUMNS.index(n) for n in (
    "submit", "start", "end", "wait", "since", "status", "preemptions"))  # fmt: skip
LOW = (1 << 31) - 1


def described(spec: ClusterSpec) -> dict[str, Any]:
    """Return the nodes of a cluster as columns; `model` has indices into `models`."""
    models = sorted({node.model for node in spec.nodes})
    codes = {model: code for code, model in enumerate(models)}
    return {
        "names": [node.name for node in spec.nodes],
        "gpus": [node.gpus for node in spec.nodes],
        "models": models,
        "model": [codes[node.model] for node in spec.nodes],
        "leaf": [node.leaf for node in spec.nodes],
        "spine": [node.spine for node in spec.nodes],
        "superspine": [node.superspine for node in spec.nodes],
    }


def columns_of(names: Sequence[str], table: Table) -> dict[str, list[int]]:
    return dict(zip(names, table.T.tolist(), strict=True))
