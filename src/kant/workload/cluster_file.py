"""Reads a cluster: `32x8`, a TOML cluster file, or one of the two public inventories (docs/clusters.md)."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from kant.model.errors import InputError
from kant.model.node import MAX_GPUS, MAX_POOLS, ClusterSpec, Node
from kant.workload import cluster_lingjun, cluster_openb
from kant.workload.cluster_fabric import Wires, fabric_of
from kant.workload.cluster_toml import A_NAME, MAX_NODES, ClusterFile, FabricShape, NodeGroup, is_name, nodes_of, parsed

_SHORTHAND = re.compile(r"([0-9]{1,18})x([0-9]{1,18})")

MAX_BYTES = 256 << 20
"""The maximum size of a cluster file in bytes, after decompression."""
DEFAULT_SHAPE = FabricShape(nodes_per_leaf=32, leaves_per_spine=8)
"""The fabric of a cluster given as `NxG`."""
NO_WIRES = Wires()
"""The default speed of the fabric."""


def read_cluster(spec: str) -> ClusterSpec:
    """Return the cluster that `spec` names: `NxG` (N nodes of G GPUs), or the path of a cluster file.

    Raises InputError, and no other error, if `spec` is invalid.
    """
    shape = _SHORTHAND.fullmatch(spec.strip())
    if shape is not None:
        return regular_cluster(int(shape[1]), int(shape[2]))
    return parse_cluster(spec, _read(spec))


def regular_cluster(count: int, gpus: int, shape: FabricShape = DEFAULT_SHAPE) -> ClusterSpec:
    """Return `count` identical nodes of `gpus` GPUs in a regular fabric, without limits of CPU and memory."""
    if not (1 <= count <= MAX_NODES and 1 <= gpus <= MAX_GPUS):
        expected = f"NxG with 1 to {MAX_NODES:,} nodes of 1 to {MAX_GPUS} GPUs"
        raise InputError("cluster", expected, f"{count}x{gpus}")
    nodes = nodes_of("cluster", ClusterFile(nodes=[NodeGroup(gpus=gpus, count=count)], topology=shape))
    return _collect("cluster", f"{count}x{gpus}", nodes)


def parse_cluster(where: str, raw: bytes) -> ClusterSpec:
    """Return the cluster that the bytes of a cluster file describe. `where` is its path, for error messages."""
    text = _text(where, raw)
    path = Path(where.removesuffix(".gz"))
    if path.suffix == ".toml":
        file = parsed(where, text)
        return _collect(where, file.name or path.stem, nodes_of(where, file), file.fabric)
    rows = _rows(where, text)
    _, header = next(rows, ("", []))
    for known in (cluster_openb, cluster_lingjun):
        if sorted(header) == sorted(known.HEADER):
            table = ((line, dict(zip(header, row, strict=True))) for line, row in rows)
            return _collect(where, path.stem, known.nodes_of(table))
    headers = f"{','.join(cluster_openb.HEADER)} or {','.join(cluster_lingjun.HEADER)}"
    raise InputError(f"{where}, line 1", f"a .toml cluster file, or CSV columns {headers}", ",".join(header))


def _collect(where: str, name: str, nodes: Iterable[tuple[str, Node]], wires: Wires = NO_WIRES) -> ClusterSpec:
    """Build the spec. Raises InputError for invalid or repeated node names, and for an empty or too large cluster."""
    seen: set[str] = set()
    kept: list[Node] = []
    for line, node in nodes:
        if not is_name(node.name):
            raise InputError(line, A_NAME, node.name)
        if node.name in seen:
            raise InputError(line, "a unique node name", node.name)
        if len(kept) == MAX_NODES:
            raise InputError(where, f"at most {MAX_NODES:,} nodes")
        seen.add(node.name)
        kept.append(node)
    if not kept:
        raise InputError(where, "at least one node")
    pools = len({node.pool for node in kept})
    if pools > MAX_POOLS:
        what = "a GPU model with the queues, the MIG geometry and the flavor of its nodes"
        raise InputError(where, f"at most {MAX_POOLS} pools ({what})", pools)
    return ClusterSpec(name=name, nodes=tuple(kept), fabric=fabric_of(wires))


def _read(spec: str) -> bytes:
    try:
        with Path(spec).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("cluster", f"NxG such as 32x8, or a file that can be read ({reason})", spec) from None


def _text(where: str, raw: bytes) -> str:
    if raw.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                raw = file.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(where, f"a whole gzip file ({error})") from None
    if len(raw) > MAX_BYTES:
        raise InputError(where, f"at most {MAX_BYTES >> 20} MiB of text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(where, f"UTF-8 text (byte {error.start} is not)") from None


def _rows(where: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a CSV file, the header first, each with the line it ends on; all as wide as the header."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    width = -1
    try:
        for row in reader:
            line = f"{where}, line {reader.line_num}"
            if width < 0:
                width = len(row)
            elif len(row) != width:
                raise InputError(line, f"{width} columns", len(row))
            yield line, row
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}", f"CSV ({error})") from None
