// The jobs of a live Kant: who waits and why, who runs, who has ended. At an earlier moment: as they stood then.

import { useState } from "react";
import { counted, showCount, showTime } from "../show";
import { remember, remembered, usePage, useStore } from "../store";
import { useClock } from "../time/bar";
import { reportTabs } from "../views";
import { useAsked } from "./asked";
import { Notices } from "./budgets";
import { Free } from "./free";
import { JobPage } from "./job";
import { addressOf, AHEAD, expected, OVER, Phase, when } from "./parts";
import { Reservations } from "./reservations";
import { Submit } from "./submit";
import type { Eta, Job, JobPageOf } from "./types";

const LIMIT = 50;
const MINE = "kant-mine";
const KINDS: [string, string, string[]][] = [
  ["ahead", "Waiting", AHEAD],
  ["runs", "Running", ["running", "stopping"]],
  ["over", "Over", OVER],
  ["all", "All", []],
];

/** The view behind the tab: the present from the API, any other moment from the record. */
export function LiveJobs() {
  const { choice } = usePage();
  useStore(choice);
  const clock = useClock();
  if (!clock.following) return <Then id="jobs" />;
  return choice.job ? <JobPage key={choice.job} id={choice.job} /> : <Lists />;
}

/** The view of a report, at the moment of the time bar. */
export function Then({ id }: { id: string }) {
  const { clock } = usePage();
  const View = reportTabs.find((tab) => tab.id === id)?.view;
  return (
    <>
      <p className="hint then">
        As it was at the moment of the time bar. <button type="button" onClick={() => clock.follow(true)}>Back to live</button>
      </p>
      {View && <View />}
    </>
  );
}

function Lists() {
  const { source } = usePage();
  useStore(source);
  const [kind, setKind] = useState("now");
  const [queue, setQueue] = useState("");
  const [user, setUser] = useState("");
  const [name, setName] = useState("");
  const [mine, setMine] = useState(() => (remembered(MINE) ?? String(source.role === "tenant")) === "true");
  const known = source.may.includes("waiting") && source.user !== ""; // whose jobs are whose
  const own = known && mine && !user;
  const choose = () => {
    remember(MINE, String(!own));
    setMine(!own);
    setUser("");
  };
  const shown = kind === "now" ? ["ahead", "runs"] : [kind];
  return (
    <section aria-labelledby="jobs-title">
      <h2 id="jobs-title" className="said">Jobs</h2>
      <div className="tools">
        <div className="group" role="group" aria-label="State">
          <button type="button" aria-pressed={kind === "now"} onClick={() => setKind("now")}>Now</button>
          {KINDS.map(([id, title]) => (
            <button key={id} type="button" aria-pressed={kind === id} onClick={() => setKind(id)}>{title}</button>
          ))}
        </div>
        <label>Queue <select value={queue} onChange={(event) => setQueue(event.target.value)}>
          <option value="">all</option>
          {(source.runs[0]?.queues ?? []).map((name) => <option key={name} value={name}>{name || "(no name)"}</option>)}
        </select></label>
        <Search label="User" value={user} set={setUser} />
        {known && <button type="button" id="mine" aria-pressed={own} title="My jobs, and those in my queues" onClick={choose}>Mine</button>}
        {source.may.includes("waiting") && <Search label="Name" value={name} set={setName} hint="train*" />}
      </div>
      <Notices />
      <Free />
      <Submit />
      {kind === "now" && <Reservations />}
      {shown.map((one) => <List key={`${one}/${queue}/${user}/${name}/${own}`} kind={one} queue={queue} user={user} name={name} own={own} titled={kind === "now"} />)}
    </section>
  );
}

/** A text to search by, taken at Enter or when the field is left. */
function Search({ label, value, set, hint }: { label: string; value: string; set: (text: string) => void; hint?: string }) {
  const take = (event: React.SyntheticEvent<HTMLInputElement>) => set(event.currentTarget.value.trim());
  return <label>{label} <input key={value} type="search" size={10} placeholder={hint} defaultValue={value} onKeyDown={(event) => event.key === "Enter" && take(event)} onBlur={take} /></label>;
}

/** Jobs of one kind, a page at a time. */
function List({ kind, queue, user, name, own, titled }: { kind: string; queue: string; user: string; name: string; own: boolean; titled: boolean }) {
  const [pages, setPages] = useState<number[]>([]); // `before` of each page after the first
  const [, title, phases] = KINDS.find(([id]) => id === kind)!;
  const { source } = usePage();
  const ordered = kind === "ahead" && source.may.includes("waiting"); // by the queue's order, and paged by it
  const query = new URLSearchParams({ limit: String(LIMIT) });
  if (phases.length && !ordered) query.set("state", phases.join(","));
  if (queue) query.set("queue", queue);
  if (user) query.set("user", user);
  if (name) query.set("name", name);
  if (own) query.set("mine", "true");
  if (pages.length) query.set(ordered ? "after" : "before", String(pages[pages.length - 1]));
  const { value, trouble } = useAsked<JobPageOf>(`${ordered ? "/v1/waiting" : "/v1/jobs"}?${query}`);
  const eta = useAsked<Eta>(kind === "ahead" && value?.jobs.length ? "/v1/eta" : null);
  const whole = value?.next === null && !pages.length;
  return (
    <section aria-label={`${title} jobs`} id={`list-${kind}`}>
      {titled && <h3 className="listed">{title} {value && <small>{value.total ?? (whole ? value.jobs.length : `${value.jobs.length} shown`)}</small>}</h3>}
      {trouble && <p className="banner" role="alert">{trouble}</p>}
      {value && <Table kind={kind} jobs={value.jobs} eta={eta.value} own={own} />}
      {value && !whole && (
        <div className="tools pages">
          <button type="button" disabled={!pages.length} onClick={() => setPages(pages.slice(0, -1))}>{ordered ? "Before these" : "Later"}</button>
          <button type="button" disabled={value.next === null} onClick={() => setPages([...pages, value.next!])}>{ordered ? "After these" : "Earlier"}</button>
          <span className="hint" role="status">{counted(value.jobs.length, "job", "jobs")} on this page</span>
        </div>
      )}
    </section>
  );
}

function Table({ kind, jobs, eta, own }: { kind: string; jobs: Job[]; eta: Eta | null; own: boolean }) {
  const run = usePage().source.runs[0];
  const present = run && run.zero !== null ? run.zero + run.end : 0;
  if (!jobs.length) {
    const none = { ahead: "No job waits.", runs: "No job runs.", over: "No job has ended yet." }[kind] ?? "There is no such job.";
    return <p className="empty">{own ? "No job of yours or of your queues." : none}</p>;
  }
  const places = new Map(eta?.jobs.map((row, i) => [row.job, { ...row, place: i + 1 }]));
  const now = eta?.time_us ?? 0;
  const order = (job: Job) => (job.place === undefined ? (places.get(job.id)?.place ?? Infinity) : 0);
  const ranked = jobs.some((job) => job.place !== undefined); // it comes in order
  const rows = kind === "ahead" && !ranked ? [...jobs].sort((a, b) => order(a) - order(b) || a.seq - b.seq) : jobs;
  const ahead = kind === "ahead";
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label={`Table of jobs: ${kind === "ahead" ? "waiting" : kind === "runs" ? "running" : kind}`}>
      <table className="jobs">
        <thead>
          <tr>
            <th scope="col">job</th><th scope="col">name</th><th scope="col">state</th><th scope="col">queue</th><th scope="col">user</th>
            <th scope="col" className="n">GPUs</th>
            {ahead ? (
              <>
                <th scope="col" className="n">place</th><th scope="col" className="n">waited</th>
                <th scope="col" className="n">start, P50</th><th scope="col" className="n">P90</th><th scope="col">why</th>
              </>
            ) : (
              <>
                {kind !== "runs" && <th scope="col">submitted</th>}<th scope="col">started</th>
                {kind === "runs" ? <><th scope="col" className="n">runs for</th><th scope="col" className="n">left</th><th scope="col">on</th></> : <th scope="col">ended</th>}
                <th scope="col">note</th>
              </>
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((job) => {
            const place = places.get(job.id);
            const [p50, p90] = place ? expected(place.expected_us, now) : ["–", "–"];
            return (
              <tr key={job.id} data-job={job.id}>
                <th scope="row"><a href={addressOf(job.id)}>{job.id}</a></th>
                <td className="name">{job.name}</td>
                <td className="stands"><Phase phase={job.phase} /></td>
                <td data-name="queue">{job.queue}</td>
                <td data-name="user">{job.user}</td>
                <td className="n" data-name="GPUs">{showCount(job.gpus)}</td>
                {ahead ? (
                  <>
                    <td className="n" data-name="place">{job.place || place?.place || "–"}</td>
                    <td className="n" data-name="waited">{present ? showTime(Math.max(0, Math.round((present - job.submitted) / 1e6))) : "–"}</td>
                    <td className="n" data-name="start, P50">{p50}</td>
                    <td className="n" data-name="P90">{p90}</td>
                    <td className="why">
                      {job.waits || (job.phase === "held" ? "it is held" : place?.why === "ready" ? "it is about to start" : job.reason || "")}
                      {place?.rests_on && <small className="basis">rests on: {place.rests_on.sentence}</small>}
                    </td>
                  </>
                ) : (
                  <>
                    {kind !== "runs" && <td data-name="submitted">{when(job.submitted)}</td>}
                    <td data-name="started">{when(job.started)}</td>
                    {kind === "runs" ? <Runs job={job} present={present} /> : <td data-name="ended">{when(job.ended)}</td>}
                    <td className="why">{job.reason || job.waits}</td>
                  </>
                )}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** For how long a job runs, what is left of its limit, and where it is. */
function Runs({ job, present }: { job: Job; present: number }) {
  const seconds = (from: number, to: number) => showTime(Math.max(0, Math.round((to - from) / 1e6)));
  const known = present > 0 && job.started >= 0;
  const limit = job.limit_us ?? -1;
  return (
    <>
      <td className="n" data-name="runs for">{known ? seconds(job.started, present) : "–"}</td>
      <td className="n" data-name="left">{known && limit >= 0 ? seconds(present, job.started + limit) : "–"}</td>
      <td className="where" data-name="on">{Object.entries(job.nodes ?? {}).map(([node, gpus]) => (gpus ? `${node}: ${gpus}` : node)).join("; ")}</td>
    </>
  );
}
