// What is asked of a what-if, and what is answered: docs/whatif.md.

export interface Question {
  submit?: string[];
  drain?: string[];
  evict?: boolean;
  quota?: string[];
  nodes?: string[];
  cancel?: string[];
  profile?: string;
  until?: string;
}

/** Seconds; null where nobody waits. */
export interface Spread {
  mean: number | null;
  p50: number | null;
  p90: number | null;
}

interface Moved {
  jobs: number;
  mean_s: number | null;
}

export interface Waits {
  jobs: number;
  before_s: Spread;
  after_s: Spread;
  sooner: Moved;
  later: Moved;
}

export interface Changed {
  job: string;
  queue: string;
  gpus: number;
  before_s: number;
  after_s: number;
}

export interface Submitted {
  job: string;
  start_us: number | null;
  status: string;
  sentence: string;
}

export interface Ratios {
  gar: number | null;
  sor: number | null;
  gfr: number | null;
}

export interface Futures {
  time_us: number;
  zero_us: number;
  change: string[];
  run_times: Record<string, number>;
  submitted: Submitted[];
  waits: { all: Waits; by_queue: Record<string, Waits>; by_size: Record<string, Waits> };
  curve: { before_s: number[]; after_s: number[] };
  helped: Changed[];
  harmed: Changed[];
  ratios: { until_us: number; before: Ratios; after: Ratios };
}
