"use strict";
// Where each GPU is drawn: spines flow like words, the leaves of a spine within its frame; a node is a column of cells,
// a cell is a GPU.

const NODES_ACROSS = 32;
const SIDE = 92; // pixels for the name of a spine that stands before its leaves
const MOST_LEAF_NAMES = 96; // with more leaves only the spines are named

/** The nodes of a cluster, and the groups in which they are drawn. Nodes without GPUs are left out. */
async function readCluster(packed) {
  const gpus = await unpackInt(packed.gpus);
  const group = await unpackInt(packed.group);
  const names = await unpackNames(packed.groups);
  const spine = await unpackInt(packed.spine);
  const members = names.map(() => []);
  for (let node = 0; node < gpus.length; node++) if (gpus[node]) members[group[node]].push(node);
  const first = new Int32Array(gpus.length + 1); // the number of a node's first GPU
  for (let node = 0; node < gpus.length; node++) first[node + 1] = first[node] + gpus[node];
  const groups = names
    .map((name, i) => ({ name, nodes: members[i], spine: spine[i] }))
    .filter((one) => one.nodes.length)
    .map((one) => ({
      ...one,
      across: Math.min(NODES_ACROSS, one.nodes.length),
      rows: Math.ceil(one.nodes.length / NODES_ACROSS),
      tall: one.nodes.reduce((most, node) => Math.max(most, gpus[node]), 0),
    }));
  const spines = (await unpackNames(packed.spines)).map((name) => ({ name, groups: [] }));
  groups.forEach((one, i) => spines[one.spine].groups.push(i));
  return {
    spineOf: spine, spineNames: spines.map(({ name }) => name), spines: spines.filter((one) => one.groups.length),
    gpus, first, groups, group, total: first[gpus.length],
    names: await unpackNames(packed.names), groupNames: names,
    model: await unpackInt(packed.model), models: packed.models,
  };
}

/** Places the leaves of every spine, and the spines, like words in lines of `width`; `gap` parts them. */
function flow(cluster, width, cell, gap, ratio) {
  const small = cluster.groups.length <= MOST_LEAF_NAMES && cell >= 5 * ratio ? Math.round(13 * ratio) : 0;
  const places = new Array(cluster.groups.length), frames = [];
  const beside = cell <= 2; // where lines are low, the name of a spine stands before them
  const outer = lines(width, gap);
  for (const spine of cluster.spines) {
    const pad = spine.name ? Math.min(gap, Math.round(8 * ratio)) : 0, head = spine.name && !beside ? Math.round(16 * ratio) : 0;
    const side = spine.name && beside ? Math.round(SIDE * ratio) : 0;
    const inner = lines(width - 2 * pad - side, gap);
    const own = spine.groups.map((g) => {
      const group = cluster.groups[g], wide = group.across * cell;
      const high = small + group.rows * (group.tall * cell + gap) - gap;
      return { g, wide, high: high - small, ...inner.put(wide, high) };
    });
    const wide = inner.wide() + 2 * pad + side;
    const high = Math.max(inner.high() + head + 2 * pad, side ? Math.round(14 * ratio) : 0);
    const at = outer.put(wide, high);
    for (const { g, x, y, ...size } of own) places[g] = { x: at.x + pad + side + x, y: at.y + head + pad + y + small, ...size };
    if (spine.name) frames.push({ ...at, wide, high, pad, side, name: spine.name, groups: spine.groups });
  }
  return { places, frames, small, cell, gap, width: outer.wide(), height: outer.high() };
}

/** Boxes put one after the other into lines of `width`, like words. */
function lines(width, gap) {
  let x = 0, y = 0, line = 0, widest = 0;
  return {
    put(wide, high) {
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

/** The largest cells with which the whole cluster fits. Cells of one or two pixels may grow past `height`. */
function fit(cluster, width, height, ratio) {
  for (let cell = 26; cell > 1; cell--) {
    const found = flow(cluster, width, cell, gapOf(cell), ratio);
    const limit = cell > 2 ? height : 2 * height;
    if (found.width <= width && found.height <= limit) return corners(cluster, found);
  }
  return corners(cluster, flow(cluster, width, 1, gapOf(1), ratio));
}

const gapOf = (cell) => Math.max(2, cell + 1);

/** Adds the corner of every GPU's cell, by number of the GPU. */
function corners(cluster, layout) {
  const { cell, gap } = layout;
  const left = new Int32Array(cluster.total), top = new Int32Array(cluster.total);
  cluster.groups.forEach((group, g) => {
    const place = layout.places[g];
    group.nodes.forEach((node, i) => {
      const x = place.x + (i % group.across) * cell;
      const y = place.y + Math.floor(i / group.across) * (group.tall * cell + gap);
      for (let gpu = 0; gpu < cluster.gpus[node]; gpu++) {
        left[cluster.first[node] + gpu] = x;
        top[cluster.first[node] + gpu] = y + gpu * cell;
      }
    });
  });
  return { ...layout, left, top };
}

/** The [node, index of the GPU] whose cell is at a point, or null. */
function hit(cluster, layout, x, y) {
  for (let g = 0; g < cluster.groups.length; g++) {
    const place = layout.places[g], group = cluster.groups[g];
    if (x < place.x || y < place.y || x >= place.x + place.wide || y >= place.y + place.high) continue;
    const pitch = group.tall * layout.cell + layout.gap;
    const row = Math.floor((y - place.y) / pitch);
    const gpu = Math.floor((y - place.y - row * pitch) / layout.cell);
    const node = group.nodes[row * group.across + Math.floor((x - place.x) / layout.cell)];
    return node !== undefined && gpu < cluster.gpus[node] ? [node, gpu] : null;
  }
  return null;
}
