"""Claims: pods that fit on few nodes have a claim on these nodes, which other pods leave free.

A pod that fits on any node finds a place; one that needs a P100, or 8 GPUs with 120 cores, fits on few nodes. FGD
counts for each node how many kinds of typical pods could use it (Weng et al., USENIX ATC 2023, section 4). By this
count rare nodes look cheap, since few pods request them; but these nodes are rarer still. Here a claim is demand over
supply instead: the load that a kind of pods puts on each GPU that it may use, as in the fair shares of constrained
users (Ghodsi et al., Choosy, EuroSys 2013), times the share of the cluster's GPUs that the kind cannot use.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import CPU, GPUS, POOL, Table
from kant.model.units import GPU
from kant.placement.cost.fragmentation import M_CPU, M_GPUS, M_MILLI, M_POOLS, M_WEIGHT


def node_claims(typical: Table, empty: Table) -> Table:
    """Return for each node the share of its GPUs, in thousandths, that typical pods would claim in a full cluster.

    `typical` has the typical pods, `empty` the node table of the empty cluster. Each kind of pods may use those nodes
    of its pools that have the GPUs and the CPU for one pod. The load of a kind is its demand divided by the GPUs of all
    these nodes; its claim is this load times the share of the cluster's GPUs that are on other nodes. So pods that fit
    anywhere claim nothing, and if all nodes are equal all claims are 0. No claim is above 1000.
    """
    gpus, cpu, pool = empty[:, (GPUS, CPU, POOL)].T.copy()  # reads the wide table once
    claims: Table = np.zeros(len(empty), dtype=np.int64)
    demands = typical[:, M_GPUS] * typical[:, M_MILLI] * typical[:, M_WEIGHT]
    # `np.add.reduce`, since methods such as `sum` take more Python calls for the same result.
    cluster, demand = int(np.add.reduce(gpus)), int(np.add.reduce(demands))
    for m in demands.nonzero()[0].tolist():
        admitted = (typical[m, M_POOLS] >> pool) & 1 == 1
        usable = admitted & (gpus >= typical[m, M_GPUS]) & (cpu >= typical[m, M_CPU])
        supply = int(np.add.reduce(gpus[usable]))
        if 0 < supply < cluster:
            claims[usable] += GPU * int(demands[m]) * (cluster - supply) // (demand * supply)
    return np.minimum(claims, GPU)
