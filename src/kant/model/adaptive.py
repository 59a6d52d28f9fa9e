"""An AdaptiveJob trains with a changing batch size, and so with a changing time per epoch."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

Mode = Literal["static", "accordion", "gns"]
"""What changes the batch size: nothing; Accordion (Agarwal et al., MLSys 2021), which trains with small batches while
gradients change fast and with the largest ones otherwise; or the gradient noise scale (McCandlish et al., arXiv
1812.06162), which doubles the batch as noise grows."""

SAMPLES = {"ResNet-18": 50_000, "ResNet-50": 100_000, "Transformer": 10_000, "LM": 59_675, "Recommendation": 117_907}
"""Training samples of an epoch, by model (the data sets of Shockwave, arXiv 2210.00093)."""
SMALLEST_BATCH = {"ResNet-18": 16, "ResNet-50": 16, "Transformer": 16, "LM": 5, "Recommendation": 512}
LARGEST_BATCH = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}

GNS_DOUBLES: dict[tuple[str, int, int], tuple[int, ...]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71), ("ResNet-18", 32, 1): (21, 31, 51), ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,), ("ResNet-18", 16, 2): (21, 31, 91, 111), ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41), ("ResNet-18", 128, 2): (41,), ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61), ("ResNet-18", 64, 4): (11, 61), ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,), ("ResNet-50", 32, 2): (101, 111), ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221), ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71), ("LM", 10, 1): (11, 21, 41), ("LM", 20, 1): (11, 41), ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71), ("LM", 10, 2): (11, 31, 41), ("LM", 20, 2): (31, 41), ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91), ("LM", 10, 4): (11, 31, 61), ("LM", 20, 4): (11, 61), ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91), ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41), ("Recommendation", 4096, 1): (41,),
}  # fmt: skip
"""The epochs at which the batch doubles, by model, first batch size and GPUs, as measured for Shockwave. Other jobs
keep their batch."""


class EpochRun(Struct, frozen=True):
    """`count` consecutive epochs with one batch size, `seconds` each on all GPUs of the job without interruption."""

    batch: int
    seconds: float
    count: int


class AdaptiveJob(Struct, frozen=True):
    """One job of a workload in the format `shockwave`. Times are in seconds, as in the published traces.

    `epochs` is the profile from its owner, in order. `declared` is the run time for which its work was sized at the
    first batch size. `samples` is the number of samples in an epoch. `queue` is the queue that it is submitted to.
    """

    name: str
    arrival: float
    gpus: int
    model: str
    mode: Mode
    declared: float
    epochs: tuple[EpochRun, ...]
    samples: int
    queue: str = "default"

    @property
    def exclusive(self) -> float:
        """The seconds that the job takes when it runs alone, by its profile."""
        return sum(run.seconds * run.count for run in self.epochs)

    @property
    def epoch_count(self) -> int:
        """The number of epochs that the job trains."""
        return sum(run.count for run in self.epochs)


def plain_job(name: str, arrival: float, gpus: int, seconds: float, queue: str) -> AdaptiveJob:
    """Return a job of constant speed from a trace without epochs: each second counts as one epoch."""
    count = max(1, math.ceil(seconds))
    return AdaptiveJob(name, arrival, gpus, "", "static", float(count), (EpochRun(1, 1.0, count),), 1, queue)


def steps_of_epoch(samples: int, batch: int) -> int:
    """Return the steps of one epoch: the last batch may be smaller."""
    return -(-samples // batch)


def gns_batch(model: str, first: int, gpus: int, epoch: int) -> int:
    """Return the batch size of an epoch under the gradient noise scale, for a job that began with `first`."""
    doubled = first << sum(epoch >= start for start in GNS_DOUBLES.get((model, first, gpus), ()))
    return min(doubled, LARGEST_BATCH[model])


def in_critical_regime(model: str, first: int, epoch: int) -> bool:
    """Return whether Accordion trains an epoch with the first, small batch, as in Shockwave's simulator."""
    if model == "LM":
        return epoch < 10
    if model == "Recommendation":
        return epoch < {512: 30, 1024: 30, 2048: 40}.get(first, 10)
    if model == "ResNet-50":
        return epoch % 30 < 10
    if model == "ResNet-18":
        return epoch < (20 if first == LARGEST_BATCH[model] else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
    return True  # Accordion leaves the batch of a Transformer as it is
