// The metrics of a live Kant so far: GAR, SOR and GFR, and the waits and the slowdown by size of the job.

import { showCount, showMoment, showShare, showTime } from "../show";
import { usePage, useStore } from "../store";
import { Overview } from "../views/overview";
import { CausesTable } from "../views/tables";

interface Waits {
  mean: number | null;
  p50: number | null;
  p90: number | null;
  count: number;
}

interface SoFar {
  jobs: number;
  completed: number;
  gar: { mean: number | null };
  sor: number | null;
  gfr: { mean: number | null };
  jtted: { mean: number | null; by_size: Record<string, { mean: number }> };
  wait_s: Omit<Waits, "count">;
  wait_by_size: Record<string, Waits>;
  preemptions: number;
  evictions: number;
  failures: number;
}

export function LiveOverview() {
  return (
    <>
      <Overview />
      <Metrics />
    </>
  );
}

function Metrics() {
  const { source } = usePage();
  useStore(source);
  if (!source.summary) return null;
  const { begins_us: begins } = source.summary.so_far;
  const found = source.summary.so_far as unknown as SoFar;
  const ratio = (value: number | null | undefined) => (value == null ? "–" : value.toFixed(3));
  const facts: [string, string, string][] = [
    ["GAR, mean", showShare(found.gar.mean), "allocation ratio: of the GPUs in service, how many were allocated"],
    ["SOR", showShare(found.sor), "occupancy rate: of the GPU-seconds in service, how many were allocated"],
    ["GFR, mean", showShare(found.gfr.mean), "fragmentation: of the nodes in service, how many were partly allocated"],
    ["JWTD, P50", showTime(found.wait_s.p50), "waiting time: half of the jobs waited no longer"],
    ["JWTD, P90", showTime(found.wait_s.p90), "waiting time: nine of ten jobs waited no longer"],
    ["JTTED, mean", ratio(found.jtted.mean), "run time at the place given, over that at the best place"],
    ["Jobs", showCount(found.jobs), "that arrived or were already there"],
    ["Finished", showCount(found.completed), "that succeeded"],
    ["Preemptions", showCount(found.preemptions), "runs stopped so that others could start"],
    ["Failures", showCount(found.failures), "runs that failed"],
  ];
  const sizes = Object.entries(found.wait_by_size).filter(([, row]) => row.count > 0);
  return (
    <section aria-labelledby="far-h">
      <h2 id="far-h">So far</h2>
      <p className="hint">Since {showMoment(begins, source.runs[0]?.zero ?? null)}, when this Kant took over. Jobs that still wait count with their waits so far.</p>
      <dl className="facts panel" id="so-far">{facts.map(([name, value, means]) => <div key={name}><dt>{name}</dt><dd>{value}</dd><dd className="means">{means}</dd></div>)}</dl>
      {sizes.length > 0 && (
        <div className="scroll so-far" tabIndex={0} role="region" aria-label="Waits and slowdown by size of the job">
          <table className="rows">
            <thead>
              <tr><th scope="col">job size, GPUs</th>{["jobs", "wait, mean", "P50", "P90", "JTTED"].map((name) => <th scope="col" className="n" key={name}>{name}</th>)}</tr>
            </thead>
            <tbody>
              {sizes.map(([size, row]) => (
                <tr key={size}>
                  <th scope="row">{size}</th>
                  <td className="n">{showCount(row.count)}</td>
                  {[row.mean, row.p50, row.p90].map((value, i) => <td className="n" key={i}>{showTime(value)}</td>)}
                  <td className="n">{ratio(found.jtted.by_size[size]?.mean)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <CausesTable runs={[{ label: source.runs[0]?.label ?? "", summary: source.summary.so_far }]} />
    </section>
  );
}
