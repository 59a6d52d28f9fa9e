// What the page knows of a run, from a report's own data or from a live Kant: columns that can grow, times in microseconds.

import { Column, type Floats, type Ints } from "./columns";

/** The life of a job; kant.model.status.JobStatus. */
export const JobStatus = { PENDING: 0, RUNNING: 1, FINISHED: 2, REJECTED: 3, CANCELLED: 4 } as const;

/** Whether a node takes pods; kant.model.status.NodeStatus. */
export const NodeStatus = { IN_SERVICE: 0, CORDONED: 1, FAILED: 2, DRAINING: 3, RETIRED: 4 } as const;

/** Job size classes by whole GPUs: the name, and the largest member. */
export const SIZE_CLASSES: readonly (readonly [string, number])[] = [
  ["1", 1],
  ["2-8", 8],
  ["9-64", 64],
  ["65-256", 256],
  ["257-1024", 1024],
  [">1024", Infinity],
];

/** The size class of a job; a share of a GPU counts as one. */
export function sizeClass(milli: number): number {
  const whole = Math.ceil(milli / 1000);
  return SIZE_CLASSES.findIndex(([, largest]) => whole <= largest);
}

/** One leaf (or 32 nodes that name none), drawn as one block. */
export interface Group {
  name: string;
  nodes: number[];
  spine: number;
}

const GROUP = 32; // nodes drawn together where the cluster does not name its leaves

/** The nodes, and the groups in which they are drawn. */
export class Cluster {
  readonly first: Int32Array; // the number of a node's first GPU; one more at the end: all GPUs
  readonly group: Int32Array; // of each node
  readonly groups: Group[] = [];
  readonly spines: string[] = []; // "" where the cluster names none
  readonly total: number;

  constructor(
    readonly name: string,
    readonly names: string[],
    readonly gpus: Int32Array,
    readonly model: Int32Array,
    readonly models: string[],
    leaf: readonly string[],
    spine: readonly string[],
    superspine: readonly string[],
  ) {
    this.first = new Int32Array(gpus.length + 1);
    this.group = new Int32Array(gpus.length);
    const spines = new Map<string, number>();
    const groups = new Map<string, number>();
    let unnamed = 0;
    for (let node = 0; node < gpus.length; node++) {
      this.first[node + 1] = this.first[node]! + gpus[node]!;
      let name = leaf[node]!;
      if (!name) {
        const from = Math.floor(unnamed++ / GROUP) * GROUP;
        name = `nodes ${from} to ${from + GROUP - 1}`;
      }
      const path = JSON.stringify([superspine[node], spine[node]]);
      let above = spines.get(path);
      if (above === undefined) {
        spines.set(path, (above = spines.size));
        this.spines.push([superspine[node], spine[node]].filter(Boolean).join(" / "));
      }
      const key = `${above} ${name}`;
      let own = groups.get(key);
      if (own === undefined) {
        groups.set(key, (own = groups.size));
        this.groups.push({ name, nodes: [], spine: above });
      }
      this.group[node] = own;
      this.groups[own]!.nodes.push(node);
    }
    this.total = this.first[gpus.length]!;
  }

  /** The node that has GPU number `gpu`. */
  nodeOf(gpu: number): number {
    let low = 0;
    let high = this.gpus.length;
    while (low + 1 < high) {
      const middle = (low + high) >>> 1;
      if (this.first[middle]! <= gpu) low = middle;
      else high = middle;
    }
    return low;
  }
}

/** The jobs in order of arrival. Times in microseconds, -1 where it has not happened. */
export class Jobs {
  id: string[] = [];
  name: string[] = []; // "" or a missing row where a job has none
  user: string[] = [];
  queue: Ints = Column.ints(); // code into Run.queues
  milli: Floats = Column.floats(); // milli-GPUs, all pods together
  submit: Floats = Column.floats();
  start: Floats = Column.floats([], -1); // the first start
  end: Floats = Column.floats([], -1);
  wait: Floats = Column.floats(); // all waits so far
  status: Ints = Column.ints();
  preemptions: Ints = Column.ints();
  fewestNodes: Ints = Column.ints(); // 0: unknown, or it never fits
  fewestLeaves: Ints = Column.ints();
  private readonly rows = new Map<string, number>();
  private indexed = 0;

  get length(): number {
    return this.id.length;
  }

  /** The row of the job `id`, or -1. */
  find(id: string): number {
    for (; this.indexed < this.id.length; this.indexed++) this.rows.set(this.id[this.indexed]!, this.indexed);
    return this.rows.get(id) ?? -1;
  }
}

/** A row for each piece of a job on a node: a mask of devices, the milli-GPUs of each, from start to end (-1: runs). */
export class Intervals {
  job: Ints = Column.ints();
  node: Ints = Column.ints();
  maskLow: Ints = Column.ints(); // devices 0 to 30
  maskHigh: Ints = Column.ints(); // devices 31 to 61
  milli: Ints = Column.ints();
  start: Floats = Column.floats();
  end: Floats = Column.floats([], -1);

  get length(): number {
    return this.job.length;
  }
}

/** Changes of nodes in order of time: from `since` on a node has a status and lacks the devices of two masks. */
export class NodeChanges {
  node: Ints = Column.ints();
  status: Ints = Column.ints();
  since: Floats = Column.floats();
  lostLow: Ints = Column.ints(); // devices 0 to 30
  lostHigh: Ints = Column.ints(); // devices 31 to 61
}

/** The cluster over time: row i holds from `time[i]` to `time[i + 1]`. NaN: no value. */
export class Series {
  time: Floats = Column.floats();
  allocated: Floats = Column.floats(); // milli-GPUs
  inService: Floats = Column.floats(); // milli-GPUs
  fragmented: Floats = Column.floats(); // nodes partly allocated
  nodes: Floats = Column.floats(); // nodes in service
  waitingJobs: Floats = Column.floats();
  waitingMilli: Floats = Column.floats();
}

/** One simulated, recorded or live run. `version` grows with each change. */
export class Run {
  label = "";
  profile = "";
  kind: "simulated" | "local" | "kubernetes" = "simulated";
  begin = 0;
  end = 0; // the last moment known; grows while a run is live
  zero: number | null = null; // microseconds of the Unix epoch at time 0
  frames: Float64Array | null = null; // the only moments that a sampled map knows
  wholeJobs = true; // false: of a very large run only the jobs in the map are here
  cluster: Cluster | null = null;
  queues: string[] = [];
  readonly jobs = new Jobs();
  readonly causes = new Map<string, Float64Array>(); // of each job: microseconds that it waited for a cause
  readonly intervals = new Intervals();
  readonly endings: number[] = []; // rows of intervals that were there and have ended since, in the order of the news
  readonly nodes = new NodeChanges();
  readonly series = new Series();
  starts: number[] = []; // moments at which a live Kant was started
  version = 0;
  rewritten = 0; // grows when rows already there have changed in another way than by ending
}
