"""The page in a real browser: everything is drawn and nothing complains."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.report.cluster_runs import make_cluster, make_run
from tests.report.test_report import empty_run

from kant.metrics.result import RunResult
from kant.model.node import ClusterSpec
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


def dom(browser: str, page: Path, script: str = "") -> str:
    """The document after its scripts have run, and then `script` (on a copy that lets it)."""
    if script:
        text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text())
        waits = "while (!document.documentElement.dataset.ready) await new Promise((go) => setTimeout(go, 20));"
        page = page.with_name("asked.html")
        page.write_text(text.replace("</body>", f"<script>(async () => {{ {waits} {script} }})();</script></body>"))
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


def spined(packed: bool = False) -> RunResult:
    """A run on 32 nodes in leaves of 4 and spines of two leaves; each job could lie on one node of one leaf."""
    nodes = make_cluster(32, leaf=4).nodes
    named = [msgspec.structs.replace(n, spine=f"s{i // 8}", superspine="top") for i, n in enumerate(nodes)]
    run = make_run("first", ClusterSpec("lab", tuple(named)), 300, seed=1, packed=packed)
    ones = np.ones((len(run.jobs.id), 2), dtype=np.int64)
    return dataclasses.replace(run, jobs=dataclasses.replace(run.jobs, fewest=ones))


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def fewest(number: int, one: str, many: str) -> str:
    return f"{counted(number, one, many)} ({'the fewest possible' if number == 1 else 'fewest possible: 1'})"


def test_a_job_that_is_picked_is_said_to_lie_where_it_does(browser: str, tmp_path: Path) -> None:
    run = spined()
    row = int(np.bincount(run.intervals[:, 0]).argmax())  # the job on the most nodes
    nodes = sorted({int(node) for job, node, *_ in run.intervals.tolist() if job == row})
    leaves, spines = {node // 4 for node in nodes}, {node // 8 for node in nodes}
    assert len(leaves) > 2
    write_report(tmp_path / "report.html", [run], "Picked")
    ask = f'byId("job").value = "{run.jobs.id[row]}"; byId("job").dispatchEvent(new Event("change"));'
    found = dom(browser, tmp_path / "report.html", ask)
    assert 'data-errors="0"' in found
    words = html.unescape(found.split('<p class="span"')[1].split("</p>")[0])
    for part in (
        fewest(len(nodes), "node", "nodes"), fewest(len(leaves), "leaf", "leaves"),
        counted(len(spines), "spine", "spines"),
    ):  # fmt: skip
        assert part in words, (part, words)
    none = dom(browser, tmp_path / "report.html", ask.replace(run.jobs.id[row], "nobody"))
    assert "There is no job nobody in the map." in none and '<p class="span" aria-live="polite"></p>' in none


def test_a_click_and_the_keyboard_pick_the_job_of_a_gpu_and_let_it_go(browser: str, tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", [spined(packed=True)], "Picked")
    key = 'map.dispatchEvent(new KeyboardEvent("keydown", { key: "KEY" }));'
    picked = """
        const map = document.querySelector("#panels canvas"), said = [];
        byId("spread").click();
        const first = byId("job").value;
        KEYS
        document.documentElement.dataset.said = JSON.stringify([first, ...said]);
    """
    enter = [key.replace("KEY", each) for each in ("ArrowRight", "Enter")]
    keys = (
        f'{key.replace("KEY", "Escape")} said.push(byId("job").value); {" ".join(enter)} said.push(byId("job").value);'
    )
    click = 'map.dispatchEvent(new MouseEvent("click")); said.push(byId("job").value);'
    found = dom(browser, tmp_path / "report.html", picked.replace("KEYS", keys + click))
    assert 'data-errors="0"' in found
    first, gone, entered, again = json.loads(html.unescape(found.split('data-said="')[1].split('"')[0]))
    assert first and gone == "" and again == ""  # the second time lets it go
    assert entered


@pytest.mark.parametrize("end", [0, 3_600_000_000])
def test_a_run_without_jobs_is_drawn(browser: str, tmp_path: Path, end: int) -> None:
    runs: list[RunResult] = [empty_run(end=end)]
    write_report(tmp_path / "report.html", runs, "Nothing")
    found = dom(browser, tmp_path / "report.html")
    assert re.search(r'<html[^>]*data-errors="0"[^>]*data-ready="true"', found), found[-3000:]
