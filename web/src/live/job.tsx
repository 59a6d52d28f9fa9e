// A job's page: what it is, why it waits, where it lies, what happened to it, what it writes; and orders.

import { useEffect, useRef, useState } from "react";
import { askText } from "../data/api";
import type { Run } from "../data/model";
import { counted, showCount, showTime } from "../show";
import { usePage, useStore } from "../store";
import { CauseBars } from "../views/causes";
import { tryNow } from "../whatif";
import { formOf } from "../whatif/words";
import { useAsked } from "./asked";
import { AHEAD, expected, Orders, OVER, pathOf, Phase, when } from "./parts";
import { Rank } from "./orders";
import type { Detail, History, Whoami, Why } from "./types";

const TAIL = 16_384; // bytes of the log that are shown
const LEAST = 1e6; // microseconds: who waited for less has not waited

export function JobPage({ id }: { id: string }) {
  const heading = useRef<HTMLHeadingElement>(null);
  const detail = useAsked<Detail>(pathOf(id));
  const who = useAsked<Whoami>("/v1/whoami", 600_000);
  useEffect(() => heading.current?.focus(), []);
  const found = detail.value;
  const job = found?.job;
  const own = !!found && !found.hidden; // what others run is not for everybody
  return (
    <article className="jobpage" aria-labelledby="job-title">
      <a className="back" id="back" href="#jobs">← All jobs</a>
      <div className="jobhead">
        <h2 id="job-title" ref={heading} tabIndex={-1}>Job {id} {job?.name && <small>{job.name}</small>}</h2>
        {job && <Phase phase={job.phase} />}
        {job && own && who.value && who.value.role !== "viewer" && <Orders job={id} phase={job.phase} ordered={detail.again} />}
        {job && own && who.value?.may.includes("update") && AHEAD.includes(job.phase) && (
          <Rank key={job.priority} job={id} priority={job.priority} ordered={detail.again} />
        )}
      </div>
      {detail.trouble && <p className="banner" role="alert">{detail.trouble}</p>}
      {found && job && (
        <>
          <Facts detail={found} />
          <div className="columns">
            <Waits id={id} waits={!OVER.includes(job.phase) && job.phase !== "running"} />
            <Placement detail={found} />
            <Told id={id} />
            {own && <Log id={id} over={OVER.includes(job.phase)} begun={job.attempt > 0} />}
          </div>
        </>
      )}
    </article>
  );
}

function Facts({ detail }: { detail: Detail }) {
  const { job } = detail;
  const end = job.code !== null ? `exit code ${job.code}` : job.signal !== null ? `signal ${job.signal}` : "";
  const facts: [string, React.ReactNode][] = [
    ["Queue", job.queue],
    ["User", job.user],
    ["GPUs", showCount(job.gpus)],
    ["Priority", showCount(job.priority)],
    ["Time limit", detail.time_s === null ? "none" : showTime(detail.time_s)],
    ["Submitted", when(job.submitted)],
    ["Last start", when(job.started)],
    ["Ended", when(job.ended)],
  ];
  if (end || job.reason) facts.push(["Outcome", [end, job.reason].filter(Boolean).filter((text, i, all) => all.indexOf(text) === i).join("; ")]);
  if (job.attempt > 1) facts.push(["Runs", counted(job.attempt, "run", "runs")]);
  if (detail.after.length + detail.after_ok.length) facts.push(["After", [...detail.after, ...detail.after_ok].join(", ")]);
  if (detail.reservation) facts.push(["Reservation", detail.reservation]);
  if (detail.command.length) facts.push(["Command", <code key="c">{detail.command.join(" ")}</code>], ["Folder", <code key="f">{detail.workdir}</code>]);
  return (
    <dl className="facts panel">
      {facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

/** Why it waits, if it does, and what it has waited for so far. */
function Waits({ id, waits }: { id: string; waits: boolean }) {
  const { value, trouble } = useAsked<Why>(pathOf(id, "why"));
  return (
    <>
      {waits && (
        <section className="panel" aria-labelledby="why-title">
          <h3 id="why-title">Why it waits</h3>
          {trouble && <p className="hint">{trouble}</p>}
          {value && <p id="why">{value.sentence}</p>}
          {value?.answer && <Answered answer={value.answer} />}
        </section>
      )}
      {value?.waited_us && <Waited id={id} waited={value.waited_us} waits={waits} />}
    </>
  );
}

/** How earlier answers came true, and whether these rest on enough of them. */
function recordOf(earlier: NonNullable<Why["answer"]>["earlier"]): string {
  if (!earlier?.answers) return "Not calibrated: too few earlier answers about such jobs are known.";
  const [p90, p50] = [earlier.kept, earlier.kept_p50].map((kept) => Math.round((100 * kept) / earlier.answers));
  const few = earlier.calibrated ? "" : " Not calibrated: too few periods of congestion had such waits.";
  return `Of ${showCount(earlier.answers)} earlier answers for about this far ahead, the P90 held for ${p90} %, the P50 for ${p50} %.${few}`;
}

function Answered({ answer }: { answer: NonNullable<Why["answer"]> }) {
  const [p50, p90] = expected(answer.expected_us, answer.time_us);
  return (
    <>
      <dl className="facts">
        <div><dt>Place in its queue</dt><dd>{answer.in_queue.rank} of {answer.in_queue.of}</dd></div>
        <div><dt>Among jobs that compete for its GPUs</dt><dd>{answer.among_rivals.rank} of {answer.among_rivals.of}</dd></div>
        <div><dt>Expected start, P50</dt><dd>{p50}</dd></div>
        <div><dt>P90</dt><dd>{p90}</dd></div>
      </dl>
      <p id="earlier" className="hint">{recordOf(answer.earlier)}</p>
      {answer.rests_on && <p id="rests-on">Rests on: {answer.rests_on.sentence}</p>}
      {answer.wait_or_place && <p>{answer.wait_or_place.sentence}</p>}
      <Sentences title="Facts" said={answer.facts} />
      <Sentences title="What would help" said={answer.remedies} />
      <NowIf found={answer.starts_now_if} before={answer.among_rivals.rank - 1} />
    </>
  );
}

/** What starts it now if none of the jobs `before` it takes the place, each with one click to what it would mean for all others. */
function NowIf({ found, before }: { found: NonNullable<Why["answer"]>["starts_now_if"]; before: number }) {
  const { source } = usePage();
  if (!found.changes.length && !found.none?.startsWith("proven")) return null;
  const may = source.may.includes("whatif");
  return (
    <section aria-labelledby="now-if-title" id="now-if">
      <h4 id="now-if-title">Starts now{before > 0 && `, unless ${before === 1 ? "a job" : `one of ${before} jobs`} before it takes the place,`} if</h4>
      <ul>
        {found.none && <li>{found.none}</li>}
        {found.changes.map((change, i) => {
          const form = may ? formOf(change) : null;
          return (
            <li key={i}>
              {change.sentence} {form && <button type="button" className="link" aria-label={`What if ${change.sentence}?`} onClick={() => tryNow(form)}>What if?</button>}
            </li>
          );
        })}
      </ul>
    </section>
  );
}

/** The same picture as in a report. */
function Waited({ id, waited: { total, ...causes }, waits }: { id: string; waited: NonNullable<Why["waited_us"]>; waits: boolean }) {
  if (total < LEAST) return null;
  return (
    <section className="panel" id="waited" aria-labelledby="waited-title">
      <h3 id="waited-title">What it waited for</h3>
      <p className="hint">{showTime(total / 1e6)} {waits ? "so far" : "in all"}</p>
      <CauseBars times={Object.entries(causes)} label={`What job ${id} waited for`} />
    </section>
  );
}

function Sentences({ title, said }: { title: string; said: { sentence: string }[] }) {
  if (!said.length) return null;
  return (
    <>
      <h4>{title}</h4>
      <ul>{said.map(({ sentence }, i) => <li key={i}>{sentence}</li>)}</ul>
    </>
  );
}

/** The nodes that it holds, by leaf, each with its GPUs; beside the fewest that it could do with. */
function Placement({ detail }: { detail: Detail }) {
  const { source } = usePage();
  useStore(source);
  const run = source.runs[0];
  const nodes = Object.entries(detail.place);
  if (!run?.cluster || !nodes.length) return null;
  const leaves = new Map<number, [number, string][]>();
  for (const [name, devices] of nodes) {
    const node = run.cluster.names.indexOf(name);
    const leaf = node < 0 ? -1 : run.cluster.group[node]!;
    leaves.set(leaf, [...(leaves.get(leaf) ?? []), [node, devices]]);
  }
  return (
    <section className="panel" aria-labelledby="place-title">
      <h3 id="place-title">Where it runs</h3>
      <p className="hint">{spread(run, detail.job.id, nodes.length, leaves.size)}</p>
      <ul className="lies">
        {[...leaves].map(([leaf, held]) => (
          <li key={leaf}>
            <span className="leaf">{leaf < 0 ? "elsewhere" : run.cluster!.groups[leaf]!.name}</span>
            <span className="held">
              {held.map(([node, devices]) => <NodeCells key={node} run={run} node={node} devices={devices} />)}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function spread(run: Run, id: string, nodes: number, leaves: number): string {
  const row = run.jobs.find(id);
  const of = (count: number, fewest: number, one: string, many: string) =>
    counted(count, one, many) + (fewest > 0 ? (fewest === count ? ", the fewest possible" : `; ${fewest} would do in an empty cluster`) : "");
  const fewest = (column: { get: (row: number) => number; length: number }) => (row >= 0 && row < column.length ? column.get(row) : 0);
  return `${of(nodes, fewest(run.jobs.fewestNodes), "node", "nodes")} · ${of(leaves, fewest(run.jobs.fewestLeaves), "leaf", "leaves")}`;
}

function NodeCells({ run, node, devices }: { run: Run; node: number; devices: string }) {
  if (node < 0) return null;
  const own = new Set(devices.split(",").filter(Boolean).map(Number));
  const name = run.cluster!.names[node]!;
  const words = own.size ? `GPU ${devices.replaceAll(",", ", ")}` : "no GPU";
  return (
    <span className="cells" role="img" aria-label={`${name}: ${words}`} title={`${name}: ${words}`}>
      <small>{name}</small>
      {Array.from({ length: run.cluster!.gpus[node]! }, (_, gpu) => <i key={gpu} className={own.has(gpu) ? "own" : ""} />)}
    </span>
  );
}

function Told({ id }: { id: string }) {
  const { value } = useAsked<History>(pathOf(id, "history"));
  if (!value) return null;
  return (
    <section className="panel" aria-labelledby="told-title">
      <h3 id="told-title">What happened</h3>
      <ol className="told">
        {value.entries.map((entry, i) => (
          <li key={i}><time>{when(entry.time_us + value.zero_us)}</time> <span>{entry.sentence}</span></li>
        ))}
      </ol>
      {!value.whole && <p className="hint">It ended before this Kant started, or long ago: nothing more is recorded.</p>}
    </section>
  );
}

/** The end of what its last run has written, and more as it comes. */
function Log({ id, over, begun }: { id: string; over: boolean; begun: boolean }) {
  const { source } = usePage();
  const version = useStore(source);
  const [text, setText] = useState("");
  const [trouble, setTrouble] = useState("");
  const [follows, setFollows] = useState(true);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (!begun) return;
    let gone = false;
    const look = () =>
      askText(`${pathOf(id, "log")}?offset=-${TAIL}&limit=${TAIL}`).then(
        (found) => !gone && (setText(found), setTrouble("")),
        (reason: unknown) => !gone && !(reason instanceof TypeError) && setTrouble(reason instanceof Error ? reason.message : String(reason)),
      );
    void look();
    const timer = over || !follows ? 0 : window.setInterval(() => void look(), 1500);
    return () => {
      gone = true;
      clearInterval(timer);
    };
    // the end of a run may come with output that nobody has asked for yet
  }, [id, over, follows, begun, over ? version : 0]);
  useEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, follows]);
  if (!begun) return null;
  return (
    <section className="panel wide" aria-labelledby="log-title">
      <h3 id="log-title">
        Output <small>{text.length >= TAIL ? "its last 16 KiB" : ""}</small>
        {!over && <button type="button" aria-pressed={follows} onClick={() => setFollows(!follows)}>Follow</button>}
      </h3>
      {trouble ? <p className="hint">{trouble}</p> : <pre id="log" ref={box} tabIndex={0} aria-label="Output of the job">{text || "(nothing yet)"}</pre>}
    </section>
  );
}
