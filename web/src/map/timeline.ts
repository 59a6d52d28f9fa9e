// Which intervals are in force at a moment, without looking at all of them: two orders and checkpoints between.

import { countUpTo } from "../data/columns";
import type { Run } from "../data/model";

/** What follows the moment: told of each interval that begins or ceases to be in force. */
export interface Follower {
  clear(): void;
  add(row: number): void;
  remove(row: number): void;
}

interface Checkpoint {
  starts: number; // intervals that have begun
  rows: Int32Array; // those in force
}

const LEAST = 1024; // events between two checkpoints, or as many as are in force if that is more

/**
 * The intervals of a run by start and by end. A step visits what begins and ends between two moments; a leap begins at a
 * checkpoint and visits what is in force there and what has begun since. All checkpoints together are about as large as
 * the intervals, since the next stands as many events on as the last has rows.
 */
export class Timeline {
  private byStart = new Int32Array(0);
  private byEnd = new Int32Array(0);
  private startTimes = new Float64Array(0);
  private endTimes = new Float64Array(0);
  private checkpoints: Checkpoint[] = [];
  private checkpointTimes: number[] = [];
  private starts = 0;
  private ends = 0;
  private at = -Infinity;
  private seen = -1;

  constructor(private readonly run: Run) {}

  /** Brings `follower` to `time`; gives how many intervals were visited for that. */
  moveTo(time: number, follower: Follower): number {
    let visited = 0;
    const { start, end } = this.run.intervals;
    const inForce = (row: number) => end.data[row]! < 0 || end.data[row]! > time;
    const anew = this.seen !== this.run.version;
    if (anew) this.build();
    const starts = countUpTo(this.startTimes, time);
    const ends = countUpTo(this.endTimes, time);
    const steps = Math.abs(starts - this.starts) + Math.abs(ends - this.ends);
    const mark = countUpTo(this.checkpointTimes, time) - 1;
    const from = this.checkpoints[mark] ?? { starts: 0, rows: new Int32Array(0) };
    if (anew || steps > from.rows.length + starts - from.starts) {
      follower.clear();
      for (const row of from.rows) if (inForce(row)) follower.add(row);
      for (let i = from.starts; i < starts; i++) if (inForce(this.byStart[i]!)) follower.add(this.byStart[i]!);
      visited = from.rows.length + starts - from.starts;
    } else if (time >= this.at) {
      for (let i = this.ends; i < ends; i++) if (start.data[this.byEnd[i]!]! <= this.at) follower.remove(this.byEnd[i]!);
      for (let i = this.starts; i < starts; i++) if (inForce(this.byStart[i]!)) follower.add(this.byStart[i]!);
      visited = steps;
    } else {
      for (let i = starts; i < this.starts; i++) {
        const row = this.byStart[i]!;
        if (end.data[row]! < 0 || end.data[row]! > this.at) follower.remove(row);
      }
      for (let i = ends; i < this.ends; i++) if (start.data[this.byEnd[i]!]! <= time) follower.add(this.byEnd[i]!);
      visited = steps;
    }
    this.starts = starts;
    this.ends = ends;
    this.at = time;
    return visited;
  }

  private build(): void {
    const { intervals } = this.run;
    const { start, end } = intervals;
    const rows = Int32Array.from({ length: intervals.length }, (_, row) => row).filter(
      (row) => end.data[row]! < 0 || end.data[row]! > start.data[row]!,
    );
    this.byStart = sorted(rows, start.data);
    this.byEnd = sorted(rows.filter((row) => end.data[row]! >= 0), end.data);
    this.startTimes = Float64Array.from(this.byStart, (row) => intervals.start.data[row]!);
    this.endTimes = Float64Array.from(this.byEnd, (row) => intervals.end.data[row]!);
    this.seen = this.run.version;
    this.check(intervals.length);
  }

  /** One sweep over all events that leaves checkpoints behind. */
  private check(count: number): void {
    this.checkpoints = [];
    this.checkpointTimes = [];
    const inForce = new Int32Array(count);
    const place = new Int32Array(count);
    let held = 0;
    let since = 0;
    for (let s = 0, e = 0; s < this.byStart.length; ) {
      const time = this.startTimes[s]!;
      for (; e < this.endTimes.length && this.endTimes[e]! <= time; e++, since++) {
        const row = this.byEnd[e]!;
        const last = inForce[--held]!;
        inForce[place[row]!] = last;
        place[last] = place[row]!;
      }
      for (; s < this.byStart.length && this.startTimes[s]! === time; s++, since++) {
        place[this.byStart[s]!] = held;
        inForce[held++] = this.byStart[s]!;
      }
      if (since < Math.max(LEAST, held)) continue;
      this.checkpoints.push({ starts: s, rows: inForce.slice(0, held) });
      this.checkpointTimes.push(time);
      since = 0;
    }
  }
}

const DIGIT = 1 << 16;

/** `rows` in ascending order of `keys` (at least 0, below 2**53), ties as they came: a radix sort, since millions are. */
function sorted(rows: Int32Array<ArrayBuffer>, keys: Float64Array): Int32Array<ArrayBuffer> {
  let ordered = true;
  let least = Infinity;
  let most = 0;
  for (let i = 0; i < rows.length; i++) {
    const key = keys[rows[i]!]!;
    if (i && key < keys[rows[i - 1]!]!) ordered = false;
    least = Math.min(least, key);
    most = Math.max(most, key);
  }
  if (ordered) return rows;
  let from = rows;
  let into = new Int32Array(rows.length);
  for (let unit = 1; unit <= most - least; unit *= DIGIT) {
    const digit = (row: number) => Math.floor((keys[row]! - least) / unit) % DIGIT;
    const counts = new Int32Array(DIGIT + 1);
    for (const row of from) counts[digit(row) + 1]!++;
    for (let i = 0; i < DIGIT; i++) counts[i + 1]! += counts[i]!;
    for (const row of from) into[counts[digit(row)]!++] = row;
    [from, into] = [into, from];
  }
  return from;
}
