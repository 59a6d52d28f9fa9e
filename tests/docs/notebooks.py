"""The notebooks of the documentation: run, and what they show. `python -m tests.docs.notebooks` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def executed(path: Path, folder: Path) -> Any:
    """The notebook after a run in `folder`. Raises CellExecutionError where a cell does."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    notebook.metadata.pop("language_info", None)  # which Python it was
    return notebook


def shown(notebook: Any) -> list[list[str]]:
    """For each cell of code what it shows: texts as they are, and of a picture its words."""
    return [[_text(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    picture = output.data.get("image/svg+xml")
    if picture is None:
        return str(output.data["text/plain"])
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture))


def main() -> None:
    for path in NOTEBOOKS:
        nbformat.write(executed(path, path.parent), path)


if __name__ == "__main__":
    main()
