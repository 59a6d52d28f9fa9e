"use strict";
// Reads the columns that pack.py wrote, builds elements without any HTML text, and shows numbers to people.

/** The bytes behind base64 text of a deflate stream. */
async function inflate(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** One column of integers. */
async function unpack(blob) {
  const planes = await inflate(blob.data);
  const n = blob.n;
  const out = new Float64Array(n);
  for (let plane = 0, unit = 1; plane < blob.bytes; plane++, unit *= 256) {
    for (let i = 0, at = plane * n; i < n; i++, at++) out[i] += planes[at] * unit;
  }
  if (blob.zigzag) for (let i = 0; i < n; i++) out[i] = out[i] % 2 ? -(out[i] + 1) / 2 : out[i] / 2;
  if (blob.delta) for (let i = 1; i < n; i++) out[i] += out[i - 1];
  return out;
}

/** One column of integers below 2**31, in half the memory. */
const unpackInt = async (blob) => Int32Array.from(await unpack(blob));

/** A list of strings. */
const unpackNames = async (blob) => JSON.parse(new TextDecoder().decode(await inflate(blob.data)));

/** Calls `react` when the width of `place` has changed, in the next frame so that it may change the layout. */
function onWidth(place, react) {
  let width = place.clientWidth;
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (!place.clientWidth || place.clientWidth === width) return;
    width = place.clientWidth;
    react(width);
  })).observe(place);
}

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; text is always text, never markup. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The value of a CSS variable in the theme of the moment. */
const cssVar = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const runColour = (index) => cssVar(`--r${index % 6}`);

/** Seconds as two significant parts, such as `1d 4h`. */
function showTime(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0) return "−" + showTime(-seconds);
  if (seconds < 60) return `${+seconds.toPrecision(3)}s`;
  const parts = [];
  let rest = Math.round(seconds);
  for (const [name, unit] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    if (rest >= unit || parts.length) {
      parts.push([Math.floor(rest / unit), name]);
      rest %= unit;
    }
    if (parts.length === 2) break;
  }
  return parts.filter(([count], i) => i === 0 || count).map(([count, name]) => count + name).join(" ");
}

/** Seconds as a reading of a clock, such as `3d 04:05:06`. */
function showClock(seconds) {
  const whole = Math.floor(seconds);
  const two = (value) => String(value).padStart(2, "0");
  const day = Math.floor(whole / 86400);
  const clock = `${two(Math.floor(whole / 3600) % 24)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return day ? `${day}d ${clock}` : clock;
}

const showShare = (value) => (value == null ? "–" : `${(value * 100).toFixed(2)}%`);
const showCount = (value) =>
  value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 2 : 0 });
