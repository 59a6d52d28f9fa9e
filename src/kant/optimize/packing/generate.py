"""Instances by the rules of "Priority Matters" (arXiv 2511.08373): ReplicaSets, equal nodes, the default scheduler."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from kant.model.errors import InputError
from kant.optimize.packing.default_scheduler import schedule
from kant.optimize.packing.instance import PackingInstance, PackingNode, PackingPod
from kant.optimize.packing.problem import WAITS, Problem


def generate(nodes: int, pods_per_node: int, priorities: int, util: float, seed: int) -> PackingInstance:
    """ReplicaSets of 1 to 4 equal pods until there are `nodes * pods_per_node`, on nodes just large enough.

    A ReplicaSet draws its priority from 1 to `priorities`, and from 100 to 1,000 milli-cores and MiB per pod. The nodes
    are equal; the requests of all pods together are `util` of their capacity. The default scheduler places the pods.
    Raises InputError if a number is out of range.
    """
    for name, value in (("--nodes", nodes), ("--pods-per-node", pods_per_node), ("--priorities", priorities)):
        if not 1 <= value <= 10_000:
            raise InputError(name, "a whole number from 1 to 10,000", value)
    if not 0.01 <= util <= 100:
        raise InputError("--util", "a load from 0.01 to 100", util)
    streams = [np.random.Generator(np.random.PCG64(one)) for one in np.random.SeedSequence(seed).spawn(4)]
    sizes, tiers, cpus, memories = streams
    pods: list[PackingPod] = []
    replica_set = 0
    while len(pods) < nodes * pods_per_node:
        requests = {"cpu": int(cpus.integers(100, 1001)), "memory": int(memories.integers(100, 1001))}
        priority = int(tiers.integers(1, priorities + 1))
        for replica in range(min(int(sizes.integers(1, 5)), nodes * pods_per_node - len(pods))):
            pods.append(PackingPod(f"rs{replica_set}-{replica}", requests, priority))
        replica_set += 1
    size = {}
    for resource in ("cpu", "memory"):
        asked = [pod.requests[resource] for pod in pods]
        size[resource] = max(-(-int(np.ceil(sum(asked) / util)) // nodes), *asked, 1)
    instance = PackingInstance(tuple(PackingNode(f"n{i}", size) for i in range(nodes)), tuple(pods))
    placed = schedule(Problem(instance))
    where = [None if node == WAITS else f"n{node}" for node in placed]
    return PackingInstance(
        instance.nodes, tuple(replace(pod, node=node) for pod, node in zip(pods, where, strict=True))
    )
