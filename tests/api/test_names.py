"""`import kant` has what the documentation promises and nothing more, and loads nothing by itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

import kant

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def listed(text: str) -> set[str]:
    """The names in the first column of a table."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_names_are_those_that_the_documentation_lists() -> None:
    assert listed(PAGE.split("## The names")[1]) == set(kant.__all__)
    assert len(set(kant.__all__)) == len(kant.__all__) and dir(kant) == sorted(kant.__all__)


def test_the_pictures_are_those_that_the_documentation_lists() -> None:
    assert listed(PAGE.split("## Pictures")[1].split("\n## ")[0]) == set(kant.plot.__all__) - {"Figure"}


def test_tools_that_only_read_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "src" / "kant" / "__init__.pyi").read_text(encoding="utf-8"))
    names = [alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted([*names, "__version__"]) == sorted(kant.__all__)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                loaded = __import__(str(node.module), fromlist=[alias.name])
                assert getattr(kant, alias.name) is getattr(loaded, alias.name), alias.name


@pytest.mark.parametrize("name", kant.__all__)
def test_a_name_is_documented_where_it_is(name: str) -> None:
    assert (getattr(kant, name).__doc__ or "").strip() or name == "__version__"


def test_importing_loads_nothing_and_a_name_is_loaded_once_it_is_used() -> None:
    code = "import sys; before = {*sys.modules, '__future__'}; import kant; print(sorted(set(sys.modules) - before))"
    assert fresh(code).strip() == "['kant']"
    loads = "import sys, kant; kant.InputError; print({'numpy', 'polars', 'numba'} & set(sys.modules))"
    assert fresh(loads).strip() == "set()"


@pytest.mark.long
def test_nobody_who_draws_nothing_loads_matplotlib() -> None:
    code = (
        "import sys, kant; kant.simulate(kant.Workload.of({'submit_s': [0], 'runtime_s': [1], 'gpus': [1]}), '1x1');"
        "kant.plot.waits; print('matplotlib' in sys.modules)"
    )
    assert fresh(code).strip() == "False"


def test_other_names_are_no_names_of_kant() -> None:
    with pytest.raises(AttributeError, match="module 'kant' has no attribute 'Job'"):
        _ = kant.Job  # type: ignore[attr-defined]


def test_the_marker_of_types_is_beside_the_package() -> None:
    assert (Path(kant.__file__).parent / "py.typed").exists()
