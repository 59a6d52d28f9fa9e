// Where one job lies: in the fabric at a moment, and in time.

import type { Run } from "../data/model";
import { counted } from "../show";
import { devicesOf, eachDevice, type Occupancy } from "./occupancy";

/** A job at a moment: its devices by node, its nodes by leaf, and its spines, all by index. */
export interface Span {
  nodes: Map<number, number[]>;
  leaves: Map<number, number>;
  spines: Set<number>;
}

/** Rows of intervals of a job, in order of start. Few jobs are asked for, so all rows are looked at once for each. */
export function rowsOf(run: Run, job: number): number[] {
  const { intervals } = run;
  const rows: number[] = [];
  for (let row = 0; row < intervals.length; row++) if (intervals.job.data[row] === job) rows.push(row);
  return rows.sort((a, b) => intervals.start.data[a]! - intervals.start.data[b]! || a - b);
}

export function inForce(run: Run, row: number, time: number): boolean {
  const { start, end } = run.intervals;
  return start.data[row]! <= time && (end.data[row]! < 0 || end.data[row]! > time);
}

/** Where a job lies at `time`, by its `rows`. */
export function spanOf(run: Run, rows: readonly number[], time: number): Span {
  const cluster = run.cluster!;
  const span: Span = { nodes: new Map(), leaves: new Map(), spines: new Set() };
  for (const row of rows) {
    if (!inForce(run, row, time)) continue;
    const node = run.intervals.node.data[row]!;
    const leaf = cluster.group[node]!;
    if (!span.nodes.has(node)) span.leaves.set(leaf, (span.leaves.get(leaf) ?? 0) + 1);
    const devices = span.nodes.get(node) ?? [];
    eachDevice(run.intervals, row, (device) => devices.push(device));
    span.nodes.set(node, devices);
    span.spines.add(cluster.groups[leaf]!.spine);
  }
  return span;
}

/** A count beside the fewest there could be. */
export function ofFewest(count: number, fewest: number, one: string, many: string): string {
  const words = counted(count, one, many);
  if (fewest <= 0) return words;
  return `${words} (${count <= fewest ? "the fewest possible" : `fewest possible: ${fewest}`})`;
}

/** A time in which a job lay on some nodes without a change. */
export interface Piece {
  start: number;
  end: number; // -1: it goes on
  nodes: number;
  milli: number;
}

/** The pieces of a job in time: intervals that begin and end together are one. */
export function piecesOf(run: Run, rows: readonly number[]): Piece[] {
  const found = new Map<string, Piece>();
  const { intervals } = run;
  for (const row of rows) {
    const [start, end] = [intervals.start.data[row]!, intervals.end.data[row]!];
    const key = `${start} ${end}`;
    const piece = found.get(key) ?? { start, end, nodes: 0, milli: 0 };
    piece.nodes++;
    piece.milli += devicesOf(intervals, row) * intervals.milli.data[row]!;
    found.set(key, piece);
  }
  return [...found.values()].sort((a, b) => a.start - b.start || a.end - b.end);
}

/** The jobs that run now, those over the most leaves more than they need first, then the widest and largest. */
export function mostSpread(run: Run, now: Occupancy): number[] {
  const cluster = run.cluster!;
  const leaves = new Map<number, Set<number>>();
  for (let node = 0; node < cluster.gpus.length; node++) {
    now.eachOn(node, (row) => {
      const job = run.intervals.job.data[row]!;
      if (!leaves.has(job)) leaves.set(job, new Set());
      leaves.get(job)!.add(cluster.group[node]!);
    });
  }
  const { fewestLeaves, milli } = run.jobs;
  const extra = (job: number) => leaves.get(job)!.size - ((job < fewestLeaves.length && fewestLeaves.get(job)) || 1);
  return [...leaves.keys()].sort((a, b) =>
    extra(b) - extra(a) || leaves.get(b)!.size - leaves.get(a)!.size || milli.get(b) - milli.get(a) || a - b,
  );
}
