"""What pods that are bound to some GPU models claim of each pool, so that others leave them what only they must have.

A pod that admits every model finds its place anywhere, one that wants a P100 on few nodes. FGD counts for each node how
many kinds of typical pods could use it (Weng et al., USENIX ATC 2023, section 4): then nodes of rare models look cheap,
because few ask for them, although even fewer of them are there. A claim is demand by supply instead: the load that a
kind of pods puts on each GPU that it may use, as in the fair shares of constrained users (Ghodsi et al., Choosy,
EuroSys 2013).
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import CPU, GPUS, POOL, Table
from kant.model.units import GPU
from kant.placement.cost.fragmentation import M_CPU, M_GPUS, M_MILLI, M_POOLS, M_WEIGHT


def model_claims(typical: Table, empty: Table) -> Table:
    """For each pool the thousandths of its GPUs that bound pods claim, if the typical pods fill the cluster.

    `typical` has the typical pods, `empty` the node table with nothing taken. Each kind of bound pods claims all GPUs
    alike that it may use: those of its pools, of each node as many as the CPU of the node serves. All claims are 0
    where every typical pod admits every pool that has GPUs. No claim is above 1000.
    """
    gpus, cpu, pool = empty[:, GPUS], empty[:, CPU], empty[:, POOL]
    claims: Table = np.zeros(int(np.maximum.reduce(pool, initial=0)) + 1, dtype=np.int64)
    with_gpus = int(np.bitwise_or.reduce(1 << pool[gpus > 0]))
    admitted = typical[:, M_POOLS] & with_gpus
    milli = typical[:, M_GPUS] * typical[:, M_MILLI] * typical[:, M_WEIGHT]
    for m in ((admitted != with_gpus) & (milli > 0)).nonzero()[0].tolist():
        pods = gpus // typical[m, M_GPUS] * (GPU // typical[m, M_MILLI])
        if typical[m, M_CPU] > 0:
            pods = np.minimum(pods, cpu // typical[m, M_CPU])
        usable = (admitted[m] >> pool) & 1
        served = int((pods * usable).sum()) * int(typical[m, M_GPUS] * typical[m, M_MILLI])
        if served > 0:
            claim = int(milli[m]) * int(gpus.sum()) * GPU * GPU // (int(milli.sum()) * served)
            claims[np.unique(pool[usable == 1])] += claim
    return np.minimum(claims, GPU)
