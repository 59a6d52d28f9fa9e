// What a live Kant answers, as src/kant/service/views.py and docs/why.md have it.

export interface Job {
  seq: number;
  id: string;
  phase: string;
  name: string;
  queue: string;
  user: string;
  priority: number;
  gpus: number;
  submitted: number; // microseconds of the Unix epoch; -1: not yet
  started: number;
  ended: number;
  attempt: number;
  failures: number;
  code: number | null;
  signal: number | null;
  reason: string;
  waits: string;
  nodes?: Record<string, string>; // where it runs: node to indices of GPUs
  limit_us?: number; // the longest that it may run; -1: no limit
  place?: number; // of a job that waits, in the order in which they are tried; 0: not in that order
}

export interface JobPageOf {
  jobs: Job[];
  next: number | null;
  total?: number; // of those that wait: all of them
}

export interface Top {
  pools: { pool: string; nodes: number; gpus: number; allocated: number }[];
  nodes?: { node: string; gpus: number; gpus_used: number; gpus_powered?: number | null }[]; // by the power cap
  gpus_powered?: number | null; // by that of all machines
}

export interface Detail {
  job: Job;
  command: string[];
  workdir: string;
  time_s: number | null;
  retries: number;
  after: string[];
  after_ok: string[];
  stopping: string;
  place: Record<string, string>; // node to indices of GPUs
  reservation: string; // in which it runs; "": none
  hidden: boolean; // whether what it runs is left out, since the job is not one's own
}

interface Said {
  sentence: string;
}

/** A change after which a waiting job starts at once; docs/why.md. */
export interface StartsNow {
  sentence: string;
  stopped: { job: string }[];
  quotas: { queue: string; model: string; resource: string; more: number; limit: string }[]; // more: milli-GPUs
  nodes: string[];
  yields: string;
}

export interface Why {
  sentence: string;
  phase: string;
  waited_us: null | { total: number; [cause: string]: number }; // microseconds; the causes add up to the total
  answer: null | {
    facts: Said[];
    remedies: Said[];
    in_queue: { rank: number; of: number };
    among_rivals: { rank: number; of: number };
    wait_or_place: Said | null;
    expected_us: Expected;
    rests_on: Said | null;
    earlier: null | { answers: number; kept: number; kept_p50: number; calibrated: boolean };
    zero_us: number;
    time_us: number;
    starts_now_if: { changes: StartsNow[]; none: string | null };
  };
}

export interface Expected {
  p50: number | null;
  p90: number | null;
  never: boolean;
}

/** GPU-hours of a month that ends at `until_us`, of a queue ("": all users) or of one of its users. */
export interface Budget {
  queue: string;
  user: string;
  used_gpu_hours: number | null;
  soft_gpu_hours: number | null;
  hard_gpu_hours: number | null;
  state: "" | "soft" | "hard"; // which of the two is used up
  until_us: number;
}

export interface Eta {
  time_us: number;
  zero_us: number;
  budgets?: { queue: string; user: string; limit: string; expected_us: { p50: number | null; p10: number | null } }[];
  jobs: { job: string; why: string; expected_us: Expected; rests_on: Said | null; wait_or_place: Said | null }[];
}

export interface History {
  zero_us: number;
  whole: boolean;
  entries: { time_us: number; what: string; sentence: string }[];
}

export interface QueueRow {
  queue: string;
  model: string;
  nominal_gpus: number | null;
  used_gpus: number | null;
  borrowed_gpus: number | null;
  lent_gpus: number | null;
  running: number;
  waiting: number;
  waiting_gpus: number;
}

export interface Reservation {
  name: string;
  user: string;
  phase: "pending" | "active";
  gpus: number;
  start: number; // microseconds of the Unix epoch
  end: number;
  place: Record<string, string>; // node to indices of GPUs
  jobs: string[]; // those that run in it
}

export interface Whoami {
  user: string;
  role: "viewer" | "tenant" | "operator";
  queues: string[]; // those of a tenant
  home?: string; // the home folder of the user as whom its jobs run
  may: string[]; // the names of the routes that this caller has
}
