// Small parts of the live views.

import { useEffect, useRef, useState } from "react";
import { send } from "../data/api";
import { usePage } from "../store";
import { NONE, showMoment, showTime } from "../show";
import type { Expected } from "./types";

export const OVER = ["finished", "failed", "cancelled", "rejected"];
export const AHEAD = ["waiting", "blocked", "held"];

/** The path of a job, and of what is asked or ordered of it. */
export const pathOf = (job: string, what = ""): string => `/v1/jobs/${encodeURIComponent(job)}${what && `/${what}`}`;

/** The address of a job on this page. */
export const addressOf = (job: string): string => `#jobs/${encodeURIComponent(job)}`;

const MARKS: Record<string, string> = {
  held: "‖", blocked: "…", waiting: "○", running: "●", stopping: "◐", finished: "✓", failed: "✕", cancelled: "–", rejected: "!",
}; // prettier-ignore

/** A phase, told by a mark and a word, and only then by colour. */
export function Phase({ phase }: { phase: string }) {
  return (
    <span className={`phase ${phase}`}>
      <span aria-hidden="true">{MARKS[phase] ?? "·"}</span> {phase}
    </span>
  );
}

/** A moment of the Unix epoch. */
export const when = (micros: number): string => (micros < 0 ? NONE : showMoment(micros, 0));

/** When a job is expected to start, as the time from now. */
export function expected({ p50, p90, never }: Expected, now: number): [string, string] {
  if (never) return ["never", "never"];
  return [p50, p90].map((at) => (at === null ? NONE : at <= now ? "now" : `in ${showTime(Math.round((at - now) / 1e6))}`)) as [string, string];
}

interface Order {
  verb: "cancel" | "hold" | "release" | "requeue";
  words: string;
  done: string;
}
const ORDERS: Record<string, Order> = {
  hold: { verb: "hold", words: "Hold", done: "is held" },
  release: { verb: "release", words: "Release", done: "may start" },
  requeue: { verb: "requeue", words: "Requeue", done: "stops, and waits again" },
  cancel: { verb: "cancel", words: "Cancel", done: "was cancelled" },
};

/** What may be ordered of a job in this phase. */
export function ordersOf(phase: string, may: string[]): Order[] {
  if (OVER.includes(phase)) return [];
  const own = phase === "held" ? ["release"] : phase === "waiting" || phase === "blocked" ? ["hold"] : phase === "running" ? ["requeue"] : [];
  return [...own, ...(phase === "stopping" ? [] : ["cancel"])].filter((verb) => may.includes(verb)).map((verb) => ORDERS[verb]!);
}

/** Buttons for the orders. To cancel asks once more, in the place of the buttons. */
export function Orders({ job, phase, ordered }: { job: string; phase: string; ordered: () => void }) {
  const [asks, setAsks] = useState<Order | null>(null);
  const [said, setSaid] = useState("");
  const [busy, setBusy] = useState(false);
  const { source } = usePage();
  const no = useRef<HTMLButtonElement>(null);
  useEffect(() => no.current?.focus(), [asks]);
  const give = async (order: Order) => {
    setAsks(null);
    setBusy(true);
    try {
      await send("POST", pathOf(job, order.verb));
      setSaid(`Job ${job} ${order.done}.`);
    } catch (reason) {
      setSaid(reason instanceof Error ? reason.message : String(reason));
    }
    setBusy(false);
    ordered();
  };
  return (
    <div className="orders" onKeyDown={(event) => event.key === "Escape" && setAsks(null)}>
      {asks ? (
        <span role="group" aria-label={`Confirm: ${asks.words.toLowerCase()} job ${job}`}>
          <span>{asks.words} job {job}?</span>
          <button type="button" className="danger" onClick={() => void give(asks)}>Yes, {asks.words.toLowerCase()}</button>
          <button type="button" ref={no} onClick={() => setAsks(null)}>No</button>
        </span>
      ) : (
        ordersOf(phase, source.may).map((order) => (
          <button key={order.verb} type="button" id={`order-${order.verb}`} disabled={busy} onClick={() => (order.verb === "release" ? void give(order) : setAsks(order))}>
            {order.words}
          </button>
        ))
      )}
      <span className="hint" role="status">{said}</span>
    </div>
  );
}
