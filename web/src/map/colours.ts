// The colours of the map: what each GPU is painted with in each way to colour it. What is out of order has a pattern.

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

/** What a cell is painted with in place of a pixel; no pixel is so small, since all are opaque. */
export const STRIPED = 1; // a GPU of a node that is out of service
export const CROSSED = 2; // a GPU that is lost

const STRIPES = "repeating-linear-gradient(135deg, var(--failed) 0 2px, var(--idle) 2px 4px)";
const diagonal = (angle: string) => `linear-gradient(${angle}, transparent 42%, var(--lost) 42% 58%, transparent 58%)`;
const CROSS = `${diagonal("45deg")}, ${diagonal("-45deg")}, var(--idle)`;

/** A colour `#rrggbb` as a pixel, mixed with `other` by `part` (0: all colour). */
export function pixel(colour: string, other = colour, part = 0): number {
  const channel = (text: string, i: number) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map((i) => Math.round(channel(colour, i) * (1 - part) + channel(other, i) * part));
  return ((255 << 24) | (mixed[2]! << 16) | (mixed[1]! << 8) | mixed[0]!) >>> 0;
}

const GOLDEN = 137.508; // degrees: hues so far apart fill the circle most evenly

/** A number for a name, the same in every run: the numbers of an id, so that neighbours differ; else a hash. */
function numberOf(name: string): number {
  const numbers = name.match(/[0-9]+/g);
  if (numbers) return numbers.reduce((sum, digits) => (sum + Number(digits)) % 1_000_003, 0);
  let hash = 2166136261;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  return (Math.imul(hash ^ (hash >>> 15), 2246822519) >>> 0) % 1_000_003;
}

/** A colour of its own for a name, the same in every run, far from that of the next number. */
export function ownColour(name: string): string {
  const number = numberOf(name);
  const hue = (number * GOLDEN) % 360;
  const light = [0.5, 0.36, 0.66][number % 3]!;
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
  jobs: number; // that have pixels
  idle: number;
  failed: number;
  gone: number;
  lost: number;
  solid: Uint32Array;
  light: Uint32Array;
  faint: Uint32Array;
  models: Uint32Array;
  modelsIdle: Uint32Array;
  states: { partly: number; full: number; cordoned: number; draining: number };
}

/** The colours of `run` for a way and the theme of the moment; jobs get theirs by `dressJobs`. */
export function dress(run: Run, way: string): Dress {
  const idle = cssVar("--idle");
  const models = run.cluster?.models.map((_, i) => PALETTE[i % PALETTE.length]!) ?? [];
  return {
    way,
    jobs: 0,
    idle: pixel(idle),
    failed: pixel(cssVar("--failed")),
    gone: pixel(cssVar("--card")),
    lost: pixel(cssVar("--lost")),
    solid: new Uint32Array(0),
    light: new Uint32Array(0),
    faint: new Uint32Array(0),
    models: Uint32Array.from(models, (one) => pixel(one)),
    modelsIdle: Uint32Array.from(models, (one) => pixel(one, idle, 0.75)),
    states: { partly: pixel(PARTLY), full: pixel(FULL), cordoned: pixel(CORDONED), draining: pixel(DRAINING) },
  };
}

/** Gives pixels to the jobs that have come since the last time. */
export function dressJobs(own: Dress, run: Run): void {
  const { jobs } = run;
  if (own.jobs === jobs.length) return;
  const idle = cssVar("--idle");
  const by: Record<string, (job: number) => string> = {
    size: (job) => PALETTE[sizeClass(jobs.milli.get(job))]!,
    queue: (job) => distinct(jobs.queue.get(job)),
    user: (job) => distinct(usersOf(run).indexOf(jobs.user[job] ?? "")),
    job: (job) => ownColour(jobs.id[job]!),
  };
  const colour = by[own.way] ?? (() => OTHER);
  const pixels = new Map<string, number[]>();
  const of = (name: string) => {
    let found = pixels.get(name);
    if (!found) pixels.set(name, (found = [pixel(name), pixel(name, idle, 0.55), pixel(name, idle, 0.85)]));
    return found;
  };
  if (jobs.length > own.solid.length) {
    const wider = (from: Uint32Array) => {
      const grown = new Uint32Array(Math.max(jobs.length, 2 * from.length));
      grown.set(from);
      return grown;
    };
    own.solid = wider(own.solid);
    own.light = wider(own.light);
    own.faint = wider(own.faint);
  }
  for (; own.jobs < jobs.length; own.jobs++) {
    [own.solid[own.jobs], own.light[own.jobs], own.faint[own.jobs]] = of(colour(own.jobs)) as [number, number, number];
  }
}

/** The entries of the legend: [background, words]; no background: only words. */
export function legend(run: Run, way: string, runs: readonly Run[]): [string, string][] {
  const stood = (status: number) => runs.some(({ nodes }) => nodes.status.values().includes(status));
  const failed = stood(NodeStatus.FAILED);
  const lost = runs.some(({ nodes }) => nodes.lostLow.values().some(Boolean) || nodes.lostHigh.values().some(Boolean));
  const out: [string, string][] = lost ? [[CROSS, "GPU lost"]] : [];
  if (failed && way !== "state") out.push([STRIPES, "node out of service"]);
  if (stood(NodeStatus.RETIRED)) out.push(["", "blank: node not there"]);
  const partly: [string, string] = ["", "faded: partly used"];
  const idle: [string, string] = ["var(--idle)", "idle"];
  if (way === "size") return [...SIZE_CLASSES.map(([name], i): [string, string] => [PALETTE[i]!, `${name} GPU${i ? "s" : ""}`]), idle, partly, ...out];
  if (way === "model") {
    const names = run.cluster?.models ?? [];
    return [...names.map((name, i): [string, string] => [PALETTE[i % PALETTE.length]!, name || "(no model)"]), ["", "faded: idle"], ...out];
  }
  if (way === "state") {
    const service: [string, string][] = run.nodes.node.length
      ? [[CORDONED, "cordoned"], [DRAINING, "draining"], [STRIPES, "out of service"]]
      : [];
    return [[PARTLY, "node partly allocated (counts in GFR)"], [FULL, "node fully allocated"], idle, ...service, ...out];
  }
  if (way === "user") return [...names(usersOf(run), "user"), idle, partly, ...out];
  if (way === "job") return [["", "each job has its own colour, the same in every map, and its id where it fits"], idle, partly, ...out];
  return [...names(run.queues, "queue"), idle, partly, ...out];
}

/** The first so many of a kind have a colour of their own: as many as can be told from each other. */
const MOST = 12;

function distinct(place: number): string {
  return place < 0 || place >= MOST ? OTHER : (PALETTE[place] ?? ownColour(String(place)));
}

/** The entries of the legend for names in their order. */
function names(all: readonly string[], kind: string): [string, string][] {
  const rest = all.length - MOST;
  const named = all.slice(0, MOST).map((name, i): [string, string] => [distinct(i), name || "(no name)"]);
  return rest > 0 ? [...named, [OTHER, `${rest} other ${kind}${rest > 1 ? "s" : ""}`]] : named;
}

const users = new WeakMap<Run, { names: Set<string>; seen: number; list: string[] }>();

/** The users of a run, the first to submit first. */
function usersOf(run: Run): string[] {
  const found = users.get(run) ?? { names: new Set<string>(), seen: 0, list: [] };
  for (; found.seen < run.jobs.length; found.seen++) found.names.add(run.jobs.user[found.seen] ?? "");
  if (found.list.length < found.names.size) found.list = [...found.names];
  users.set(run, found);
  return found.list;
}

/** The pixel of a GPU: what its interval (or none), its node and the picked job make of it. */
export function cellColour(
  own: Dress, job: number, used: number, service: number, lost: boolean, nodeUsed: number, whole: number, model: number,
  pick: number,
): number {
  if (service === NodeStatus.RETIRED) return own.gone;
  if (service === NodeStatus.FAILED) return STRIPED;
  if (lost) return CROSSED;
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
