// Starts the page: finds out whether it is a report with its data inside or the page of a live Kant.

import { createRoot } from "react-dom/client";
import { App } from "./app";
import { takeToken } from "./data/api";
import { openReport } from "./data/embedded";
import { openLive, take } from "./data/live";
import { Run } from "./data/model";
import type { Report } from "./data/report";
import { Occupancy } from "./map/occupancy";
import { Choice, PageContext, Source } from "./store";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { startTheme } from "./theme";
import { Clock } from "./time/clock";

const root = document.documentElement;
const source = new Source();
const clock = new Clock();
const choice = new Choice();

/** Says on the page what went wrong, so that a broken picture is never taken for an empty one. */
function complain(reason: unknown): void {
  root.dataset.errors = String(Number(root.dataset.errors) + 1);
  source.trouble = `Part of this page could not be drawn: ${reason instanceof Error ? reason.message : String(reason)}.`;
  source.changed();
  console.error(reason);
}

// What the tests of the index drive (tests/report/test_live_index.py): a run, what adds to it, and a run at a moment.
Object.assign(globalThis, { kantPage: { Run, take, Occupancy } });

root.dataset.errors = "0";
addEventListener("error", (event) => complain(event.error ?? event.message));
addEventListener("unhandledrejection", (event) => complain(event.reason));

takeToken();
startTheme();
const data = JSON.parse(document.getElementById("kant-data")!.textContent!) as Report | { live: true };
createRoot(document.getElementById("root")!, { onUncaughtError: complain }).render(
  <PageContext value={{ source, clock, choice }}>
    <App />
  </PageContext>,
);
if ("live" in data) void openLive(source, clock);
else openReport(source, clock, data).catch(complain);
