"""The graph of ten tasks on three processors with which HEFT was first presented."""

from __future__ import annotations

from kant.optimize.workflow.graph import Graph, Stage

_DURATIONS = (
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10), (13, 16, 9), (7, 15, 11), (5, 11, 14),
    (18, 12, 20), (21, 7, 16),
)  # fmt: skip
_TRANSFERS = (
    (1, 2, 18), (1, 3, 12), (1, 4, 9), (1, 5, 11), (1, 6, 14), (2, 8, 19), (2, 9, 16), (3, 7, 23), (4, 8, 27),
    (4, 9, 23), (5, 9, 13), (6, 8, 15), (7, 10, 17), (8, 10, 11), (9, 10, 13),
)  # fmt: skip


def topcuoglu() -> Graph:
    """The ten tasks of Topcuoglu, Hariri and Wu (IEEE TPDS 13(3), 2002, figure 2 and its table of times).

    HEFT ends after 80, CPOP after 86, and the shortest plan after 73.
    """
    before: list[list[tuple[int, int]]] = [[] for _ in _DURATIONS]
    for source, target, ticks in _TRANSFERS:
        before[target - 1].append((source - 1, ticks))
    return Graph(
        ("P1", "P2", "P3"),
        tuple(
            Stage(f"n{i}", durations, tuple(waits))
            for i, (durations, waits) in enumerate(zip(_DURATIONS, before, strict=True), 1)
        ),
    )
