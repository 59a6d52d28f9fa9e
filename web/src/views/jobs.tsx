// The jobs of a run as they stand at the moment: a table to search, to filter by state and to sort.

import { useMemo, useState } from "react";
import { JobStatus, type Run } from "../data/model";
import { type Occupancy, occupancyAt } from "../map/occupancy";
import { usePick } from "../map/view";
import { counted, showGpus, showMoment, showTime } from "../show";
import { usePage, useStore } from "../store";
import { useClock } from "../time/bar";
import { JobPanel } from "./job";
import { RunName, Scroll } from "./tables";

const PAGE = 50; // rows shown at once
export type State = "coming" | "waiting" | "running" | "ended";

/** How a job stands at `time`. */
export function stateAt({ jobs }: Run, now: Occupancy, job: number, time: number): State {
  if (jobs.submit.data[job]! > time) return "coming";
  if (now.pieces[job]! > 0) return "running";
  const end = jobs.end.data[job]!;
  if (end >= 0 ? end <= time : jobs.status.data[job] === JobStatus.REJECTED || jobs.status.data[job] === JobStatus.CANCELLED) return "ended";
  return "waiting";
}

type Key = "id" | "queue" | "gpus" | "submit" | "start" | "wait";
const HEADS: [Key, string][] = [["id", "job"], ["queue", "queue"], ["gpus", "GPUs"], ["submit", "submitted"], ["start", "first start"], ["wait", "waited in all"]];

function keyOf(run: Run, key: Key): (job: number) => number | string {
  const { jobs, queues } = run;
  return {
    id: (job: number) => job,
    queue: (job: number) => queues[jobs.queue.data[job]!]!,
    gpus: (job: number) => jobs.milli.data[job]!,
    submit: (job: number) => jobs.submit.data[job]!,
    start: (job: number) => (jobs.start.data[job]! < 0 ? Infinity : jobs.start.data[job]!),
    wait: (job: number) => jobs.wait.data[job]!,
  }[key];
}

export function JobsView() {
  const { source, choice, clock } = usePage();
  useStore(source);
  useStore(choice);
  useClock();
  const pick = usePick();
  const [which, setWhich] = useState(0);
  const [state, setState] = useState<State | "all">("waiting");
  const [text, setText] = useState("");
  const [order, setOrder] = useState<[Key, number]>(["submit", 1]);
  const [from, setFrom] = useState(0);
  const run = source.runs[Math.min(which, source.runs.length - 1)]!;
  const version = run.version;
  const [key, sign] = order;
  const sorted = useMemo(() => {
    const of = keyOf(run, key);
    const words = text.trim().toLowerCase();
    const { jobs, queues } = run;
    const has = (value: string | undefined) => value?.toLowerCase().includes(words);
    const rows: number[] = [];
    for (let job = 0; job < jobs.length; job++) {
      if (!words || has(jobs.id[job]) || has(jobs.name[job]) || has(jobs.user[job]) || has(queues[jobs.queue.get(job)])) rows.push(job);
    }
    return rows.sort((a, b) => {
      const [x, y] = [of(a), of(b)];
      return x === y ? a - b : x < y ? -sign : sign;
    });
  }, [run, version, key, sign, text]);
  const now = occupancyAt(run, clock.at);
  const counts = { coming: 0, waiting: 0, running: 0, ended: 0 };
  const shown: number[] = [];
  let found = 0;
  for (const job of sorted) {
    const own = stateAt(run, now, job, clock.at);
    counts[own]++;
    if (state !== "all" && own !== state) continue;
    if (found >= from && shown.length < PAGE) shown.push(job);
    found++;
  }
  const choose = (next: State | "all") => { setState(next); setFrom(0); };
  return (
    <section aria-labelledby="jobs-h">
      <h2 id="jobs-h" className="said">Jobs</h2>
      <div className="tools">
        {source.runs.length > 1 && (
          <label>Run <select value={which} onChange={(event) => { setWhich(+event.target.value); setFrom(0); }}>
            {source.runs.map((other, i) => <option key={i} value={i}>{other.label}</option>)}
          </select></label>
        )}
        <div className="group" role="group" aria-label="Which jobs">
          {(["waiting", "running", "ended", "all"] as const).map((each) => (
            <button key={each} type="button" aria-pressed={state === each} onClick={() => choose(each)}>
              {each} {each !== "all" && <small>{counts[each].toLocaleString("en")}</small>}
            </button>
          ))}
        </div>
        <label>Find <input type="search" value={text} placeholder="job, queue or user" onChange={(event) => { setText(event.target.value); setFrom(0); }} /></label>
      </div>
      {!run.wholeJobs && <p className="hint">Of this large run only the jobs in the map are here.</p>}
      {choice.job && <article className="panel"><RunName index={which} label={run.label} /><JobPanel run={run} id={choice.job} /></article>}
      <Scroll label="Jobs">
        <table id="jobs" className="rows">
          <thead>
            <tr>
              {HEADS.map(([each, words]) => (
                <th scope="col" key={each} aria-sort={each === key ? (sign > 0 ? "ascending" : "descending") : undefined}>
                  <button type="button" className="sort" onClick={() => setOrder([each, each === key ? -sign : 1])}>
                    {words}{each === key ? (sign > 0 ? " ▲" : " ▼") : ""}
                  </button>
                </th>
              ))}
              <th scope="col">now</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((job) => <JobRow key={job} run={run} job={job} now={now} picked={run.jobs.id[job] === choice.job} pick={pick} />)}
          </tbody>
        </table>
      </Scroll>
      {!found && <p className="empty">{state === "all" ? "No job found." : `No job ${state === "ended" ? "has ended" : state === "running" ? "runs" : "waits"} at this moment.`}</p>}
      {found > PAGE && (
        <div className="tools pages">
          <button type="button" disabled={from === 0} onClick={() => setFrom(Math.max(0, from - PAGE))}>Earlier rows</button>
          <p className="hint">{from + 1} to {Math.min(from + PAGE, found)} of {counted(found, "job", "jobs")}</p>
          <button type="button" disabled={from + PAGE >= found} onClick={() => setFrom(from + PAGE)}>Later rows</button>
        </div>
      )}
    </section>
  );
}

function JobRow({ run, job, now, picked, pick }: { run: Run; job: number; now: Occupancy; picked: boolean; pick: (id: string) => void }) {
  const { clock, choice } = usePage();
  const { jobs } = run;
  const id = jobs.id[job]!;
  const state = stateAt(run, now, job, clock.at);
  const since = state === "waiting" ? ` ${showTime((clock.at - jobs.submit.get(job)) / 1e6)}` : "";
  return (
    <tr className={picked ? "picked" : ""}>
      <th scope="row">
        <button type="button" className="link" aria-pressed={picked} onClick={() => (picked ? choice.set({ job: "" }) : state === "running" ? pick(id) : choice.set({ job: id }))}>{id}</button>
        {jobs.name[job] && <small>{jobs.name[job]}</small>}
      </th>
      <td>{run.queues[jobs.queue.get(job)] || "(no name)"}</td>
      <td>{showGpus(jobs.milli.get(job))}</td>
      <td>{showMoment(jobs.submit.get(job), clock.zero)}</td>
      <td>{jobs.start.get(job) < 0 ? "–" : showMoment(jobs.start.get(job), clock.zero)}</td>
      <td>{showTime(jobs.wait.get(job) / 1e6)}</td>
      <td><span className={`state ${state}`}>{state}{since}</span></td>
    </tr>
  );
}
