"""The page in a real browser: everything is drawn and nothing complains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.report.cluster_runs import make_cluster, make_run
from tests.report.test_report import empty_run

from kant.metrics.result import RunResult
from kant.report import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sentence = f"no browser on PATH (one of {', '.join(BROWSERS)})"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence, pytrace=False)
        pytest.skip(sentence)
    return found


def dom(browser: str, page: Path) -> str:
    """The document after its scripts have run."""
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=8000", "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("count", [1, 2, 3])
def test_everything_is_drawn(browser: str, tmp_path: Path, count: int) -> None:
    cluster = make_cluster(32)
    names = ("first", "</script><b>second", "third")
    runs = [make_run(name, cluster, 300, seed=i, packed=i > 0) for i, name in enumerate(names[:count])]
    write_report(tmp_path / "report.html", runs, "In a <browser>")
    found = dom(browser, tmp_path / "report.html")
    assert re.search(r'<html[^>]*data-errors="0"[^>]*data-ready="true"', found), found[:300]
    assert '<table id="metrics">' in found and '<table id="waits">' in found
    charts, panels = found.split('id="panels"')
    assert charts.count("<canvas") >= 5 + 3  # over time, and at least three size classes
    assert panels.count("<canvas") == min(2, count)
    in_use = re.findall(r"<small>([\d.,]+) of 256 GPUs in use · [\d,]+ nodes partly allocated", panels)
    assert len(in_use) == min(2, count) and all(float(amount) > 0 for amount in in_use)


@pytest.mark.parametrize("end", [0, 3_600_000_000])
def test_a_run_without_jobs_is_drawn(browser: str, tmp_path: Path, end: int) -> None:
    runs: list[RunResult] = [empty_run(end=end)]
    write_report(tmp_path / "report.html", runs, "Nothing")
    found = dom(browser, tmp_path / "report.html")
    assert re.search(r'<html[^>]*data-errors="0"[^>]*data-ready="true"', found), found[-3000:]
