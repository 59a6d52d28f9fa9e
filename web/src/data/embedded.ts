// A report's own data: unpacked into the same model that a live Kant fills.

import type { Clock } from "../time/clock";
import type { Source } from "../store";
import { unpack, unpackNames } from "./codec";
import { Column } from "./columns";
import { Cluster, Run } from "./model";
import type { PackedCluster, Report, RunReport } from "./report";

const HOUR = 3.6e9; // microseconds

/** Puts the runs of `report` into `source` and the clock at their busiest hour. */
export async function openReport(source: Source, clock: Clock, report: Report): Promise<void> {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser cannot decompress data; Chrome 80, Firefox 113, Safari 16.4 or newer can");
  }
  const clusters = await Promise.all(report.clusters.map(readCluster));
  source.report = report;
  source.runs = await Promise.all(report.runs.map((one) => readRun(report, one, clusters[one.cluster]!)));
  source.ready = true;
  clock.frames = frames(report);
  clock.zero = report.zero_us;
  clock.span(report.begin_us, report.end_us);
  clock.set(busiest(report, source.runs));
  source.changed();
}

/** The middle of the hour in which the runs together had the most GPUs in use and waited for. */
function busiest({ begin_us, end_us, buckets }: Report, runs: Run[]): number {
  const step = (end_us - begin_us) / Math.max(1, buckets);
  const wide = Math.max(1, Math.min(buckets, Math.round(HOUR / step))); // buckets of an hour
  const asked = ({ series, cluster }: Run, i: number) =>
    (series.allocated.get(i) / 1e6) * cluster!.total * 1000 + series.waitingMilli.get(i) || 0; // NaN: it was over
  const sums = Array.from({ length: buckets }, (_, i) => runs.reduce((sum, run) => sum + asked(run, i), 0));
  let [best, most, sum] = [(buckets - 1) / 2, 0, 0];
  for (let i = 0; i < buckets; i++) {
    sum += sums[i]! - (sums[i - wide] ?? 0);
    if (i >= wide - 1 && sum > most) [best, most] = [i - (wide - 1) / 2, sum];
  }
  return begin_us + (best + 0.5) * step;
}

/** The moments at which a sampled map is exact; `fleet.py` computes the same. */
function frames({ map, begin_us }: Report): Float64Array | null {
  if (!map.frames) return null;
  return Float64Array.from(
    { length: map.frames },
    (_, i) => begin_us + Math.floor(((2 * i + 1) * map.length) / (2 * map.frames)) * map.unit_us,
  );
}

async function readCluster(packed: PackedCluster): Promise<Cluster> {
  return new Cluster(
    packed.name,
    await unpackNames(packed.names),
    Int32Array.from(await unpack(packed.gpus)),
    Int32Array.from(await unpack(packed.model)),
    packed.models,
    await unpackNames(packed.leaf),
    await unpackNames(packed.spine),
    await unpackNames(packed.superspine),
  );
}

async function readRun(report: Report, from: RunReport, cluster: Cluster): Promise<Run> {
  const run = new Run();
  Object.assign(run, {
    label: from.label, profile: from.profile, begin: report.begin_us, end: from.end_us, zero: report.zero_us,
    cluster, queues: report.queues, wholeJobs: from.jobs.whole, frames: frames(report),
  });
  await readJobs(run, report, from);
  await readIntervals(run, report, from);
  await readSeries(run, report, from);
  const since = await unpack(from.nodes.since);
  run.nodes.since = Column.floats(since.map((at) => report.begin_us + at * report.map.unit_us));
  run.nodes.node = Column.ints(await unpack(from.nodes.node));
  run.nodes.status = Column.ints(await unpack(from.nodes.status));
  run.nodes.lostLow = Column.ints(await unpack(from.nodes.lost_low));
  run.nodes.lostHigh = Column.ints(await unpack(from.nodes.lost_high));
  run.version = 1;
  return run;
}

async function readJobs({ jobs, causes }: Run, { map, begin_us }: Report, { jobs: from }: RunReport): Promise<void> {
  const unit = map.unit_us;
  jobs.id = await unpackNames(from.ids);
  jobs.queue = Column.ints(await unpack(from.queue));
  jobs.milli = Column.floats(await unpack(from.milli));
  const submit = (await unpack(from.submit)).map((at) => begin_us + at * unit);
  const later = (since: Float64Array) => Column.floats(since.map((at, i) => (at < 0 ? -1 : submit[i]! + at * unit)), -1);
  jobs.submit = Column.floats(submit);
  jobs.start = later(await unpack(from.start));
  jobs.end = later(await unpack(from.end));
  jobs.wait = Column.floats((await unpack(from.wait)).map((time) => time * unit));
  jobs.status = Column.ints(await unpack(from.status));
  jobs.preemptions = Column.ints(await unpack(from.preemptions));
  for (const [cause, packed] of Object.entries(from.causes)) {
    causes.set(cause, (await unpack(packed)).map((time) => time * unit));
  }
  if (!from.fewest) return;
  jobs.fewestNodes = Column.ints(await unpack(from.fewest[0]!));
  jobs.fewestLeaves = Column.ints(await unpack(from.fewest[1]!));
}

async function readIntervals({ intervals }: Run, { map, begin_us }: Report, { fleet }: RunReport): Promise<void> {
  intervals.job = Column.ints(await unpack(fleet.job));
  intervals.node = Column.ints(await unpack(fleet.node));
  intervals.maskLow = Column.ints(await unpack(fleet.mask_low));
  intervals.maskHigh = Column.ints(await unpack(fleet.mask_high));
  intervals.milli = Column.ints(await unpack(fleet.milli));
  const start = await unpack(fleet.start);
  const length = await unpack(fleet.length);
  intervals.start = Column.floats(start.map((at) => begin_us + at * map.unit_us));
  intervals.end = Column.floats(start.map((at, i) => begin_us + (at + length[i]!) * map.unit_us), -1);
}

/** The charts of a report are shares already: GAR is kept as allocated of one million in service, GFR likewise. */
async function readSeries(run: Run, report: Report, { series: from }: RunReport): Promise<void> {
  const step = (report.end_us - report.begin_us) / Math.max(1, report.buckets);
  const known = (values: Float64Array, scale: number) => Column.floats(values.map((v) => (v < 0 ? NaN : v / scale)));
  const { series } = run;
  const gar = await unpack(from.gar);
  series.time = Column.floats(gar.map((_, i) => report.begin_us + i * step));
  series.allocated = known(gar, 1);
  series.inService = Column.floats(gar.map(() => 1e6));
  series.fragmented = known(await unpack(from.gfr), 1);
  series.nodes = Column.floats(gar.map(() => 1e6));
  series.waitingJobs = known(await unpack(from.waiting_jobs), 1000);
  series.waitingMilli = known(await unpack(from.waiting_gpus), 1);
}
