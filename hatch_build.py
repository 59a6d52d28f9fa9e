"""What each wheel has: its part of the package, and manual pages and completions where man(1) and the shells look.

Three distributions share `src`. Those in `packages` name what they have (`[tool.kant] files`); Kant's own has the rest.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def named(folder: Path) -> list[str]:
    """What the distribution of a folder names; nothing, where it has the rest."""
    found = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    return list(found.get("tool", {}).get("kant", {}).get("files", []))


def files_of(root: Path) -> list[str]:
    """The files below `src` of the distribution in a folder."""
    every = sorted(
        path.relative_to(root / "src").as_posix()
        for path in (root / "src" / "kant").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )

    def among(names: list[str]) -> list[str]:
        return [file for file in every if any(file == name or file.startswith(f"{name}/") for name in names)]

    own = named(root)
    if own:
        for name in own:
            if not among([name]):
                raise ValueError(f"{root.name}: tool.kant.files: expected a file or folder of src, got {name!r}")
        return among(own)
    others = {file for beside in sorted(root.glob("packages/*")) for file in among(named(beside))}
    return [file for file in every if file not in others]


class SharedFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Selects the files, and writes the pages from the verbs themselves, so none of them is checked in."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        files = files_of(root)
        wheel = self.target_name == "wheel"
        for file in files:
            build_data["force_include"][str(root / "src" / file)] = file if wheel else f"src/{file}"
        if wheel and (root / "src" / "kant" / "cli" / "verbs.py").is_file():
            self._share(root, files, build_data)

    def _share(self, root: Path, files: list[str], build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(root / "src"))
        from kant.cli.completion import files as completions
        from kant.cli.man import pages
        from kant.cli.verbs import VERBS

        modules = {Path(file).stem for file in files if file.startswith("kant/cli/")}
        verbs = [verb for verb, place in VERBS.items() if place.partition(":")[0] in modules]
        own = tuple(f"kant-{verb}{end}" for verb in verbs for end in ".-")
        if named(root):
            texts = {f"man/man1/{name}": text for name, text in pages(*verbs).items() if name.startswith(own)}
        else:
            own = ("kant.1", *own)
            texts = {f"man/man1/{name}": text for name, text in pages().items() if name.startswith(own)} | completions()
        self._folder = TemporaryDirectory()
        share = Path(self._folder.name)
        for name, text in texts.items():
            (share / name).parent.mkdir(parents=True, exist_ok=True)
            (share / name).write_text(text, encoding="utf-8")
            build_data["shared_data"][str(share / name)] = f"share/{name}"
