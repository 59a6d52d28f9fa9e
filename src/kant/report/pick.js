"use strict";
// One job picked out: where it lies in the fabric, in words and on the maps; found by a click, by its id, or in turn.

/** Where a job lies at a moment: milli-GPUs by node, nodes by leaf, and the spines, all by index. */
function spanOf(fleet, cluster, job, time) {
  const nodes = new Map(), leaves = new Map(), spines = new Set();
  atTime(fleet, time, (row) => {
    if (fleet.job[row] !== job) return;
    const node = fleet.node[row], leaf = cluster.group[node];
    if (!nodes.has(node)) leaves.set(leaf, (leaves.get(leaf) ?? 0) + 1);
    let devices = 0;
    eachDevice(fleet, row, () => devices++);
    nodes.set(node, (nodes.get(node) ?? 0) + devices * fleet.milli[row]);
    spines.add(cluster.spineOf[leaf]);
  });
  return { nodes, leaves, spines };
}

const counted = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** A count beside the fewest there could be. */
function ofFewest(count, fewest, one, many) {
  const words = counted(count, one, many);
  return fewest > 0 ? `${words} (${count <= fewest ? "the fewest possible" : `fewest possible: ${fewest}`})` : words;
}

/** What to say of the picked job on one map, as lines. */
function spanWords(map, data) {
  const { fleet, cluster, pick } = map;
  if (pick < 0) return ["not in this run, or not at a moment that the map keeps"];
  const clock = (time) => showClock(data.begin + time * fleet.unit);
  const gpus = fleet.gpus[pick] / 1000;
  const lines = [`queue ${data.queues[fleet.queue[pick]] || "(no name)"} · ${counted(+gpus.toFixed(3), "GPU", "GPUs")}`];
  const span = spanOf(fleet, cluster, pick, map.time);
  if (!span.nodes.size) {
    const rows = rowsOf(fleet, pick);
    return [...lines, `it does not run at this moment; it runs ${clock(fleet.start[rows[0]])} – ${clock(Math.max(...rows.map((row) => fleet.end[row])))}`];
  }
  const fewest = fleet.fewest?.map((column) => column[pick]) ?? [0, 0];
  const parts = [ofFewest(span.nodes.size, fewest[0], "node", "nodes"), ofFewest(span.leaves.size, fewest[1], "leaf", "leaves")];
  if (cluster.spineNames.some(Boolean)) parts.push(counted(span.spines.size, "spine", "spines"));
  lines.push(parts.join(" · "));
  const most = [...span.leaves].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 6);
  const named = most.map(([leaf, count]) => `${cluster.groupNames[leaf]}: ${counted(count, "node", "nodes")}`);
  const more = span.leaves.size - most.length;
  lines.push(named.join(", ") + (more > 0 ? ` and ${counted(more, "leaf", "leaves")} more` : ""));
  return lines;
}

/** The intervals of a job, in order of start. */
function rowsOf(fleet, job) {
  const rows = [];
  for (let row = 0; row < fleet.job.length; row++) if (fleet.job[row] === job) rows.push(row);
  return rows;
}

/** The jobs that run at a moment, those over the most leaves more than they need first, then the widest and largest. */
function mostSpread(fleet, cluster, time) {
  const leaves = new Map();
  atTime(fleet, time, (row) => {
    const job = fleet.job[row];
    if (!leaves.has(job)) leaves.set(job, new Set());
    leaves.get(job).add(cluster.group[fleet.node[row]]);
  });
  const extra = (job) => leaves.get(job).size - (fleet.fewest?.[1][job] || 1);
  return [...leaves.keys()].sort((a, b) =>
    extra(b) - extra(a) || leaves.get(b).size - leaves.get(a).size || fleet.gpus[b] - fleet.gpus[a] || a - b);
}

/** Lets people pick a job. `show(time)` moves all maps to a moment, `paint` shows them anew. */
function addPicker(panels, data, { now, show, paint }) {
  const field = byId("job"), said = byId("job-hint");
  let turn = 0;
  const tell = () => {
    const id = field.value.trim();
    for (const panel of panels) panel.span.textContent = id && panel.map.picked ? spanWords(panel.map, data).join("\n") : "";
  };
  const pick = (id) => {
    field.value = id;
    const all = panels.map(({ map }) => {
      map.picked = id !== "";
      map.pick = id === "" ? -1 : map.fleet.ids.indexOf(id);
      return map.pick;
    });
    const none = id !== "" && all.every((job) => job < 0);
    said.textContent = none ? `There is no job ${id} in the map.` : "";
    if (none) for (const { map } of panels) map.picked = false;
    const side = all.findIndex((job) => job >= 0);
    if (side >= 0 && !panels.some(({ map }) => map.pick >= 0 && spanOf(map.fleet, map.cluster, map.pick, now()).nodes.size)) {
      const { map } = panels[side];
      return show(map.fleet.start[rowsOf(map.fleet, map.pick)[0]]);
    }
    paint();
  };
  field.addEventListener("change", () => { turn = 0; pick(field.value.trim()); });
  field.addEventListener("search", () => pick(field.value.trim()));
  byId("spread").addEventListener("click", () => {
    const { map } = panels[0], jobs = mostSpread(map.fleet, map.cluster, now());
    if (!jobs.length) return (said.textContent = "No job runs at this moment.");
    const at = jobs.indexOf(map.pick);
    turn = at >= 0 ? (at + 1) % jobs.length : 0;
    pick(map.fleet.ids[jobs[turn]]);
  });
  return { pick, tell };
}
