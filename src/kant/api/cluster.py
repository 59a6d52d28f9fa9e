"""`kant.Cluster`: the machines that jobs run on, and the fabric that connects them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath

import msgspec
import polars as pl

from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER
from kant.workload.cluster_file import parse_cluster, read_cluster


@dataclass(frozen=True)
class Cluster:
    """The nodes of a cluster, in the order of their indices. `inner` is Kant's internal object.

    Make one by `read` (NxG, or a cluster file) or `parse` (the TOML text of a cluster file). It is immutable.
    """

    inner: ClusterSpec

    @classmethod
    def read(cls, spec: str | PathLike[str]) -> Cluster:
        """Read a cluster: `"4x8"` (four nodes of eight GPUs), or the path of a cluster file. Raises InputError."""
        return cls(read_cluster(fspath(spec)))

    @classmethod
    def parse(cls, text: str, name: str = "cluster") -> Cluster:
        """Return the cluster described by a TOML text (docs/clusters.md). Raises InputError."""
        return cls(parse_cluster(f"{name}.toml", text.encode()))

    @cached_property
    def frame(self) -> pl.DataFrame:
        """A row for each node: its name, GPUs, GPU model, cores and memory (null: not limited), and its domains."""
        nodes = self.inner.nodes
        return pl.DataFrame(
            {
                "name": [node.name for node in nodes],
                "gpus": [node.gpus for node in nodes],
                "model": [node.model for node in nodes],
                "cores": [_limit(node.cpu, 1000) for node in nodes],
                "memory_mib": [_limit(node.memory, 1) for node in nodes],
                **{level: [_domain(node, level) for node in nodes] for level in ("hbd", "leaf", "spine", "superspine")},
            },
            schema_overrides={"cores": pl.Float64, "memory_mib": pl.Float64},
        )

    @property
    def name(self) -> str:
        """The name in tables and pictures."""
        return self.inner.name

    @property
    def gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return self.inner.gpus

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits: equal for the same nodes under the same fabric."""
        parts = msgspec.json.encode([self.inner.nodes, self.inner.fabric], order="deterministic")
        return hashlib.blake2b(parts, digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.inner.nodes)

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}: {len(self):,} nodes, {self.gpus:,} GPUs)"


def _limit(amount: int, unit: int) -> float | None:
    return None if amount >= FOREVER else amount / unit


def _domain(node: Node, level: str) -> str:
    name: str = getattr(node, level)
    return name
