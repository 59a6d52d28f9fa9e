// The cluster at the moment of the page, in a row of numbers for each run.

import { countUpTo } from "../data/columns";
import type { Run } from "../data/model";
import { type Occupancy, occupancyAt } from "../map/occupancy";
import { showCount, showGpus, showShare } from "../show";
import { usePage, useStore } from "../store";
import { useClock } from "../time/bar";
import { stateAt } from "./jobs";
import { RunName } from "./tables";

/** The row of the series that holds at `time`, or -1. */
function rowAt({ series }: Run, time: number): number {
  return countUpTo(series.time.data, time, series.time.length) - 1;
}

/** The jobs that wait at `time`, and the milli-GPUs that they ask for. */
function waitingAt(run: Run, now: Occupancy, time: number): { jobs: number; milli: number } {
  const found = { jobs: 0, milli: 0 };
  for (let job = 0; job < run.jobs.length; job++) {
    if (stateAt(run, now, job, time) !== "waiting") continue;
    found.jobs++;
    found.milli += run.jobs.milli.data[job]!;
  }
  return found;
}

export function Moment() {
  const { source } = usePage();
  useStore(source);
  const clock = useClock();
  return (
    <div className="moments" id="moment">
      {source.runs.map((run, i) => {
        if (!run.cluster) return null;
        const now = occupancyAt(run, clock.at);
        const row = rowAt(run, Math.min(clock.at, run.end));
        const { series } = run;
        const share = (part: typeof series.allocated, whole: typeof series.allocated) =>
          row >= 0 && whole.get(row) > 0 ? showShare(part.get(row) / whole.get(row)) : "–";
        const waiting = run.wholeJobs && !source.live ? waitingAt(run, now, clock.at) : null; // a report's series are means
        const known = row >= 0 && clock.at <= run.end;
        const facts: [string, string][] = [
          ["GAR: GPUs allocated", known ? share(series.allocated, series.inService) : "–"],
          ["GFR: nodes partly used", known ? share(series.fragmented, series.nodes) : "–"],
          ["GPUs in use", `${showGpus(now.total)} of ${showGpus(run.cluster.total * 1000)}`],
          ["Jobs running", showCount(now.running)],
          ["Jobs waiting", known ? showCount(Math.round(waiting?.jobs ?? series.waitingJobs.get(row))) : "–"],
          ["GPUs waited for", known ? showGpus(waiting?.milli ?? series.waitingMilli.get(row)) : "–"],
        ];
        return (
          <section className="moment-row" key={i} aria-label={`At this moment: ${run.label}`}>
            <p><RunName index={i} label={run.label} /></p>
            <dl>{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
          </section>
        );
      })}
    </div>
  );
}
