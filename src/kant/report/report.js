"use strict";
// Starts the page: theme first, then the pictures one after the other. `data-ready` on <html> says that all are there.

const onTheme = []; // called after each change of the theme
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Remembers the choice of theme where the browser lets a file do so. */
const memory = {
  get: () => { try { return localStorage.getItem("kant-theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("kant-theme", value); } catch { /* a file may not be allowed to */ } },
};

let theme = memory.get() ?? "auto";

function applyTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  byId("theme").textContent = `Theme: ${theme}`;
  for (const chart of charts) chart.redraw(false, true);
  for (const react of onTheme) react();
}

let errors = 0;
/** Says on the page what went wrong, so that a broken picture is never taken for an empty one. */
function complain(reason) {
  document.documentElement.dataset.errors = ++errors;
  const place = byId("trouble");
  place.hidden = false;
  place.textContent = `Part of this page could not be drawn: ${reason?.message ?? reason}. The numbers in the tables are complete.`;
  console.error(reason);
}

async function start() {
  document.documentElement.dataset.errors = 0;
  addEventListener("error", (event) => complain(event.error ?? event.message));
  addEventListener("unhandledrejection", (event) => complain(event.reason));
  applyTheme();
  dark.addEventListener("change", applyTheme);
  byId("theme").addEventListener("click", () => {
    theme = { auto: "light", light: "dark", dark: "auto" }[theme] ?? "auto";
    memory.set(theme);
    applyTheme();
  });
  if (typeof DecompressionStream === "undefined") {
    return complain("this browser cannot decompress data; Chrome 80, Firefox 113, Safari 16.4 or newer can");
  }
  const data = JSON.parse(byId("kant-data").textContent);
  for (const draw of [drawSeries, drawWaits, drawFleet]) {
    try {
      await draw(data);
    } catch (reason) {
      complain(reason);
    }
  }
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoomTime(button.dataset.zoom, data));
  }
  document.documentElement.dataset.ready = "true";
}

start();
