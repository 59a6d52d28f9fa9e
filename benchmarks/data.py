"""Where the real traces are: `../shared/data` beside the project, or the folder that KANT_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("KANT_DATA") or Path(__file__).parents[2] / "shared" / "data")

PHILLY_NODES = {
    "6214e9": 32, "b436b2": 32, "ee9e8c": 32, "7f04ca": 16, "6c71a0": 16, "0e4a51": 16, "e13805": 8, "11cb48": 8,
    "2869ce": 8, "ed69ec": 4, "103959": 4,
}  # fmt: skip
"""Nodes of 8 GPUs of each virtual cluster in Helios' simulation of Philly: 176 nodes, 1,408 GPUs."""
