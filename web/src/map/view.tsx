// The map of every GPU: colours, a search for jobs, one panel a run (two at most side by side), and the picked job.

import { useEffect, useMemo, useRef, useState } from "react";
import type { Run } from "../data/model";
import { useAsked } from "../live/asked";
import type { Reservation } from "../live/types";
import { counted, showGpus, showMoment } from "../show";
import { usePage, useStore } from "../store";
import { theme } from "../theme";
import { useClock } from "../time/bar";
import { JobPanel } from "../views/job";
import { bookedOf, span, stamp, told } from "./booked";
import { legend, WAYS } from "./colours";
import { occupancyAt } from "./occupancy";
import { Painter } from "./painter";
import { hit } from "./layout";
import { inForce, mostSpread, rowsOf, spanOf } from "./span";

const LEAST = 320; // pixels that a map may take at least
const BELOW = 100; // pixels that what stands below it takes

/** The pixels that a map may take: what the window has below its top. */
function roomFor(home: HTMLElement): number {
  return Math.max(LEAST, innerHeight - (home.getBoundingClientRect().top + scrollY) - BELOW);
}

export function MapView() {
  const { source, choice } = usePage();
  useStore(source);
  useStore(choice);
  const [sides, setSides] = useState([0, 1]);
  const { runs, report } = source;
  const shown = sides.slice(0, runs.length).map((run) => Math.min(run, runs.length - 1));
  const ways = WAYS.filter(([way]) => way !== "user" || runs.some((run) => run.jobs.user.some(Boolean)));
  const first = runs[shown[0]!]!;
  return (
    <section aria-label="Every GPU">
      <div className="tools">
        <label>
          Colour by{" "}
          <select id="colour" value={choice.colour} onChange={(event) => choice.set({ colour: event.target.value })}>
            {ways.map(([way, words]) => <option key={way} value={way}>{words}</option>)}
          </select>
        </label>
        <JobSearch run={first} />
        <Spread run={first} />
      </div>
      <div className="legend" role="list" aria-label="Colours">
        {legend(first, choice.colour, runs).map(([colour, words]) => (
          <span role="listitem" className="key" key={words}>
            {colour && <i style={{ background: colour }} />}
            {words}
          </span>
        ))}
      </div>
      <div className="panels" id="panels">
        {shown.map((run, side) => (
          <RunMap
            key={`${side} ${run}`} run={runs[run]!} index={run} choose={runs.length > 2 ? (to) => setSides(sides.with(side, to)) : null}
          />
        ))}
      </div>
      {report && <p className="hint" id="map-hint">{completeness(report.map)}</p>}
      <p className="hint">
        A column is a node, a cell one of its GPUs, a block a leaf, a frame a spine. Click a GPU to pick out its job. With the map in focus,
        arrow keys move over the GPUs, Enter picks, Escape lets go; the space bar plays.
      </p>
    </section>
  );
}

/** Says whether every interval is in the page, or how the map was sampled. */
function completeness({ frames, kept, total }: { frames: number; kept: number; total: number }): string {
  const count = (n: number) => n.toLocaleString("en");
  if (!frames) return `All ${count(total)} intervals are shown.`;
  return `Sampled to keep this file small: ${count(frames)} equally spaced moments, with the ${count(kept)} of ${count(total)} intervals in force at one of them. The charts and the numbers are complete.`;
}

/** Picks a job, or none where no run has it; where it runs nowhere at the moment, goes to the moment at which it first does. */
export function usePick(): (id: string) => boolean {
  const { source, clock, choice } = usePage();
  return (id) => {
    const found = source.runs.some((run) => run.jobs.find(id) >= 0);
    choice.set({ job: found ? id : "" });
    let start = Infinity;
    for (const run of source.runs) {
      const job = run.jobs.find(id);
      if (job < 0) continue;
      const rows = rowsOf(run, job);
      if (rows.some((row) => inForce(run, row, clock.at))) return true;
      if (rows.length) start = Math.min(start, run.intervals.start.get(rows[0]!));
    }
    if (start < Infinity) clock.set(clock.frames?.find((frame) => frame >= start) ?? start);
    return found;
  };
}

function JobSearch({ run }: { run: Run }) {
  const { choice } = usePage();
  useStore(choice);
  const pick = usePick();
  const [said, setSaid] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (field.current) field.current.value = choice.job;
    if (choice.job) setSaid("");
  }, [choice.job]);
  const go = () => {
    const id = field.current!.value.trim();
    if (!id || pick(id)) return setSaid("");
    setSaid(run.wholeJobs ? `There is no job ${id}.` : `There is no job ${id} in the map.`);
  };
  return (
    <form className="search" role="search" onSubmit={(event) => { event.preventDefault(); go(); }}>
      <label>
        Job <input id="job" ref={field} type="search" placeholder="id, or click a GPU" autoComplete="off" spellCheck={false} onBlur={() => field.current!.value !== choice.job && go()} />
      </label>
      <output id="job-hint" className="hint">{said}</output>
    </form>
  );
}

/** Picks, one after the other, the jobs that run now: the most spread first. */
function Spread({ run }: { run: Run }) {
  const { choice, clock } = usePage();
  const pick = usePick();
  const next = () => {
    const jobs = mostSpread(run, occupancyAt(run, clock.at));
    if (!jobs.length) return;
    const at = jobs.indexOf(run.jobs.find(choice.job));
    pick(run.jobs.id[jobs[(at + 1) % jobs.length]!]!);
  };
  return <button id="spread" type="button" onClick={next} title="Selects the jobs that run at this moment, one by one, the most spread first">Most spread job</button>;
}

interface Tip {
  text: string;
  x: number;
  y: number;
}

/** The map of one run. */
function RunMap({ run, index, choose }: { run: Run; index: number; choose: ((run: number) => void) | null }) {
  const { source, choice, clock } = usePage();
  useStore(choice);
  useStore(theme);
  useClock();
  const pick = usePick();
  const place = useRef<HTMLDivElement>(null);
  const cells = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const painter = useRef<Painter | null>(null);
  const drawn = useRef("");
  const [cursor, setCursor] = useState(-1);
  const [tip, setTip] = useState<Tip | null>(null);
  const [size, setSize] = useState(0); // its width
  const [height, setHeight] = useState(LEAST);
  const cluster = run.cluster;
  const asked = useAsked<{ reservations: Reservation[] }>(source.may.includes("reservations") ? "/v1/reservations" : null).value;
  const reservations = (clock.following && asked?.reservations) || [];
  const booked = useMemo(() => bookedOf(cluster, (clock.following && asked?.reservations) || []), [cluster, asked, clock.following]);

  useEffect(() => {
    const home = place.current!;
    const measure = () => requestAnimationFrame(() => home.clientWidth && (setSize(home.clientWidth), setHeight(roomFor(home))));
    const watch = new ResizeObserver(measure);
    watch.observe(home);
    addEventListener("resize", measure);
    return () => {
      watch.disconnect();
      removeEventListener("resize", measure);
    };
  }, []);

  useEffect(() => {
    if (!cluster || !size) return;
    painter.current = new Painter(cells.current!, over.current!, run, cluster);
    painter.current.resize(size, height);
    drawn.current = "";
  }, [run, cluster, size, height]);

  const job = choice.job ? run.jobs.find(choice.job) : -1;
  const version = run.version;
  const rows = useMemo(() => (job < 0 ? [] : rowsOf(run, job)), [run, job, version]);
  useEffect(() => {
    const own = painter.current;
    if (!own) return;
    own.paint(clock.at, choice.colour, theme.version.toString(), job);
    const canvas = cells.current!;
    canvas.dataset.visited = String(own.now.visited);
    canvas.dataset.painted = String(own.painted);
    const span = job >= 0 ? spanOf(run, rows, clock.at) : null;
    const wish = `${size} ${height} ${choice.colour} ${own.legible ? own.now.tick : ""} ${theme.version} ${job} ${cursor} ${span ? [...span.nodes.keys()].join() : ""} ${stamp(booked)}`;
    if (wish === drawn.current) return;
    drawn.current = wish;
    own.drawFabric(span, cursor, booked);
  });

  if (!cluster) return null;
  const now = occupancyAt(run, clock.at);
  const holder = (gpu: number) => {
    const row = gpu < 0 ? -1 : now.owner[gpu]!;
    const id = row < 0 ? "" : run.jobs.id[run.intervals.job.get(row)]!;
    if (id === choice.job || !id) choice.set({ job: "" });
    else pick(id);
  };
  const point = (gpu: number) => {
    const own = painter.current;
    setCursor(gpu);
    if (!own || gpu < 0) return setTip(null);
    const box = cells.current!.getBoundingClientRect();
    const { left, top, cell } = own.layout;
    setTip({ text: [describe(run, gpu, clock.at, clock.zero), ...told(booked.get(gpu))].join("\n"), x: box.left + left[gpu]! / own.ratio, y: box.top + (top[gpu]! + cell) / own.ratio });
  };
  const at = (event: React.MouseEvent) => {
    const own = painter.current;
    if (!own) return -1;
    const box = cells.current!.getBoundingClientRect();
    return hit(cluster, own.layout, (event.clientX - box.left) * own.ratio, (event.clientY - box.top) * own.ratio);
  };
  const keys = (event: React.KeyboardEvent) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") {
      point(-1);
      choice.set({ job: "" });
    } else if (event.key === "Enter") holder(cursor);
    else if (event.key === " ") (clock.playing ? clock.pause() : clock.play());
    else if (move) point(neighbour(cluster, cursor, move[0]!, move[1]!));
    else return;
    event.preventDefault();
  };
  const label = source.runs.length > 1 || !source.live ? run.label : cluster.name;
  return (
    <article className="panel">
      <h2>
        {choose ? (
          <span className={`run r${index % 6}`}>
            <select aria-label="Run of this map" value={index} onChange={(event) => choose(+event.target.value)}>
              {source.runs.map((other, i) => <option key={i} value={i}>{other.label}</option>)}
            </select>
          </span>
        ) : <span className={`run r${index % 6}`}>{label}</span>}
        <small>
          {showGpus(now.total)} of {(cluster.total - now.gone).toLocaleString("en")} GPUs in use · {counted(now.running, "job runs", "jobs run")} ·{" "}
          {counted(now.broken, "node", "nodes")} partly allocated
          {booked.size > 0 && ` · ${counted(booked.size, "GPU", "GPUs")} booked`}
          {now.lost > 0 && ` · ${counted(now.lost, "GPU", "GPUs")} lost`}
          {now.failed > 0 && ` · ${counted(now.failed, "node", "nodes")} out of service`}
        </small>
      </h2>
      <div className="canvas" ref={place}>
        <div
          className="stack" role="application" tabIndex={0} aria-label={`GPU map of ${run.label || cluster.name}: arrow keys move over the GPUs, Enter picks a job`}
          onPointerMove={(event) => { const gpu = at(event); if (gpu !== cursor) point(gpu); }}
          onPointerLeave={() => point(-1)} onClick={(event) => holder(at(event))} onKeyDown={keys} onBlur={() => point(-1)}
        >
          <canvas ref={cells} />
          <canvas ref={over} className="over" />
        </div>
      </div>
      {booked.size > 0 && (
        <p className="hint" id="map-booked">
          In a dashed frame: booked, by {reservations.map((row) => `${row.name} (${row.user}, ${counted(row.gpus, "GPU", "GPUs")}, ${span(row)})`).join("; ")}.
        </p>
      )}
      <p className="said" role="status">{tip?.text}</p>
      {tip && <TipBox {...tip} />}
      {choice.job && <JobPanel run={run} id={choice.job} />}
    </article>
  );
}

/** The GPU beside another, in the order in which nodes are drawn. */
function neighbour(cluster: NonNullable<Run["cluster"]>, gpu: number, nodes: number, devices: number): number {
  const order = cluster.groups.flatMap((group) => group.nodes).filter((node) => cluster.gpus[node]! > 0);
  if (!order.length) return -1;
  if (gpu < 0) return cluster.first[order[0]!]!;
  const node = cluster.nodeOf(gpu);
  const next = order[Math.max(0, Math.min(order.length - 1, order.indexOf(node) + nodes))]!;
  const device = gpu - cluster.first[node]! + devices;
  return cluster.first[next]! + Math.max(0, Math.min(cluster.gpus[next]! - 1, device));
}

/** What there is to say about one GPU at the moment shown. */
function describe(run: Run, gpu: number, time: number, zero: number | null): string {
  const cluster = run.cluster!;
  const { intervals, jobs } = run;
  const node = cluster.nodeOf(gpu);
  const device = gpu - cluster.first[node]!;
  const model = cluster.models[cluster.model[node]!];
  const lines = [`${cluster.names[node]} · GPU ${device}${model ? ` · ${model}` : ""} · ${cluster.groups[cluster.group[node]!]!.name}`];
  const now = occupancyAt(run, time);
  const status = ["", "cordoned", "out of service", "draining", "not there"][now.service[node]!];
  if (status) lines.push(status);
  const lost = now.isLost(node, device);
  if (lost) lines.push("this GPU is lost: nothing runs on it, and it is not counted");
  const holders: number[] = [];
  now.eachOn(node, (row) => {
    const mask = device < 31 ? intervals.maskLow.get(row) >> device : intervals.maskHigh.get(row) >> (device - 31);
    if (mask & 1) holders.push(row);
  });
  if (!holders.length && !status && !lost) lines.push("idle");
  for (const row of holders.sort((a, b) => a - b).slice(0, 4)) {
    const job = intervals.job.get(row);
    const milli = intervals.milli.get(row);
    const share = milli < 1000 ? ` · ${milli / 10}% of this GPU` : "";
    const gpus = `${showGpus(jobs.milli.get(job))} GPU${jobs.milli.get(job) > 1000 ? "s" : ""}`;
    const named = jobs.name[job] ? ` ${jobs.name[job]}` : "";
    const end = intervals.end.get(row);
    lines.push(
      `job ${jobs.id[job]}${named} · queue ${run.queues[jobs.queue.get(job)] || "(no name)"} · ${gpus}${share}`,
      `${showMoment(intervals.start.get(row), zero)} – ${end < 0 ? "now" : showMoment(end, zero)}`,
    );
  }
  if (holders.length > 4) lines.push(`and ${holders.length - 4} more jobs`);
  return lines.join("\n");
}

/** `text` below and right of a point of the window, or wherever there is room. */
function TipBox({ text, x, y }: Tip) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const own = box.current!;
    own.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - own.offsetWidth - 8))}px`;
    own.style.top = `${y + 14 + own.offsetHeight > innerHeight ? Math.max(4, y - own.offsetHeight - 24) : y + 14}px`;
  });
  return <div id="tip" ref={box} aria-hidden="true">{text}</div>;
}
