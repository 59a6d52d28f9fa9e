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
 *
 * Of a run that grows only what is new is taken in: rows that were added, and rows that have ended. They belong at the
 * end of both orders, or near it.
 */
export class Timeline {
  private readonly byStart = new Order();
  private readonly byEnd = new Order();
  private checkpoints: Checkpoint[] = [];
  private checkpointTimes: number[] = [];
  private starts = 0;
  private ends = 0;
  private at = -Infinity;
  private rows = 0; // rows of the run that are taken in
  private endings = 0; // of the run's list of endings: how many are
  private rewritten = -1;
  // The sweep that leaves checkpoints behind: what is in force where it stands.
  private inForce = new Int32Array(0);
  private place = new Int32Array(0); // of each row: where in `inForce`, or -1
  private held = 0;
  private since = 0;
  private sweptStarts = 0;
  private sweptEnds = 0;

  constructor(private readonly run: Run) {}

  /** Brings `follower` to `time`; gives how many intervals were visited for that. */
  moveTo(time: number, follower: Follower): number {
    const { start, end } = this.run.intervals;
    const inForce = (row: number) => end.data[row]! < 0 || end.data[row]! > time;
    const anew = this.rewritten !== this.run.rewritten;
    let visited = anew ? this.build() : this.grow(follower);
    const starts = countUpTo(this.byStart.times, time, this.byStart.length);
    const ends = countUpTo(this.byEnd.times, time, this.byEnd.length);
    const steps = Math.abs(starts - this.starts) + Math.abs(ends - this.ends);
    const mark = countUpTo(this.checkpointTimes, time) - 1;
    const from = this.checkpoints[mark] ?? { starts: 0, rows: new Int32Array(0) };
    const [byStart, byEnd] = [this.byStart.rows, this.byEnd.rows];
    if (anew || steps > from.rows.length + starts - from.starts) {
      follower.clear();
      for (const row of from.rows) if (inForce(row)) follower.add(row);
      for (let i = from.starts; i < starts; i++) if (inForce(byStart[i]!)) follower.add(byStart[i]!);
      visited += from.rows.length + starts - from.starts;
    } else if (time >= this.at) {
      for (let i = this.ends; i < ends; i++) {
        const row = byEnd[i]!;
        if (start.data[row]! <= this.at && start.data[row]! < end.data[row]!) follower.remove(row);
      }
      for (let i = this.starts; i < starts; i++) if (inForce(byStart[i]!)) follower.add(byStart[i]!);
      visited += steps;
    } else {
      for (let i = starts; i < this.starts; i++) {
        const row = byStart[i]!;
        if (end.data[row]! < 0 || end.data[row]! > this.at) follower.remove(row);
      }
      for (let i = ends; i < this.ends; i++) {
        const row = byEnd[i]!;
        if (start.data[row]! <= time && start.data[row]! < end.data[row]!) follower.add(row);
      }
      visited += steps;
    }
    this.starts = starts;
    this.ends = ends;
    this.at = time;
    return visited;
  }

  /** Takes in what has come and ended since the last time, and tells the follower what of that is so where it stands. */
  private grow(follower: Follower): number {
    const { intervals, endings } = this.run;
    const { start, end } = intervals;
    const [from, to] = [this.rows, intervals.length];
    if (from === to && this.endings === endings.length) return 0;
    const added = Int32Array.from({ length: to - from }, (_, i) => from + i);
    const ended = Int32Array.from(new Set(endings.slice(this.endings)));
    const over = added.filter((row) => end.data[row]! >= 0);
    for (const row of added) {
      if (start.data[row]! <= this.at && (end.data[row]! < 0 || end.data[row]! > this.at)) follower.add(row);
    }
    const news = ended.filter((row) => row < from);
    for (const row of news) if (start.data[row]! <= this.at && end.data[row]! <= this.at) follower.remove(row);
    this.rows = to;
    this.endings = endings.length;
    const first = this.byStart.add(sorted(added, start.data), start.data);
    const last = this.byEnd.add(sorted(joined(over, news), end.data), end.data);
    if (first < this.sweptStarts || last < this.sweptEnds) this.rewind(Math.min(this.byStart.at(first), this.byEnd.at(last)));
    this.sweep();
    this.starts = countUpTo(this.byStart.times, this.at, this.byStart.length);
    this.ends = countUpTo(this.byEnd.times, this.at, this.byEnd.length);
    return added.length + news.length;
  }

  private build(): number {
    const { intervals, endings, rewritten } = this.run;
    const rows = Int32Array.from({ length: intervals.length }, (_, row) => row);
    const { start, end } = intervals;
    this.byStart.length = this.byEnd.length = 0;
    this.byStart.add(sorted(rows, start.data), start.data);
    this.byEnd.add(sorted(rows.filter((row) => end.data[row]! >= 0), end.data), end.data);
    this.rewritten = rewritten;
    this.rows = intervals.length;
    this.endings = endings.length;
    this.rewind(-Infinity);
    this.sweep();
    return 0;
  }

  /** The sweep goes back to the last checkpoint before `time`, and those after that are forgotten. */
  private rewind(time: number): void {
    const { end } = this.run.intervals;
    let kept = this.checkpoints.length;
    while (kept && this.checkpointTimes[kept - 1]! >= time) kept--;
    this.checkpoints.length = this.checkpointTimes.length = kept;
    const last = this.checkpoints[kept - 1];
    const at = this.checkpointTimes[kept - 1] ?? -Infinity;
    this.place.fill(-1);
    this.held = this.since = 0;
    this.sweptStarts = last?.starts ?? 0;
    this.sweptEnds = countUpTo(this.byEnd.times, at, this.byEnd.length);
    for (const row of last?.rows ?? []) if (end.data[row]! < 0 || end.data[row]! > at) this.hold(row);
  }

  private hold(row: number): void {
    this.place[row] = this.held;
    this.inForce[this.held++] = row;
  }

  /** Goes on over the events that have come, and leaves checkpoints behind. */
  private sweep(): void {
    const { intervals } = this.run;
    if (this.place.length < intervals.length) {
      const room = Math.max(intervals.length, 2 * this.place.length);
      const [place, inForce] = [new Int32Array(room).fill(-1), new Int32Array(room)];
      place.set(this.place);
      inForce.set(this.inForce);
      this.place = place;
      this.inForce = inForce;
    }
    const { byStart, byEnd } = this;
    const end = intervals.end.data;
    while (this.sweptStarts < byStart.length) {
      const time = byStart.times[this.sweptStarts]!;
      for (; this.sweptEnds < byEnd.length && byEnd.times[this.sweptEnds]! <= time; this.sweptEnds++, this.since++) {
        const row = byEnd.rows[this.sweptEnds]!;
        const at = this.place[row]!;
        if (at < 0) continue;
        const last = this.inForce[--this.held]!;
        this.inForce[at] = last;
        this.place[last] = at;
        this.place[row] = -1;
      }
      for (; this.sweptStarts < byStart.length && byStart.times[this.sweptStarts] === time; this.sweptStarts++, this.since++) {
        const row = byStart.rows[this.sweptStarts]!;
        if (end[row]! < 0 || end[row]! > time) this.hold(row);
      }
      if (this.since < Math.max(LEAST, this.held)) continue;
      this.checkpoints.push({ starts: this.sweptStarts, rows: this.inForce.slice(0, this.held) });
      this.checkpointTimes.push(time);
      this.since = 0;
    }
  }
}

/** Rows in ascending order of their times, with room to grow. */
class Order {
  rows = new Int32Array(0);
  times = new Float64Array(0);
  length = 0;

  /** The time at a place of the order; past its end Infinity. */
  at(place: number): number {
    return place < this.length ? this.times[place]! : Infinity;
  }

  /** Merges rows that are in order themselves, from behind; gives the first place at which it differs from before. */
  add(rows: Int32Array, keys: Float64Array): number {
    const whole = this.length + rows.length;
    if (whole > this.rows.length) {
      const room = Math.max(whole, 2 * this.rows.length);
      const [wider, longer] = [new Int32Array(room), new Float64Array(room)];
      wider.set(this.rows);
      longer.set(this.times);
      this.rows = wider;
      this.times = longer;
    }
    let to = whole;
    let from = this.length;
    for (let i = rows.length - 1; i >= 0; i--) {
      const key = keys[rows[i]!]!;
      while (from > 0 && this.times[from - 1]! > key) {
        this.rows[--to] = this.rows[--from]!;
        this.times[to] = this.times[from]!;
      }
      this.rows[--to] = rows[i]!;
      this.times[to] = key;
    }
    this.length = whole;
    return to;
  }
}

function joined(one: Int32Array, other: Int32Array): Int32Array<ArrayBuffer> {
  const both = new Int32Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
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
