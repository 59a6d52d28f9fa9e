// What a report has beside its runs: the numbers of each summary and the counts behind the charts. data.py writes it.

import type { Blob64, PackedColumn } from "./codec";

export type Summary = Record<string, unknown>;

export interface PackedCluster {
  name: string;
  names: Blob64;
  gpus: PackedColumn;
  model: PackedColumn;
  models: string[];
  leaf: Blob64;
  spine: Blob64;
  superspine: Blob64;
}

export interface PackedFleet {
  job: PackedColumn;
  node: PackedColumn;
  mask_low: PackedColumn;
  mask_high: PackedColumn;
  milli: PackedColumn;
  start: PackedColumn;
  length: PackedColumn;
}

export interface PackedJobs {
  ids: Blob64;
  queue: PackedColumn;
  milli: PackedColumn;
  submit: PackedColumn;
  start: PackedColumn;
  end: PackedColumn;
  wait: PackedColumn;
  status: PackedColumn;
  preemptions: PackedColumn;
  fewest: PackedColumn[] | null;
  causes: Record<string, PackedColumn>; // time waited for each; none where no ledger was kept
  whole: boolean;
}

/** The jobs of a size class: how many started within each wait (`edges`), how many never, and the row of the table. */
export interface ClassWaits {
  started: number;
  never: number;
  counts: PackedColumn;
  row: Summary;
}

export interface RunReport {
  label: string;
  profile: string;
  workload: string;
  cluster: number;
  end_us: number;
  interrupted: boolean;
  summary: Summary;
  series: Record<"gar" | "sor" | "gfr" | "waiting_jobs" | "waiting_gpus", PackedColumn>;
  waits: ClassWaits[];
  jobs: PackedJobs;
  fleet: PackedFleet;
  nodes: Record<"since" | "node" | "status" | "lost_low" | "lost_high", PackedColumn>; // changes of service
}

export interface Report {
  title: string;
  begin_us: number;
  end_us: number;
  zero_us: number | null;
  buckets: number;
  classes: string[];
  edges: number[];
  queues: string[];
  clusters: PackedCluster[];
  map: { unit_us: number; length: number; frames: number; total: number; kept: number };
  runs: RunReport[];
}
