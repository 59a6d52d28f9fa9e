"""What the wheel has besides the package: manual pages and completions, where man(1) and the shells look for them."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SharedFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Writes them from the verbs themselves, so none of them is checked in."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "src"))
        from kant.cli.completion import files
        from kant.cli.man import pages

        self._folder = TemporaryDirectory()
        share = Path(self._folder.name)
        for name, text in {**files(), **{f"man/man1/{name}": text for name, text in pages().items()}}.items():
            (share / name).parent.mkdir(parents=True, exist_ok=True)
            (share / name).write_text(text, encoding="utf-8")
        build_data["shared_data"][str(share)] = "share"
