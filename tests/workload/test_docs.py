"""The page about workloads names every format, every column of Kant's table and every generator."""

from __future__ import annotations

from pathlib import Path

from kant.workload.formats import FORMATS
from kant.workload.generate import ROWS

PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()


def test_everything_is_named() -> None:
    for name in (*FORMATS, *ROWS, *(field.name for field in FORMATS["kant"].fields)):
        assert f"| `{name}` |" in PAGE, name


def test_rows_say_what_the_page_says() -> None:
    for name, row in ROWS.items():
        line = next(line for line in PAGE.split("## Generators")[1].splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in line.split("|")[3:-1]]
        longest = max(law.longest for _, law in row.durations) / 86400
        assert cells[0] == f"{row.gpus:,}", name
        assert float(cells[1]) == (row.per_hour if row.per_hour < 10 else round(row.per_hour)), name
        assert cells[2].endswith(f"-{row.sizes[-1].gpus}"), name
        assert cells[3] == f"{round(longest)} d", name
