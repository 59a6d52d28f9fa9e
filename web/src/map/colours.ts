// The colours of the map: what each GPU is painted with in each way to colour it.

import { NodeStatus, SIZE_CLASSES, sizeClass, type Run } from "../data/model";
import { cssVar } from "../theme";

/** Ordered from small to large jobs; apart for every common kind of colour blindness (Okabe and Ito, 2008). */
export const PALETTE = ["#56b4e9", "#0072b2", "#009e73", "#e6b422", "#d55e00", "#cc79a7"];
const OTHER = "#8a93a1";

export const WAYS: readonly (readonly [string, string])[] = [
  ["size", "job size"],
  ["queue", "queue"],
  ["user", "user"],
  ["job", "job"],
  ["model", "GPU model"],
  ["state", "state of the node"],
];

const PARTLY = PALETTE[4]!;
const FULL = PALETTE[1]!;
const CORDONED = PALETTE[3]!;
const DRAINING = PALETTE[5]!;

/** A colour `#rrggbb` as a pixel, mixed with `other` by `part` (0: all colour). */
export function pixel(colour: string, other = colour, part = 0): number {
  const channel = (text: string, i: number) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map((i) => Math.round(channel(colour, i) * (1 - part) + channel(other, i) * part));
  return ((255 << 24) | (mixed[2]! << 16) | (mixed[1]! << 8) | mixed[0]!) >>> 0;
}

/** A colour of its own for a name, the same in every run: a hash chooses hue and lightness. */
export function ownColour(name: string): string {
  let hash = 2166136261;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  hash = Math.imul(hash ^ (hash >>> 15), 2246822519) >>> 0;
  const hue = hash % 360;
  const light = 0.42 + ((hash >>> 9) % 5) * 0.065;
  const part = (n: number) => {
    const k = (n + hue / 30) % 12;
    const value = light - 0.62 * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * value).toString(16).padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}

/** The pixels of a way to colour: by job (whole, partly used GPU, faded), by GPU model, by state of a node. */
export interface Dress {
  way: string;
  idle: number;
  failed: number;
  solid: Uint32Array;
  light: Uint32Array;
  faint: Uint32Array;
  models: Uint32Array;
  modelsIdle: Uint32Array;
  states: { partly: number; full: number; cordoned: number; draining: number };
}

/** The colours of all jobs of `run` for a way and the theme of the moment. */
export function dress(run: Run, way: string): Dress {
  const { jobs } = run;
  const idle = cssVar("--idle");
  const by: Record<string, (job: number) => string> = {
    size: (job) => PALETTE[sizeClass(jobs.milli.get(job))]!,
    queue: (job) => PALETTE[jobs.queue.get(job)] ?? OTHER,
    user: (job) => ownColour(jobs.user[job] ?? ""),
    job: (job) => ownColour(jobs.id[job]!),
  };
  const colour = by[way] ?? (() => OTHER);
  const pixels = new Map<string, number[]>();
  const of = (name: string) => {
    let found = pixels.get(name);
    if (!found) pixels.set(name, (found = [pixel(name), pixel(name, idle, 0.55), pixel(name, idle, 0.85)]));
    return found;
  };
  const all = Array.from({ length: jobs.length }, (_, job) => of(colour(job)));
  const models = run.cluster?.models.map((_, i) => PALETTE[i % PALETTE.length]!) ?? [];
  return {
    way,
    idle: pixel(idle),
    failed: pixel(cssVar("--failed")),
    solid: Uint32Array.from(all, (one) => one[0]!),
    light: Uint32Array.from(all, (one) => one[1]!),
    faint: Uint32Array.from(all, (one) => one[2]!),
    models: Uint32Array.from(models, (one) => pixel(one)),
    modelsIdle: Uint32Array.from(models, (one) => pixel(one, idle, 0.75)),
    states: { partly: pixel(PARTLY), full: pixel(FULL), cordoned: pixel(CORDONED), draining: pixel(DRAINING) },
  };
}

/** The entries of the legend: [colour, words]; no colour: only words. */
export function legend(run: Run, way: string, failed: boolean): [string, string][] {
  const out: [string, string][] = failed ? [["var(--failed)", "node out of service"]] : [];
  const partly: [string, string] = ["", "faded: partly used"];
  const idle: [string, string] = ["var(--idle)", "idle"];
  if (way === "size") return [...SIZE_CLASSES.map(([name], i): [string, string] => [PALETTE[i]!, `${name} GPU${i ? "s" : ""}`]), idle, partly, ...out];
  if (way === "model") {
    const names = run.cluster?.models ?? [];
    return [...names.map((name, i): [string, string] => [PALETTE[i % PALETTE.length]!, name || "(no model)"]), ["", "faded: idle"], ...out];
  }
  if (way === "state") {
    const service: [string, string][] = run.nodes.node.length
      ? [[CORDONED, "cordoned"], [DRAINING, "draining"], ["var(--failed)", "out of service"]]
      : [];
    return [[PARTLY, "node partly allocated (counts in GFR)"], [FULL, "node fully allocated"], idle, ...service];
  }
  if (way === "job" || way === "user") return [["", `each ${way} has a colour of its own, the same in every map`], idle, partly, ...out];
  const named = run.queues.slice(0, PALETTE.length).map((name, i): [string, string] => [PALETTE[i]!, name || "(no name)"]);
  const rest = run.queues.length - named.length;
  return [...named, ...(rest > 0 ? [[OTHER, `${rest} other queue${rest > 1 ? "s" : ""}`] as [string, string]] : []), idle, partly, ...out];
}

/** The pixel of a GPU: what its interval (or none), its node and the picked job make of it. */
export function cellColour(
  own: Dress, job: number, used: number, service: number, nodeUsed: number, whole: number, model: number, pick: number,
): number {
  if (service === NodeStatus.FAILED) return own.failed;
  if (pick >= 0) {
    if (job < 0) return own.idle;
    if (job !== pick) return own.faint[job]!;
    if (own.way === "state" || own.way === "model") return used < 1000 ? own.states.partly : own.states.full;
  }
  if (own.way === "state" && pick < 0) {
    if (service === NodeStatus.CORDONED) return own.states.cordoned;
    if (service === NodeStatus.DRAINING) return own.states.draining;
    return job < 0 ? own.idle : nodeUsed < whole ? own.states.partly : own.states.full;
  }
  if (own.way === "model" && pick < 0) return job < 0 ? own.modelsIdle[model]! : own.models[model]!;
  if (job < 0) return own.idle;
  return used < 1000 ? own.light[job]! : own.solid[job]!;
}
