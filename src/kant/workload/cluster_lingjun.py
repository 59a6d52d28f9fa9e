"""Nodes of the Lingjun topology: a real Clos fabric of three layers, with leaves of different sizes.

Published as alibaba-lingjun-dataset-2023. Host names are hashes; ASW, PSW and DSW are the layers of switches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kant.model.errors import InputError
from kant.model.node import Node

HEADER = ("ip", "DSW", "PSW", "ASW")

GPUS = 8
"""Every host of the dataset has eight GPUs; their model is not given."""


def nodes_of(rows: Iterable[tuple[str, dict[str, str]]]) -> Iterator[tuple[str, Node]]:
    """Yield the hosts in file order, each with its line. Leaves are named PSW/ASW, since the numbers of ASWs repeat."""
    above: dict[str, str] = {}
    for line, row in rows:
        superspine, spine, access = row["DSW"], row["PSW"], row["ASW"]
        for column in ("DSW", "PSW", "ASW"):
            switch = row[column]
            if not (1 <= len(switch) <= 100 and switch.isprintable()) or {" ", "/"} & set(switch):
                raise InputError(f"{line}, {column}", "the name of a switch, without spaces or slashes", switch)
        if above.setdefault(spine, superspine) != superspine:
            raise InputError(f"{line}, DSW", f"{above[spine]}, as on the earlier lines of PSW {spine}", superspine)
        leaf = f"{spine}/{access}"
        yield line, Node(name=row["ip"], gpus=GPUS, leaf=leaf, spine=spine, superspine=superspine)
