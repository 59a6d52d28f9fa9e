"""The report of engines in a browser: a time bar says of every engine what its series says."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from tests.browser import lent
from tests.cli.command import kant

from kant.serving.bundle import COLUMNS
from kant.serving.page import page as page_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two engines."""
    made = tmp_path_factory.mktemp("serve")
    kant("serve", "generate", "conversation", "--out", made / "r.csv", "--requests", "300", "--rate", "30")
    kant(
        "serve", "compare", made / "r.csv", "--engines", "2", "--router", "round-robin", "--router", "least-tokens",
        "--out", made / "out",
    )  # fmt: skip
    return made / "out"


@contextmanager
def opened(browser: Browser, file: Path, scheme: str = "light") -> Iterator[tuple[Page, list[str]]]:
    said: list[str] = []
    with lent(
        browser, width=900, height=800, color_scheme=scheme,
        console=lambda message: said.append(message.text),
        pageerror=lambda error: said.append(str(error)),
        request=lambda request: said.append(request.url) if not request.url.startswith("file:") else None,
    ) as page:  # fmt: skip
        page.goto(file.as_uri())
        yield page, said


def series(folder: Path) -> dict[tuple[int, int], list[tuple[float, float, float, float]]]:
    """Of each run and engine: time, and what it has then."""
    rows: dict[tuple[int, int], list[tuple[float, float, float, float]]] = defaultdict(list)
    with (folder / "series.csv").open() as file:
        for row in csv.DictReader(file):
            found = (float(row[name]) for name in ("time_s", "running", "waiting", "kv_share"))
            rows[int(row["run"]), int(row["engine"])].append(tuple(found))  # type: ignore[arg-type]
    return rows


@pytest.mark.browser
def test_the_time_bar_says_what_every_engine_has_at_that_time(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "report.html") as (page, said):
        rows = series(folder)
        assert page.locator("svg").count() == 6 and page.locator("polyline").count() == 12
        draw = np.random.Generator(np.random.PCG64(1))
        first, last = rows[0, 0][0][0], max(rows[0, 0][-1][0], rows[1, 0][-1][0])
        for t in draw.uniform(first, last, 4).tolist():
            page.locator("#time").evaluate("(bar, t) => { bar.value = t; bar.dispatchEvent(new Event('input')) }", t)
            shown = page.evaluate("""() => [...document.querySelectorAll("[data-run]")].map(chart =>
                [Number(chart.dataset.run), chart.dataset.column, [...chart.querySelectorAll("li span")]
                .map(value => value.textContent)])""")
            assert len(shown) == 6
            for run, column, texts in shown:
                for engine, text in enumerate(texts):
                    mine = rows[run, engine]
                    place = ("running", "waiting", "kv_share").index(column) + 1
                    if round(mine[-1][0], 4) < t:
                        assert text == "-"
                        continue
                    now = [row for row in mine if round(row[0], 4) <= t] or mine[:1]
                    scale = 100 if column == "kv_share" else 1
                    assert float(text) == pytest.approx(scale * now[-1][place], abs=0.06)
        assert said == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_can_be_read_by_everybody(browser: Browser, folder: Path, scheme: str) -> None:
    with opened(browser, folder / "report.html", scheme) as (page, said):
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400  # nothing runs out of a narrow window
        assert not [line for line in said if "axe" not in line.lower()]


def test_a_folder_gives_its_report_again(folder: Path, tmp_path: Path) -> None:
    assert kant("report", folder, "--out", tmp_path / "again.html").code == 0
    assert (tmp_path / "again.html").read_bytes() == (folder / "report.html").read_bytes()
    kant("report", folder, "--out", tmp_path / "named.html", "--title", "A & <b>")
    assert "<h1>A &amp; &lt;b&gt;</h1>" in (tmp_path / "named.html").read_text()


@pytest.mark.parametrize(
    ("name", "text"), [("series.csv", "run,time_s\n0,x\n"), ("summary.json", "{}"), ("summary.json", "[1")]
)
def test_a_folder_that_was_changed_is_refused_in_a_sentence(folder: Path, tmp_path: Path, name: str, text: str) -> None:
    for file in ("series.csv", "summary.json"):
        (tmp_path / file).write_text(text if file == name else (folder / file).read_text())
    assert str(tmp_path) in kant("report", tmp_path, "--out", tmp_path / "r.html").refusal()


def test_a_run_without_a_moment_has_a_page(folder: Path) -> None:
    summaries = json.loads((folder / "summary.json").read_text())["runs"]
    assert "Nothing was served" in page_text(summaries, pl.DataFrame(schema=COLUMNS))


def test_engines_have_a_tab_in_the_report_of_a_cluster(folder: Path, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("id,submit_s,runtime_s,gpus\na,0,60,4\nb,10,60,8\n")
    kant("simulate", tmp_path / "jobs.csv", "--cluster", "1x8", "--out", tmp_path / "run")
    file = tmp_path / "both.html"
    kant("report", tmp_path / "run" / "journal.jsonl", folder, "--out", file)
    with opened(browser, file) as (page, said):
        page.wait_for_selector("html[data-ready]")
        tab = page.get_by_label("Engines: out")
        assert page.locator("#root").is_visible() and not page.locator("iframe").is_visible()
        tab.check()
        assert not page.locator("#root").is_visible() and page.locator("iframe").is_visible()
        inside = page.frame_locator("iframe")
        assert inside.locator("h1").is_visible()
        first = series(folder)[0, 0]
        at = first[len(first) // 2][0]
        inside.locator("#time").evaluate(f"bar => {{ bar.value = {at}; bar.dispatchEvent(new Event('input')); }}")
        shown = inside.locator("[data-run='0'][data-column='running'] li span").first.text_content()
        assert shown == f"{[row for row in first if row[0] <= at][-1][1]:.0f}"
        page.get_by_label("Cluster").check()
        assert page.locator("#root").is_visible() and not page.locator("iframe").is_visible()
        assert said == []
