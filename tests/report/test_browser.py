"""The page of a report in a real browser: everything is drawn, and what it says is what the runs hold."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from pathlib import Path

import msgspec
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from tests.browser import opened
from tests.report.cluster_runs import make_cluster, make_run
from tests.report.test_report import empty_run

from kant.metrics.result import JobTable, RunResult
from kant.model.node import ClusterSpec, Node
from kant.model.units import DAY, GPU, HOUR, parse_duration
from kant.report import write_report
from kant.report.data import report_data

TABS = ("overview", "map", "jobs", "queues")


def written(folder: Path, runs: list[RunResult], title: str = "A report") -> str:
    write_report(folder / "report.html", runs, title)
    return (folder / "report.html").as_uri()


def spined(packed: bool = False, profile: str = "first") -> RunResult:
    """A run on 32 nodes in leaves of 4 and spines of two leaves; each job could lie on one node of one leaf."""
    nodes = make_cluster(32, leaf=4).nodes
    named = [msgspec.structs.replace(n, spine=f"s{i // 8}", superspine="top") for i, n in enumerate(nodes)]
    run = make_run(profile, ClusterSpec("lab", tuple(named)), 300, seed=1, packed=packed)
    ones = np.ones((len(run.jobs.id), 2), dtype=np.int64)
    third = run.jobs.wait // 3
    causes = {"capacity": run.jobs.wait - third, "fragmentation": third}
    summary = run.summary | {"wait_by_cause": {"total": {k: float(v.sum()) / 1e6 for k, v in causes.items()}}}
    jobs = dataclasses.replace(run.jobs, fewest=ones)
    return dataclasses.replace(run, jobs=jobs, wait_by_cause=causes, summary=summary)


def go(page: Page, tab: str) -> None:
    page.click(f"#tab-{tab}")
    page.wait_for_selector(f"#panel-{tab}")
    if tab == "map":
        page.wait_for_selector(".stack canvas[data-painted]")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_everything_is_drawn(browser: Browser, tmp_path: Path, count: int) -> None:
    cluster = make_cluster(32)
    runs = [make_run(name, cluster, 300, seed=i, packed=i > 0) for i, name in enumerate(("a", "b", "c")[:count])]
    with opened(browser, written(tmp_path, runs)) as page:
        page.wait_for_selector("#cdfs .chart canvas")
        assert page.locator("#charts canvas").count() == 5
        assert page.locator("#cdfs canvas").count() >= 3
        assert page.locator(".card strong").count() == 5 * count
        assert page.locator("#metrics thead th").count() == 1 + count
        assert page.locator("#waits tbody tr").count() >= 3 * count
        go(page, "map")
        assert page.locator(".stack").count() == min(2, count)
        heads = page.locator(".panel > h2 small").all_inner_texts()
        used = [re.match(r"([\d.,]+) of 256 GPUs in use · [\d,]+ jobs? runs? · [\d,]+ nodes? partly", h) for h in heads]
        assert len(used) == min(2, count) and all(each is not None and float(each[1]) > 0 for each in used)
        painted = page.evaluate(
            "[...document.querySelectorAll('.stack canvas:first-child')].map(c => +c.dataset.painted)"
        )
        assert painted == [256] * min(2, count)
        go(page, "jobs")
        assert page.locator("#jobs tbody tr").count() > 0
        go(page, "queues")
        assert page.locator(".queues").count() == count


def test_the_numbers_are_those_of_the_summary_with_gains_that_know_their_direction(
    browser: Browser, tmp_path: Path
) -> None:
    base, other = (make_run(name, make_cluster(8), 40) for name in ("base", "other"))
    old = base.summary | {"sor": 0.8, "gfr": {"mean": 0.085}, "wait_s": {"mean": 60}, "completed": 1200, "jtted": {}}
    new = base.summary | {"sor": 0.9, "gfr": {"mean": 0.01}, "wait_s": {"mean": 90}, "completed": 1203, "jobs": 41}
    runs = [dataclasses.replace(base, summary=old), dataclasses.replace(other, summary=new)]
    with opened(browser, written(tmp_path, runs)) as page:
        cards = [" ".join(text.split()) for text in page.locator(".card").all_inner_texts()]
        assert "base 80.00% other 90.00%▲ +10.00 pp (+12.5%) better" in cards[1].replace("% ▲", "%▲")
        assert "base 8.50% other 1.00%▼ \u22127.50 pp (\u221288.2%) better" in cards[2].replace("% ▼", "%▼")
        assert "base 1m other 1m 30s▲ +50.0% worse" in cards[3].replace("s ▲", "s▲")
        assert cards[4].split("base ")[1].startswith("\u2013 other 1.042")
        rows = {" ".join(text.split()) for text in page.locator("#metrics tr").all_inner_texts()}
        assert "completed 1,200 1,203 ▲ +3 better" in rows
        assert "Jobs how they ended arrived 40 41 ▲ +1" in rows  # neither better nor worse
        page.click("text=By queue (9)")
        assert page.locator(".parts th[scope=rowgroup]:visible").count() > 9


def test_names_from_a_trace_are_text(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{data}}&\u2028\"'"
    run = spined()
    nodes = tuple(
        msgspec.structs.replace(node, name=f"{evil}{i}", model=evil, leaf=f"{evil}{i // 4}", spine=evil)
        for i, node in enumerate(run.cluster.nodes)
    )
    jobs = dataclasses.replace(run.jobs, id=[f"{evil}{i}" for i in range(len(run.jobs.id))])
    runs = [
        dataclasses.replace(
            run, profile=evil, workload=evil, cluster=ClusterSpec(evil, nodes), jobs=jobs, interrupted=True,
            queues=tuple(f"{evil}{i}" for i in range(len(run.queues))),
            summary=run.summary | {"digest": evil, "seed": evil, "by_queue": {evil: {}, "x": {}}},
        )
    ]  # fmt: skip
    with opened(browser, written(tmp_path, runs, evil)) as page:
        assert page.inner_text("h1").startswith(evil.split("&")[0])
        assert "Partial result" in page.inner_text("[role=alert]")
        for tab in TABS[1:]:
            go(page, tab)
            assert "<img src=x" in page.inner_text("main") or tab == "map"
        go(page, "map")
        page.click("#spread")
        assert "<img src=x" in page.inner_text(".job h3")
        assert page.locator("img").count() == 0
        late = int(jobs.wait.argmax())
        page.fill("#when", str(int(jobs.submit[late] + jobs.wait[late] // 2)))
        page.fill("#job", jobs.id[late])
        page.press("#job", "Enter")
        assert shlex.split(page.inner_text("#ask"))[2] == jobs.id[late]  # one word, whatever is in it


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def fewest(number: int, one: str, many: str) -> str:
    return f"{counted(number, one, many)} ({'the fewest possible' if number == 1 else 'fewest possible: 1'})"


def test_a_job_that_is_picked_is_said_to_lie_where_it_does(browser: Browser, tmp_path: Path) -> None:
    run = spined()
    row = int(np.bincount(run.intervals[:, 0]).argmax())  # the job on the most nodes
    nodes = sorted({int(node) for job, node, *_ in run.intervals.tolist() if job == row})
    leaves, spines = {node // 4 for node in nodes}, {node // 8 for node in nodes}
    assert len(leaves) > 2
    with opened(browser, f"{written(tmp_path, [run])}#map") as page:
        page.fill("#job", run.jobs.id[row])
        page.press("#job", "Enter")
        words = page.inner_text(".job .span")
        assert words == " · ".join(
            (
                fewest(len(nodes), "node", "nodes"), fewest(len(leaves), "leaf", "leaves"),
                counted(len(spines), "spine", "spines"),
            )
        )  # fmt: skip
        assert page.locator(".leaves li").count() == len(leaves)
        assert page.locator(".node i.held").count() == sum(
            int(mask).bit_count() for job, _, mask, *_ in run.intervals.tolist() if job == row
        )
        causes = page.locator(".job .bars th").all_inner_texts()
        assert causes == (["capacity", "fragmentation"] if run.jobs.wait[row] else [])
        assert page.locator(".track i").count() == 1
        assert page.locator("#ask").count() == 0  # it runs
        late = int(run.jobs.wait.argmax())
        moment = int(run.jobs.submit[late] + run.jobs.wait[late] // 2)
        page.fill("#when", str(moment))
        page.fill("#job", run.jobs.id[late])
        page.press("#job", "Enter")
        assert page.inner_text(".job .span") == "It waits at this moment."
        _, why, job, _, _, at = shlex.split(page.inner_text("#ask"))
        assert (why, job, parse_duration(at)) == ("why", run.jobs.id[late], int(page.input_value("#when")))
        page.fill("#job", "nobody")
        page.press("#job", "Enter")
        assert page.inner_text("#job-hint") == "There is no job nobody."
        assert page.locator(".job").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_out_of_order_has_a_pattern_and_is_named(browser: Browser, tmp_path: Path, scheme: str) -> None:
    """For half the time two GPUs of the first node are lost, the second node is out of service, the third not there."""
    run = spined(packed=True)
    last, half = run.end, run.end // 2
    run = dataclasses.replace(run, service=np.array([
        [0, 0, 0, 0b11], [0, 1, 2, 0], [0, 2, 4, 0], [half, 0, 0, 0], [half, 1, 0, 0], [half, 2, 0, 0],
    ]))  # fmt: skip

    def gpus(page: Page) -> int:
        return int(page.inner_text(".panel > h2 small").partition(" of ")[2].partition(" ")[0].replace(",", ""))

    with opened(browser, f"{written(tmp_path, [run])}#map", color_scheme=scheme) as page:
        page.fill("#when", str(half - last // 100))
        assert {"GPU lost", "node out of service", "blank: node not there"} <= set(
            page.locator(".legend .key").all_inner_texts()
        )
        assert page.inner_text(".panel > h2 small").endswith("· 2 GPUs lost · 1 node out of service")
        page.focus(".stack")
        page.keyboard.press("ArrowRight")
        said = (page.text_content("p[role=status]") or "").splitlines()
        assert said[1] == "this GPU is lost: nothing runs on it, and it is not counted"
        page.keyboard.press("ArrowRight")
        assert (page.text_content("p[role=status]") or "").splitlines()[1] == "out of service"
        page.keyboard.press("ArrowRight")
        assert (page.text_content("p[role=status]") or "").splitlines()[1] == "not there"
        there, (blank,) = gpus(page), cell_colours(page, 16)
        ill = [cell_colours(page, gpu) for gpu in (0, 1, 8, 15)]
        assert [len(colours) for colours in ill] == [2] * 4 and ill[0] == ill[1] and ill[2] == ill[3] != ill[0]
        if (folder := os.environ.get("KANT_PICTURES")) not in (None, "1"):
            page.screenshot(path=f"{folder}/lost-{scheme}.png")
        page.fill("#when", str(half))
        assert [len(cell_colours(page, gpu)) for gpu in (0, 1, 8, 15)] == [1] * 4
        assert "lost" not in page.inner_text(".panel > h2 small")
        assert gpus(page) == there + 8 and cell_colours(page, 16) != [blank]


def cell_colours(page: Page, gpu: int) -> list[int]:
    """The colours of the cell of a GPU of the first leaf, where a node is a column."""
    found: list[int] = page.evaluate(
        """(gpu) => {
          const canvas = document.querySelector('.stack canvas'), {width, height} = canvas;
          const copy = Object.assign(document.createElement('canvas'), {width, height});
          const context = copy.getContext('2d', {willReadFrequently: true});
          context.drawImage(canvas, 0, 0);
          const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
          const at = pixels.findIndex(Boolean), x = at % width, y = Math.floor(at / width);
          let cell = 1;
          while (pixels[at + cell]) cell++;
          const left = x + (cell + 1) * Math.floor(gpu / 8), top = y + (cell + 1) * (gpu % 8), found = new Set();
          for (let i = 0; i < cell; i++) for (let j = 0; j < cell; j++) found.add(pixels[(top + i) * width + left + j]);
          return [...found].sort();
        }""",
        gpu,
    )
    return found


def test_a_click_and_the_keyboard_pick_the_job_of_a_gpu_and_let_it_go(browser: Browser, tmp_path: Path) -> None:
    run = spined(packed=True)
    with opened(browser, f"{written(tmp_path, [run])}#map") as page:
        page.click("#spread")
        assert page.input_value("#job") in run.jobs.id
        page.focus(".stack")
        page.keyboard.press("Escape")
        assert page.input_value("#job") == "" and page.locator(".job").count() == 0
        page.keyboard.press("ArrowRight")
        said = page.inner_text("p[role=status]")
        assert said.startswith("n00000 · GPU 0 · H800 · leaf0")
        holder = re.search(r"job (\S+) ", said)
        assert holder is not None
        page.keyboard.press("Enter")
        assert page.input_value("#job") == holder[1]
        page.keyboard.press("Enter")
        assert page.input_value("#job") == ""
        box = page.locator(".stack canvas").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 12, box["y"] + 40)
        tip = page.inner_text("#tip")
        page.mouse.click(box["x"] + 12, box["y"] + 40)
        clicked = re.search(r"job (\S+) ", tip)
        assert clicked is not None and page.input_value("#job") == clicked[1]
        was = page.input_value("#when")
        page.keyboard.press("Space")
        page.wait_for_function("was => document.querySelector('#when').value !== was", arg=was)  # it plays
        page.keyboard.press("Space")
        assert page.get_attribute("#play", "aria-pressed") == "false"


def held_at(run: RunResult, time: int, begin: int, unit: int) -> dict[str, int]:
    """Milli-GPUs in use by queue at `time`, with the times of the page."""
    rows = run.intervals
    start, end = ((rows[:, i] - begin) // unit * unit + begin for i in (4, 5))
    found = dict.fromkeys(run.queues, 0)
    for job, _, mask, milli, *_ in rows[(start <= time) & (end > time)].tolist():
        found[run.queues[run.jobs.queue[job]]] += mask.bit_count() * milli
    return found


def picture(page: Page) -> str:
    return str(page.evaluate("document.querySelector('.stack canvas').toDataURL()"))


def asked(run: RunResult, at: int) -> float:
    """The mean of the milli-GPUs in use and waited for in the hour around a moment."""
    times = np.linspace(at - HOUR // 2, at + HOUR // 2, 600)
    rows = np.searchsorted(run.series.time, times, side="right") - 1
    return float((run.series.allocated + run.series.waiting_gpus)[rows].mean())


def test_every_view_shows_the_moment_however_it_was_reached(browser: Browser, tmp_path: Path) -> None:
    run = spined(packed=True)
    data = report_data([run])
    begin, end, unit = data["begin_us"], data["end_us"], data["map"]["unit_us"]
    moments = np.random.default_rng(3).integers(begin, end, 10).tolist()
    address = written(tmp_path, [run])
    shown = {}
    with opened(browser, f"{address}#queues") as page:
        hours = [asked(run, at) for at in range(begin + HOUR // 2, end - HOUR // 2, HOUR // 4)]
        assert asked(run, int(float(page.input_value("#when")))) > 0.98 * max(hours), "it opens at the busiest hour"
        assert max(hours) > 1.3 * asked(run, (begin + end) // 2)
        for moment in moments:  # leaps
            page.fill("#when", str(moment))
            names = page.locator(".queues tbody th").all_inner_texts()
            used = [float(text.replace(",", "")) for text in page.locator(".queues td:nth-child(2)").all_inner_texts()]
            held = held_at(run, moment, begin, unit)
            assert dict(zip(names, used, strict=True)) == {name: milli / GPU for name, milli in held.items()}
            running = sum(map(int, page.locator(".queues td:nth-child(4)").all_inner_texts()))
            waiting = sum(map(int, page.locator(".queues td:nth-child(5)").all_inner_texts()))
            jobs = run.jobs
            came = int((jobs.submit // unit * unit <= moment).sum())
            ended = int(((jobs.end >= 0) & (jobs.end // unit * unit <= moment)).sum())
            assert running + waiting == came - ended
            go(page, "map")
            shown[moment] = picture(page)
            total = sum(held.values()) / GPU
            assert page.inner_text(".panel > h2 small").startswith(f"{total:,.10g} of 256 GPUs in use")
            go(page, "queues")
    with opened(browser, f"{address}#map") as page:
        page.focus("#when")
        page.keyboard.press("Home")
        for moment in sorted(moments):  # steps of the keys and of the clock, forth and back
            for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
                page.keyboard.press(key)
            page.fill("#when", str(moment))
            assert picture(page) == shown[moment]
        for moment in sorted(moments, reverse=True):
            page.fill("#when", str(moment))
            assert picture(page) == shown[moment]


def large() -> RunResult:
    """100,000 GPUs on 12,500 nodes, where each node holds one job of 8 GPUs after the other."""
    rng = np.random.default_rng(5)
    nodes = tuple(Node(f"n{i}", 8, "H100", leaf=f"leaf{i // 25}", spine=f"spine{i // 500}") for i in range(12_500))
    each, period = 16, 7 * DAY
    cuts = np.sort(rng.integers(0, period, (len(nodes), each)), axis=1)
    start = cuts[:, :-1].ravel()
    end = cuts[:, 1:].ravel() - HOUR // 60
    node = np.repeat(np.arange(len(nodes)), each - 1)
    keep = end > start
    start, end, node = start[keep], end[keep], node[keep]
    order = np.argsort(start, kind="stable")
    start, end, node = start[order], end[order], node[order]
    count = len(start)
    size = np.full(count, 8 * GPU)
    jobs = JobTable(
        id=[f"j{i}" for i in range(count)], queue=node % 3, gpus=size, submit=start, first_start=start, end=end,
        wait=np.zeros(count, dtype=np.int64), preemptions=np.zeros(count, dtype=np.int64), status=np.full(count, 2),
    )  # fmt: skip
    rows = np.stack([np.arange(count), node, np.full(count, 255), np.full(count, GPU), start, end], axis=1)
    return empty_run(cluster=ClusterSpec("large", nodes), queues=("a", "b", "c"), jobs=jobs, end=period, intervals=rows)


def test_a_step_on_100000_gpus_does_the_work_of_what_changed(browser: Browser, tmp_path: Path) -> None:
    run = large()
    data = report_data([run])
    assert run.cluster.gpus == 100_000 and data["map"]["frames"] == 0
    unit = data["map"]["unit_us"]
    start, end = (run.intervals[:, i] // unit * unit for i in (4, 5))
    work = "(({visited, painted}) => [+visited, +painted])(document.querySelector('.stack canvas').dataset)"
    with opened(browser, f"{written(tmp_path, [run])}#map") as page:
        assert page.evaluate(work)[1] == 100_000
        at = int(float(page.input_value("#when")))
        page.focus("#when")
        for key, sign in (("ArrowRight", 1), ("ArrowRight", 1), ("ArrowLeft", -1)):
            page.keyboard.press(key)
            then, at = at, int(float(page.input_value("#when")))
            low, high = min(then, at), max(then, at)
            changes = int(((start > low) & (start <= high)).sum() + ((end > low) & (end <= high)).sum())
            visited, painted = page.evaluate(work)
            assert sign * (at - then) > 0 and visited == changes < len(start) // 100
            assert 0 < painted <= 8 * changes
        for key in ("Home", "End", "PageUp"):
            page.keyboard.press(key)
            at = int(float(page.input_value("#when")))
            in_force = int(((start <= at) & (end > at)).sum())
            assert page.evaluate(work)[0] <= 3 * max(in_force, 12_500)
        used = f"{8 * in_force:,} of 100,000 GPUs in use"
        assert page.inner_text(".panel > h2 small").startswith(used)


def test_nothing_stands_in_the_way_of_anybody(browser: Browser, tmp_path: Path) -> None:
    """In the dark only colours differ."""
    runs = [spined(), dataclasses.replace(spined(packed=True, profile="second"), interrupted=True)]
    with opened(browser, written(tmp_path, runs), color_scheme="light", reduced_motion="reduce") as page:
        page.click("text=By queue")
        for tab in TABS:
            go(page, tab)
            if tab == "map":
                page.click("#spread")
            for scheme, only in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                page.wait_for_selector(f"html[data-theme={scheme}]")
                found = Axe().run(page, options={"resultTypes": ["violations"], **only})
                assert found.violations_count == 0, found.generate_report()


def test_tabs_and_theme_follow_the_keyboard_and_the_address(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, f"{written(tmp_path, [spined()])}#jobs", color_scheme="light") as page:
        assert page.get_attribute("#tab-jobs", "aria-selected") == "true"
        page.focus("#tab-jobs")
        page.keyboard.press("ArrowRight")
        assert page.url.endswith("#queues") and page.evaluate("document.activeElement.id") == "tab-queues"
        page.keyboard.press("Home")
        page.wait_for_selector("#charts canvas")
        page.click("#theme")
        page.click("#theme")
        assert page.get_attribute("html", "data-theme") == "dark"


def test_a_narrow_window_scrolls_one_way_only(browser: Browser, tmp_path: Path) -> None:
    address = written(tmp_path, [spined(), spined(packed=True, profile="second")])
    with opened(browser, address, width=360, height=640) as page:
        for tab in TABS:
            go(page, tab)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, tab


@pytest.mark.parametrize("end", [0, HOUR])
def test_a_run_without_jobs_is_drawn(browser: Browser, tmp_path: Path, end: int) -> None:
    with opened(browser, written(tmp_path, [empty_run(end=end), empty_run(end=end, profile="other")])) as page:
        assert "No job arrived." in page.inner_text("main")
        for tab in TABS:
            go(page, tab)


@pytest.mark.skipif("KANT_PICTURES" not in os.environ, reason="KANT_PICTURES=1 makes the pictures of docs/images anew")
def test_the_pictures_of_the_documentation(browser: Browser, tmp_path: Path) -> None:
    from kant.cli.app import run as kant

    assert kant(["demo", "--out", str(tmp_path)]) == 0
    images = Path(__file__).parents[2] / "docs" / "images"
    address = (tmp_path / "report.html").as_uri()
    for tab, name, scheme in (("overview", "report.png", "light"), ("map", "map.png", "dark")):
        with opened(browser, f"{address}#{tab}", width=1360, height=1000, color_scheme=scheme) as page:
            if tab == "map":
                page.click("#spread")
            page.wait_for_timeout(300)
            page.screenshot(path=images / name)
