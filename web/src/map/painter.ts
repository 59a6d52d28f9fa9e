// Paints the cells of one run on a canvas, and the fabric with what is picked on another above it.

import type { Cluster, Run } from "../data/model";
import { cssVar } from "../theme";
import { type Booked, span as booking } from "./booked";
import { cellColour, CROSSED, type Dress, dress, dressJobs, STRIPED } from "./colours";
import { fit, type Layout } from "./layout";
import { type Occupancy, occupancyAt } from "./occupancy";
import type { Span } from "./span";

const LEGIBLE = 18; // pixels of a cell in which a name can be read
const BAND = 64; // pixels: the picture is handed over in bands that have changed

/** One map. The canvas holds cells only; only cells whose colour has changed are filled anew. */
export class Painter {
  layout!: Layout;
  now!: Occupancy;
  ratio = 1;
  painted = 0; // cells filled for the last moment
  private colours!: Dress;
  private context!: CanvasRenderingContext2D;
  private image!: ImageData;
  private pixels!: Uint32Array;
  private shown!: Uint32Array; // the pixel of each GPU
  private seen = -1; // the tick up to which the picture is right
  private from!: Int32Array; // of each band: the first changed column
  private to!: Int32Array;
  private dressed = "";
  private picked = -1;

  constructor(
    readonly canvas: HTMLCanvasElement,
    readonly over: HTMLCanvasElement,
    readonly run: Run,
    readonly cluster: Cluster,
  ) {}

  /** Whether cells have room for names. */
  get legible(): boolean {
    return this.layout.cell >= LEGIBLE * this.ratio && this.layout.wide >= 1.4 * LEGIBLE * this.ratio;
  }

  /** Chooses the size of the cells for the place there is. */
  resize(width: number, height: number): void {
    this.ratio = window.devicePixelRatio || 1;
    this.layout = fit(this.cluster, Math.floor(width * this.ratio), Math.floor(height * this.ratio), this.ratio);
    for (const canvas of [this.canvas, this.over]) {
      canvas.width = Math.max(1, this.layout.width);
      canvas.height = Math.max(1, this.layout.height);
      canvas.style.width = `${canvas.width / this.ratio}px`;
      canvas.style.height = `${canvas.height / this.ratio}px`;
    }
    this.context = this.canvas.getContext("2d")!;
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    const bands = Math.ceil(this.canvas.height / BAND);
    this.from = new Int32Array(bands);
    this.to = new Int32Array(bands);
    this.shown = new Uint32Array(this.cluster.total);
    this.seen = -1;
  }

  /** Paints the moment `time`. Cells are looked at on nodes that have changed; on all after a change of colours. */
  paint(time: number, way: string, theme: string, pick: number): void {
    const { run, cluster } = this;
    const wish = `${way} ${theme}`;
    if (wish !== this.dressed) {
      this.colours = dress(run, way);
      for (let gpu = 0; gpu < this.shown.length; gpu++) if (this.shown[gpu]! <= CROSSED) this.shown[gpu] = 0;
    }
    dressJobs(this.colours, run);
    if (wish !== this.dressed || pick !== this.picked) this.seen = -1;
    this.dressed = wish;
    this.picked = pick;
    const now = (this.now = occupancyAt(run, time));
    const { job } = run.intervals;
    this.from.fill(this.canvas.width);
    this.to.fill(0);
    this.painted = 0;
    for (let node = 0; node < cluster.gpus.length; node++) {
      if (now.stamp[node]! <= this.seen) continue;
      const whole = now.wholeOf(node);
      for (let gpu = cluster.first[node]!; gpu < cluster.first[node + 1]!; gpu++) {
        const row = now.owner[gpu]!;
        const colour = cellColour(
          this.colours, row < 0 ? -1 : job.data[row]!, now.used[gpu]!, now.service[node]!,
          now.isLost(node, gpu - cluster.first[node]!), now.nodeUsed[node]!, whole, cluster.model[node]!, pick,
        );
        if (colour !== this.shown[gpu]) this.fill(gpu, colour);
      }
    }
    this.seen = now.tick;
    for (let band = 0; band < this.from.length; band++) {
      const width = this.to[band]! - this.from[band]!;
      if (width > 0) this.context.putImageData(this.image, 0, 0, this.from[band]!, band * BAND, width, BAND);
    }
  }

  private fill(gpu: number, colour: number): void {
    const { cell, wide, left, top } = this.layout;
    const side = cell > 3 ? cell - 1 : cell;
    const across = wide > 3 ? wide - 1 : wide;
    const stride = this.canvas.width;
    const x = left[gpu]!;
    const y = top[gpu]!;
    for (let i = 0, at = y * stride + x; i < side; i++, at += stride) {
      if (colour > CROSSED) this.pixels.fill(colour, at, at + across);
      else for (let j = 0; j < across; j++) this.pixels[at + j] = this.patterned(colour, x + j, y + i, (j * side) / across, i, side);
    }
    for (let band = Math.floor(y / BAND); band <= Math.floor((y + side - 1) / BAND); band++) {
      this.from[band] = Math.min(this.from[band]!, x);
      this.to[band] = Math.max(this.to[band]!, x + across);
    }
    this.shown[gpu] = colour;
    this.painted++;
  }

  /** The pixel at (x, y) of a cell with a pattern, at (dx, dy) in the cell. Very small cells have no room for one. */
  private patterned(pattern: number, x: number, y: number, dx: number, dy: number, side: number): number {
    const { failed, lost, idle } = this.colours;
    if (side < 4) return pattern === STRIPED ? failed : lost;
    if (pattern === STRIPED) return (x + y) % Math.max(4, Math.ceil(side / 3)) < Math.max(2, Math.ceil(side / 6)) ? failed : idle;
    const thick = Math.max(1, side / 7);
    return Math.abs(dx - dy) < thick || Math.abs(dx + dy - side + 1) < thick ? lost : idle;
  }

  /** Where cells have room: of each job on a node its id and name, in the first of its cells. */
  private drawNames(context: CanvasRenderingContext2D): void {
    const { cluster, layout, ratio, run } = this;
    if (!this.legible) return;
    context.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    for (let node = 0; node < cluster.gpus.length; node++) {
      let above = -1;
      for (let gpu = cluster.first[node]!; gpu < cluster.first[node + 1]!; gpu++) {
        const row = this.now.owner[gpu]!;
        const job = row < 0 ? -1 : run.intervals.job.get(row);
        if (job >= 0 && job !== above) {
          const named = run.jobs.name[job] ? `${run.jobs.id[job]} ${run.jobs.name[job]}` : run.jobs.id[job]!;
          const room = layout.wide - 8 * ratio;
          let text = context.measureText(named).width <= room ? named : run.jobs.id[job]!;
          if (text !== named) for (let kept = named.length; kept > text.length + 3; kept--) {
            if (context.measureText(`${named.slice(0, kept)}…`).width <= room) text = `${named.slice(0, kept)}…`;
          }
          context.fillStyle = readable(this.shown[gpu]!);
          if (context.measureText(text).width <= room) context.fillText(text, layout.left[gpu]! + 4 * ratio, layout.top[gpu]! + (layout.cell - 12 * ratio) / 2);
        }
        above = job;
      }
    }
  }

  /** A dashed frame round each GPU that is booked, and where cells have room the reservation, and from when on. */
  private drawBooked(context: CanvasRenderingContext2D, booked: Booked): void {
    const { layout, ratio } = this;
    if (layout.cell < 4) return;
    const inset = layout.cell > 12 * ratio ? 2 * ratio : 0;
    context.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    context.lineWidth = Math.max(1, ratio);
    for (const [gpu, [first]] of booked) {
      const [x, y] = [layout.left[gpu]!, layout.top[gpu]!];
      for (const [dash, colour] of [[[], "#fff"], [[4 * ratio, 3 * ratio], "#000"]] as [number[], string][]) {
        context.setLineDash(dash);
        context.strokeStyle = colour;
        context.strokeRect(x + inset + 0.5, y + inset + 0.5, layout.wide - 2 * inset - 2, layout.cell - 2 * inset - 2);
      }
      const free = this.now.owner[gpu]! < 0;
      if (!this.legible || (!free && layout.cell < 44 * ratio)) continue;
      const room = layout.wide - 12 * ratio;
      const text = [`${first!.name} ${booking(first!)}`, first!.name].find((words) => context.measureText(words).width <= room);
      context.fillStyle = readable(this.shown[gpu]!);
      if (text) context.fillText(text, x + 6 * ratio, y + (free ? (layout.cell - 12 * ratio) / 2 : layout.cell - 18 * ratio));
    }
    context.setLineDash([]);
  }

  /** Frames and names of spines, names of leaves, what is booked, what the picked job lies in, and the cursor. */
  drawFabric(span: Span | null, cursor: number, booked: Booked): void {
    const { cluster, layout, ratio } = this;
    const context = this.over.getContext("2d")!;
    const [soft, line, ink, accent] = ["--soft", "--line", "--ink", "--accent"].map(cssVar) as [string, string, string, string];
    context.clearRect(0, 0, this.over.width, this.over.height);
    context.textBaseline = "top";
    for (const frame of layout.frames) {
      const own = span?.spines.has(frame.spine);
      context.lineWidth = own ? 2 * ratio : 1;
      context.strokeStyle = own ? accent : line;
      context.strokeRect(frame.x + 0.5, frame.y + 0.5, frame.wide - 1, frame.high - 1);
      context.fillStyle = own ? accent : soft;
      context.font = `${own ? 700 : 600} ${11 * ratio}px system-ui, sans-serif`;
      const inset = Math.max(frame.pad, 3 * ratio);
      const room = (frame.side || frame.wide) - 2 * inset;
      const down = frame.side ? (frame.high - 10 * ratio) / 2 : 5 * ratio;
      if (room > 20 * ratio) context.fillText(cut(context, frame.name, room), frame.x + inset, frame.y + down);
    }
    for (const block of layout.blocks) {
      const own = span?.leaves.has(block.group);
      if (layout.named && block.wide > 24 * ratio) {
        context.fillStyle = own ? accent : soft;
        context.font = `${own ? 700 : 400} ${10 * ratio}px system-ui, sans-serif`;
        context.fillText(cut(context, block.name, block.wide), block.x, block.y - 12 * ratio);
      }
      if (!own || layout.cell > 3) continue;
      context.lineWidth = ratio;
      context.strokeStyle = accent;
      context.strokeRect(block.x - 0.5, block.y - 0.5, block.wide + 1, block.high + 1);
    }
    this.drawNames(context);
    this.drawBooked(context, booked);
    if (span && layout.cell > 3) {
      context.lineWidth = Math.max(2, ratio);
      context.strokeStyle = ink;
      for (const node of span.nodes.keys()) {
        const gpu = cluster.first[node]!;
        const side = layout.cell;
        context.strokeRect(layout.left[gpu]! - 1.5, layout.top[gpu]! - 1.5, layout.wide + 1, side * cluster.gpus[node]! + 1);
      }
    }
    if (cursor < 0) return;
    context.strokeStyle = ink;
    context.lineWidth = Math.max(2, ratio);
    context.strokeRect(layout.left[cursor]! - 1.5, layout.top[cursor]! - 1.5, layout.wide + 2, layout.cell + 2);
  }
}

/** Black or white, whichever is easier to read on a pixel. */
function readable(pixel: number): string {
  const [red, green, blue] = [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
}

/** `text`, shortened to `room` pixels: names of fabrics tell most at their end. */
function cut(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  let kept = text;
  while (kept.length > 1 && context.measureText(`…${kept}`).width > room) kept = kept.slice(1);
  return `…${kept}`;
}
