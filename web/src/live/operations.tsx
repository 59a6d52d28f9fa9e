// Plans of people and assistants (docs/ops.md): who asked for what, its effects before and after, what became of it; the audit.

import { useId, useState } from "react";
import { send } from "../data/api";
import { NONE, counted, showCount, showTime } from "../show";
import { usePage } from "../store";
import { Scroll } from "../views/tables";
import { Card, gain } from "../whatif/answer";
import { useAsked } from "./asked";
import { addressOf, when } from "./parts";

interface Wait {
  job: string;
  before_s: number;
  after_s: number;
}

interface Shown {
  orders?: string[];
  can_be_applied?: boolean;
  violations?: { sentence: string }[];
  effects?: {
    waits?: { before_s: { mean: number | null }; after_s: { mean: number | null } };
    sooner?: (Wait | string)[];
    later?: (Wait | string)[];
    start_now?: string[];
    stop?: string[];
    not_foretold?: string;
  };
  blast_radius?: { jobs: string[]; gpus: number; nodes: string[] };
  gpu_hours_lost?: number;
  asks_a_person?: string[];
}

interface Entry {
  seq: number;
  time_us: number; // microseconds of the Unix epoch
  what: string;
  who?: string;
  role?: string;
  via?: string;
  reason?: string;
  plan?: string;
  txn?: string;
  undoes?: string;
  sentence?: string;
  orders?: Record<string, unknown>[];
  shown?: Shown;
}

const MOST = 20; // plans that are shown
const UNDO = 15 * 60e6;

const short = (order: Record<string, unknown>): string =>
  Object.entries(order).filter(([key]) => key !== "command").map(([, value]) => String(value)).join(" ");

/** What has become of a plan, and the transaction that can be undone still ("": none). */
function fate(plan: Entry, entries: Entry[]): { state: string; because: string; undo: string } {
  const last = (txn: string) => entries.find((each) => each.txn === txn && each.what !== "refused");
  const begun = entries.find((each) => each.what === "apply" && each.plan === plan.plan);
  if (!begun?.txn) {
    const refused = entries.find((each) => each.what === "refused" && each.plan === plan.plan);
    return { state: refused ? "refused" : plan.shown?.can_be_applied === false ? "not possible" : "planned", because: refused?.sentence ?? "", undo: "" };
  }
  const end = last(begun.txn)!;
  const back = entries.find((each) => each.what === "apply" && each.undoes === begun.txn && last(each.txn!)?.what === "applied");
  const state = back ? "undone" : end.what === "apply" || end.what === "done" ? "being applied" : end.what;
  const fresh = end.what === "applied" && !back && Date.now() * 1000 - end.time_us < UNDO;
  return { state, because: begun.reason ?? "", undo: fresh ? begun.txn : "" };
}

export function Operations() {
  const { source } = usePage();
  const { value, trouble, again } = useAsked<{ entries: Entry[] }>("/v1/operations");
  const entries = value?.entries ?? [];
  const plans = entries.filter((entry) => entry.what === "plan").slice(0, MOST);
  const may = source.may.includes("plan");
  return (
    <section aria-labelledby="plans-title">
      <h2 id="plans-title" className="said">Plans</h2>
      {may && <NewPlan planned={again} />}
      {trouble && <p className="banner" role="alert">{trouble}</p>}
      {value && !plans.length && <p className="empty">No plan has been made yet. A plan shows the effects of a change before it is applied: <code>kant ops plan</code> makes one, as does an assistant with <code>kant mcp</code>.</p>}
      <div className="columns">{plans.map((plan) => <Plan key={plan.plan} plan={plan} entries={entries} may={may} changed={again} />)}</div>
      {entries.length > 0 && <Audit entries={entries} />}
    </section>
  );
}

function Plan({ plan, entries, may, changed }: { plan: Entry; entries: Entry[]; may: boolean; changed: () => void }) {
  const { state, because, undo } = fate(plan, entries);
  const { orders = [], violations = [], effects = {}, blast_radius: blast, gpu_hours_lost: lost = 0, asks_a_person: asks = [] } = plan.shown ?? {};
  const waits = effects.waits;
  const rows = [...(effects.sooner ?? []), ...(effects.later ?? [])].filter((row): row is Wait => typeof row !== "string");
  return (
    <article className="panel plan" aria-label={`Plan ${plan.plan}`} data-plan={plan.plan}>
      <div className="jobhead">
        <h3>{(orders.length ? orders : (plan.orders ?? []).map(short)).join("; ")}</h3>
        <span className={`phase ${state === "applied" ? "running" : state === "planned" ? "waiting" : state === "undone" ? "" : "held"}`}>{state}</span>
      </div>
      <p className="hint">{plan.who} ({plan.role}, {plan.via}) · {when(plan.time_us)} · {plan.plan}</p>
      {because && <p className="because">{because}</p>}
      {violations.map((each) => <p key={each.sentence} className="worse">Not possible: {each.sentence}</p>)}
      {blast && <p>Touches {counted(blast.jobs.length, "job", "jobs")}, {showCount(blast.gpus)} GPUs, {counted(blast.nodes.length, "node", "nodes")}; {showCount(lost)} GPU-hours of work are lost.</p>}
      {effects.not_foretold && <p className="hint">{effects.not_foretold}</p>}
      <Jobs words="Starts at once" jobs={effects.start_now} />
      <Jobs words="Stops" jobs={effects.stop} />
      {waits && waits.before_s.mean !== null && (
        <Card name="mean wait" before={showTime(waits.before_s.mean)} after={showTime(waits.after_s.mean)} change={gain(waits.before_s.mean, waits.after_s.mean)} />
      )}
      {rows.length > 0 && (
        <table className="futures">
          <thead><tr><th scope="col">job waits</th><th scope="col" className="n">as it is</th><th scope="col" className="n">with the plan</th></tr></thead>
          <tbody>{rows.map((row) => (
            <tr key={row.job}>
              <th scope="row"><a href={addressOf(decodeURIComponent(row.job))}>{row.job}</a></th>
              <td className="n">{showTime(row.before_s)}</td><td className={`n ${row.after_s < row.before_s ? "better" : "worse"}`}>{showTime(row.after_s)}</td>
            </tr>
          ))}</tbody>
        </table>
      )}
      {may && state === "planned" && <Act act="apply" id={plan.plan!} asks={asks} changed={changed} />}
      {may && undo && <Act act="undo" id={undo} asks={[]} changed={changed} />}
    </article>
  );
}

function Jobs({ words, jobs }: { words: string; jobs: string[] | undefined }) {
  return jobs?.length ? <p>{words}: {jobs.join(", ")}</p> : null;
}

/** Applies a plan or undoes it, with a reason; beyond the limits only for whoever agrees to that, too. */
function Act({ act, id, asks, changed }: { act: "apply" | "undo"; id: string; asks: string[]; changed: () => void }) {
  const [reason, setReason] = useState("");
  const [agreed, setAgreed] = useState(false);
  const [said, setSaid] = useState("");
  const [busy, setBusy] = useState(false);
  const enter = async (event: React.FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await send("POST", `/v1/operations/${act}`, { id, reason, agreed });
      setSaid("");
    } catch (trouble) {
      setSaid(trouble instanceof Error ? trouble.message : String(trouble));
    }
    setBusy(false);
    changed();
  };
  return (
    <form className="orders" onSubmit={(event) => void enter(event)}>
      <label>Why <input required minLength={3} maxLength={400} value={reason} onChange={(event) => setReason(event.target.value)} /></label>
      {asks.length > 0 && <label><input type="checkbox" required checked={agreed} onChange={(event) => setAgreed(event.target.checked)} /> I agree to {asks.join(", ")}</label>}
      <button type="submit" disabled={busy}>{act === "apply" ? "Apply" : "Undo"}</button> <span className="hint" role="status">{said}</span>
    </form>
  );
}

const OPS: Record<string, [what: "job" | "node" | "queue", words: string, value?: string]> = {
  hold: ["job", "hold"], release: ["job", "release"], priority: ["job", "give a priority", "value"], cancel: ["job", "cancel"], preempt: ["job", "requeue"],
  drain: ["node", "drain"], resume: ["node", "resume"], quota: ["queue", "give a quota", "gpus"],
}; // prettier-ignore

/** One order to plan; several at once are for `kant ops plan`. */
function NewPlan({ planned }: { planned: () => void }) {
  const { source } = usePage();
  const list = useId();
  const [op, setOp] = useState("hold");
  const [name, setName] = useState("");
  const [number, setNumber] = useState("");
  const [evict, setEvict] = useState(false);
  const [said, setSaid] = useState("");
  const [busy, setBusy] = useState(false);
  const [what, , value] = OPS[op]!;
  const run = source.runs[0];
  const known = what === "node" ? [...(run?.cluster?.names ?? [])] : [];
  const enter = async (event: React.FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setSaid("Simulating two futures…");
    try {
      const order = { op, [what]: name.trim(), ...(value && { [value]: Number(number) }), ...(op === "drain" && { evict }) };
      await send("POST", "/v1/operations/plan", { orders: [order] });
      setSaid("");
    } catch (trouble) {
      setSaid(trouble instanceof Error ? trouble.message : String(trouble));
    }
    setBusy(false);
    planned();
  };
  return (
    <form className="orders" id="new-plan" onSubmit={(event) => void enter(event)}>
      <label>Plan to <select value={op} onChange={(event) => setOp(event.target.value)}>{Object.entries(OPS).map(([key, [kind, words]]) => <option key={key} value={key}>{words} ({kind})</option>)}</select></label>
      <label>{what} <input required list={list} value={name} placeholder={what === "job" ? "namespace/name" : ""} onChange={(event) => setName(event.target.value)} /></label>
      <datalist id={list}>{known.map((each) => <option key={each} value={each} />)}</datalist>
      {value && <label>{value === "gpus" ? "GPUs" : "priority"} <input type="number" step={1} required size={6} value={number} onChange={(event) => setNumber(event.target.value)} /></label>}
      {op === "drain" && <label><input type="checkbox" checked={evict} onChange={(event) => setEvict(event.target.checked)} /> stop the jobs that run there</label>}
      <button type="submit" disabled={busy}>Plan it</button> <span className="hint" role="status">{said}</span>
    </form>
  );
}

function Audit({ entries }: { entries: Entry[] }) {
  return (
    <>
      <h3 className="listed" id="audit-title">Audit <small>{showCount(entries.length)} latest</small></h3>
      <Scroll label="Audit">
        <table className="jobs" id="audit">
          <thead><tr>{["when", "who", "what", "id", "orders and reason"].map((name) => <th key={name} scope="col">{name}</th>)}</tr></thead>
          <tbody>
            {entries.filter((entry) => entry.what !== "done").map((entry) => (
              <tr key={entry.seq}>
                <th scope="row">{when(entry.time_us)}</th><td data-name="who">{entry.who || NONE}</td><td data-name="what">{entry.what}</td><td data-name="id">{entry.txn || entry.plan}</td>
                <td className="why">{[(entry.orders ?? []).map(short).join("; "), entry.reason, entry.sentence].filter(Boolean).join(" – ")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}
