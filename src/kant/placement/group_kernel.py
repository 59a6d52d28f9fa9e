"""Places one group of a simple job in one compiled call, by the scores of all nodes or in a domain of the fabric."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.compiled import compiled
from kant.placement.kernels import Kernel, index_kernel, named
from kant.placement.policy import NodePolicy
from kant.placement.topology.gang_kernel import gang_kernel
from kant.placement.topology.index import Fabric

# Columns of a group of a shape.
G_PODS, G_DEMAND, G_SECOND, G_BY_NODE, G_SLOT, G_NUMBER, G_IN_DOMAIN, G_NARROWEST, G_MILLI = range(9)
"""G_SECOND: 1 for the second of the two policies. If G_IN_DOMAIN is 1, G_NARROWEST is the first level to try, G_MILLI
the milli-GPUs that must be free in the domain, and G_SLOT a slot of the domain capacity."""
GROUP_WIDTH = 9


class Scores(NamedTuple):
    """The cached scores of the nodes under one policy (`capacity.NodeScores`)."""

    params: Table
    order: Table
    worth: Table
    marks: Table


class Domains(NamedTuple):
    """The cached capacity of the domains (`topology/domain_capacity.py`)."""

    fabric: Fabric
    rows: Table
    cursors: Table
    closed: Table


@cache
def group_kernel(one: type[NodePolicy], other: type[NodePolicy], by_domain: bool) -> Kernel:
    """Return the compiled function that places a group by one of two node policies; `by_domain`: also in a domain."""
    index_one, index_other = index_kernel(one), index_kernel(other)

    def by_score(
        table: Table, log: Table, demands: Table, group: Table, typical: Table, one: Scores, other: Scores,
        domains: Domains | None, count: int, pieces: Table, used: int,
    ) -> int:  # fmt: skip
        """Place `count` pods of a group; append to `pieces` from row `used` on, and take them from `table`.

        Returns the number of rows used, or -1 - f if only f pods fit (then nothing is taken).
        """
        by_node, drawn = group[G_BY_NODE] == 1, np.int64(0)  # a literal 0 would compile a separate kernel
        if group[G_SECOND] == 0:
            return index_one(
                table, log, demands, group[G_DEMAND], typical, one.params, one.order, one.worth, one.marks,
                group[G_SLOT], count, by_node, drawn, pieces, used,
            )  # fmt: skip
        return index_other(
            table, log, demands, group[G_DEMAND], typical, other.params, other.order, other.worth, other.marks,
            group[G_SLOT], count, by_node, drawn, pieces, used,
        )  # fmt: skip

    scored = compiled(named(by_score, one, other))
    if not by_domain:
        return scored
    gang_one, gang_other = gang_kernel(one), gang_kernel(other)

    def by_domain_or_score(
        table: Table, log: Table, demands: Table, group: Table, typical: Table, one: Scores, other: Scores,
        domains: Domains, count: int, pieces: Table, used: int,
    ) -> int:  # fmt: skip
        """Do what `by_score` does; place the group in a domain if G_IN_DOMAIN is 1."""
        if group[G_IN_DOMAIN] == 0:
            return scored(table, log, demands, group, typical, one, other, domains, count, pieces, used)
        by_node, drawn, fabric = group[G_BY_NODE] == 1, np.int64(0), domains.fabric
        if group[G_SECOND] == 0:
            return gang_one(
                table, log, demands, group[G_DEMAND], typical, one.params, fabric, domains.rows, domains.cursors,
                group[G_SLOT], domains.closed, group[G_NARROWEST], group[G_MILLI], count, by_node, drawn,
                fabric.no_domain, pieces, used,
            )  # fmt: skip
        return gang_other(
            table, log, demands, group[G_DEMAND], typical, other.params, fabric, domains.rows, domains.cursors,
            group[G_SLOT], domains.closed, group[G_NARROWEST], group[G_MILLI], count, by_node, drawn,
            fabric.no_domain, pieces, used,
        )  # fmt: skip

    return compiled(named(by_domain_or_score, one, other))
