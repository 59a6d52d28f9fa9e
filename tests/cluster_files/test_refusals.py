"""Whatever is wrong with a cluster is said in one sentence that names the file and the field."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kant.model.errors import InputError
from kant.workload.cluster_file import parse_cluster, read_cluster
from kant.workload.cluster_toml import MAX_NODES

ONE = "[[nodes]]\ngpus = 8\n"
OPENB = "sn,cpu_milli,memory_mib,gpu,model\n"
LINGJUN = "ip,DSW,PSW,ASW\n"

TOML_CASES = {
    "unknown key": (ONE + "gpu = 8", "c.toml, [[nodes]] 1: expected only the keys gpus, count", "got 'gpu'"),
    "unknown table": (ONE + "[racks]", "c.toml: expected only the keys nodes, name, topology, fabric", "'racks'"),
    "unknown wire": (ONE + "[fabric.rack]", "c.toml, fabric: expected only the keys node, hbd, leaf", "'rack'"),
    "unknown of a wire": (
        "fabric.leaf.speed = 1\n" + ONE,
        "c.toml, fabric, leaf: expected only the keys band",
        "'speed'",
    ),
    "wire as number": ("fabric.leaf = 1\n" + ONE, "c.toml, fabric, leaf: expected a table of bandwidth_gb_s", "got 1"),
    "fabric as text": ("fabric = 'x'\n" + ONE, "c.toml, fabric: expected a table of node, hbd", "got 'x'"),
    "no bandwidth": (
        "fabric.beyond.bandwidth_gb_s = 0\n" + ONE,
        "c.toml, fabric, beyond, bandwidth_gb_s: expected GB/s of one GPU",
        "got 0",
    ),
    "endless latency": (
        "fabric.node.latency_us = inf\n" + ONE,
        "c.toml, fabric, node, latency_us: expected",
        "got inf",
    ),
    "no number of contention": (
        "fabric.spine.contention = nan\n" + ONE,
        "c.toml, fabric, spine, contention: expected a factor from 1",
        "got nan",
    ),
    "unknown level": (ONE + "[topology]\nracks = 1", "c.toml, topology: expected only the keys nodes", "racks"),
    "no nodes key": ("name = 'x'", "c.toml: expected the key nodes, one or more [[nodes]] tables", ""),
    "no nodes": ("nodes = []", "c.toml: expected at least one node", ""),
    "nodes not tables": ("nodes = [3]", "c.toml, [[nodes]] 1: expected a table", "got 3"),
    "nodes not a list": ("nodes = 3", "c.toml, nodes: expected one or more [[nodes]] tables", "got 3"),
    "no gpus": ("[[nodes]]", "c.toml, [[nodes]] 1: expected the key gpus, a whole number of GPUs", ""),
    "too many gpus": ("[[nodes]]\ngpus = 63", "c.toml, [[nodes]] 1, gpus: expected", "0 to 62, got 63"),
    "negative gpus": ("[[nodes]]\ngpus = -1", "c.toml, [[nodes]] 1, gpus: expected", "got -1"),
    "half a gpu": ("[[nodes]]\ngpus = 0.5", "c.toml, [[nodes]] 1, gpus: expected a whole number", "got 0.5"),
    "true gpus": ("[[nodes]]\ngpus = true", "c.toml, [[nodes]] 1, gpus: expected", "got True"),
    "no count": (ONE + ONE + "count = 0", "c.toml, [[nodes]] 2, count: expected a whole number from 1", "0"),
    "huge count": (ONE + "count = 1000001", "c.toml, [[nodes]] 1, count: expected", "to 1,000,000, got"),
    "huge sum": (2 * (ONE + "count = 600000\n"), "c.toml, nodes: expected at most 1,000,000 nodes in all", ""),
    "endless count": (ONE + "count = " + "9" * 5000, "c.toml: expected TOML", ""),
    "numbered model": (ONE + "model = 100", "c.toml, [[nodes]] 1, model: expected text", "got 100"),
    "zero cpu": (ONE + "cpu = 0", "c.toml, [[nodes]] 1, cpu: expected cores", "got 0"),
    "fine cpu": (ONE + "cpu = 0.0001", "c.toml, [[nodes]] 1, cpu: expected cores", "got 0.0001"),
    "endless cpu": (ONE + "cpu = inf", "c.toml, [[nodes]] 1, cpu: expected cores", "got inf"),
    "no number of cpus": (ONE + "cpu = nan", "c.toml, [[nodes]] 1, cpu: expected cores", "got nan"),
    "decimal memory": (ONE + "memory = '2TB'", "c.toml, [[nodes]] 1, memory: expected", "got '2TB'"),
    "part of a MiB": (ONE + "memory = '0.3MiB'", "c.toml, [[nodes]] 1, memory: expected memory as whole", ""),
    "no memory": (ONE + "memory = 0", "c.toml, [[nodes]] 1, memory: expected memory as whole", "got 0"),
    "huge memory": (ONE + "memory = '2000TiB'", "c.toml, [[nodes]] 1, memory: expected", "got '2000TiB'"),
    "one queue": (ONE + "queues = 'a'", "c.toml, [[nodes]] 1, queues: expected a list of queue names", "'a'"),
    "no queue": (ONE + "queues = []", "c.toml, [[nodes]] 1, queues: expected a list of queue names", "[]"),
    "queue twice": (ONE + "queues = ['a', 'a']", "c.toml, [[nodes]] 1, queues: expected", "each once"),
    "queue as number": (ONE + "queues = ['a', 3]", "c.toml, [[nodes]] 1, queues 2: expected", "got 3"),
    "same name": (ONE + "count = 2\nname = 'a'", "[[nodes]] 1, name: expected a unique node name", "'a'"),
    "same names": (
        ONE + "name = 'a-{index:02d}'\n" + ONE + "name = 'a-00'",
        "c.toml, [[nodes]] 2, name: expected a unique node name",
        "got 'a-00'",
    ),
    "name of spaces": (ONE + "name = 'a b'", "c.toml, [[nodes]] 1, name: expected a name", "got 'a b'"),
    "other braces": (ONE + "name = 'a-{count}'", "c.toml, [[nodes]] 1, name: expected", "got 'a-{count}'"),
    "empty name": ("name = ''\n" + ONE, "c.toml, name: expected text", "got ''"),
    "gap of levels": (
        ONE + "[topology]\nleaves_per_spine = 4",
        "c.toml, topology: expected nodes_per_leaf if leaves_per_spine is given",
        "",
    ),
    "gap in a group": (
        ONE + "[nodes.topology]\nnodes_per_leaf = 4\nspines_per_superspine = 2",
        "c.toml, [[nodes]] 1, topology: expected leaves_per_spine if spines_per_superspine is given",
        "",
    ),
    "leaves that cut an HBD": (
        ONE + "[nodes.topology]\nnodes_per_hbd = 18\nnodes_per_leaf = 32",
        "c.toml, [[nodes]] 1, topology, nodes_per_leaf: expected a multiple of nodes_per_hbd (18)",
        "got 32",
    ),
    "no leaf": (ONE + "topology.nodes_per_leaf = 0", "[[nodes]] 1, topology, nodes_per_leaf: expected", "0"),
    "not TOML": ("nodes", "c.toml: expected TOML (", ""),
    "too deep": ("a = " + "[" * 100_000, "c.toml: expected TOML (", ""),
    "empty": ("", "c.toml: expected the key nodes", ""),
}

CSV_CASES = {
    "unknown columns": ("a,b\n1,2\n", "c.csv, line 1: expected a .toml cluster file, or CSV columns sn", "'a,b'"),
    "empty": ("", "c.csv, line 1: expected", "got ''"),
    "only a header": (OPENB, "c.csv: expected at least one node", ""),
    "no GPUs at all": (OPENB + "a,1,1,0,\n", "c.csv: expected at least one node", ""),
    "short row": (OPENB + "a,1,1,2\n", "c.csv, line 2: expected 5 columns, got 4", ""),
    "blank row": (OPENB + "\n", "c.csv, line 2: expected 5 columns, got 0", ""),
    "gpu as text": (OPENB + "a,1,1,two,T4\n", "c.csv, line 2, gpu: expected a whole number from 0 to 62", "'two'"),
    "spaced gpu": (OPENB + "a,1,1, 2,T4\n", "c.csv, line 2, gpu: expected", "got ' 2'"),
    "too many GPUs": (OPENB + "a,1,1,63,T4\n", "c.csv, line 2, gpu: expected", "got '63'"),
    "huge cpu": (OPENB + f"a,{10**30},1,2,T4\n", "c.csv, line 2, cpu_milli: expected", ""),
    "no model": (OPENB + "a,1,1,2,\n", "c.csv, line 2, model: expected the GPU model", "got ''"),
    "no name": (OPENB + ",1,1,2,T4\n", "c.csv, line 2: expected a name", "got ''"),
    "name twice": (OPENB + 2 * "a,1,1,2,T4\n", "c.csv, line 3: expected a unique node name", "'a'"),
    "open quote": (OPENB + '"a,1,1,2,T4\n', "c.csv, line 2: expected CSV (", ""),
    "no switch": (LINGJUN + "h1,G6,P1,\n", "c.csv, line 2, ASW: expected the name of a switch", "got ''"),
    "slash in a switch": (LINGJUN + "h1,G6,P/1,S1\n", "c.csv, line 2, PSW: expected the name of a switch", ""),
    "two roots": (
        LINGJUN + "h1,G6,P1,S1\nh2,G7,P1,S1\n",
        "c.csv, line 3, DSW: expected G6, as on the earlier lines of PSW P1, got 'G7'",
        "",
    ),
}


@pytest.mark.parametrize(("text", "begins", "holds"), TOML_CASES.values(), ids=TOML_CASES)
def test_a_toml_file_is_refused(text: str, begins: str, holds: str) -> None:
    _check("c.toml", text.encode(), begins, holds)


@pytest.mark.parametrize(("text", "begins", "holds"), CSV_CASES.values(), ids=CSV_CASES)
def test_a_csv_file_is_refused(text: str, begins: str, holds: str) -> None:
    _check("c.csv", text.encode(), begins, holds)


def test_broken_bytes_are_refused() -> None:
    whole = gzip.compress(ONE.encode() * 50)
    _check("c.toml.gz", whole[:-9], "c.toml.gz: expected a whole gzip file (", "")
    _check("c.toml.gz", whole[:20] + b"\xff" * 20, "c.toml.gz: expected a whole gzip file (", "")
    _check("c.toml", b"\xff\xfe", "c.toml: expected UTF-8 text (byte 0 is not)", "")


def test_a_gzip_file_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kant.workload.cluster_file.MAX_BYTES", 1 << 20)
    _check("c.csv.gz", gzip.compress(b"\0" * (2 << 20)), "c.csv.gz: expected at most 1 MiB of text", "")


@pytest.mark.parametrize(
    "spec",
    ["0x8", "8x0", "4x63", f"{MAX_NODES + 1}x8", "9" * 18 + "x8", "9" * 40 + "x8", "-1x8", "8", "", "a\0b", "x" * 9999],
)
def test_a_shorthand_or_path_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match=r"^cluster: expected NxG") as refusal:
        read_cluster(spec)
    assert "\n" not in str(refusal.value)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a file that can be read"):
        read_cluster(str(tmp_path))


def _check(where: str, raw: bytes, begins: str, holds: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_cluster(where, raw)
    sentence = str(refusal.value)
    assert begins in sentence
    assert sentence.startswith(where)
    assert holds in sentence
    assert "\n" not in sentence
