"""Kant is `kant-scheduler` to pip: `kant` on the public index is another project, and nothing here leads to it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from tests.docs.pages import ROOT

from kant.cli.new_policy import package_files
from kant.model.errors import DISTRIBUTION, missing_extra

OTHERS = re.compile(
    r"""(?<![\w.-])kant\[[a-z{]  # an extra of it
    | (?<!helm\ )\b(?:install|uv\ add|uvx|pipx\ run)\b
      (?:\ +(?:-\S+|'[^']*'|"[^"]*"|[\w.-]+\[\S*\]))*\ +['"]?kant(?![\w-])
    | \bdependencies\s*=\s*\[[^]]*["']kant["'\s<>=~!;\[]""",
    re.VERBOSE,
)
"""What would bring the other project: an extra of it, a command that installs it, a requirement."""

PLACES = ("src", "packages", "docs", "tests", "benchmarks", "deploy", "changes", ".ci", "web/src")
FILES = [
    *(path for path in ROOT.glob("*") if path.is_file() and path.name != "uv.lock"),
    *(path for place in PLACES for path in (ROOT / place).rglob("*") if path.is_file() and path != Path(__file__)),
]


@pytest.mark.parametrize(
    "text",
    [
        "pip install kant", "pip install 'kant[kube]'", "python -m pip install --upgrade kant==0.3", "uvx kant up",
        "uv add kant", "pipx install kant", "the extra `kant[plot]`", "f\"pip install 'kant[{extra}]'\"",
        'dependencies = ["numpy", "kant"]', 'dependencies = ["kant>=0.3"]', "pip install -q numpy[x] kant",
    ],
)  # fmt: skip
def test_what_would_install_the_other_project_is_found(text: str) -> None:
    assert OTHERS.search(text)
    assert not OTHERS.search(re.sub(r"\bkant\b", "kant-scheduler", text))


def test_no_page_message_or_source_leads_to_the_other_project() -> None:
    found = []
    for path in FILES:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture, a recording
            continue
        found += [f"{path.relative_to(ROOT)}: {hit[0]}" for hit in OTHERS.finditer(text)]
    assert len(FILES) > 1000 and not found


def test_the_project_the_lock_and_the_sentences_have_one_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    own = {package["name"]: package["source"]["editable"] for package in lock if "editable" in package["source"]}
    assert own == {DISTRIBUTION: ".", "kant-kube": "packages/kant-kube", "kant-lab": "packages/kant-lab"}
    assert (project["name"], set(project["scripts"])) == (DISTRIBUTION, {"kant"}) == ("kant-scheduler", {"kant"})
    assert "pip install 'kant-scheduler[serve]'" in str(missing_extra("serve"))


def test_what_is_installed_here_has_that_name() -> None:
    offered = {point.name: point.value for point in distribution(DISTRIBUTION).entry_points}
    assert offered["kant"] == "kant.cli:main"


def test_a_new_policy_the_action_and_the_image_take_it() -> None:
    policy = tomllib.loads(package_files("mine", "order")["pyproject.toml"])["project"]
    assert policy["dependencies"] == [DISTRIBUTION]
    action = yaml.safe_load((ROOT / "deploy" / "gate-action" / "action.yml").read_text(encoding="utf-8"))
    assert action["inputs"]["install"]["default"] == DISTRIBUTION
    image = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert "/kant_*.dist-info/RECORD" in image
