"""The page's index of a run that grows: it takes in what is new, and stands as one that is made anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page
from tests.browser import opened
from tests.core.test_live_record import Viewer
from tests.examples import examples
from tests.report.test_report import empty_run

from kant.live.record import RunRecord
from kant.model.units import SECOND
from kant.report import write_report
from kant.testing import Harness, make_cluster, make_job, make_profile

TOOLS = """
const {Run, take, Occupancy} = kantPage;
let seed = 1;
const draw = (n) => (seed = (seed * 48271) % 2147483647) % n;
const look = (now, run) => JSON.stringify([
  now.total, now.running, now.broken, now.lost, now.failed, [...now.used], [...now.owner], [...now.nodeUsed],
  [...now.service], [...now.lostLow], [...now.lostHigh], [...now.byQueue].slice(0, run.queues.length),
  [...now.pieces].slice(0, run.jobs.length),
]);
const fresh = (run, time) => { const now = new Occupancy(run); now.moveTo(time); return look(now, run); };
const moments = (run) => {
  const {start, end} = run.intervals;
  const some = Array.from({length: run.intervals.length ? 4 : 0}, () => {
    const row = draw(run.intervals.length);
    return (draw(2) && end.get(row) >= 0 ? end.get(row) : start.get(row)) + draw(3) - 1;
  });
  return [run.end, ...some, run.end];
};
"""


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path: Path = tmp_path_factory.mktemp("index") / "report.html"
    write_report(path, [empty_run()], "")
    with opened(browser, path.as_uri()) as found:
        yield found


KINDS = ("submit", "submit", "submit", "finish", "evict", "fail", "bring_back", "lose", "ask", "ask")
OPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 999), st.sampled_from((0, 1, 3 * SECOND))),
    min_size=20,
    max_size=60,
)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=OPS, most=st.sampled_from((1, 3, 1000)))
def test_the_page_that_added_up_stands_as_one_that_was_told_everything(
    page: Page, ops: list[tuple[str, int, int]], most: int
) -> None:
    """At every moment: who holds which GPU, and what is lost or out of service. Also when old rows are forgotten."""
    cluster = make_cluster(8, 4, 40)
    harness = Harness(cluster, make_profile("fifo", "best-effort", "first-fit"), check=False)
    record = RunRecord(harness.state, "r", jobs=most, pieces=most, changes=most)
    happen, viewer = harness.happen, Viewer()
    harness.happen = lambda event: (happen(event), record.happened(event))  # type: ignore[method-assign]
    said: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for number, (what, pick, later) in enumerate([*ops, ("ask", 0, 1)]):
        harness.now += later
        running = [harness.state.ids[row] for row in harness.state.running]
        node = cluster.nodes[pick % len(cluster.nodes)]
        match what:
            case "submit":
                gpus, milli = ((1, 300), (2, 1000), (33, 1000))[pick % 3]
                harness.submit(make_job(f"j{number}", gpus=gpus, milli=milli, queue=f"q{pick % 5}"))
            case "finish" | "evict" if running:
                getattr(harness, what)(running[pick % len(running)])
            case "fail" | "bring_back":
                getattr(harness, what)(node.name)
            case "lose":
                harness.lose(node.name, *(device for device in range(node.gpus) if (pick >> device % 10) & 1))
            case "ask":
                whole = Viewer()
                for each in (viewer, whole):
                    each.ask(record, harness.now)
                said.append((viewer.answers[-1], whole.answers[-1]))
        harness.cycle()
    wrong = page.evaluate(
        f"""(said) => {{ {TOOLS}
          let run = null, now = null;
          const wrong = [];
          said.forEach(([news, all], i) => {{
            if (news.complete) {{ run = new Run(); now = new Occupancy(run); }}
            take(run, news);
            const whole = new Run();
            take(whole, all);
            for (const time of moments(run)) {{
              now.moveTo(time);
              if (look(now, run) !== fresh(whole, time)) wrong.push([i, time]);
            }}
          }});
          return wrong;
        }}""",
        said,
    )
    assert wrong == []


GROWING = """
const columns = ["row", "job", "node", "mask_low", "mask_high", "milli", "start", "end"];
const nothing = (names) => Object.fromEntries(names.map((name) => [name, []]));
const record = (time, rows, cluster) => ({
  complete: !!cluster, time_us: time, zero_us: 0, profile: "p", cluster_name: "c", kind: "local", cluster,
  queues: ["q"], starts: [],
  jobs: cluster ? {row: [0], id: ["j"], name: [""], user: [""], queue: [0], milli: [1000], submit: [0], start: [0],
    end: [-1], wait: [0], since: [0], status: [1], preemptions: [0],
    fewest_nodes: [1], fewest_leaves: [1]} : nothing(["row"]),
  intervals: Object.fromEntries(columns.map((name, i) => [name, rows.map((row) => row[i])])),
  nodes: nothing(["node", "status", "since"]),
  series: nothing(["time"]), summary: {so_far: {}},
});
const cluster = (nodes) => ({
  names: Array.from({length: nodes}, (_, i) => `n${i}`), gpus: Array(nodes).fill(8), models: [""],
  model: Array(nodes).fill(0), leaf: Array(nodes).fill(""),
  spine: Array(nodes).fill(""), superspine: Array(nodes).fill(""),
});
"""


def test_late_news_and_equal_times_change_nothing(page: Page) -> None:
    """More than the checkpoints need; with ends and starts that are told late, and intervals of no length."""
    wrong = page.evaluate(
        f"""() => {{ {TOOLS} {GROWING}
          const wrong = [];
          for (seed of [11, 12]) {{
            const run = new Run(), now = new Occupancy(run), rows = [], open = [];
            take(run, record(0, [], cluster(20)));
            for (let turn = 1, time = 0; turn < 80; turn++) {{
              time += draw(40);
              const changed = new Set();
              for (let i = draw(120); i > 0; i--) {{
                const row = rows.length, start = Math.max(0, time - (draw(30) ? draw(3) : draw(400)));
                rows.push([row, 0, draw(20), 1 << draw(8), 0, 500, start, draw(4) ? -1 : start + draw(20)]);
                if (rows[row][7] < 0) open.push(row);
                changed.add(row);
              }}
              for (let i = draw(100); i > 0 && open.length; i--) {{
                const [row] = open.splice(draw(open.length), 1);
                rows[row][7] = Math.max(rows[row][6], time - (draw(20) ? draw(3) : draw(300)));
                changed.add(row);
              }}
              take(run, record(time, [...changed].sort((a, b) => a - b).map((row) => rows[row])));
              for (const at of moments(run)) {{
                now.moveTo(at);
                if (look(now, run) !== fresh(run, at)) wrong.push([turn, at]);
              }}
            }}
          }}
          return wrong;
        }}"""
    )
    assert wrong == []


def test_a_record_costs_what_it_changes_though_there_are_half_a_million_intervals(page: Page) -> None:
    built, visits, changes, same = page.evaluate(
        f"""() => {{ {TOOLS} {GROWING}
          const nodes = 1000, whole = 500000, run = new Run(), now = new Occupancy(run);
          const interval = (row) => [row, 0, row % nodes, 255, 0, 1000, row, row + nodes];
          const rows = Array.from({{length: whole}}, (_, row) => interval(row));
          for (const row of rows) if (row[7] >= whole) row[7] = -1;
          take(run, record(whole, rows, cluster(nodes)));
          now.moveTo(run.end);
          const built = now.visited, visits = [], changes = [];
          for (let turn = 0; turn < 50; turn++) {{
            const news = [], time = whole + 10 * (turn + 1);
            for (let row = time - 10; row < time; row++) {{
              news.push([...interval(row).slice(0, 7), -1]);
              news.push(interval(row - nodes));
            }}
            take(run, record(time, news.sort((a, b) => a[0] - b[0])));
            now.moveTo(run.end);
            visits.push(now.visited);
            changes.push(news.length);
          }}
          return [built, visits, changes, look(now, run) === fresh(run, run.end)];
        }}"""
    )
    assert same and built <= 3000
    assert all(visited <= 4 * changed for visited, changed in zip(visits, changes, strict=True))
