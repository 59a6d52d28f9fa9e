// How long jobs of each size class waited until they started: the share that had, by waiting time.

import { useEffect, useState } from "react";
import { unpack } from "../data/codec";
import type { Report } from "../data/report";
import { showTime } from "../show";
import { Group, type Line, LineChart } from "./line";

const MARKS = [1, 10, 60, 600, 3600, 21600, 86400, 864000, 8640000];
const AT_LEAST = 61; // points: up to 1000 s

interface Chart {
  title: string;
  note: string;
  at: number[];
  lines: Line[];
}

async function chartOf(report: Report, size: number): Promise<Chart | null> {
  const rows = report.runs.map((run) => run.waits[size]!);
  const jobs = rows.map((row) => row.started + row.never);
  if (!Math.max(...jobs)) return null;
  let last = 1;
  const lines = await Promise.all(
    rows.map(async (row, i): Promise<Line> => {
      const counts = await unpack(row.counts);
      let sum = 0;
      last = Math.max(last, counts.findLastIndex((n) => n > 0));
      return {
        label: report.runs[i]!.label,
        values: Array.from(counts, (n) => (jobs[i] ? (sum += n) / jobs[i]! : null)),
      };
    }),
  );
  const shown = Math.min(report.edges.length, Math.max(last + 2, AT_LEAST));
  const name = report.classes[size]!;
  return {
    title: name === "1" ? "1 GPU" : `${name} GPUs`,
    note: `${[...new Set(jobs)].map((n) => n.toLocaleString("en")).join(" / ")} jobs`,
    at: report.edges.slice(0, shown),
    lines: lines.map(({ label, values }) => ({ label, values: values.slice(0, shown) })),
  };
}

export function WaitCharts({ report }: { report: Report }) {
  const [charts, setCharts] = useState<(Chart | null)[]>([]);
  const [groups] = useState(() => report.classes.map(() => new Group()));
  useEffect(() => {
    void Promise.all(report.classes.map((_, size) => chartOf(report, size))).then(setCharts);
  }, [report]);
  return (
    <div className="charts small" id="cdfs">
      {charts.map((chart, i) => chart && (
        <LineChart
          key={chart.title} {...chart} height={180} group={groups[i]!} marks={MARKS} range={() => [0, 1.02]}
          show={(value, short) => `${(value * 100).toFixed(short ? 0 : 1)}%`} showAt={(value) => showTime(value)}
        />
      ))}
    </div>
  );
}
