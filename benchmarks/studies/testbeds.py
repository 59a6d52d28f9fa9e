"""The two testbeds of FSMoE (Pan et al., ASPLOS 2025): the costs of their operations, and the layers of its table 5.

Costs are those of the paper's figure 5, for each number of 32 bits. The exponents printed for testbed A's all-to-all
and all-gather are swapped, and GEMMs cost three times what is printed: this reproduces its table 2. Attention takes
twice the time of its multiply-adds, as in table 2: softmax, masks and norms move memory. `CONTENTION` is the only
constant fitted to table 5; both testbeds share it. Capacity factor `*` (no token is dropped) counts as 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from kant.placement.perf.layer import CONTENTION, Cost, OperationCosts, Volumes

ATTENTION = 2.0
"""Time of attention relative to that of its multiply-adds."""


class Testbed(NamedTuple):
    """`shared`: GPUs per node, which share each layer. `lengths`: the sequence lengths of its layers."""

    costs: OperationCosts
    shared: int
    lengths: tuple[int, int, int]


def _ms(*costs: tuple[float, float]) -> OperationCosts:
    exchange, gather, scatter, reduce, gemm = (Cost(alpha / 1e3, beta / 1e3) for alpha, beta in costs)
    return OperationCosts(exchange, gather, scatter, reduce, gemm, CONTENTION)


TESTBEDS = {
    "A": Testbed(  # 6 nodes of 8 A6000
        _ms((0.287, 1.85e-6), (0.337, 2.32e-7), (0.395, 2.34e-7), (0.511, 4.95e-6), (0.0426, 7.2e-11)),
        8,
        (512, 1024, 2048),
    ),
    "B": Testbed(  # 8 nodes of 4 RTX 2080 Ti
        _ms((0.175, 1.224e-6), (0.032, 6.72e-7), (0.0391, 6.68e-7), (0.0837, 2.396e-6), (0.0924, 1.33e-10)),
        4,
        (256, 512, 1024),
    ),
}


def layers(testbed: Testbed) -> Iterator[Volumes]:
    """Yield the 1,458 layers of table 4: batches, heads, lengths, widths, hidden sizes, capacities (2 experts), GEMMs.

    The number of heads does not matter in the model, so each layer occurs three times.
    """
    shared = testbed.shared
    grid = product((1, 2, 4), (8, 16, 32), testbed.lengths, (1024, 2048, 4096), (2, 3, 4), (2.4, 4.8, 2.0), (2, 3))
    for batch, _heads, length, width, wider, factor, gemms in grid:
        tokens = batch * length
        sent = factor * tokens * width
        yield Volumes(
            exchanged=sent / shared,
            gathered=sent,
            scattered=sent,
            expert_macs=sent * width * wider * gemms / shared,
            expert_gemms=gemms,
            attention_gathered=tokens * width,
            attention_scattered=tokens * width,
            attention_macs=ATTENTION * (4 * tokens * width * width + 2 * tokens * length * width) / shared,
            attention_gemms=4,
            gradient=4 * width * width / shared,
        )
