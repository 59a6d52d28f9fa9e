// One job: what it is, where it lies at the moment, its pieces in time, and what its waits were for.

import { useMemo } from "react";
import type { Run } from "../data/model";
import { inForce, ofFewest, type Piece, piecesOf, rowsOf, type Span, spanOf } from "../map/span";
import { counted, showGpus, showMoment, showTime, word } from "../show";
import { usePage } from "../store";
import { useClock } from "../time/bar";
import { CauseBars } from "./causes";

const MOST_NODES = 64;
const STATUS = ["waiting", "running", "finished", "rejected", "cancelled"];

export function JobPanel({ run, id }: { run: Run; id: string }) {
  const clock = useClock();
  const { choice, source } = usePage();
  const job = run.jobs.find(id);
  const version = run.version;
  const rows = useMemo(() => (job < 0 ? [] : rowsOf(run, job)), [run, job, version]);
  const pieces = useMemo(() => piecesOf(run, rows), [run, rows]);
  if (job < 0) {
    return (
      <div className="job" role="group" aria-label={`Job ${id}`}>
        <p className="hint span">{run.wholeJobs ? "not in this run" : "not in this run, or not at a moment that the map keeps"}</p>
      </div>
    );
  }
  const { jobs } = run;
  const span = spanOf(run, rows, clock.at);
  const runs = rows.some((row) => inForce(run, row, clock.at));
  const begun = jobs.start.get(job) >= 0;
  const facts: [string, React.ReactNode][] = [
    ["Queue", run.queues[jobs.queue.get(job)] || "(no name)"],
    ["GPUs", showGpus(jobs.milli.get(job))],
    ["Submitted", showMoment(jobs.submit.get(job), clock.zero)],
    ["First start", begun ? showMoment(jobs.start.get(job), clock.zero) : "never"],
    ["End", jobs.end.get(job) >= 0 ? showMoment(jobs.end.get(job), clock.zero) : STATUS[jobs.status.get(job)]!],
    ["Waited", showTime(jobs.wait.get(job) / 1e6)],
  ];
  const begins = rows.length ? run.intervals.start.get(rows[0]!) : -1;
  const over = jobs.end.get(job) >= 0 && clock.at >= jobs.end.get(job);
  const waits = !runs && !over && clock.at >= jobs.submit.get(job);
  if (jobs.user[job]) facts.splice(1, 0, ["User", jobs.user[job]]);
  if (jobs.preemptions.get(job)) facts.push(["Preempted", counted(jobs.preemptions.get(job), "time", "times")]);
  return (
    <div className="job" role="group" aria-label={`Job ${id}`}>
      <h3>
        Job {id} {jobs.name[job] && <small>{jobs.name[job]}</small>}
        <button type="button" className="quiet" onClick={() => choice.set({ job: "" })}>Deselect</button>
      </h3>
      <dl className="facts">
        {facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
      </dl>
      <p className="span" aria-live="polite">
        {runs ? placement(run, job, span) : nowhere(waits, over, begins >= 0 && clock.at > begins)}
      </p>
      {waits && source.report && <Ask id={id} at={clock.at} />}
      {runs && <Devices run={run} span={span} />}
      <Pieces run={run} job={job} pieces={pieces} />
      <Causes run={run} job={job} />
    </div>
  );
}

/** The nodes, leaves and spines of a job, beside the fewest possible. */
function placement(run: Run, job: number, span: Span): string {
  const cluster = run.cluster!;
  const { fewestNodes, fewestLeaves } = run.jobs;
  const fewest = (column: typeof fewestNodes) => (job < column.length ? column.get(job) : 0);
  const parts = [
    ofFewest(span.nodes.size, fewest(fewestNodes), "node", "nodes"),
    ofFewest(span.leaves.size, fewest(fewestLeaves), "leaf", "leaves"),
  ];
  if (cluster.spines.some(Boolean)) parts.push(counted(span.spines.size, "spine", "spines"));
  return parts.join(" · ");
}

function nowhere(waits: boolean, over: boolean, ran: boolean): string {
  if (over) return "It has ended before this moment.";
  if (!waits) return "It has not been submitted at this moment.";
  return ran ? "It does not run at this moment." : "It waits at this moment.";
}

/** What to ask the journal of a run about a job that waits; a report has no scheduler that could answer. */
function Ask({ id, at }: { id: string; at: number }) {
  const command = `kant why ${word(id)} journal.jsonl --at ${at / 1e6}s`;
  return <p className="hint">Why, and what would start it now: <code id="ask">{command}</code></p>;
}

/** Its devices, node by node, in blocks of leaves. */
function Devices({ run, span }: { run: Run; span: Span }) {
  const cluster = run.cluster!;
  const leaves = [...span.leaves].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  let room = MOST_NODES;
  return (
    <ul className="leaves" aria-label="Its nodes by leaf">
      {leaves.map(([leaf, count]) => {
        if (room <= 0) return null;
        const nodes = [...span.nodes].filter(([node]) => cluster.group[node] === leaf).slice(0, room);
        room -= nodes.length;
        return (
          <li key={leaf}>
            <span>{cluster.groups[leaf]!.name} <small>{counted(count, "node", "nodes")}</small></span>
            <span className="nodes">
              {nodes.map(([node, devices]) => (
                <span className="node" key={node} title={`${cluster.names[node]}: GPU ${[...devices].sort((a, b) => a - b).join(", ")}`}>
                  {Array.from({ length: cluster.gpus[node]! }, (_, device) => <i key={device} className={devices.includes(device) ? "held" : ""} />)}
                </span>
              ))}
            </span>
          </li>
        );
      })}
      {span.nodes.size > MOST_NODES && <li className="hint">and {counted(span.nodes.size - MOST_NODES, "node", "nodes")} more</li>}
    </ul>
  );
}

/** Its waits and pieces on a line from its submission to its end. */
function Pieces({ run, job, pieces }: { run: Run; job: number; pieces: Piece[] }) {
  const clock = useClock();
  const begin = run.jobs.submit.get(job);
  const last = run.jobs.end.get(job);
  const end = last >= 0 ? last : run.end;
  if (!pieces.length || end <= begin) return null;
  const part = (time: number) => `${(100 * (Math.max(begin, Math.min(end, time)) - begin)) / (end - begin)}%`;
  const width = (from: number, to: number) => `${(100 * (Math.min(end, to) - Math.max(begin, from))) / (end - begin)}%`;
  const words = pieces.map((piece) => `${showMoment(piece.start, clock.zero)} to ${piece.end < 0 ? "now" : showMoment(piece.end, clock.zero)}: ${showGpus(piece.milli)} GPUs on ${counted(piece.nodes, "node", "nodes")}`);
  return (
    <div className="pieces">
      <div className="track" role="img" aria-label={`It ran ${words.slice(0, 20).join("; ")}`}>
        {pieces.map((piece, i) => (
          <i key={i} title={words[i]} style={{ left: part(piece.start), width: width(piece.start, piece.end < 0 ? end : piece.end) }} />
        ))}
        {clock.at >= begin && clock.at <= end && <b style={{ left: part(clock.at) }} />}
      </div>
      <p className="ends"><span>submitted</span><span>{pieces.length > 1 ? counted(pieces.length, "piece", "pieces") : ""}</span><span>{last >= 0 ? "end" : "now"}</span></p>
    </div>
  );
}

/** What it waited for, where a ledger was kept. */
function Causes({ run, job }: { run: Run; job: number }) {
  const times = [...run.causes].map(([cause, column]) => [cause, column[job]!] as const);
  if (!times.some(([, time]) => time > 0)) return null;
  return (
    <div>
      <h4>What it waited for</h4>
      <CauseBars times={times} label={`What job ${run.jobs.id[job] ?? ""} waited for`} />
    </div>
  );
}
