// The first view: what ran, the metrics, the moment, the charts, and what the words mean.

import { SeriesCharts } from "../charts/series";
import { WaitCharts } from "../charts/waits";
import type { Cluster } from "../data/model";
import type { Report } from "../data/report";
import { showMoment, showTime } from "../show";
import { usePage, useStore } from "../store";
import { Moment } from "./moment";
import { dig, show } from "./numbers";
import { Cards, CausesTable, Digest, EveryNumber, Parts, RunName, Scroll, WaitsTable } from "./tables";

const DEFINITIONS: [string, string][] = [
  ["GAR(t)", "GPUs allocated at t / GPUs in service at t; mean and median are weighted by time."],
  ["SOR", 'GPU-seconds allocated / GPU-seconds in service, whole run; "all nodes" counts failed ones too.'],
  ["GFR(t)", "nodes in service with some but not all of their GPUs allocated / nodes in service."],
  ["JWTD", "time from submission until every pod of the gang is bound, and any later wait, by job size class."],
  ["JTTED", "predicted run time under the placement given / that under the best possible placement."],
  ["JCT", "time from submission to completion, of the jobs that completed."],
  ["censored", "jobs that had not finished when the run ended; their waits so far count."],
  ["gain", "the change against the first run; pp are percentage points, percent are relative."],
];

export function Overview() {
  const { source } = usePage();
  useStore(source);
  const { report } = source;
  return (
    <>
      {report && <Head report={report} />}
      {report && <Cut report={report} />}
      {report && <Cards runs={report.runs} />}
      <section aria-labelledby="moment-h">
        <h2 id="moment-h">At this moment</h2>
        <Moment />
      </section>
      <section aria-labelledby="time-h">
        <h2 id="time-h">Over time</h2>
        <SeriesCharts />
      </section>
      {report && <Rest report={report} />}
    </>
  );
}

function Rest({ report }: { report: Report }) {
  const { runs } = report;
  return (
    <>
      <section aria-labelledby="numbers-h">
        <h2 id="numbers-h">Every number</h2>
        <EveryNumber runs={runs} />
        <Parts report={report} part="by_pool" word="pool" />
        <Parts report={report} part="by_queue" word="queue" />
      </section>
      <section aria-labelledby="waiting-h">
        <h2 id="waiting-h">Waiting time by job size</h2>
        <p className="hint">
          Share of the jobs of a size class (in GPUs) that started within a wait, on a logarithmic axis. Jobs that still wait for their
          first start at the end count too: their line stops short of 100%.
        </p>
        <WaitCharts report={report} />
        <WaitsTable report={report} />
      </section>
      <CausesTable runs={runs} />
      <section aria-labelledby="about-h">
        <h2 id="about-h">What the words mean, and how to repeat this</h2>
        <dl className="defs">{DEFINITIONS.map(([name, text]) => <div key={name}><dt>{name}</dt><dd>{text}</dd></div>)}</dl>
        <Repeat report={report} />
        <p className="hint">The same workload, cluster, profile and seed give the same decisions, and so the same digest, on any machine.</p>
      </section>
    </>
  );
}

/** A cluster in one line: name, nodes, GPUs and models. */
function describe(cluster: Cluster): string {
  const models = new Map<string, number>();
  cluster.model.forEach((model, node) => {
    const name = cluster.models[model] || "unnamed model";
    models.set(name, (models.get(name) ?? 0) + cluster.gpus[node]!);
  });
  const kinds = [...models].filter(([, gpus]) => gpus).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const shown = kinds.slice(0, 6).map(([name, gpus]) => (kinds.length > 1 ? `${gpus.toLocaleString("en")} ${name}` : name));
  const more = kinds.length > 6 ? ` and ${kinds.length - 6} more` : "";
  const all = `${cluster.gpus.length.toLocaleString("en")} nodes, ${cluster.total.toLocaleString("en")} GPUs`;
  return `${cluster.name}: ${all}${shown.length ? ` (${shown.join(", ")}${more})` : ""}`;
}

/** What ran where: workload, cluster, period and profiles. */
function Head({ report }: { report: Report }) {
  const { source } = usePage();
  const { begin_us: begin, end_us: end, runs, zero_us: zero } = report;
  let period = showTime((end - begin) / 1e6);
  if (zero !== null || begin * 100 > end) period += `, from ${showMoment(begin, zero)} to ${showMoment(end, zero)}`;
  const facts: [string, React.ReactNode][] = [
    ["Workload", [...new Set(runs.map((run) => run.workload))].join(" · ")],
    ["Cluster", [...new Set(source.runs.map((run) => run.cluster!))].map(describe).join(" · ")],
    ["Period", period],
    [runs.length > 1 ? "Profiles" : "Profile", runs.map((run, i) => <RunName key={i} index={i} label={run.label} />)],
  ];
  return <dl className="facts head">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

/** The notice that a run did not reach its end. */
function Cut({ report }: { report: Report }) {
  const cut = report.runs.filter((run) => run.interrupted);
  if (!cut.length) return null;
  const named = cut.map((run) => `${run.label} stopped at ${showTime(run.end_us / 1e6)}`).join("; ");
  return (
    <p className="banner" role="alert">
      <span aria-hidden="true">⚠</span>
      <span>Partial result: interrupted before the end. {named}. Its numbers cover only what ran.</span>
    </p>
  );
}

/** What to give to run it again, and the digest that the repetition must have. */
function Repeat({ report }: { report: Report }) {
  const { runs, clusters } = report;
  return (
    <Scroll label="How to repeat the runs">
      <table id="repeat">
        <thead>
          <tr>{["run", "profile", "workload", "cluster", "seed", "digest", "decisions", "CPU time"].map((name) => <th scope="col" key={name}>{name}</th>)}</tr>
        </thead>
        <tbody>
          {runs.map((run, i) => (
            <tr key={i}>
              <th scope="row"><RunName index={i} label={run.label} /></th>
              <td>{run.profile}</td>
              <td>{run.workload}</td>
              <td>{clusters[run.cluster]!.name}</td>
              <td>{String(dig(run.summary, "seed") ?? "–")}</td>
              <td><Digest run={run} /></td>
              <td>{show(dig(run.summary, "decisions"), "count")}</td>
              <td>{show(dig(run.summary, "cpu_s"), "time")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
