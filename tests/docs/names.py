"""What Kant's code and command line have, by name: for the test that the documentation names nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from cyclopts import App

from kant.cli.kubectl import kubectl_app
from kant.cli.leader import cluster_answers
from kant.cli.verbs import VERBS, app_of

SOURCE = Path(__file__).parents[2] / "src" / "kant"
FOLDERS = {"kant": SOURCE, "benchmarks": SOURCE.parents[1] / "benchmarks", "tests": SOURCE.parents[1] / "tests"}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _modules_by_class() -> dict[str, list[Path]]:
    """Where the classes of Kant are, by name: to parse all of Kant would take seconds."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for name in set(re.findall(r"^ *class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)):
            found.setdefault(name, []).append(path)
    return found


@cache
def words() -> frozenset[str]:
    """Every word in the sources of Kant that is written like the name of a class."""
    text = "\n".join(path.read_text(encoding="utf-8") for kind in ("py", "yaml") for path in SOURCE.rglob(f"*.{kind}"))
    return frozenset(re.findall(r"\b[A-Z][a-z]+[A-Z]\w*", text))


def classes(name: str) -> list[ast.ClassDef]:
    """The classes of Kant of this name; there may be several."""
    nodes = (node for path in _modules_by_class().get(name, ()) for node in ast.walk(_tree(path)))
    return [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]


@cache
def attributes(name: str) -> frozenset[str]:
    """What classes of this name have, with what they inherit from Kant's own."""
    found: set[str] = set()
    for node in classes(name):
        found |= _defined(node.body)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                found |= {inner.attr} if isinstance(inner.value, ast.Name) and inner.value.id == "self" else set()
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(base, ast.Name) and base.id != name:
                found |= attributes(base.id)
    return frozenset(found)


def _defined(body: list[ast.stmt]) -> set[str]:
    """The names that statements of a module or a class define, also below an `if`."""
    found: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {each.asname or each.name for each in names}
            case ast.If(body=inside, orelse=other):
                found |= _defined(inside) | _defined(other)
    return found


def resolves(dotted: str) -> bool:
    """Whether `kant.room.module.Name.attribute` is there, as far as it goes."""
    first, *rest = dotted.split(".")
    place = FOLDERS[first]
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if not rest:
        return True
    module = place / f"{rest[0]}.py"
    if module.exists():
        rest.pop(0)
    else:
        module = place / "__init__.py"
    if not rest:
        return True
    if rest[0] not in _defined(_tree(module).body) | _lazy(module):
        return False
    return len(rest) == 1 or not classes(rest[0]) or rest[1] in attributes(rest[0])


def _lazy(module: Path) -> set[str]:
    """The names that a package offers without importing them: the texts of its tables and of `__all__`."""
    return {
        node.value
        for node in ast.walk(_tree(module))
        if module.name == "__init__.py" and isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@cache
def kant() -> App:
    return app_of(*VERBS)


@cache
def kubectl_kant() -> App:
    return kubectl_app(cluster_answers)


def fault_of(line: list[str]) -> str | None:
    """What the command line of `kant` or `kubectl kant` names that is not there, or None."""
    app = kubectl_kant() if line[0] == "kubectl" else kant()
    words = line[2:] if line[0] == "kubectl" else line[1:]
    while words and not words[0].startswith("-") and any(not verb.startswith("-") for verb in app):
        if words[0] not in app:
            if app.default_command is not None:
                break
            return words[0]
        app = app[words.pop(0)]
    known = _options_of(app) | {"--help", "-h", "--version"}
    for word in words:
        if word == "--":
            return None
        if word.startswith("--") and word.partition("=")[0] not in known:
            return word
    return None


def _options_of(app: App) -> frozenset[str]:
    return _options_of_command(app.default_command) if app.default_command is not None else frozenset()


@cache
def _options_of_command(command: Callable[..., object]) -> frozenset[str]:
    arguments = App(default_command=command).assemble_argument_collection(parse_docstring=True)
    return frozenset(name for each in arguments for name in each.names)


@cache
def options() -> frozenset[str]:
    """The options of all commands, and of the benchmarks."""
    found: set[str] = {"--help", "--version"}
    for path in FOLDERS["benchmarks"].rglob("*.py"):
        found |= set(re.findall(r"""["'](--[a-z][\w-]*)["']""", path.read_text(encoding="utf-8")))

    def add(app: App) -> None:
        verbs = [verb for verb in app if not verb.startswith("-")]
        for verb in verbs:
            add(app[verb])
        found.update(_options_of(app))

    add(kant())
    add(kubectl_kant())
    return frozenset(found)
