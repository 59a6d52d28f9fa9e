// The metrics of a summary: which numbers, in which unit, which way is better, and how a gain is told.

import type { Summary } from "../data/report";
import { NONE, showTime } from "../show";

export type Kind = "share" | "time" | "count" | "factor";

/** One number: its words, where in the summary it is, its unit, and which way is better (1: higher, -1: lower). */
export interface Row {
  name: string;
  keys: string[];
  kind: Kind;
  better: number;
}

export interface Section {
  name: string;
  words: string;
  rows: Row[];
}

const row = (name: string, path: string, kind: Kind, better = 0): Row => ({ name, keys: path.split("."), kind, better });
const spread = (key: string): Row[] =>
  [["mean", "mean"], ["P50", "p50"], ["P90", "p90"], ["P99", "p99"], ["max", "max"]].map(([name, part]) => row(name!, `${key}.${part}`, "time", -1));

export const SECTIONS: Section[] = [
  { name: "GAR", words: "GPU allocation ratio", rows: [row("mean", "gar.mean", "share", 1), row("median", "gar.median", "share", 1)] },
  { name: "SOR", words: "scheduling occupancy rate", rows: [row("nodes in service", "sor", "share", 1), row("all nodes", "sor_all_nodes", "share", 1)] },
  { name: "GFR", words: "GPU node fragmentation ratio", rows: [row("mean", "gfr.mean", "share", -1), row("median", "gfr.median", "share", -1)] },
  { name: "JWTD", words: "job waiting time", rows: spread("wait_s") },
  {
    name: "JTTED",
    words: "job training time estimation",
    rows: [
      row("mean", "jtted.mean", "factor", -1),
      row("nodes / fewest", "jtted.nodes_ratio", "factor", -1),
      row("leaf groups / fewest", "jtted.leaves_ratio", "factor", -1),
    ],
  },
  {
    name: "Jobs",
    words: "how they ended",
    rows: [
      row("arrived", "jobs", "count"),
      row("completed", "completed", "count", 1),
      row("censored", "censored", "count", -1),
      row("rejected", "rejected", "count", -1),
      row("preemptions", "preemptions", "count", -1),
      row("evictions", "evictions", "count", -1),
    ],
  },
  { name: "JCT", words: "job completion time", rows: spread("jct_s") },
  { name: "Run", words: "the run as a whole", rows: [row("makespan", "makespan_s", "time", -1)] },
];

/** Shown where queues have quotas. */
export const TENANTS: Section = {
  name: "Tenants",
  words: "what sharing costs them",
  rows: [
    row("finish-time fairness, worst", "fairness.worst", "factor", -1),
    row("finish-time fairness, mean", "fairness.mean", "factor", -1),
    row("GPU time lost", "lost_gpu_s", "time", -1),
  ],
};

export const CARDS: (Row & { words: string })[] = [
  { ...row("GAR", "gar.mean", "share", 1), words: "mean GPU allocation" },
  { ...row("SOR", "sor", "share", 1), words: "scheduling occupancy" },
  { ...row("GFR", "gfr.mean", "share", -1), words: "mean node fragmentation" },
  { ...row("JWTD", "wait_s.mean", "time", -1), words: "mean job wait" },
  { ...row("JTTED", "jtted.mean", "factor", -1), words: "mean run time / best possible" },
];

export const POOL: Row[] = [row("GPU-hours", "gpu_hours", "count"), row("SOR", "sor", "share"), row("GFR mean", "gfr_mean", "share")];
export const QUEUE: Row[] = [
  row("jobs", "jobs", "count"),
  row("GPU-hours", "gpu_hours", "count"),
  row("part of SOR", "sor", "share"),
  row("wait mean", "wait_s.mean", "time"),
  row("P50", "wait_s.p50", "time"),
  row("P90", "wait_s.p90", "time"),
  row("P99", "wait_s.p99", "time"),
  row("fairness", "rho", "factor"),
];

/** The value under nested keys, or undefined where any of them is absent. */
export function dig(value: unknown, ...keys: string[]): unknown {
  for (const key of keys) {
    if (typeof value !== "object" || value === null || !Object.hasOwn(value, key)) return undefined;
    value = (value as Summary)[key];
  }
  return value;
}

export const number = (value: unknown): number | null => (typeof value === "number" && Number.isFinite(value) ? value : null);

const plain = (value: number, digits: number) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** A value for people. */
export function show(value: unknown, kind: Kind): string {
  const amount = number(value);
  if (amount === null) return NONE;
  if (kind === "share") return `${plain(amount * 100, 2)}%`;
  if (kind === "time") return showTime(amount);
  if (kind === "factor") return plain(amount, 3);
  return plain(amount, Number.isInteger(amount) ? 0 : 2);
}

const signed = (value: number, digits: number) => `${value < 0 ? "−" : "+"}${plain(Math.abs(value), digits)}`;

/** The change from `base` to `value`: points for shares, a difference for counts, else percent. "": there is none to tell. */
export function showGain(value: unknown, base: unknown, kind: Kind): string {
  const [now, then] = [number(value), number(base)];
  if (now === null || then === null) return "";
  const change = now - then;
  if (change === 0) return "no change";
  if (kind === "count") return signed(change, 0);
  const relative = then ? `${signed((100 * change) / Math.abs(then), 1)}%` : "";
  if (kind === "share") return `${signed(change * 100, 2)} pp${relative && ` (${relative})`}`;
  return relative || `${change < 0 ? "−" : "+"}${show(Math.abs(change), kind)}`;
}

/** Whether a change is for the better. */
export function verdict(value: unknown, base: unknown, better: number): "better" | "worse" | "" {
  const change = (number(value) ?? 0) - (number(base) ?? 0);
  if (!change || !better) return "";
  return change * better > 0 ? "better" : "worse";
}
