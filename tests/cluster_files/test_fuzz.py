"""No bytes make the readers raise anything but InputError; what they accept keeps the promises of Node."""

from __future__ import annotations

import gzip
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kant.model.errors import InputError
from kant.model.node import MAX_GPUS, ClusterSpec
from kant.model.units import FOREVER
from kant.workload.cluster_describe import describe_cluster
from kant.workload.cluster_file import parse_cluster, read_cluster
from kant.workload.cluster_toml import MAX_NODES

WHOLE = {
    "a.toml": b'name = "x"\n[[nodes]]\ncount = 9\ngpus = 8\nmodel = "H100"\ncpu = 1.5\nmemory = "2TiB"\n'
    b'queues = ["a"]\nname = "n-{index:02d}"\n[[nodes]]\ngpus = 2\n[topology]\nnodes_per_leaf = 4\nnodes_per_hbd = 2\n',
    "b.csv": b"sn,cpu_milli,memory_mib,gpu,model\na,1000,2000,4,T4\nb,1000,2000,0,\nc,1,2,8,G2\n",
    "c.csv": b"ip,DSW,PSW,ASW\nh1,G6,P1,S1\nh2,G6,P1,S1\nh3,G6,P2,S1\n",
}
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.datetimes()
KEY = st.sampled_from(
    [
        "name",
        "nodes",
        "topology",
        "count",
        "gpus",
        "model",
        "cpu",
        "memory",
        "queues",
        "nodes_per_leaf",
        "nodes_per_hbd",
    ]
)


def check(where: str, raw: bytes) -> None:
    try:
        spec = parse_cluster(where, raw)
    except InputError as refusal:
        assert str(refusal).startswith(where)
        assert "\n" not in str(refusal)
    else:
        check_spec(spec)


def check_spec(spec: ClusterSpec) -> None:
    assert 1 <= len(spec.nodes) <= MAX_NODES
    assert len({node.name for node in spec.nodes}) == len(spec.nodes)
    for node in spec.nodes:
        assert node.name
        assert 0 <= node.gpus <= MAX_GPUS
        assert 0 <= node.cpu <= FOREVER
        assert 0 <= node.memory <= FOREVER
        assert node.leaf or not node.spine
        assert node.spine or not node.superspine
    above: dict[str, tuple[str, str]] = {}
    for node in spec.nodes:
        if node.leaf:
            assert above.setdefault(node.leaf, (node.spine, node.superspine)) == (node.spine, node.superspine)
    assert describe_cluster(spec)["gpus"] == spec.gpus


@pytest.mark.parametrize("name", WHOLE)
def test_the_starting_points_are_whole(name: str) -> None:
    check_spec(parse_cluster(name, WHOLE[name]))


@given(st.sampled_from(["a.toml", "a.csv", "a", "a.toml.gz", ""]), st.binary(max_size=400))
@example("a.csv", b'"\0')
@example("a.toml", b"\x1f\x8b")
def test_random_bytes(where: str, raw: bytes) -> None:
    check(where, raw)


@given(st.text(max_size=60))
def test_random_specs(spec: str) -> None:
    with suppress(InputError):
        check_spec(read_cluster(f"{spec}\0"))  # never the name of a file that exists
    with suppress(InputError):
        check_spec(parse_cluster(spec, spec.encode("utf-8", "replace")))


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_mutated_files(name: str, data: st.DataObject) -> None:
    raw = bytearray(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), begin + data.draw(st.integers(0, 8)))
        raw[begin:end] = data.draw(st.binary(max_size=4) | st.sampled_from([b"\n", b",", b'"', b"-1", b"{", b"]"]))
    check(name, bytes(raw))


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_truncated_and_damaged_gzip(name: str, data: st.DataObject) -> None:
    raw = bytearray(gzip.compress(WHOLE[name], mtime=0))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    check(name, bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@given(st.dictionaries(KEY, LEAF | st.lists(LEAF, max_size=3) | st.dictionaries(KEY, LEAF, max_size=3), max_size=6))
def test_nodes_of_every_type(group: dict[str, object]) -> None:
    check("a.toml", f"nodes = [{_toml(group)}]".encode("utf-8", "replace"))
    check("a.toml", f"nodes = [{{gpus = 1}}]\ntopology = {_toml(group)}".encode("utf-8", "replace"))


def _toml(value: object) -> str:
    """`value` as TOML writes it (good enough: what is not TOML is refused too)."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case bool():
            return str(value).lower()
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case None:
            return '""'
        case _:
            return str(value)
