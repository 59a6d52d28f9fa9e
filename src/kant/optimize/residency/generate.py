"""Random programs from a seed: models share a GPU and are used in turn, with temporary caches."""

from __future__ import annotations

import random
from pathlib import Path

from kant.model.errors import InputError
from kant.optimize.instance_file import read_json
from kant.optimize.residency.program import Buffer, Program, ProgramStep, Tier


def read_program(path: Path) -> Program:
    """Read the program of a file. Raises InputError with the file, the field, and the expected value."""
    try:
        return read_json(path, Program)
    except InputError as error:
        if error.where.startswith(str(path)):
            raise
        raise InputError(f"{path}, {error.where}", error.expected, error.got) from None


def generate(steps: int, models: int = 6, seed: int = 0, share: float = 0.5) -> Program:
    """`steps` steps, each of which uses one or two of the models. Some create a cache that a few later steps use.

    Models have 10 to 40 units of size. Two thirds of them have their home on the host (8 units a tick), the others on
    NVMe (2). The fast memory holds `share` of all models together. A step computes for 1 to 8 ticks.
    """
    if not 1 <= steps <= 10_000 or not 1 <= models <= 1_000 or not 0 < share <= 10:
        raise InputError("generate", "1 to 10,000 steps, 1 to 1,000 models and a share above 0", (steps, models, share))
    rng = random.Random(seed)
    buffers = [
        Buffer(f"model{n}", rng.randint(10, 40), "nvme" if rng.random() < 1 / 3 else "host") for n in range(models)
    ]
    weight = [1 / (n + 1) for n in range(models)]  # some are used more often
    rng.shuffle(weight)
    capacity = max(int(sum(buffer.size for buffer in buffers) * share), max(buffer.size for buffer in buffers))
    rows: list[ProgramStep] = []
    caches: list[tuple[str, int]] = []  # each cache with the last step that uses it
    for n in range(steps):
        chosen = dict.fromkeys(rng.choices(range(models), weight, k=rng.randint(1, 2)))
        uses = [buffers[m].name for m in chosen] + [name for name, last in caches if n <= last and rng.random() < 0.5]
        makes = []
        if rng.random() < 0.3:
            makes = [f"cache{n}"]
            caches.append((makes[0], n + rng.randint(1, 5)))
        rows.append(ProgramStep(rng.randint(1, 8), tuple(uses), tuple(makes)))
    made = [Buffer(name, rng.randint(3, 12), "host") for name, _ in caches]
    return Program(capacity, (Tier("host", 8), Tier("nvme", 2)), (*buffers, *made), tuple(rows))
