// The views that only a live Kant has. A tab here with the id of one of app.tsx stands in its place.

import type { Tab } from "../store";
import { LiveJobs } from "./jobs";
import { Operations } from "./operations";
import { LiveQueues } from "./queues";
import { LiveOverview } from "./summary";
import "./live.css";

export const liveTabs: Tab[] = [
  { id: "overview", title: "Overview", view: LiveOverview },
  { id: "jobs", title: "Jobs", view: LiveJobs },
  { id: "queues", title: "Queues", view: LiveQueues },
  { id: "plans", title: "Plans", view: Operations, shown: ({ source }) => source.may.includes("operations") },
];
