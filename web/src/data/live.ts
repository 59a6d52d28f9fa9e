// The record of a live Kant: asked whole once, then what is new, when its events say that something has changed.

import type { Whoami } from "../live/types";
import type { Clock } from "../time/clock";
import type { Source } from "../store";
import { ask, listen, Refused } from "./api";
import { Cluster, JobStatus, Run } from "./model";

const SOONEST = 1000; // milliseconds between two questions
const CALM = 10_000; // and without news
const RETRY = 1000; // after a lost connection; twice as long after each further try, up to
const LONGEST = 15_000;

type Numbers = number[];

/** The answer of GET /v1/record. */
export interface LiveRecord {
  cursor: string;
  complete: boolean;
  time_us: number;
  zero_us: number;
  profile: string;
  cluster_name: string;
  kind: "local" | "kubernetes";
  cluster: {
    names: string[];
    gpus: Numbers;
    models: string[];
    model: Numbers;
    leaf: string[];
    spine: string[];
    superspine: string[];
  } | null;
  queues: string[];
  jobs: {
    row: Numbers;
    id: string[];
    name: string[];
    user: string[];
    queue: Numbers;
    milli: Numbers;
    submit: Numbers;
    start: Numbers;
    end: Numbers;
    wait: Numbers; // up to `since`
    since: Numbers; // when it last began to wait or to run
    status: Numbers;
    preemptions: Numbers;
    fewest_nodes: Numbers;
    fewest_leaves: Numbers;
  };
  intervals: {
    row: Numbers;
    job: Numbers;
    node: Numbers;
    mask_low: Numbers;
    mask_high: Numbers;
    milli: Numbers;
    start: Numbers;
    end: Numbers;
  };
  nodes: { node: Numbers; status: Numbers; since: Numbers; lost_low: Numbers; lost_high: Numbers };
  starts: Numbers;
  series: {
    time: Numbers;
    allocated: Numbers;
    in_service: Numbers;
    fragmented: Numbers;
    nodes: Numbers;
    waiting_jobs: Numbers;
    waiting_milli: Numbers;
  };
  summary: LiveSummary;
}

/** The metrics so far, as docs/metrics.md has them: of what this Kant has seen since its state was built. */
export interface LiveSummary {
  so_far: Record<string, unknown> & { begins_us: number; time_us: number };
}

/** Puts what a record says into `run`. Rows that are there only gain an end, or `rewritten` grows. */
export function take(run: Run, record: LiveRecord): void {
  if (record.cluster) {
    const { names, gpus, models, model, leaf, spine, superspine } = record.cluster;
    run.cluster = new Cluster(
      record.cluster_name, names, Int32Array.from(gpus), Int32Array.from(model), models, leaf, spine, superspine,
    );
    run.rewritten++;
  }
  Object.assign(run, {
    label: record.profile, profile: record.profile, kind: record.kind, zero: record.zero_us, queues: record.queues,
    end: Math.max(run.end, record.time_us), starts: record.starts,
  });
  takeJobs(run, record.jobs);
  for (const [row, before] of waiting(run)) run.jobs.wait.set(row, before + record.time_us);
  takeIntervals(run, record.intervals);
  record.nodes.node.forEach((node, i) => {
    run.nodes.node.push(node);
    run.nodes.status.push(record.nodes.status[i]!);
    run.nodes.since.push(record.nodes.since[i]!);
    run.nodes.lostLow.push(record.nodes.lost_low[i]!);
    run.nodes.lostHigh.push(record.nodes.lost_high[i]!);
  });
  const { series } = record;
  series.time.forEach((time, i) => {
    run.series.time.push(time);
    run.series.allocated.push(series.allocated[i]!);
    run.series.inService.push(series.in_service[i]!);
    run.series.fragmented.push(series.fragmented[i]!);
    run.series.nodes.push(series.nodes[i]!);
    run.series.waitingJobs.push(series.waiting_jobs[i]!);
    run.series.waitingMilli.push(series.waiting_milli[i]!);
  });
  run.begin = Math.min(run.jobs.submit.length ? run.jobs.submit.get(0) : Infinity, run.series.time.length ? run.series.time.get(0) : Infinity, run.end);
  run.version++;
}

/** Of the jobs that wait: what is to be added to the present for all that they have waited. */
const waits = new WeakMap<Run, Map<number, number>>();

function waiting(run: Run): Map<number, number> {
  const found = waits.get(run) ?? new Map<number, number>();
  waits.set(run, found);
  return found;
}

function takeJobs(run: Run, from: LiveRecord["jobs"]): void {
  const { jobs } = run;
  from.row.forEach((row, i) => {
    if (from.status[i] === JobStatus.PENDING) waiting(run).set(row, from.wait[i]! - from.since[i]!);
    else waiting(run).delete(row);
    jobs.id[row] = from.id[i]!;
    jobs.name[row] = from.name[i]!;
    jobs.user[row] = from.user[i]!;
    jobs.queue.set(row, from.queue[i]!);
    jobs.milli.set(row, from.milli[i]!);
    jobs.submit.set(row, from.submit[i]!);
    jobs.start.set(row, from.start[i]!);
    jobs.end.set(row, from.end[i]!);
    jobs.wait.set(row, from.wait[i]!);
    jobs.status.set(row, from.status[i]!);
    jobs.preemptions.set(row, from.preemptions[i]!);
    jobs.fewestNodes.set(row, from.fewest_nodes[i]!);
    jobs.fewestLeaves.set(row, from.fewest_leaves[i]!);
  });
}

function takeIntervals(run: Run, from: LiveRecord["intervals"]): void {
  const { intervals } = run;
  from.row.forEach((row, i) => {
    const known = row < intervals.length;
    const same = known && intervals.job.get(row) === from.job[i] && intervals.start.get(row) === from.start[i]
      && intervals.maskLow.get(row) === from.mask_low[i] && intervals.maskHigh.get(row) === from.mask_high[i]
      && intervals.milli.get(row) === from.milli[i] && intervals.end.get(row) < 0;
    if (known && !same) run.rewritten++;
    else if (known && from.end[i]! >= 0) run.endings.push(row);
    intervals.job.set(row, from.job[i]!);
    intervals.node.set(row, from.node[i]!);
    intervals.maskLow.set(row, from.mask_low[i]!);
    intervals.maskHigh.set(row, from.mask_high[i]!);
    intervals.milli.set(row, from.milli[i]!);
    intervals.start.set(row, from.start[i]!);
    intervals.end.set(row, from.end[i]!);
  });
}

const pause = (ms: number) => new Promise((go) => setTimeout(go, ms));

/** Waits that grow while nothing succeeds. */
class Backoff {
  private next = RETRY;

  well(): void {
    this.next = RETRY;
  }

  async wait(): Promise<void> {
    await pause(this.next * (0.75 + Math.random() / 2)); // not everybody at once
    this.next = Math.min(LONGEST, 2 * this.next);
  }
}

/** Keeps `source` at the state of the Kant that served the page; never returns. */
export async function openLive(source: Source, clock: Clock): Promise<never> {
  source.live = true;
  let cursor = "";
  let news = true;
  let wake = (): void => undefined;
  void follow(() => {
    news = true;
    wake();
  });
  const lost = new Backoff();
  for (;;) {
    try {
      news = false;
      const record = await ask<LiveRecord>(`/v1/record${cursor && `?since=${encodeURIComponent(cursor)}`}`);
      let run = source.runs[0];
      if (record.complete || !run) {
        source.signs = record.kind === "kubernetes";
        const { user, may, role, queues, home = "" } = await ask<Whoami>("/v1/whoami"); // another leader may do other things
        Object.assign(source, { user, may, role, own: queues, home });
        run = new Run();
        source.runs = [run];
      }
      take(run, record);
      cursor = record.cursor;
      source.summary = record.summary;
      source.trouble = "";
      source.stranger = false;
      lost.well();
      if (!source.ready) clock.following = true;
      source.ready = true;
      if (clock.zero !== null && run.zero !== null) clock.shift(clock.zero - run.zero);
      clock.zero = run.zero;
      clock.span(run.begin, run.end);
      source.changed();
      const more = record.jobs.row.length > 0 || record.intervals.row.length > 0; // a sample of it comes a second later
      await pause(SOONEST);
      if (!news && !more) await Promise.race([pause(CALM), new Promise<void>((go) => (wake = go))]);
    } catch (reason) {
      source.stranger = reason instanceof Refused && reason.status === 401;
      source.trouble = reason instanceof Refused ? reason.message : "The connection to Kant is lost; this page shows the last known state. Trying again.";
      source.changed();
      await Promise.race([lost.wait(), new Promise<void>((go) => (source.enter = go))]);
    }
  }
}

/** Calls `heard` whenever the server says that something has changed; connects anew after a while. */
async function follow(heard: () => void): Promise<never> {
  const lost = new Backoff();
  for (;;) {
    try {
      await listen("/v1/events", () => (lost.well(), heard()), new AbortController().signal);
      heard(); // the server has ended it: the question for the record finds out why
    } catch {
      heard();
    }
    await lost.wait();
  }
}
