"""`kant pack` as a person calls it: a file in, a plan out, and one sentence where the file cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant

NODE = {"name": "n0", "resources": {"gpu": 8}, "model": "H100", "domains": {"leaf": "a"}}
POD = {"name": "p0", "requests": {"gpu": 4}}


def write(tmp_path: Path, instance: Any) -> Path:
    path = tmp_path / "instance.json"
    path.write_text(instance if isinstance(instance, str) else json.dumps(instance))
    return path


@pytest.mark.long
def test_a_generated_instance_is_packed_and_proven(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    options = ["--nodes", "4", "--pods-per-node", "4", "--priorities", "2", "--util", "0.95", "--seed", "1"]
    assert kant("pack", "generate", *options, "--out", path).code == 0
    assert kant("pack", "generate", *options).out == path.read_text()
    answer = kant("pack", path, "--json").json()
    assert answer["proven"] and answer["disturbed"] == answer["disturbed_bound"] == 1
    after = [(row["priority"], row["pods"], row["before"], row["after"], row["bound"]) for row in answer["priorities"]]
    assert after == [(2, 6, 6, 6, 6), (1, 10, 8, 9, 9)]
    assert set(answer["placements"]) == {pod["name"] for pod in json.loads(path.read_text())["pods"]}
    assert [step["do"] for step in answer["steps"]] == ["move", "start"]
    text = kant("pack", path).out
    assert "proven: no plan places more pods by priority, and no plan that places as many disturbs fewer" in text
    assert kant("pack", path, "--model", "paper").out.endswith("proven optimal in the order of the paper's stages\n")


def test_a_full_cluster_is_certified_without_a_move(tmp_path: Path) -> None:
    path = write(
        tmp_path, {"nodes": [NODE], "pods": [POD | {"node": "n0", "requests": {"gpu": 8}}, POD | {"name": "p1"}]}
    )
    answer = kant("pack", path, "--json").json()
    assert answer["proven"] and answer["steps"] == [] and answer["disturbed"] == 0
    assert "proven: no allowed move starts one more pod" in kant("pack", path).out


REFUSALS: dict[str, tuple[Any, list[str]]] = {
    "no JSON": ("{", ["JSON"]),
    "no object": ([], ["expected `object`", "`array`"]),
    "no pods": ({"nodes": []}, ["pods"]),
    "a field that is not known": ({"nodes": [], "pods": [POD | {"cores": 3}]}, ["pods[0]", "cores"]),
    "text for a number": ({"nodes": [NODE | {"resources": {"gpu": "8"}}], "pods": []}, ["nodes[0].resources", "int"]),
    "less than nothing": ({"nodes": [NODE], "pods": [POD | {"requests": {"gpu": -1}}]}, ["p0", "gpu", "2^40"]),
    "a node twice": ({"nodes": [NODE, NODE], "pods": []}, ["nodes: ", "'n0' occurs twice"]),
    "a pod twice": ({"nodes": [NODE], "pods": [POD, POD]}, ["pods: ", "'p0' occurs twice"]),
    "a node that is not there": ({"nodes": [NODE], "pods": [POD | {"node": "n9"}]}, ["p0", "'n9'"]),
    "a node of another model": ({"nodes": [NODE], "pods": [POD | {"node": "n0", "models": ["A100"]}]}, ["p0", "A100"]),
    "too much on a node": (
        {"nodes": [NODE], "pods": [POD | {"node": "n0", "requests": {"gpu": 9}}]},
        ["node n0", "1 gpu too few"],
    ),
    "a level without a gang": ({"nodes": [NODE], "pods": [POD | {"within": "leaf"}]}, ["p0", "group"]),
    "half a gang": (
        {"nodes": [NODE], "pods": [POD | {"group": "g", "node": "n0"}, POD | {"name": "p1", "group": "g"}]},
        ["group g", "all run or all wait"],
    ),
    "a priority out of range": ({"nodes": [NODE], "pods": [POD | {"priority": 1 << 50}]}, ["p0", "priority"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    instance, words = REFUSALS[name]
    path = write(tmp_path, instance)
    sentence = kant("pack", path, "--json").refusal()
    for word in [str(path), *words]:
        assert word in sentence


def test_options_out_of_range_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"nodes": [NODE], "pods": [POD]})
    assert "--limit" in kant("pack", path, "--limit", "2d").refusal()
    assert "--model" in kant("pack", path, "--model", "best").refusal()
    assert "nowhere" in kant("pack", tmp_path / "nowhere").refusal()
    assert "--util" in kant("pack", "generate", "--util", "0").refusal()
    assert "--nodes" in kant("pack", "generate", "--nodes", "0").refusal()
    assert "--out" in kant("pack", "generate", "--out", tmp_path).refusal()
