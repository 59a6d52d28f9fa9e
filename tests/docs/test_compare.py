"""The comparisons with others: what they say of Kant is a test that is there, against what is real."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CELL = re.compile(r"\| (yes: \[`(\w+)`\]\(\.\./([\w/.]+)\)|no|) \|$")


def named_in(page: str, columns: int) -> list[tuple[str, str]]:
    """The tests that a table names, and their files; each line says what Kant does."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ") and not line.startswith("| **")][1:]
    said = [CELL.search(line) for line in table]
    assert all(said), [line for line, cell in zip(table, said, strict=True) if not cell]
    assert all(line.count("|") == columns + 1 for line in table)
    return [(cell[2], cell[3]) for cell in said if cell is not None and cell[2]]


def test_each_yes_is_a_test_against_a_real_api_server() -> None:
    tests = named_in("kubernetes-compare.md", 6)
    assert len(tests) > 25
    for name, where in tests:
        text = (ROOT / where).read_text(encoding="utf-8")
        begins = text.index(f"def {name}(")
        signature = text[begins : text.index(") -> None:", begins)]
        assert re.search(r"\b(plane|api|installed|planes|cluster|world)\b", signature), f"{where}, {name}"


def test_each_other_yes_is_a_test() -> None:
    tests = named_in("up-compare.md", 5) + named_in("team-compare.md", 6) + named_in("serve-compare.md", 6)
    assert len(tests) > 80
    for name, where in tests:
        assert f"def {name}(" in (ROOT / where).read_text(encoding="utf-8"), f"{where}, {name}"
