"""A Trace: the content of one file as a reader found it, before a window or a slice becomes a Workload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kant.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`jobs` are in file order, with submissions on the trace's own clock, so they may be unsorted.

    `slices` has each job's code in `names`. If `apart`, the slices are separate traces that only share a file: each has
    its own clock, and exactly one must be chosen. Otherwise they are the queues of one cluster. `slice_kind` is the
    word for a slice.
    """

    jobs: Workload
    slices: NDArray[np.int64] | NDArray[np.int32]
    names: tuple[str, ...]
    slice_kind: str = "queue"
    apart: bool = False
