"""The image: what says what is in it, and, where buildah is, the image itself (`.ci/image`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_bill_of_materials_names_each_package_once_and_is_the_same_each_time(tmp_path: Path) -> None:
    site, dpkg = tmp_path / "site", tmp_path / "status"
    for name, version, more in (
        ("kant_scheduler", "1.2", ""),
        ("B_b", "3", "License-Expression: MIT\n"),
        ("a", "0.1", ""),
    ):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{more}\n")
    fields = "Package: zlib1g\nStatus: install ok {}\nVersion: 1:1.2\nArchitecture: amd64\n"
    dpkg.write_text(fields.format("installed") + "\n" + fields.format("not-installed").replace("zlib1g", "gone"))
    command = [sys.executable, str(ROOT / "deploy" / "sbom.py"), str(site), str(dpkg)]
    texts = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert texts[0] == texts[1]
    found = json.loads(texts[0])
    assert (found["bomFormat"], found["metadata"]["component"]["purl"]) == ("CycloneDX", "pkg:pypi/kant-scheduler@1.2")
    assert [one["purl"] for one in found["components"]] == [
        "pkg:deb/debian/zlib1g@1:1.2?arch=amd64", "pkg:pypi/a@0.1", "pkg:pypi/b-b@3",
    ]  # fmt: skip
    assert [one.get("licenses") for one in found["components"]] == [None, None, [{"license": {"name": "MIT"}}]]
    shutil.rmtree(site / "kant_scheduler-1.2.dist-info")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"sbom: expected Kant among the packages of {site}\n")


def test_the_image_has_all_that_its_own_build_asks_for() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    there = {name for line in copied for name in line.split()}
    assert {
        "pyproject.toml",
        "uv.lock",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "src",
        "packages",
        "deploy/sbom.py",
    } <= there
    assert all((ROOT / name).exists() for name in there)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == there, "all of it, and nothing else, is sent"


@pytest.mark.skipif("KANT_IMAGE" not in os.environ, reason="KANT_IMAGE=true builds the image, twice: some minutes")
def test_the_image_is_built_twice_alike_and_runs_as_nobody() -> None:
    assert shutil.which("buildah"), "expected buildah on the path"
    subprocess.run([str(ROOT / ".ci" / "image")], check=True)
