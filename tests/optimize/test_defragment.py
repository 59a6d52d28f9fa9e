"""What `kant defrag` plans and proves, against every sequence of migrations on tiny clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.optimize.defragment.answer import DefragAnswer, defragment, greedy, ordered
from kant.optimize.defragment.cluster import Move, VmCluster, VmLayout
from kant.optimize.defragment.flow import Flow, Prices
from kant.optimize.defragment.generate import BLOCK, TYPES, generate
from kant.optimize.defragment.instance import DefragInstance, NumaNode, Vm, VmHost, check_instance
from kant.optimize.defragment.plan_flow import plan_flow

Place = tuple[str, int | None]


@st.composite
def clusters(draw: st.DrawFn, vms: int = 5, plain: bool = False) -> DefragInstance:
    """Two or three hosts of one or two NUMA nodes and a few VMs; `plain`: with neither scarce memory nor services."""
    hosts = tuple(
        VmHost(
            f"h{i}",
            tuple(NumaNode(draw(st.integers(2, 8)), 99 if plain else draw(st.integers(2, 6))) for _ in range(n)),
        )
        for i, n in enumerate(draw(st.lists(st.integers(1, 2), min_size=2, max_size=3)))
    )
    placed: list[Vm] = []
    for i in range(draw(st.integers(1, vms))):
        cores, memory = draw(st.integers(1, 4)), 1 if plain else draw(st.integers(1, 3))
        host = draw(st.sampled_from(hosts))
        numa = draw(st.sampled_from([*range(len(host.numa)), *([None] if len(host.numa) > 1 else [])]))
        parts = len(host.numa) if numa is None else 1
        service = "" if plain else draw(st.sampled_from(("", "", "s")))
        vm = Vm(f"v{i}", cores * parts, memory * parts, host.name, numa, service)
        if fits(hosts, [*placed, vm], {v.name: (v.host, v.numa) for v in [*placed, vm]}):
            placed.append(vm)
    instance = DefragInstance(draw(st.integers(2, 5)), hosts, tuple(placed))
    check_instance(instance, "drawn")
    return instance


def free_cores(hosts: tuple[VmHost, ...], vms: list[Vm], where: dict[str, Place], memory: bool = False) -> list[int]:
    """What is left on every NUMA node, from the words of the format alone."""
    left = {(h.name, j): node.memory if memory else node.cores for h in hosts for j, node in enumerate(h.numa)}
    sizes = {h.name: len(h.numa) for h in hosts}
    for vm in vms:
        host, numa = where[vm.name]
        amount = vm.memory if memory else vm.cores
        for j in range(sizes[host]) if numa is None else (numa,):
            left[host, j] -= amount // (sizes[host] if numa is None else 1)
    return list(left.values())


def fits(hosts: tuple[VmHost, ...], vms: list[Vm], where: dict[str, Place]) -> bool:
    """Whether VMs may be where they are."""
    if any(min(free_cores(hosts, vms, where, memory), default=0) < 0 for memory in (False, True)):
        return False
    taken = [(vm.service, where[vm.name][0]) for vm in vms if vm.service]
    return len(taken) == len(set(taken))


def places(instance: DefragInstance, vm: Vm) -> list[Place]:
    """Where a VM could be: VMs that are spread stay so, on as many NUMA nodes."""
    nodes = {host.name: len(host.numa) for host in instance.hosts}
    if vm.numa is None:
        return [(host.name, None) for host in instance.hosts if nodes[host.name] == nodes[vm.host]]
    return [(host.name, j) for host in instance.hosts for j in range(nodes[host.name])]


def fragments(instance: DefragInstance, where: dict[str, Place]) -> int:
    return sum(free % instance.block for free in free_cores(instance.hosts, list(instance.vms), where))


def reachable(instance: DefragInstance, moves: int) -> Iterator[dict[str, Place]]:
    """Every layout that so many migrations reach, each of which has room."""
    names = [vm.name for vm in instance.vms]
    first = tuple((vm.host, vm.numa) for vm in instance.vms)
    seen, edge = {first}, [first]
    yield dict(zip(names, first, strict=True))
    for _ in range(moves):
        found = []
        for layout in edge:
            for i, vm in enumerate(instance.vms):
                for place in places(instance, vm):
                    new = (*layout[:i], place, *layout[i + 1 :])
                    where = dict(zip(names, new, strict=True))
                    if new not in seen and fits(instance.hosts, list(instance.vms), where):
                        seen.add(new)
                        found.append(new)
                        yield where
        edge = found


def carry_out(instance: DefragInstance, answer: DefragAnswer) -> dict[str, Place]:
    """Migrate one by one; each must have room and start where the VM is."""
    where: dict[str, Place] = {vm.name: (vm.host, vm.numa) for vm in instance.vms}
    vms = {vm.name: vm for vm in instance.vms}
    for move in answer.moves:
        assert where[move.vm] == (move.source, move.source_numa) != (move.target, move.target_numa)
        where[move.vm] = (move.target, move.target_numa)
        assert where[move.vm] in places(instance, vms[move.vm])
        assert fits(instance.hosts, list(instance.vms), where), move
    return where


@given(clusters(), st.integers(0, 3))
@settings(max_examples=examples(30), deadline=None)
def test_no_sequence_of_migrations_goes_below_the_bound_and_each_step_has_room(
    instance: DefragInstance, moves: int
) -> None:
    answer = defragment(instance, moves, 1.0)
    best = min(fragments(instance, where) for where in reachable(instance, moves))
    after = carry_out(instance, answer)
    assert len(answer.moves) <= moves
    assert answer.fragments_bound <= best <= answer.fragments_after == fragments(instance, after)
    assert answer.fragments_after <= answer.fragments_before
    assert answer.proven == (answer.fragments_after == answer.fragments_bound)


@given(clusters(vms=4, plain=True), st.integers(0, 4))
@settings(max_examples=examples(30), deadline=None)
def test_the_flow_is_the_best_of_all_assignments_that_move_so_many(instance: DefragInstance, moves: int) -> None:
    """Where neither memory, nor services, nor the order of the moves matter; of VMs on one NUMA node."""
    cluster = VmCluster.of(instance)
    found = plan_flow(cluster, VmLayout(cluster), moves, 1.0)
    single = min(_assignments(instance, moves, spread=False))
    every = min(_assignments(instance, moves, spread=True))
    assert found.bound <= every <= single == found.fragments
    if not any(vm.numa is None for vm in instance.vms):
        assert found.bound == every


def _assignments(instance: DefragInstance, moves: int, spread: bool) -> Iterator[int]:
    """The fragments of every assignment that moves at most so many VMs."""
    choices = [places(instance, vm) if spread or vm.numa is not None else [(vm.host, None)] for vm in instance.vms]
    for chosen in product(*choices):
        where = {vm.name: place for vm, place in zip(instance.vms, chosen, strict=True)}
        moved = sum(place != (vm.host, vm.numa) for vm, place in zip(instance.vms, chosen, strict=True))
        if moved <= moves and fits(instance.hosts, list(instance.vms), where):
            yield fragments(instance, where)


@given(clusters(vms=4, plain=True), st.integers(0, 3), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_prices_give_a_bound_and_all_patterns_within_an_excess(
    instance: DefragInstance, moves: int, data: st.DataObject
) -> None:
    cluster = VmCluster.of(instance)
    flow = Flow(cluster, VmLayout(cluster))
    price = st.floats(-4, 8)
    prices = Prices(np.array([data.draw(price) for _ in flow.sizes]), abs(data.draw(price)))
    bound = flow.evaluate(prices, moves)[0]
    assert bound <= min(_assignments(instance, moves, spread=False)) + 1e-6
    excess = data.draw(st.floats(0, 6))
    for row, own in enumerate(flow.patterns(prices, excess)):
        free, held = int(flow.free[row]), flow.held[row].tolist()
        every = {}
        for counts in product(
            *(range(-h, free + sum(a * b for a, b in zip(held, flow.sizes, strict=True)) + 1) for h in held)
        ):
            rest = free - sum(n * size for n, size in zip(counts, flow.sizes, strict=True))
            if rest >= 0:
                leaving = -sum(n for n in counts if n < 0)
                every[counts] = rest % flow.block + float(np.dot(prices.size, counts)) + prices.move * leaving
        least = min(every.values())
        assert {p.net for p in own} >= {n for n, cost in every.items() if cost <= least + excess - 1e-6}
        assert {p.net for p in own} <= {n for n, cost in every.items() if cost <= least + excess + 1e-5}
        assert all(abs(p.excess - (every[p.net] - least)) < 1e-6 for p in own)


def test_hosts_of_gpus_with_one_numa_node_need_not_name_it() -> None:
    hosts = tuple(VmHost(name, (NumaNode(8, 0),)) for name in "ab")
    answer = defragment(DefragInstance(8, hosts, (Vm("x", 4, 0, "a"), Vm("y", 4, 0, "b"))), 1)
    assert (answer.fragments_before, answer.fragments_after, answer.fragments_bound) == (8, 0, 0)
    (move,) = answer.moves
    assert (move.source_numa, move.target_numa) == (0, 0)


def test_vms_that_wait_for_each_other_go_by_a_spare_slot() -> None:
    hosts = tuple(VmHost(name, (NumaNode(4, 9),)) for name in "abc")
    vms = (Vm("x", 3, 1, "a", 0), Vm("y", 4, 1, "b", 0))
    cluster = VmCluster.of(DefragInstance(4, hosts, vms))
    layout = VmLayout(cluster)
    steps = ordered(layout, [Move(0, 1, 0), Move(1, 0, 0)], 3)
    assert steps == [Move(0, 2, 0), Move(1, 0, 0), Move(0, 1, 0)]
    assert (layout.host.tolist(), layout.cores.ravel().tolist()) == ([1, 0], [0, 1, 4])
    assert ordered(VmLayout(cluster), [Move(0, 1, 0), Move(1, 0, 0)], 2) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 6])
def test_the_published_size_is_solved_to_proven_optimality(seed: int) -> None:
    instance = generate(279, 2089, seed)
    check_instance(instance, "made")
    answer = defragment(instance, 50)
    assert answer == defragment(instance, 50)
    assert len(instance.vms) == 2089 and len(answer.moves) <= 50 and answer.proven
    assert fragments(instance, carry_out(instance, answer)) == answer.fragments_after
    layout = VmLayout(VmCluster.of(instance))
    greedy(layout, 50)
    assert answer.fragments_after < layout.fragments() < answer.fragments_before


@pytest.mark.long
def test_a_tight_limit_still_gives_a_plan_that_can_be_carried_out_and_a_true_bound() -> None:
    instance = generate(279, 2089, 0)
    tight, loose = defragment(instance, 50, 0.01), defragment(instance, 50, 5.0)
    assert fragments(instance, carry_out(instance, tight)) == tight.fragments_after < tight.fragments_before
    assert tight.fragments_bound <= loose.fragments_after <= tight.fragments_after


@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 99))
@settings(max_examples=examples(20), deadline=None)
def test_generated_clusters_are_valid(hosts: int, vms: int, seed: int) -> None:
    instance = generate(hosts, vms, seed)
    check_instance(instance, "made")
    assert instance == generate(hosts, vms, seed)
    assert len(instance.hosts) == hosts and len(instance.vms) <= max(vms, round(1.15 * vms)) and instance.block == BLOCK
    assert {(vm.cores, 2 if vm.numa is None else 1) for vm in instance.vms} <= set(TYPES)


HOST = {"name": "a", "numa": [{"cores": 8, "memory": 8}]}
VM = {"name": "v", "cores": 4, "memory": 4, "host": "a", "numa": 0}


def test_a_plan_is_printed_and_a_tidy_cluster_needs_none(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    assert kant("defrag", "generate", "--hosts", "6", "--vms", "40", "--seed", "2", "--out", path).code == 0
    assert kant("defrag", "generate", "--hosts", "6", "--vms", "40", "--seed", "2").out == path.read_text()
    answer = kant("defrag", path, "--moves", "4", "--json").json()
    assert answer["proven"] and answer["fragments_after"] < answer["fragments_before"] and len(answer["moves"]) <= 4
    text = kant("defrag", path, "--moves", "4").out
    assert "proven: no plan with this number of moves leaves less" in text and answer["moves"][0]["vm"] in text
    path.write_text(json.dumps({"block": 4, "hosts": [HOST], "vms": [VM]}))
    assert kant("defrag", path, "--json").json()["moves"] == []


REFUSALS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no block": ({"hosts": [], "vms": []}, ["block"]),
    "a block of nothing": ({"block": 0, "hosts": [], "vms": []}, ["block", "got 0"]),
    "a host without NUMA nodes": ({"block": 4, "hosts": [HOST | {"numa": []}], "vms": []}, ["host a", "NUMA"]),
    "a host twice": ({"block": 4, "hosts": [HOST, HOST], "vms": []}, ["hosts: ", "occurs twice"]),
    "a vm twice": ({"block": 4, "hosts": [HOST], "vms": [VM, VM]}, ["vms: ", "occurs twice"]),
    "a vm on no host": ({"block": 4, "hosts": [HOST], "vms": [VM | {"host": "b"}]}, ["vm v", "'b'"]),
    "a vm on no NUMA node": ({"block": 4, "hosts": [HOST], "vms": [VM | {"numa": 1}]}, ["vm v", "numa", "got 1"]),
    "a vm without cores": ({"block": 4, "hosts": [HOST], "vms": [VM | {"cores": 0}]}, ["vm v", "cores", "got 0"]),
    "too many vms": ({"block": 4, "hosts": [HOST], "vms": [VM | {"cores": 9}]}, ["host a", "v does not fit"]),
    "a service twice": (
        {"block": 4, "hosts": [HOST], "vms": [VM | {"service": "s"}, VM | {"name": "w", "service": "s"}]},
        ["host a", "one vm of service s"],
    ),
    "cores that cannot be divided": (
        {"block": 4, "hosts": [{"name": "a", "numa": HOST["numa"] * 2}], "vms": [VM | {"cores": 3, "numa": None}]},
        ["vm v", "multiples of its 2 NUMA nodes"],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    instance, words = REFUSALS[name]
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(instance))
    sentence = kant("defrag", path, "--json").refusal()
    for word in [str(path), *words]:
        assert word in sentence


def test_options_out_of_range_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps({"block": 4, "hosts": [HOST], "vms": [VM]}))
    assert "--moves" in kant("defrag", path, "--moves", "-1").refusal()
    assert "--limit" in kant("defrag", path, "--limit", "0s").refusal()
    assert "--hosts" in kant("defrag", "generate", "--hosts", "0").refusal()
