"use strict";
// Where each GPU is drawn: groups of nodes flow like words, a node is a column of cells, a cell is a GPU.

const NODES_ACROSS = 32;

/** The nodes of a cluster, and the groups in which they are drawn. Nodes without GPUs are left out. */
async function readCluster(packed) {
  const gpus = await unpackInt(packed.gpus);
  const group = await unpackInt(packed.group);
  const names = await unpackNames(packed.groups);
  const members = names.map(() => []);
  for (let node = 0; node < gpus.length; node++) if (gpus[node]) members[group[node]].push(node);
  const first = new Int32Array(gpus.length + 1); // the number of a node's first GPU
  for (let node = 0; node < gpus.length; node++) first[node + 1] = first[node] + gpus[node];
  const groups = names
    .map((name, i) => ({ name, nodes: members[i] }))
    .filter((one) => one.nodes.length)
    .map((one) => ({
      ...one,
      across: Math.min(NODES_ACROSS, one.nodes.length),
      rows: Math.ceil(one.nodes.length / NODES_ACROSS),
      tall: one.nodes.reduce((most, node) => Math.max(most, gpus[node]), 0),
    }));
  return {
    gpus, first, groups, group, total: first[gpus.length],
    names: await unpackNames(packed.names), groupNames: names,
    model: await unpackInt(packed.model), models: packed.models,
  };
}

/** Places every group for cells of `cell` device pixels within `width`; `gap` parts groups. */
function flow(cluster, width, cell, gap) {
  let x = 0, y = 0, line = 0, widest = 0;
  const places = [];
  for (const group of cluster.groups) {
    const wide = group.across * cell;
    const high = group.rows * (group.tall * cell + gap) - gap;
    if (x && x + wide > width) {
      x = 0;
      y += line + gap;
      line = 0;
    }
    places.push({ x, y, wide, high });
    x += wide + gap;
    widest = Math.max(widest, x - gap);
    line = Math.max(line, high);
  }
  return { places, cell, gap, width: widest, height: y + line };
}

/** The largest cells with which the whole cluster fits. Cells of one or two pixels may grow past `height`. */
function fit(cluster, width, height) {
  for (let cell = 26; cell > 1; cell--) {
    const found = flow(cluster, width, cell, gapOf(cell));
    const limit = cell > 2 ? height : 2 * height;
    if (found.width <= width && found.height <= limit) return corners(cluster, found);
  }
  return corners(cluster, flow(cluster, width, 1, gapOf(1)));
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
