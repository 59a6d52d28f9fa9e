"use strict";
// The controls of the map: one slider for both sides, play and pause, colours, choice of runs, pointer and keys.

const FULL_RUN = 30; // seconds of play at speed 1
const STEPS = 2000; // positions of the slider where the map is not sampled

/** The moment (in units of the map) that each position of the slider shows. `fleet.py` samples the same frames. */
function moments({ frames, length }) {
  const count = frames || STEPS + 1;
  return Array.from({ length: count }, (_, i) =>
    frames ? Math.floor(((2 * i + 1) * length) / (2 * frames)) : Math.max(0, Math.min(length - 1, Math.floor((i * length) / STEPS))));
}

/** Puts the maps of the runs on the page; resolves when the first frame is painted. */
async function drawFleet(data) {
  const { fleet } = data, unit = fleet.unit_us / 1e6;
  const clusters = await Promise.all(data.clusters.map(readCluster));
  const fleets = await Promise.all(fleet.runs.map((packed) => readFleet(packed, unit)));
  const times = moments(fleet), slider = byId("when"), colour = byId("colour");
  slider.max = times.length - 1;
  slider.value = Math.floor(times.length / 2);
  sayHowComplete(fleet);

  const panels = Array.from({ length: Math.min(2, data.runs.length) }, (_, side) => addPanel(side, data));
  const show = (panel, run) => {
    panel.map.show(fleets[run], clusters[data.runs[run].cluster]);
    panel.head.className = `run r${run % 6}`;
  };
  let exact = null; // a moment between two positions of the slider, at which a picked job starts
  const now = () => exact ?? times[+slider.value];
  const paint = () => {
    const time = now();
    const words = showClock(data.begin + time * unit);
    byId("clock").textContent = words;
    slider.setAttribute("aria-valuetext", words);
    for (const { map } of panels) map.paint(time);
    picker.tell();
  };
  const move = (time) => {
    const next = times.findIndex((each) => each >= time);
    slider.value = next < 0 ? times.length - 1 : next;
    exact = fleet.frames ? null : time;
    paint();
  };
  const picker = addPicker(panels, data, { now, show: move, paint });
  const place = (panel) => panel.map.resize(panel.place.clientWidth, 640);
  const dress = () => {
    for (const { map } of panels) map.dress(colour.value);
    byId("legend").replaceChildren(...legendOf(colour.value, data).map(([hue, words]) => {
      const key = el("span", { class: "key" }, ...(hue ? [el("i")] : []), words);
      if (hue) key.style.setProperty("--c", hue);
      return key;
    }));
  };

  panels.forEach((panel, side) => {
    show(panel, side);
    place(panel);
    panel.select?.addEventListener("change", () => {
      show(panel, +panel.select.value);
      place(panel);
      dress();
      picker.pick(byId("job").value.trim());
    });
    onWidth(panel.place, () => { place(panel); paint(); });
    point(panel, data, paint, picker.pick);
  });
  colour.addEventListener("change", () => { dress(); paint(); });
  const slide = () => { exact = null; paint(); };
  slider.addEventListener("input", slide);
  addPlayer(slider, slide);
  onTheme.push(() => { dress(); paint(); });
  dress();
  paint();
}

/** Says whether every interval is in the page, or how the map was sampled. */
function sayHowComplete({ frames, kept, total }) {
  const count = (n) => n.toLocaleString("en");
  byId("map-hint").textContent = (frames
    ? `Sampled to keep this file small: ${count(frames)} moments equally far apart, with the ${count(kept)} of ${count(total)} intervals in force at one of them. The charts and the numbers above are complete.`
    : `All ${count(total)} intervals are shown.`)
    + " A column is a node, a cell one of its GPUs, a block a leaf group. Nodes out of service show as idle. Frames are spines. Click a GPU, or give an id, to pick out its job. Arrow keys move the slider, or the cursor when a map has the focus, where Enter picks; space plays.";
}

/** A heading and a canvas; with more than two runs, a choice of which to show. */
function addPanel(side, data) {
  const caption = el("small"), canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": `GPU map ${side + 1}: arrow keys move over the GPUs` });
  const head = el("span", { class: "run" });
  let select = null;
  if (data.runs.length > 2) {
    select = el("select", { "aria-label": `Run on side ${side + 1}` }, ...data.runs.map((run, i) => el("option", { value: i }, run.label)));
    select.value = side;
    head.append(select);
  } else head.append(data.runs[side].label);
  const place = el("div", {}, canvas), span = el("p", { class: "span", "aria-live": "polite" });
  byId("panels").append(el("div", { class: "panel" }, el("h3", {}, head, caption), place, span));
  return { map: new FleetMap(canvas, caption), place, select, head, span };
}

/** Lets the pointer or the arrow keys choose a GPU, tells about it, and picks its job on a click or Enter. */
function point({ map }, data, paint, pick) {
  const { canvas } = map;
  const holder = () => {
    const row = map.cursor ? map.now.owner[map.cluster.first[map.cursor[0]] + map.cursor[1]] : -1;
    const id = row >= 0 ? map.fleet.ids[map.fleet.job[row]] : "";
    pick(id === byId("job").value ? "" : id);
  };
  canvas.addEventListener("click", holder);
  const choose = (found) => {
    map.cursor = found;
    paint();
    if (!found) return hideTip();
    const box = canvas.getBoundingClientRect(), gpu = map.cluster.first[found[0]] + found[1];
    showTip(map.describe(...found, data), box.left + map.layout.left[gpu] / map.ratio, box.top + (map.layout.top[gpu] + map.layout.cell) / map.ratio);
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = hit(map.cluster, map.layout, event.offsetX * map.ratio, event.offsetY * map.ratio);
    if (String(found) !== String(map.cursor)) choose(found);
  });
  canvas.addEventListener("pointerleave", () => choose(null));
  canvas.addEventListener("blur", () => choose(null));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const order = map.cluster.groups.flatMap((group) => group.nodes);
    if (event.key === "Escape") {
      choose(null);
      return pick("");
    }
    if (event.key === "Enter") return holder();
    if (!move || !order.length) return;
    event.preventDefault();
    const [node, gpu] = map.cursor ?? [order[0], 0];
    const next = order[Math.max(0, Math.min(order.length - 1, order.indexOf(node) + move[0]))];
    choose([next, Math.max(0, Math.min(map.cluster.gpus[next] - 1, gpu + move[1]))]);
  });
}

/** Shows `text` below and right of a point of the window, or wherever there is room. */
function showTip(text, x, y) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 14 + tip.offsetHeight > innerHeight ? Math.max(4, y - tip.offsetHeight - 24) : y + 14}px`;
}

const hideTip = () => { byId("tip").hidden = true; };

/** Play and pause, with the button or the space bar. */
function addPlayer(slider, paint) {
  const button = byId("play");
  let playing = false, last = 0, at = 0;
  const step = (now) => {
    if (!playing) return;
    at += ((now - last) / 1000 / FULL_RUN) * +byId("speed").value * +slider.max;
    last = now;
    if (Math.floor(at) !== +slider.value) {
      slider.value = Math.min(at, +slider.max);
      paint();
    }
    if (at >= +slider.max) return toggle();
    requestAnimationFrame(step);
  };
  const toggle = () => {
    playing = !playing;
    button.textContent = playing ? "❚❚ Pause" : "▶ Play";
    button.setAttribute("aria-pressed", playing);
    if (!playing) return;
    at = +slider.value >= +slider.max ? 0 : +slider.value;
    last = performance.now();
    requestAnimationFrame(step);
  };
  button.addEventListener("click", toggle);
  slider.addEventListener("input", () => { at = +slider.value; });
  byId("fleet").addEventListener("keydown", (event) => {
    if (event.key !== " " || ["BUTTON", "SELECT"].includes(event.target.tagName) || event.target.type === "search") return;
    event.preventDefault();
    toggle();
  });
}
