"use strict";
// Every GPU of the cluster at one moment: reads the intervals, finds who holds what, and paints the cells.

/** Ordered from small to large jobs; apart for every common kind of colour blindness (Okabe and Ito, 2008). */
const PALETTE = ["#56b4e9", "#0072b2", "#009e73", "#e6b422", "#d55e00", "#cc79a7"];
const OTHER = "#8a93a1";

/** The intervals of one run in columns, ordered by start, with the jobs they belong to. */
async function readFleet(packed, unit) {
  const fleet = { ids: await unpackNames(packed.ids), unit };
  for (const name of ["job", "node", "mask_low", "mask_high", "milli", "start", "length", "size", "queue"]) {
    fleet[name] = await unpackInt(packed[name]);
  }
  fleet.gpus = await unpack(packed.gpus);
  fleet.fewest = packed.fewest && (await Promise.all(packed.fewest.map(unpackInt)));
  fleet.end = fleet.start.map((start, i) => start + fleet.length[i]);
  return fleet;
}

/** Calls `visit(row)` for every interval in force at `time`. */
function atTime(fleet, time, visit) {
  const { start, end } = fleet;
  for (let row = 0; row < start.length && start[row] <= time; row++) if (end[row] > time) visit(row);
}

/** Calls `visit(bit)` for every set bit of the 62-bit mask of a row. */
function eachDevice(fleet, row, visit) {
  for (let m = fleet.mask_low[row]; m; m &= m - 1) visit(31 - Math.clz32(m & -m));
  for (let m = fleet.mask_high[row]; m; m &= m - 1) visit(62 - Math.clz32(m & -m));
}

/** For each GPU: the thousandths in use and the row that holds most of it (-1: idle); and the broken nodes. */
function occupancy(fleet, cluster, time, into) {
  const { owner, used } = into;
  owner.fill(-1);
  used.fill(0);
  atTime(fleet, time, (row) => {
    const first = cluster.first[fleet.node[row]], milli = fleet.milli[row];
    eachDevice(fleet, row, (device) => {
      const gpu = first + device;
      used[gpu] += milli;
      if (owner[gpu] < 0 || milli > fleet.milli[owner[gpu]]) owner[gpu] = row;
    });
  });
  into.broken = 0;
  into.total = 0;
  for (let node = 0; node < cluster.gpus.length; node++) {
    let sum = 0;
    for (let gpu = cluster.first[node]; gpu < cluster.first[node + 1]; gpu++) sum += used[gpu];
    into.state[node] = sum === 0 ? 0 : sum < 1000 * cluster.gpus[node] ? 1 : 2;
    if (into.state[node] === 1) into.broken++;
    into.total += sum;
  }
}

/** A colour `#rrggbb` as a pixel, mixed with `other` by `part` (0: all colour). */
function pixel(colour, other = colour, part = 0) {
  const channel = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map((i) => Math.round(channel(colour, i) * (1 - part) + channel(other, i) * part));
  return ((255 << 24) | (mixed[2] << 16) | (mixed[1] << 8) | mixed[0]) >>> 0;
}

/** A colour of its own for a job, the same in every run: a hash of the id chooses hue and lightness. */
function jobColour(id) {
  let hash = 2166136261;
  for (let i = 0; i < id.length; i++) hash = Math.imul(hash ^ id.charCodeAt(i), 16777619);
  hash = Math.imul(hash ^ (hash >>> 15), 2246822519) >>> 0;
  const hue = hash % 360, light = 0.42 + ((hash >>> 9) % 5) * 0.065;
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    const value = light - 0.62 * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * value).toString(16).padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}

/** The entries of the legend: [colour, words]. */
function legendOf(mode, data) {
  const partly = ["", "faded: GPU partly used"];
  if (mode === "size") return [...data.classes.map((name, i) => [PALETTE[i], `${name} GPU${i ? "s" : ""}`]), partly];
  if (mode === "nodes") return [[PALETTE[4], "node partly allocated (counts in GFR)"], [PALETTE[1], "node fully allocated"]];
  if (mode === "job") return [["", "each job has a colour of its own, the same on both sides"], partly];
  const named = data.queues.slice(0, PALETTE.length).map((name, i) => [PALETTE[i], name || "(no name)"]);
  const rest = data.queues.length - named.length;
  return [...named, ...(rest > 0 ? [[OTHER, `${rest} other queue${rest > 1 ? "s" : ""}`]] : []), partly];
}

/** One canvas that shows one run. */
class FleetMap {
  constructor(canvas, caption) {
    this.canvas = canvas;
    this.caption = caption;
    this.cursor = null;
    this.pick = -1;
    this.time = 0;
  }

  /** Shows `fleet` on `cluster` from now on. */
  show(fleet, cluster) {
    Object.assign(this, { fleet, cluster, cursor: null });
    this.now = {
      owner: new Int32Array(cluster.total), used: new Int32Array(cluster.total), state: new Uint8Array(cluster.gpus.length),
    };
  }

  /** Chooses the size of the cells for the place there is, in pixels of the screen. */
  resize(width, height) {
    this.ratio = window.devicePixelRatio || 1;
    this.layout = fit(this.cluster, Math.floor(width * this.ratio), Math.floor(height * this.ratio), this.ratio);
    const { canvas, layout } = this;
    canvas.width = Math.max(1, layout.width);
    canvas.height = Math.max(1, layout.height);
    canvas.style.width = `${canvas.width / this.ratio}px`;
    canvas.style.height = `${canvas.height / this.ratio}px`;
    this.context = canvas.getContext("2d");
    this.image = this.context.createImageData(canvas.width, canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** Computes the colours of all jobs for a mode and the theme of the moment. */
  dress(mode) {
    const { fleet } = this, idle = cssVar("--idle");
    this.mode = mode;
    this.idle = pixel(idle);
    this.states = [this.idle, pixel(PALETTE[4]), pixel(PALETTE[1])];
    const colour = {
      size: (job) => PALETTE[fleet.size[job]],
      queue: (job) => PALETTE[fleet.queue[job]] ?? OTHER,
      job: (job) => jobColour(fleet.ids[job]),
      nodes: () => OTHER,
    }[mode];
    const colours = fleet.ids.map((_, job) => colour(job));
    this.solid = Uint32Array.from(colours, (one) => pixel(one));
    this.light = Uint32Array.from(colours, (one) => pixel(one, idle, 0.55));
    this.faint = Uint32Array.from(colours, (one) => pixel(one, idle, 0.82));
    this.words = { soft: cssVar("--soft"), line: cssVar("--line"), ink: cssVar("--ink"), accent: cssVar("--accent") };
  }

  /** Paints the moment `time`. */
  paint(time) {
    this.time = time;
    const { fleet, cluster, layout, pixels, now } = this;
    occupancy(fleet, cluster, time, now);
    const { cell, left, top } = layout, side = cell > 3 ? cell - 1 : cell, stride = this.canvas.width;
    const byNode = this.mode === "nodes";
    for (let node = 0; node < cluster.gpus.length; node++) {
      for (let gpu = cluster.first[node]; gpu < cluster.first[node + 1]; gpu++) {
        const row = now.owner[gpu];
        let colour = this.idle;
        if (row >= 0) {
          const job = fleet.job[row];
          if (this.pick >= 0 && job !== this.pick) colour = this.faint[job];
          else colour = byNode && this.pick < 0 ? this.states[now.state[node]] : now.used[gpu] < 1000 ? this.light[job] : this.solid[job];
        }
        let at = top[gpu] * stride + left[gpu];
        for (let y = 0; y < side; y++, at += stride) pixels.fill(colour, at, at + side);
      }
    }
    this.context.putImageData(this.image, 0, 0);
    this.drawFabric();
    if (this.cursor) this.outline();
    this.caption.textContent =
      `${showCount(now.total / 1000)} of ${cluster.total.toLocaleString("en")} GPUs in use · ${now.broken.toLocaleString("en")} nodes partly allocated`;
  }

  /** Frames and names of the spines, names of the leaves; with a job picked, what it lies in. */
  drawFabric() {
    const { context, cluster, layout, ratio, words } = this;
    const span = this.pick >= 0 ? spanOf(this.fleet, cluster, this.pick, this.time) : null;
    const box = ({ x, y, wide, high }, grow = 0) =>
      context.strokeRect(x + 0.5 - grow, y + 0.5 - grow, wide - 1 + 2 * grow, high - 1 + 2 * grow);
    context.textBaseline = "top";
    for (const frame of layout.frames) {
      const own = span?.spines.has(cluster.groups[frame.groups[0]].spine);
      context.lineWidth = own ? 2 * ratio : 1;
      context.strokeStyle = own ? words.accent : words.line;
      box(frame);
      context.fillStyle = own ? words.accent : words.soft;
      context.font = `${own ? 700 : 500} ${11 * ratio}px system-ui, sans-serif`;
      const room = (frame.side || frame.wide) - 2 * Math.max(frame.pad, 3 * ratio);
      const down = frame.side ? (frame.high - 10 * ratio) / 2 : 5 * ratio;
      if (room > 20 * ratio) context.fillText(frame.name, frame.x + Math.max(frame.pad, 3 * ratio), frame.y + down, room);
    }
    cluster.groups.forEach((group, g) => {
      const place = layout.places[g], own = span?.leaves.has(cluster.group[group.nodes[0]]);
      if (layout.small && place.wide > 24 * ratio) {
        context.fillStyle = own ? words.accent : words.soft;
        context.font = `${own ? 700 : 400} ${10 * ratio}px system-ui, sans-serif`;
        context.fillText(group.name, place.x, place.y - 12 * ratio, place.wide);
      }
      if (own && layout.cell <= 3) {
        context.lineWidth = ratio;
        context.strokeStyle = words.accent;
        box(place, 1);
      }
    });
    if (!span || layout.cell <= 3) return;
    context.lineWidth = Math.max(2, ratio);
    context.strokeStyle = words.ink;
    for (const node of span.nodes.keys()) {
      const gpu = cluster.first[node], side = layout.cell;
      context.strokeRect(layout.left[gpu] - 1.5, layout.top[gpu] - 1.5, side + 1, side * cluster.gpus[node] + 1);
    }
  }

  /** A frame around the cell of the cursor. */
  outline() {
    const { cluster, layout, context } = this, gpu = cluster.first[this.cursor[0]] + this.cursor[1];
    context.strokeStyle = cssVar("--ink");
    context.lineWidth = Math.max(2, this.ratio);
    context.strokeRect(layout.left[gpu] - 1.5, layout.top[gpu] - 1.5, layout.cell + 2, layout.cell + 2);
  }

  /** What there is to say about one GPU at the moment shown. */
  describe(node, device, data) {
    const { fleet, cluster } = this, lines = [];
    const model = cluster.models[cluster.model[node]];
    lines.push(`${cluster.names[node]} · GPU ${device}${model ? ` · ${model}` : ""} · ${cluster.groupNames[cluster.group[node]]}`);
    const holders = [];
    atTime(fleet, this.time, (row) => {
      if (fleet.node[row] === node) eachDevice(fleet, row, (bit) => bit === device && holders.push(row));
    });
    if (!holders.length) lines.push("idle");
    for (const row of holders.slice(0, 4)) {
      const job = fleet.job[row], clock = (time) => showClock(data.begin + time * fleet.unit);
      const share = fleet.milli[row] < 1000 ? ` · ${fleet.milli[row] / 10}% of this GPU` : "";
      lines.push(
        `job ${fleet.ids[job]} · queue ${data.queues[fleet.queue[job]]} · ${showCount(fleet.gpus[job] / 1000)} GPU${fleet.gpus[job] > 1000 ? "s" : ""}${share}`,
        `${clock(fleet.start[row])} – ${clock(fleet.end[row])}`,
      );
    }
    if (holders.length > 4) lines.push(`and ${holders.length - 4} more jobs`);
    return lines.join("\n");
  }
}
