"""The house rules that a program can check (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kant"
MODULES = sorted(SOURCE.rglob("*.py"))
PURE_ROOMS = ("insight", "reproduce", "scheduler", "queueing", "placement", "cluster", "model")
POLICY_ROOMS = ("optimize", "placement", "queueing", "reproduce", "serving")

SMELL, LONGEST, LONGEST_CYCLE = 300, 500, 110
REASON = re.compile(r"^Long: \S+", re.MULTILINE)
BANNED = {"manager", "helper", "helpers", "util", "utils", "info"}
FOREIGN = {
    "door", "doors", "essence", "glance", "heed", "humble", "lanes", "loose", "lots", "standing", "told", "wish",
    "wishes",
}  # fmt: skip
"""Words that an engineer of the field would have to ask about."""
SEEDED = {"Generator", "PCG64", "Philox", "SeedSequence"}
CLASS = re.compile(r"^\s*class (\w+)", re.MULTILINE)
PUBLIC = re.compile(r"^\s*(?:class|(?:async )?def) ([A-Za-z]\w*)", re.MULTILINE)
BASE_IMPL = re.compile(r"Base\w*Impl")
MOST_SHARED_NAMES = 68
"""Names that stand for more than one class: protocols and what implements them, objects of Kubernetes, orders that are
named as the decision that they lead to. They may only become fewer."""


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_the_contracts_between_the_floors_hold() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_is_long_without_its_reason() -> None:
    for path in MODULES:
        if _lines(path) > SMELL:
            print(f"{_name(path)}: {_lines(path)} lines")
    unexplained = [
        _name(path)
        for path in MODULES
        if _lines(path) > LONGEST and not REASON.search(ast.get_docstring(_tree(path)) or "")
    ]
    assert not unexplained, f"over {LONGEST} lines, and no 'Long: <reason>' in the docstring: {unexplained}"


def test_the_cycle_stays_on_one_screen_and_a_half() -> None:
    cycle = SOURCE / "scheduler" / "cycle.py"
    if not cycle.exists():
        pytest.skip("no scheduler/cycle.py")
    assert _lines(cycle) <= LONGEST_CYCLE


def _words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in small letters."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


@pytest.mark.parametrize(
    ("name", "banned"),
    [("QueueManager", True), ("GPUInfo", True), ("test_utils", True), ("Informer", False), ("utilisation", False)],
)
def test_the_rule_of_names_knows_words(name: str, banned: bool) -> None:
    assert bool(_words(name) & BANNED) == banned


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_classes_and_modules_have_the_nouns_of_the_field() -> None:
    names = [(_name(path), path.stem) for path in MODULES]
    names += [(_name(path.parent), path.parent.name) for path in MODULES]
    for path in MODULES:
        names += [(f"{_name(path)}: {name}", name) for name in CLASS.findall(path.read_text())]
    broken = sorted({where for where, name in names if _words(name) & BANNED or BASE_IMPL.search(name)})
    assert not broken


def test_public_names_are_words_of_the_field() -> None:
    names = [(_name(path), name) for path in MODULES for name in (path.stem, *PUBLIC.findall(path.read_text()))]
    assert not [(where, name) for where, name in names if _words(name) & FOREIGN]


def test_one_module_reads_toml() -> None:
    assert [_name(path) for path in MODULES if "tomllib" in path.read_text()] == ["src/kant/toml_file.py"]


def test_few_names_stand_for_more_than_one_class() -> None:
    counts = Counter(name for path in MODULES for name in re.findall(r"(?m)^class ([A-Z]\w*)", path.read_text()))
    assert len(shared := [name for name, count in counts.items() if count > 1]) <= MOST_SHARED_NAMES, sorted(shared)


def _policies(tree: ast.Module) -> list[str]:
    """The classes with tags of their own: what `kant policies` lists."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(field, ast.AnnAssign) and field.value for field in node.body if _target(field) == "tags")
    ]


def _target(field: ast.stmt) -> str | None:
    return field.target.id if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) else None


def test_a_policy_is_one_class_in_one_file() -> None:
    found = {_name(path): _policies(_tree(path)) for room in POLICY_ROOMS for path in (SOURCE / room).rglob("*.py")}
    assert sum(map(len, found.values())) >= 30
    assert not {path: classes for path, classes in found.items() if len(classes) > 1}


def _impure(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What the import contract cannot see: files, the terminal, NumPy generators without a seed of ours."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="open" | "print" | "input" | "breakpoint" as name)):
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="random")), args=[], keywords=[]):
                yield node.lineno, "numpy.random without a seed"
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="random"), attr=name):
                if name not in SEEDED:
                    yield node.lineno, f"numpy.random.{name}"
            case ast.ImportFrom(module=str(module), names=names):
                if module.startswith("numpy.random") or (module == "numpy" and "random" in {n.name for n in names}):
                    yield node.lineno, "numpy.random (write np.random.Generator(np.random.PCG64(seed)))"


def test_the_rule_of_purity_sees_what_it_must() -> None:
    text = """
np.random.rand(3)
np.random.Generator(np.random.PCG64(seed))
np.random.PCG64()
from numpy import random
open("x")
state.open("x")
"""
    assert sorted(line for line, _ in _impure(ast.parse(text))) == [2, 4, 5, 6]


def test_from_the_scheduler_down_nothing_reads_writes_or_draws() -> None:
    broken = [
        f"{_name(path)}:{line}: {what}"
        for room in PURE_ROOMS
        for path in sorted((SOURCE / room).rglob("*.py"))
        for line, what in _impure(_tree(path))
    ]
    assert not broken
