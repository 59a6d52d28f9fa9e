"""For machines without uv: turn uv.lock into what pip understands.

Writes one constraint for each locked package that this machine needs to the file named, and prints the
requirements of the dev group.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from pip._vendor.packaging.markers import Marker  # the venv has pip, and nothing else yet

ROOT = Path(__file__).parent.parent


def main(target: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    lines = []
    for package in lock["package"]:
        markers = package.get("resolution-markers", [])
        if "registry" in package["source"] and (not markers or any(Marker(m).evaluate() for m in markers)):
            lines.append(f"{package['name']}=={package['version']}\n")
    Path(target).write_text("".join(lines))
    print("\n".join(project["dependency-groups"]["dev"]))


if __name__ == "__main__":
    main(sys.argv[1])
