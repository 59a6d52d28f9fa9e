// Who holds which GPU at one moment, kept up to date by what changes from one moment to the next.

import { NodeStatus, type Cluster, type Intervals, type Run } from "../data/model";
import { Timeline, type Follower } from "./timeline";

export const IDLE = -1;

/** Calls `visit(device)` for each device of an interval. */
export function eachDevice(intervals: Intervals, row: number, visit: (device: number) => void): void {
  for (let m = intervals.maskLow.data[row]!; m; m &= m - 1) visit(31 - Math.clz32(m & -m));
  for (let m = intervals.maskHigh.data[row]!; m; m &= m - 1) visit(62 - Math.clz32(m & -m));
}

/** The number of set bits. */
function bits(mask: number): number {
  let count = 0;
  for (let m = mask; m; m &= m - 1) count++;
  return count;
}

/** The devices of an interval. */
export function devicesOf(intervals: Intervals, row: number): number {
  return bits(intervals.maskLow.data[row]!) + bits(intervals.maskHigh.data[row]!);
}

/** A run at one moment. `stamp[node]` is the `tick` at which something on the node changed last. */
export class Occupancy implements Follower {
  time = -Infinity;
  tick = 0;
  visited = 0; // intervals looked at for the last move
  owner = new Int32Array(0); // of each GPU: the row of the interval that holds most of it, or IDLE
  used = new Int32Array(0); // of each GPU: thousandths
  nodeUsed = new Int32Array(0); // of each node: milli-GPUs
  service = new Uint8Array(0); // of each node: NodeStatus
  lostLow = new Int32Array(0); // of each node: the devices that it lacks, 0 to 30
  lostHigh = new Int32Array(0); // and 31 to 61
  lost = 0; // devices that nodes lack
  failed = 0; // nodes that are out of service
  gone = 0; // GPUs of nodes that are not there
  stamp = new Int32Array(0);
  pieces = new Int32Array(0); // of each job: intervals in force
  total = 0; // milli-GPUs in use
  broken = 0; // nodes in service with some but not all GPUs in use
  running = 0; // jobs
  byQueue = new Float64Array(0); // milli-GPUs in use
  private readonly timeline: Timeline;
  private cluster: Cluster | null = null;
  private head = new Int32Array(0); // of each node: its first interval in force; linked by next and before
  private next = new Int32Array(0);
  private before = new Int32Array(0);
  private touched: number[] = [];
  private version = -1;
  private changes = 0; // of service, up to `time`

  constructor(private readonly run: Run) {
    this.timeline = new Timeline(run);
  }

  /** Goes to `time`. Moving again to where it is costs nothing. */
  moveTo(time: number): void {
    if (time === this.time && this.version === this.run.version) return;
    this.tick++;
    if (this.version !== this.run.version) this.fit();
    this.version = this.run.version;
    this.visited = this.timeline.moveTo(time, this);
    this.moveService(time);
    for (const node of this.touched) this.settle(node);
    this.touched = [];
    this.time = time;
  }

  /** Calls `visit(row)` for each interval in force on a node. */
  eachOn(node: number, visit: (row: number) => void): void {
    for (let row = this.head[node]!; row >= 0; row = this.next[row]!) visit(row);
  }

  clear(): void {
    for (let node = 0; node < this.head.length; node++) if (this.head[node]! >= 0) this.touch(node);
    this.head.fill(-1);
    this.pieces.fill(0);
    this.byQueue.fill(0);
    this.running = 0;
  }

  add(row: number): void {
    const { node, job } = this.run.intervals;
    const at = node.data[row]!;
    const first = this.head[at]!;
    this.next[row] = first;
    this.before[row] = -1;
    if (first >= 0) this.before[first] = row;
    this.head[at] = row;
    this.touch(at);
    if (this.pieces[job.data[row]!]!++ === 0) this.running++;
    this.hold(row, 1);
  }

  remove(row: number): void {
    const { node, job } = this.run.intervals;
    const at = node.data[row]!;
    const [before, next] = [this.before[row]!, this.next[row]!];
    if (before >= 0) this.next[before] = next;
    else this.head[at] = next;
    if (next >= 0) this.before[next] = before;
    this.touch(at);
    if (--this.pieces[job.data[row]!]! === 0) this.running--;
    this.hold(row, -1);
  }

  private hold(row: number, sign: number): void {
    const { intervals, jobs } = this.run;
    const amount = devicesOf(intervals, row) * intervals.milli.data[row]!;
    this.byQueue[jobs.queue.data[intervals.job.data[row]!]!]! += sign * amount;
  }

  private touch(node: number): void {
    if (this.stamp[node] === this.tick) return;
    this.stamp[node] = this.tick;
    this.touched.push(node);
  }

  /** Computes a node anew from its intervals in force. */
  private settle(node: number): void {
    const cluster = this.cluster!;
    const { intervals } = this.run;
    const [first, last] = [cluster.first[node]!, cluster.first[node + 1]!];
    this.owner.fill(IDLE, first, last);
    this.used.fill(0, first, last);
    this.count(node, -1);
    let sum = 0;
    this.eachOn(node, (row) => {
      const milli = intervals.milli.data[row]!;
      eachDevice(intervals, row, (device) => {
        const gpu = first + device;
        sum += milli;
        this.used[gpu]! += milli;
        const other = this.owner[gpu]!;
        const more = other < 0 ? 1 : milli - intervals.milli.data[other]!;
        if (more > 0 || (more === 0 && row < other)) this.owner[gpu] = row;
      });
    });
    this.nodeUsed[node] = sum;
    this.count(node, 1);
  }

  private count(node: number, sign: number): void {
    const used = this.nodeUsed[node]!;
    this.total += sign * used;
    this.lost += sign * this.lostOf(node);
    if (this.service[node] === NodeStatus.FAILED) this.failed += sign;
    else if (this.service[node] === NodeStatus.RETIRED) this.gone += sign * this.cluster!.gpus[node]!;
    else if (used > 0 && used < this.wholeOf(node)) this.broken += sign;
  }

  private lostOf(node: number): number {
    return this.lostLow[node]! || this.lostHigh[node]! ? bits(this.lostLow[node]!) + bits(this.lostHigh[node]!) : 0;
  }

  /** The milli-GPUs that a node has, without those that it lacks. */
  wholeOf(node: number): number {
    return 1000 * (this.cluster!.gpus[node]! - this.lostOf(node));
  }

  /** Whether a node lacks a device. */
  isLost(node: number, device: number): boolean {
    return ((device < 31 ? this.lostLow[node]! >> device : this.lostHigh[node]! >> (device - 31)) & 1) === 1;
  }

  /** How each node stands: the changes up to `time`, in order of time. */
  private moveService(time: number): void {
    const { node, status, since, lostLow, lostHigh } = this.run.nodes;
    const put = (at: number, value: number, low: number, high: number) => {
      if (this.service[at] === value && this.lostLow[at] === low && this.lostHigh[at] === high) return;
      this.count(at, -1);
      this.service[at] = value;
      this.lostLow[at] = low;
      this.lostHigh[at] = high;
      this.count(at, 1);
      this.touch(at);
    };
    if (time < this.time) {
      this.service.forEach((_, at) => put(at, NodeStatus.IN_SERVICE, 0, 0));
      this.changes = 0;
    }
    for (; this.changes < since.length && since.data[this.changes]! <= time; this.changes++) {
      const i = this.changes;
      put(node.data[i]!, status.data[i]!, lostLow.data[i]!, lostHigh.data[i]!);
    }
  }

  /** Makes room for what the run holds now; a change of the cluster begins anew. */
  private fit(): void {
    const { cluster, intervals, jobs, queues } = this.run;
    if (cluster !== this.cluster && cluster) {
      const nodes = cluster.gpus.length;
      this.cluster = cluster;
      this.owner = new Int32Array(cluster.total).fill(IDLE);
      this.used = new Int32Array(cluster.total);
      this.nodeUsed = new Int32Array(nodes);
      this.service = new Uint8Array(nodes);
      this.lostLow = new Int32Array(nodes);
      this.lostHigh = new Int32Array(nodes);
      this.stamp = new Int32Array(nodes).fill(this.tick - 1);
      this.head = new Int32Array(nodes).fill(-1);
      this.total = this.broken = this.lost = this.failed = this.gone = this.changes = 0;
      this.time = -Infinity;
    }
    if (intervals.length > this.next.length) {
      this.next = wider(this.next, intervals.length);
      this.before = wider(this.before, intervals.length);
    }
    if (jobs.length > this.pieces.length) this.pieces = wider(this.pieces, jobs.length);
    if (queues.length > this.byQueue.length) {
      const grown = new Float64Array(queues.length);
      grown.set(this.byQueue);
      this.byQueue = grown;
    }
  }
}

function wider(column: Int32Array, length: number): Int32Array<ArrayBuffer> {
  const grown = new Int32Array(Math.max(length, 2 * column.length));
  grown.set(column);
  return grown;
}

const known = new WeakMap<Run, Occupancy>();

/** The occupancy of `run` at `time`: one for all views, since they show the same moment. */
export function occupancyAt(run: Run, time: number): Occupancy {
  let found = known.get(run);
  if (!found) known.set(run, (found = new Occupancy(run)));
  found.moveTo(time);
  return found;
}
