// Where each GPU is drawn: spines flow like words, the leaves of a spine within its frame; a node is a column of cells,
// a cell is a GPU.

import type { Cluster } from "../data/model";

const NODES_ACROSS = 32;
const SIDE = 92; // pixels for the name of a spine that stands before its leaves
const MOST_LEAF_NAMES = 96; // with more leaves only the spines are named
const LARGEST = 110; // pixels of a cell
const WIDEST = 4; // times as wide as high a cell may be

interface Box {
  x: number;
  y: number;
  wide: number;
  high: number;
}

/** A leaf: its box, and how its nodes stand in it. */
export interface Block extends Box {
  name: string;
  group: number;
  nodes: number[];
  across: number;
  tall: number;
}

export interface Frame extends Box {
  name: string;
  spine: number;
  pad: number;
  side: number;
}

export interface Layout {
  cell: number; // how high a cell is
  wide: number; // and how wide: where there is room more than that, for names
  gap: number;
  named: boolean; // whether leaves have room for their names
  width: number;
  height: number;
  blocks: Block[];
  frames: Frame[];
  left: Int32Array; // of each GPU
  top: Int32Array;
}

/** The largest cells with which the whole cluster fits. Cells of one or two pixels may grow past `height`. */
export function fit(cluster: Cluster, width: number, height: number, ratio: number): Layout {
  for (let cell = Math.round(LARGEST * ratio); cell > 1; cell--) {
    const found = flow(cluster, width, cell, cell, ratio);
    if (found.width > width || found.height > (cell > 2 ? height : 2 * height)) continue;
    return corners(cluster, cell > 12 * ratio ? widened(cluster, found, width, ratio) : found);
  }
  return corners(cluster, flow(cluster, width, 1, 1, ratio));
}

type Flow = Omit<Layout, "left" | "top">;

/** The widest cells with which the lines stay as they are. */
function widened(cluster: Cluster, found: Flow, width: number, ratio: number): Flow {
  for (let wide = WIDEST * found.cell; wide > found.cell; wide--) {
    const wider = flow(cluster, width, found.cell, wide, ratio);
    if (wider.width <= width && wider.height <= found.height) return wider;
  }
  return found;
}

/** Places the leaves of every spine, and the spines, like words in lines of `width`. */
function flow(cluster: Cluster, width: number, cell: number, broad: number, ratio: number): Flow {
  const gap = Math.max(2, Math.min(cell + 1, Math.round(12 * ratio)));
  const named = cluster.groups.length <= MOST_LEAF_NAMES && cell >= 5 * ratio;
  const small = named ? Math.round(14 * ratio) : 0;
  const beside = cell <= 2; // where lines are low, the name of a spine stands before them
  const blocks: Block[] = [];
  const frames: Frame[] = [];
  const outer = lines(width, gap);
  for (const [spine, name] of cluster.spines.entries()) {
    const own = cluster.groups.flatMap((group, g) => {
      const nodes = group.spine === spine ? group.nodes.filter((node) => cluster.gpus[node]! > 0) : [];
      return nodes.length ? [{ g, name: group.name, nodes }] : [];
    });
    if (!own.length) continue;
    const pad = name ? Math.min(gap, Math.round(8 * ratio)) : 0;
    const head = name && !beside ? Math.round(17 * ratio) : 0;
    const side = name && beside ? Math.round(SIDE * ratio) : 0;
    const inner = lines(width - 2 * pad - side, gap);
    const placed = own.map(({ g, name, nodes }) => {
      const across = Math.min(NODES_ACROSS, nodes.length);
      const tall = nodes.reduce((most, node) => Math.max(most, cluster.gpus[node]!), 0);
      const wide = across * broad;
      const high = Math.ceil(nodes.length / NODES_ACROSS) * (tall * cell + gap) - gap;
      return { name, group: g, nodes, across, tall, wide, high, ...inner.put(wide, high + small) };
    });
    const wide = inner.wide() + 2 * pad + side;
    const high = Math.max(inner.high() + head + 2 * pad, side ? Math.round(14 * ratio) : 0);
    const at = outer.put(wide, high);
    for (const block of placed) {
      blocks.push({ ...block, x: at.x + pad + side + block.x, y: at.y + head + pad + block.y + small });
    }
    if (name) frames.push({ ...at, wide, high, pad, side, name, spine });
  }
  return { cell, wide: broad, gap, named, width: outer.wide(), height: outer.high(), blocks, frames };
}

/** Boxes put one after the other into lines of `width`, like words. */
function lines(width: number, gap: number) {
  let x = 0;
  let y = 0;
  let line = 0;
  let widest = 0;
  return {
    put(wide: number, high: number) {
      if (x && x + wide > width) {
        x = 0;
        y += line + gap;
        line = 0;
      }
      const at = { x, y };
      x += wide + gap;
      widest = Math.max(widest, x - gap);
      line = Math.max(line, high);
      return at;
    },
    wide: () => widest,
    high: () => y + line,
  };
}

/** Adds the corner of every GPU's cell, by number of the GPU. */
function corners(cluster: Cluster, layout: Flow): Layout {
  const { cell, wide, gap } = layout;
  const left = new Int32Array(cluster.total);
  const top = new Int32Array(cluster.total);
  for (const block of layout.blocks) {
    block.nodes.forEach((node, i) => {
      const x = block.x + (i % block.across) * wide;
      const y = block.y + Math.floor(i / block.across) * (block.tall * cell + gap);
      for (let gpu = cluster.first[node]!, down = 0; gpu < cluster.first[node + 1]!; gpu++, down++) {
        left[gpu] = x;
        top[gpu] = y + down * cell;
      }
    });
  }
  return { ...layout, left, top };
}

/** The number of the GPU whose cell is at a point, or -1. */
export function hit(cluster: Cluster, layout: Layout, x: number, y: number): number {
  for (const block of layout.blocks) {
    if (x < block.x || y < block.y || x >= block.x + block.wide || y >= block.y + block.high) continue;
    const pitch = block.tall * layout.cell + layout.gap;
    const row = Math.floor((y - block.y) / pitch);
    const device = Math.floor((y - block.y - row * pitch) / layout.cell);
    const node = block.nodes[row * block.across + Math.floor((x - block.x) / layout.wide)];
    return node !== undefined && device < cluster.gpus[node]! ? cluster.first[node]! + device : -1;
  }
  return -1;
}
