"""Each form of a cluster is read as its page says (docs/clusters.md)."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kant.model.fabric import Fabric, Link
from kant.model.node import Node
from kant.model.units import FOREVER
from kant.workload.cluster_describe import describe_cluster
from kant.workload.cluster_file import parse_cluster, read_cluster

DataFile = Callable[[str], Path]
PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"

DEMO = b"""
name = "demo"
[[nodes]]
count = 40
gpus = 8
model = "H100"
cpu = 127.5
memory = "1.5TiB"
queues = ["6214e9", "b4"]
name = "h100-{index:03d}"
[[nodes]]
count = 16
gpus = 4
topology = { nodes_per_leaf = 8 }
[[nodes]]
count = 24
gpus = 8
model = "H100"
memory = 1024
name = "h100-{index:03d}"
[[nodes]]
gpus = 0
name = "login"
topology = {}
[topology]
nodes_per_leaf = 32
leaves_per_spine = 2
spines_per_superspine = 4
"""


def test_shorthand_is_a_regular_cluster() -> None:
    cluster = read_cluster("300x8")
    assert (cluster.name, len(cluster.nodes), cluster.gpus) == ("300x8", 300, 2400)
    assert cluster.nodes[0] == Node(name="node-00000", gpus=8, leaf="leaf-0", spine="spine-0")
    assert cluster.nodes[32].leaf == "leaf-1"
    assert (cluster.nodes[255].spine, cluster.nodes[256].spine) == ("spine-0", "spine-1")
    assert cluster.nodes[299] == Node(name="node-00299", gpus=8, leaf="leaf-9", spine="spine-1")


def test_a_toml_file_says_all_that_a_node_can_be() -> None:
    cluster = parse_cluster("demo.toml", DEMO)
    assert (cluster.name, len(cluster.nodes), cluster.gpus) == ("demo", 81, 40 * 8 + 16 * 4 + 24 * 8)
    queues = ("6214e9", "b4")
    first = Node("h100-000", 8, "H100", 127_500, 3 << 19, queues, "leaf-0", "spine-0", "superspine-0")
    assert cluster.nodes[0] == first
    own_fabric = cluster.nodes[40]
    assert own_fabric == Node(name="node-00000", gpus=4, leaf="leaf-2")
    assert cluster.nodes[55].leaf == "leaf-3"
    resumed = cluster.nodes[56]
    assert (resumed.name, resumed.leaf, resumed.cpu, resumed.memory) == ("h100-040", "leaf-1", FOREVER, 1024)
    assert cluster.nodes[80] == Node(name="login", gpus=0)


def test_a_toml_file_without_topology_describes_no_fabric() -> None:
    cluster = parse_cluster("small.toml.gz", gzip.compress(b"[[nodes]]\ngpus = 2"))
    assert (cluster.name, cluster.nodes) == ("small", (Node(name="node-00000", gpus=2),))


def test_a_fabric_is_the_default_but_for_what_is_said() -> None:
    text = (
        b"[fabric]\nbeyond = { contention = 9 }\nnode = { bandwidth_gb_s = 20, latency_us = 0.5 }\n[[nodes]]\ngpus = 2"
    )
    fabric, default = parse_cluster("given.toml", text).fabric, Fabric()
    assert fabric.node == Link(20.0, 0.5, 1.0)
    assert fabric.beyond == Link(default.beyond.bandwidth, default.beyond.latency, 9.0)
    assert fabric.links[1:4] == default.links[1:4]
    assert parse_cluster("plain.toml", b"[[nodes]]\ngpus = 2").fabric == default


def test_every_example_of_the_page_can_be_read() -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        assert parse_cluster("example.toml", example.encode()).gpus > 0


def test_columns_of_a_csv_file_may_stand_in_any_order() -> None:
    text = b"gpu,sn,model,memory_mib,cpu_milli\r\n2,a,T4,1024,64000\r\n0,b,,1024,64000\r\n"
    cluster = parse_cluster("list.csv", text)
    assert cluster.nodes == (Node(name="a", gpus=2, model="T4", cpu=64_000, memory=1024),)


def test_the_openb_node_list(data_file: DataFile) -> None:
    cluster = read_cluster(str(data_file("openb_nodes.csv.gz")))
    assert (cluster.name, len(cluster.nodes), cluster.gpus) == ("openb_nodes", 1213, 6212)
    said = describe_cluster(cluster)
    assert said["gpus_by_model"] == {
        "G2": 4392, "T4": 842, "G3": 312, "P100": 265, "V100M32": 204, "V100M16": 195, "A10": 2,
    }  # fmt: skip
    assert said["leaves"]["count"] == 0
    assert all(node.cpu < FOREVER and node.memory < FOREVER for node in cluster.nodes)


def test_the_lingjun_topology(data_file: DataFile) -> None:
    cluster = read_cluster(str(data_file("lingjun2023_topo.csv.gz")))
    assert (len(cluster.nodes), cluster.gpus) == (847, 6776)
    leaves = Counter(node.leaf for node in cluster.nodes)
    assert len(leaves) == 119
    assert Counter(leaves.values()) == {8: 68, 7: 23, 6: 15, 5: 7, 4: 2, 3: 1, 2: 3}
    spines = Counter(node.spine for node in cluster.nodes)
    assert spines == {"P10": 362, "P12": 306, "P8": 179}
    assert cluster.nodes[0] == Node(name="h000", gpus=8, leaf="P10/S14", spine="P10", superspine="G6")


def test_a_cluster_in_numbers() -> None:
    said = describe_cluster(parse_cluster("demo.toml", DEMO))
    assert json.loads(json.dumps(said)) == said
    assert said == {
        "name": "demo",
        "nodes": 81,
        "gpus": 576,
        "gpus_by_model": {"H100": 512, "": 64},
        "nodes_by_gpus": {"8": 64, "4": 16, "0": 1},
        "nodes_by_blocks": {},
        "gpus_by_mig": {},
        "cpu_milli": "not limited",
        "memory_mib": "not limited",
        "hbds": {"count": 0, "nodes_each": {}},
        "leaves": {"count": 4, "nodes_each": {"32": 2, "8": 2}},
        "spines": {"count": 1, "nodes_each": {"64": 1}},
        "superspines": {"count": 1, "nodes_each": {"64": 1}},
        "dedicated": {"6214e9": {"nodes": 40, "gpus": 320}, "b4": {"nodes": 40, "gpus": 320}},
    }


def test_leaves_hold_whole_hbds() -> None:
    """Four NVL72 racks of 18 nodes, two to a leaf, and a fifth that is not full."""
    file = b"[[nodes]]\ncount = 80\ngpus = 4\n[topology]\nnodes_per_hbd = 18\nnodes_per_leaf = 36"
    cluster = parse_cluster("racks.toml", file)
    assert [cluster.nodes[i].hbd for i in (0, 17, 18, 79)] == ["hbd-0", "hbd-0", "hbd-1", "hbd-4"]
    said = describe_cluster(cluster)
    assert said["hbds"] == {"count": 5, "nodes_each": {"18": 4, "8": 1}}
    assert said["leaves"] == {"count": 3, "nodes_each": {"36": 2, "8": 1}}
    alone = parse_cluster("racks.toml", file.replace(b"nodes_per_leaf = 36", b""))
    assert {node.leaf for node in alone.nodes} == {""} and alone.nodes[79].hbd == "hbd-4"


@pytest.mark.parametrize("amount", ['cpu = 1\nmemory = "1 GiB"', "cpu = 1.0\nmemory = 1024"])
def test_limits_have_totals(amount: str) -> None:
    said = describe_cluster(parse_cluster("a.toml", f"[[nodes]]\ncount = 3\ngpus = 1\n{amount}".encode()))
    assert (said["cpu_milli"], said["memory_mib"]) == (3000, 3072)
