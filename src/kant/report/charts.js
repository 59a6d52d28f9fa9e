"use strict";
// Lines: the metrics over time, all runs overlaid on one axis, and the waiting times of each size class.

const charts = [];
const timeCharts = [];
const TIME_STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 7776000];
const WAIT_MARKS = [1, 10, 60, 600, 3600, 21600, 86400, 864000, 8640000];

/** The colour of a series (the first is the axis) where CSS is understood: it follows the theme by itself. */
const runFill = (_, series) => `var(--r${(series - 1) % 6})`;

/** What every chart shares: size, axes in the colours of the theme, a cursor that moves in all charts of a `key`. */
function chartOptions(place, key, height, axes) {
  const axis = (extra) => ({
    stroke: () => cssVar("--soft"),
    grid: { stroke: () => cssVar("--grid"), width: 1 },
    ticks: { stroke: () => cssVar("--line"), width: 1, size: 4 },
    font: "12px system-ui, sans-serif",
    ...extra,
  });
  return {
    width: Math.max(220, place.clientWidth),
    height,
    axes: axes.map(axis),
    padding: [10, 14, 0, 0],
    cursor: { sync: { key, scales: ["x", null] }, y: false, points: { size: 7, fill: runFill, stroke: runFill } },
    legend: { markers: { fill: runFill, width: 0 } },
  };
}

/** Draws one chart into `parent` under a heading and keeps it as wide as its place. */
function addChart(parent, heading, note, make) {
  const place = el("div");
  parent.append(el("div", { class: "chart" }, el("h3", {}, heading, el("small", {}, note)), place));
  const chart = make(place);
  charts.push(chart);
  onWidth(place, (width) => chart.setSize({ width, height: chart.height }));
  return chart;
}

/** One chart of a metric over time: `columns` holds an array of values (null: none) for each run. */
function addTimeChart(parent, data, heading, note, times, columns, show, range) {
  const chart = addChart(parent, heading, note, (place) => {
    const options = chartOptions(place, "time", 230, [
      { size: 30, incrs: TIME_STEPS, space: 70, values: (_, splits) => splits.map(showTime) },
      { size: 58, values: (_, splits) => splits.map((value) => show(value, true)) },
    ]);
    options.scales = { x: { time: false }, y: { range } };
    options.series = [
      { label: "t", value: (_, value) => (value == null ? "–" : showClock(value)) },
      ...data.runs.map((run, i) => ({
        label: run.label, stroke: () => runColour(i), width: 1.5, points: { show: false },
        value: (_, value) => show(value, false),
      })),
    ];
    options.hooks = { setScale: [(u, key) => key === "x" && shareZoom(u)] };
    return new uPlot(options, [times, ...columns], place);
  });
  timeCharts.push(chart);
}

let sharing = false;
/** Gives the time span of `from` to every other chart over time. */
function shareZoom(from) {
  if (sharing) return;
  sharing = true;
  const { min, max } = from.scales.x;
  for (const chart of timeCharts) if (chart !== from) chart.setScale("x", { min, max });
  sharing = false;
}

/** Zooms or moves the charts over time with the buttons, for those who do not drag. */
function zoomTime(how, data) {
  const chart = timeCharts[0];
  if (!chart) return;
  const { min, max } = chart.scales.x;
  const width = max - min;
  const change = { in: [0.25, -0.25], out: [-0.5, 0.5], left: [-0.25, -0.25], right: [0.25, 0.25] }[how];
  let from = data.begin, to = data.end;
  if (change) {
    from = min + change[0] * width;
    to = max + change[1] * width;
    const past = Math.max(0, data.begin - from) - Math.max(0, to - data.end);
    if (how === "left" || how === "right") { from += past; to += past; }
  }
  chart.setScale("x", { min: Math.max(data.begin, from), max: Math.min(data.end, to) });
}

/** All charts over time. */
async function drawSeries(data) {
  const parent = byId("charts"), step = (data.end - data.begin) / data.buckets;
  if (!data.buckets) {
    parent.append(el("p", { class: "empty" }, "The runs cover no time."));
    return;
  }
  byId("time-hint").textContent =
    `${data.buckets.toLocaleString("en")} buckets of ${showTime(step)}; each point is a mean weighted by time. Drag to zoom, double-click for all.`;
  const times = Array.from({ length: data.buckets }, (_, i) => data.begin + (i + 0.5) * step);
  const column = async (name, scale) =>
    Promise.all(data.runs.map(async (run) => Array.from(await unpack(run.series[name]), (v) => (v < 0 ? null : v / scale))));
  const share = (value, short) => (short ? `${+(value * 100).toFixed(2)}%` : showShare(value));
  const count = (value, short) => (short && value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : showCount(value));
  const ratio = (_, low, high) => {
    if (low == null) return [0, 1];
    const room = Math.max(0.005, (high - low) * 0.08);
    return [Math.max(0, low - room), Math.min(1, high + room)];
  };
  const fromZero = (_, low, high) => [0, high > 0 ? high * 1.08 : 1];
  const fromZeroShare = (_, low, high) => [0, high > 0 ? Math.min(1, high * 1.08) : 0.01];
  addTimeChart(parent, data, "GAR", "GPUs allocated / in service", times, await column("gar", 1e6), share, ratio);
  addTimeChart(parent, data, "SOR", "running: from the start up to t", times, await column("sor", 1e6), share, ratio);
  addTimeChart(parent, data, "GFR", "nodes partly allocated / nodes in service", times, await column("gfr", 1e6), share, fromZeroShare);
  addTimeChart(parent, data, "Waiting GPUs", "asked for by waiting jobs", times, await column("waiting_gpus", 1e3), count, fromZero);
  addTimeChart(parent, data, "Waiting jobs", "", times, await column("waiting_jobs", 1e3), count, fromZero);
}

/** The share of jobs that started within a wait, one small chart for each size class that has jobs. */
async function drawWaits(data) {
  const parent = byId("cdfs");
  for (let size = 0; size < data.classes.length; size++) {
    const rows = data.runs.map((run) => run.waits[size]);
    const jobs = rows.map((row) => row.started + row.never);
    if (!Math.max(...jobs)) continue;
    const lines = [];
    let last = 1;
    for (const [i, row] of rows.entries()) {
      const counts = await unpack(row.counts);
      let sum = 0;
      lines.push(Array.from(counts, (n) => (jobs[i] ? (sum += n) / jobs[i] : null)));
      last = Math.max(last, counts.findLastIndex((n) => n > 0));
    }
    const shown = Math.min(data.edges.length, Math.max(last + 2, 61)); // at least up to 1000 s
    const name = data.classes[size] === "1" ? "1 GPU" : `${data.classes[size]} GPUs`;
    addChart(parent, name, `${[...new Set(jobs)].map((n) => n.toLocaleString("en")).join(" / ")} jobs`, (place) => {
      const options = chartOptions(place, "wait", 190, [
        { size: 30, splits: (_, __, low, high) => WAIT_MARKS.filter((mark) => mark >= low && mark <= high), filter: (_, splits) => splits, values: (_, splits) => splits.map(showTime) },
        { size: 52, values: (_, splits) => splits.map((v) => `${Math.round(v * 100)}%`) },
      ]);
      options.scales = { x: { time: false, distr: 3 }, y: { range: [0, 1.02] } };
        options.series = [
        { label: "wait ≤", value: (_, v) => (v == null ? "–" : showTime(v)) },
        ...data.runs.map((run, i) => ({
          label: run.label, stroke: () => runColour(i), width: 2, points: { show: false },
          value: (_, v) => (v == null ? "–" : `${(v * 100).toFixed(1)}%`),
        })),
      ];
      return new uPlot(options, [data.edges.slice(0, shown), ...lines.map((line) => line.slice(0, shown))], place);
    });
  }
}
