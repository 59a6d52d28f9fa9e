"""The comparison on Kubernetes: what it says of Kant is a test that is there, and runs against a real API server."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CELL = re.compile(r"\| (yes: \[`(\w+)`\]\(\.\./([\w/.]+)\)|no|) \|$")


def test_each_yes_is_a_test_against_a_real_api_server() -> None:
    lines = (ROOT / "docs" / "kubernetes-compare.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ") and not line.startswith("| **")][1:]
    said = [CELL.search(line) for line in table]
    assert all(said), [line for line, cell in zip(table, said, strict=True) if not cell]
    assert all(line.count("|") == 7 for line in table)
    tests = [(cell[2], cell[3]) for cell in said if cell is not None and cell[2]]
    assert len(tests) > 25
    for name, where in tests:
        text = (ROOT / where).read_text(encoding="utf-8")
        begins = text.index(f"def {name}(")
        signature = text[begins : text.index(") -> None:", begins)]
        assert re.search(r"\b(plane|installed|planes|cluster|world)\b", signature), f"{where}, {name}"
