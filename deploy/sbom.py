"""What is in the image, as CycloneDX 1.5: `python sbom.py SITE_PACKAGES [DPKG_STATUS]`, on standard output.

Python packages as their metadata names them, and those of Debian. The same content gives the same text.

Source: https://cyclonedx.org/docs/1.5/json, https://github.com/package-url/purl-spec.
"""

from __future__ import annotations

import json
import re
import sys
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

OWN = "kant-scheduler"
DPKG = Path("/var/lib/dpkg/status")


def sbom(site: Path, dpkg: Path = DPKG) -> dict[str, Any]:
    """Its components, each with a purl; Kant itself is what it is about."""
    found = [_python(one) for one in distributions(path=[str(site)])]
    if dpkg.is_file():
        found += _debian(dpkg.read_text(encoding="utf-8"))
    found.sort(key=lambda one: str(one["bom-ref"]))
    own = next((one for one in found if one["name"] == OWN), None)
    if own is None:
        raise SystemExit(f"sbom: expected Kant among the packages of {site}")
    rest = [one for one in found if one is not own]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own | {"type": "application"}},
        "components": rest,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [one["bom-ref"] for one in rest]}],
    }


def _python(distribution: Distribution) -> dict[str, Any]:
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    said = distribution.metadata.get("License-Expression") or distribution.metadata.get("License") or ""
    return _component(name, distribution.version, f"pkg:pypi/{name}@{distribution.version}", said.partition("\n")[0])


def _debian(status: str) -> list[dict[str, Any]]:
    found = []
    for text in status.split("\n\n"):
        fields = HeaderParser().parsestr(text)
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}"
            found.append(_component(name, version, purl))
    return found


def _component(name: str, version: str, purl: str, license_: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return found | ({"licenses": [{"license": {"name": license_}}]} if license_ else {})


if __name__ == "__main__":
    json.dump(sbom(*map(Path, sys.argv[1:])), sys.stdout, indent=1)
    print()
