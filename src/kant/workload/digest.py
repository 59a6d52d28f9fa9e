"""The digest of a workload: equal for the same jobs, wherever they were read from."""

from __future__ import annotations

import hashlib

import numpy as np

from kant.workload.workload import COLUMNS, Workload


def workload_digest(workload: Workload) -> str:
    """Return 32 hexadecimal digits over all that a run sees of the jobs: identifiers, columns, and the names of codes.

    The name, the notes and the `origin` of the workload do not count.
    """
    seen = hashlib.blake2b(digest_size=16)

    def add(part: bytes) -> None:
        seen.update(len(part).to_bytes(8, "little"))
        seen.update(part)

    add("\0".join(workload.ids).encode("utf-8", "surrogatepass"))
    names: tuple[tuple[object, ...], ...] = (
        workload.queues, workload.users, workload.titles, workload.model_sets, workload.profiles, workload.affinities,
    )  # fmt: skip
    columns: tuple[str, ...] = COLUMNS
    if workload.trainings == (None,):
        columns = tuple(name for name in COLUMNS if name != "training")  # as if the column were absent
    else:
        names += (workload.trainings,)
    for name in columns:
        column = np.asarray(getattr(workload, name), dtype="<i8")
        alike = len(column) > 0 and bool((column == column[0]).all())  # however the column is stored
        add(name.encode() + (column[:1] if alike else column).tobytes())
    if len(workload.after):
        add(b"after" + np.unique(np.asarray(workload.after, dtype="<i8"), axis=0).tobytes())
    for texts in names:
        add(repr(texts).encode("utf-8", "surrogatepass"))
    return seen.hexdigest()
