// The views of every run, simulated or live.

import { MapView } from "../map/view";
import type { Tab } from "../store";
import { JobsView } from "./jobs";
import { Overview } from "./overview";
import { QueuesView } from "./queues";

export const reportTabs: Tab[] = [
  { id: "overview", title: "Overview", view: Overview },
  { id: "map", title: "Map", view: MapView },
  { id: "jobs", title: "Jobs", view: JobsView },
  { id: "queues", title: "Queues", view: QueuesView },
];
