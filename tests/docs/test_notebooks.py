"""Each notebook of the documentation runs from its first cell to its last, and shows what it is stored with."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from tests.docs.notebooks import NOTEBOOKS, executed, shown


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_it_is_stored_with(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    expected = shown(stored)
    assert any(line for line in expected), "a notebook without output: python -m tests.docs.notebooks"
    assert shown(executed(path, tmp_path)) == expected, "run python -m tests.docs.notebooks, and look at what differs"


def test_there_is_a_notebook_and_its_pictures_are_kept() -> None:
    assert NOTEBOOKS
    kinds = {
        kind
        for path in NOTEBOOKS
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
        for output in cell.outputs
        for kind in getattr(output, "data", {})
    }
    assert {"image/svg+xml", "text/html"} <= kinds
