"""Three distributions share `src`: each file is in one, each has what it imports, and what is missing is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import grimp
import pytest

from kant import __version__
from kant.cli.distributions import BESIDE, first_page, missing, package_of
from kant.cli.verbs import VERBS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from hatch_build import files_of  # noqa: E402

FOLDERS = {"kant-scheduler": ROOT, **{name: ROOT / "packages" / name for name in BESIDE}}
MOST_LINES_OF_A_LEADER = 37_339
"""Lines of Kant that the leader loads at its start. It may only fall: lower it with them. The goal is 35,000."""

HIDE = """
import importlib, sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
hidden, own = (set(text.split()) for text in sys.stdin.read().split("|"))
sys.meta_path.insert(0, Hide())
for name in sorted(own):
    importlib.import_module(name)
assert not hidden & set(sys.modules)
"""
LEADER = """
import sys
from kant.kube.lead import replica
from kant.cli.kube import run
replica.serve = lambda options: 0
run(listen="127.0.0.1:0", page=True)
files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "kant"]
print(sum(len(open(file).readlines()) for file in files if file))
print(*(name for name in sys.modules if name.startswith("kant.")))
"""


@cache
def modules(name: str) -> set[str]:
    files = [Path(file) for file in files_of(FOLDERS[name]) if file.endswith(".py")]
    parts = [file.parent.parts if file.name == "__init__.py" else file.with_suffix("").parts for file in files]
    return {".".join(each) for each in parts} - {"kant.__main__"}


def test_each_file_is_in_one_distribution() -> None:
    every = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/kant"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    there = [f"src/{file}" for folder in FOLDERS.values() for file in files_of(folder)]
    assert sorted(there) == sorted(file for file in every if (ROOT / file).exists())


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "beside"), [("kant-scheduler", []), ("kant-kube", ["kant-scheduler"]), ("kant-lab", ["kant-scheduler"])]
)
def test_each_distribution_imports_without_those_that_it_does_not_require(name: str, beside: list[str]) -> None:
    required = tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [each for each in required if each.startswith("kant-")] == [f"{each}=={__version__}" for each in beside]
    hidden = set().union(*(modules(each) for each in FOLDERS if each not in (name, *beside)))
    own = {each for each in modules(name) if each not in NEED_MORE}
    done = subprocess.run([sys.executable, "-c", HIDE], input=" ".join(hidden) + "|" + " ".join(own), text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


NEED_MORE = {
    "kant.experiments.ray_cluster", "kant.gateway.vllm_scheduler", "kant.gateway.picker", "kant.gateway.envoy",
    "kant.ops.mcp_server", "kant.testing.strategies",
}  # fmt: skip
"""Modules that need an extra."""


@pytest.mark.long
def test_what_a_distribution_may_find_absent_is_named_by_its_package() -> None:
    graph = grimp.build_graph("kant", cache_dir=str(ROOT / ".import_linter_cache"))
    owner = {module: name for name in FOLDERS for module in modules(name)}
    doors = {
        (one, other)
        for one, name in owner.items()
        for other in graph.find_modules_directly_imported_by(one)
        if owner[other] not in ("kant-scheduler", name)
    }
    assert not [door for door in doors if owner[door[0]] == "kant-kube"], "the leader does without kant-lab"
    assert {other: package_of(other) for _, other in doors} == {other: owner[other] for _, other in doors}


@pytest.mark.long
def test_the_wheels_have_what_they_name_and_the_pages_of_their_verbs(tmp_path: Path) -> None:
    shared: dict[str, str] = {}
    for name, folder in FOLDERS.items():
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
        subprocess.run(build, cwd=folder, capture_output=True, check=True)
        with zipfile.ZipFile(next(tmp_path.glob(f"{name.replace('-', '_')}-*.whl"))) as wheel:
            names = set(wheel.namelist())
            own = {each.partition("/data/share/")[2]: wheel.read(each).decode() for each in names if "/data/" in each}
            (about,) = [wheel.read(each).decode() for each in names if each.endswith(".dist-info/METADATA")]
        assert re.findall(r"^(?:Name|Version): (.*)$", about, re.MULTILINE) == [name, __version__]
        assert {each for each in names if each.startswith("kant/")} == set(files_of(folder))
        assert not own.keys() & shared.keys()
        assert {f"man/man1/kant-{verb}.1" for verb in BESIDE.get(name, ())} <= own.keys()
        shared |= own
    assert {f"man/man1/kant-{verb}.1" for verb in VERBS} | {"man/man1/kant.1"} <= shared.keys()
    assert {name for name in shared if not name.startswith("man/")} == {
        "bash-completion/completions/kant", "zsh/site-functions/_cyclopts_kant", "fish/vendor_completions.d/kant.fish",
    }  # fmt: skip
    assert all(shared[f"man/man1/kant-{verb}.1"].startswith(f".TH KANT-{verb.upper()} 1 ") for verb in VERBS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of kant-scheduler."""
    folder = tmp_path_factory.mktemp("alone")
    for file in files_of(ROOT):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).symlink_to(ROOT / "src" / file)
    return folder


def run_alone(alone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(alone)!r}); from kant.cli.app import main; main(sys.argv[1:])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KANT_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.long
def test_alone_a_verb_of_another_package_is_answered_with_its_name(alone: Path) -> None:
    for words, package in (
        (["kube", "run"], "kant-kube"), (["jobs", "--kube"], "kant-kube"), (["plan", "capacity"], "kant-lab"),
        (["serve"], "kant-lab"),
    ):  # fmt: skip
        done = run_alone(alone, *words)
        sentence = f"kant: this installation: expected the package {package} (pip install {package})\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence), words


@pytest.mark.long
def test_alone_the_first_page_and_the_policies_have_what_is_there(alone: Path) -> None:
    page = run_alone(alone, "--help").stdout
    assert "simulate, compare" in page and "Lab" not in page and "Kant on Kubernetes" not in page
    assert page.endswith(
        "\nNot installed: kube (pip install kant-kube)\n"
        "Not installed: plan, perf, pack, defrag, share, serve (pip install kant-lab)\n"
    )
    found = run_alone(alone, "policies", "--json")
    assert found.returncode == 0 and '"order"' in found.stdout and '"router":[]' in found.stdout
    assert run_alone(alone, "nonsense").stderr.startswith('kant: Unknown command "nonsense"')


def test_with_all_of_them_the_first_page_is_the_whole_text() -> None:
    text = (ROOT / "src/kant/cli/help.txt").read_text()
    assert not missing() and first_page(text) == text


@pytest.mark.long
def test_a_leader_loads_no_more_lines_than_it_did() -> None:
    done = subprocess.run([sys.executable, "-c", LEADER], capture_output=True, text=True, check=True)
    lines, loaded = done.stdout.splitlines()
    print(f"a leader loads {int(lines):,} lines of Kant")
    assert int(lines) <= MOST_LINES_OF_A_LEADER
    assert not set(loaded.split()) & modules("kant-lab")
