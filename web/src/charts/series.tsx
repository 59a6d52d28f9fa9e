// The metrics over time: a report's buckets with all runs overlaid, or the samples of a live run.

import { useEffect, useMemo, useState } from "react";
import { unpack } from "../data/codec";
import type { Report } from "../data/report";
import type { Run } from "../data/model";
import { showCount, showMoment, showShare, showTime } from "../show";
import { usePage, useStore } from "../store";
import { Group, type Line, LineChart } from "./line";

const SECOND = 1e6;
const STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 7776000].map(
  (step) => step * SECOND,
);

interface Chart {
  title: string;
  note: string;
  kind: "share" | "count";
  zero: boolean; // whether the axis begins at 0
  lines: Line[];
}

interface Charts {
  at: number[];
  charts: Chart[];
}

const TEXT: readonly (readonly [string, string, "share" | "count", boolean])[] = [
  ["GAR", "GPUs allocated / in service", "share", false],
  ["SOR", "GPU-time allocated / in service, from the start up to t", "share", false],
  ["GFR", "nodes partly allocated / nodes in service", "share", true],
  ["Waiting GPUs", "asked for by waiting jobs", "count", true],
  ["Waiting jobs", "", "count", true],
];

/** The charts of a report; each point is a mean over a bucket, weighted by time. */
async function ofReport(report: Report): Promise<Charts> {
  const step = (report.end_us - report.begin_us) / Math.max(1, report.buckets);
  const keys = [["gar", 1e6], ["sor", 1e6], ["gfr", 1e6], ["waiting_gpus", 1e3], ["waiting_jobs", 1e3]] as const;
  const charts = keys.map(async ([key, scale], i): Promise<Chart> => {
    const lines = report.runs.map(async (run) => {
      const values = await unpack(run.series[key]);
      return { label: run.label, values: Array.from(values, (value) => (value < 0 ? null : value / scale)) };
    });
    const [title, note, kind, zero] = TEXT[i]!;
    return { title, note, kind, zero, lines: await Promise.all(lines) };
  });
  return {
    at: Array.from({ length: report.buckets }, (_, i) => report.begin_us + (i + 0.5) * step),
    charts: await Promise.all(charts),
  };
}

/** The charts of a live run, from its samples: each holds until the next, so there is a point just before that too. */
function ofRun(run: Run): Charts {
  const { label, series } = run;
  const time = series.time.values();
  const rows: number[] = [];
  const at: number[] = [];
  time.forEach((moment, i) => {
    if (i) (rows.push(i - 1), at.push(moment - 1));
    rows.push(i);
    at.push(moment);
  });
  if (rows.length && run.end > at[at.length - 1]!) (rows.push(time.length - 1), at.push(run.end));
  const ratio = (part: Float64Array, whole: Float64Array) =>
    Array.from(part, (value, i) => (whole[i]! > 0 ? value / whole[i]! : null));
  const allocated = series.allocated.values();
  const service = series.inService.values();
  let [held, there] = [0, 0];
  const running = at.map((moment, i) => {
    const span = i ? moment - at[i - 1]! : 0;
    held += i ? allocated[rows[i - 1]!]! * span : 0;
    there += i ? service[rows[i - 1]!]! * span : 0;
    return there > 0 ? held / there : null;
  });
  const stepped = (values: (number | null)[]) => rows.map((row) => values[row]!);
  const columns = [
    stepped(ratio(allocated, service)),
    running,
    stepped(ratio(series.fragmented.values(), series.nodes.values())),
    stepped(Array.from(series.waitingMilli.values(), (value) => value / 1000)),
    stepped(Array.from(series.waitingJobs.values())),
  ];
  return {
    at,
    charts: TEXT.map(([title, note, kind, zero], i) => ({ title, note, kind, zero, lines: [{ label, values: columns[i]! }] })),
  };
}

const share = (value: number, short: boolean) => (short ? `${+(value * 100).toFixed(2)}%` : showShare(value));
const count = (value: number, short: boolean) =>
  short && value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : showCount(value);

function near(low: number | null, high: number | null): [number, number] {
  if (low == null || high == null) return [0, 1];
  const room = Math.max(0.005, (high - low) * 0.08);
  return [Math.max(0, low - room), Math.min(1, high + room)];
}

const fromZero = (most: number, least: number) => (_: number | null, high: number | null): [number, number] =>
  [0, high != null && high > 0 ? Math.min(most, high * 1.08) : least];

export function SeriesCharts() {
  const { source, clock } = usePage();
  const version = useStore(source);
  const [stored, setStored] = useState<Charts | null>(null);
  const [group] = useState(() => new Group());
  const { report } = source;
  useEffect(() => {
    if (report) void ofReport(report).then(setStored);
  }, [report]);
  const charts = useMemo(() => (report ? stored : source.runs[0] ? ofRun(source.runs[0]) : null), [report, stored, version]);
  if (!charts) return null;
  if (charts.at.length < 2) return <p className="empty">{source.live ? "Nothing has been recorded yet." : "The runs cover no time."}</p>;
  const showAt = (value: number, step?: number) => {
    if (step !== undefined && clock.zero === null) return showTime(value / SECOND);
    const words = showMoment(value, clock.zero);
    return step === undefined ? words : step < 60 * SECOND ? words.slice(11) : step < 3600 * SECOND ? words.slice(11, 16) : words.slice(5, 16);
  };
  return (
    <>
      <Zoom group={group} />
      <div className="charts" id="charts">
        {charts.charts.map((chart) => (
          <LineChart
            key={chart.title} title={chart.title} note={chart.note} height={220} at={charts.at} lines={chart.lines} group={group} moment
            show={chart.kind === "share" ? share : count} showAt={showAt} steps={STEPS}
            range={!chart.zero ? near : chart.kind === "share" ? fromZero(1, 0.01) : fromZero(Infinity, 1)}
          />
        ))}
      </div>
    </>
  );
}

/** Zooms or moves the charts with buttons, for those who do not drag. */
function Zoom({ group }: { group: Group }) {
  const { source, clock } = usePage();
  const go = (how: "in" | "out" | "left" | "right" | "all") => {
    const span = group.span();
    if (!span) return;
    const { begin, end } = clock;
    const [min, max] = span;
    const width = max - min;
    const part = { in: [0.25, -0.25], out: [-0.5, 0.5], left: [-0.25, -0.25], right: [0.25, 0.25], all: [0, 0] }[how];
    let [from, to] = how === "all" ? [begin, end] : [min + part[0]! * width, max + part[1]! * width];
    const past = Math.max(0, begin - from) - Math.max(0, to - end);
    if (how === "left" || how === "right") [from, to] = [from + past, to + past];
    group.zoom(Math.max(begin, from), Math.min(end, to));
  };
  const { report } = source;
  const step = report ? showTime((report.end_us - report.begin_us) / report.buckets / SECOND) : "";
  return (
    <div className="tools">
      <div className="group" role="group" aria-label="Zoom of the charts">
        <button type="button" onClick={() => go("in")}>Zoom in</button>
        <button type="button" onClick={() => go("out")}>Zoom out</button>
        <button type="button" aria-label="Earlier" onClick={() => go("left")}>◀</button>
        <button type="button" aria-label="Later" onClick={() => go("right")}>▶</button>
        <button type="button" onClick={() => go("all")}>All</button>
      </div>
      <p className="hint">
        {report ? `${report.buckets.toLocaleString("en")} buckets of ${step}; each point is a mean weighted by time. ` : ""}
        Drag to zoom, double-click for all, click to go to a moment.
      </p>
    </div>
  );
}
