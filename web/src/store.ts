// A thing that changes and that views watch; what the whole page shares.

import { createContext, useContext, useSyncExternalStore } from "react";
import type { Report } from "./data/report";
import type { LiveSummary } from "./data/live";
import type { Run } from "./data/model";
import { Clock } from "./time/clock";

/** Keeps a text for the next visit; a page that is a file may not be allowed to. */
export function remember(key: string, text: string): void {
  try {
    localStorage.setItem(key, text);
  } catch {
    // then it is forgotten
  }
}

/** What was kept under `key`; null: nothing. */
export function remembered(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** Something that views watch: call `changed` after each change. */
export class Store {
  version = 0;
  private readonly watchers = new Set<() => void>();

  readonly subscribe = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => void this.watchers.delete(watcher);
  };

  changed(): void {
    this.version++;
    for (const watcher of this.watchers) watcher();
  }
}

/** Renders the component again after each change of `store`; gives its version. */
export function useStore(store: Store): number {
  return useSyncExternalStore(store.subscribe, () => store.version);
}

/** Where the runs come from: a report's own data, or a live Kant. */
export class Source extends Store {
  runs: Run[] = [];
  report: Report | null = null; // the numbers of a report; a live Kant has none
  summary: LiveSummary | null = null; // the metrics so far of a live Kant
  live = false;
  signs = false; // whether its caller may sign in with a token of the cluster, and need not
  user = ""; // who a live Kant takes its caller for
  role = ""; // and the role that it has
  own: string[] = []; // its queues, if it is a tenant of some
  home = ""; // the home folder of the user as whom its jobs run
  may: string[] = []; // what a live Kant lets its caller ask and order, by the names of its routes
  ready = false;
  trouble = ""; // what is wrong with the connection, for the person at the page
  stranger = false; // whether a live Kant wants a token that it knows
  enter = (): void => undefined; // asks again at once
}

/** What is chosen on the page: the tab, the picked job, the colours. */
export class Choice extends Store {
  tab = "";
  job = ""; // the id of the picked job; "": none
  colour = "size";

  set(change: Partial<Pick<Choice, "tab" | "job" | "colour">>): void {
    Object.assign(this, change);
    this.changed();
  }
}

export interface Page {
  source: Source;
  clock: Clock;
  choice: Choice;
}

export const PageContext = createContext<Page | null>(null);

/** The stores of the page. */
export function usePage(): Page {
  const page = useContext(PageContext);
  if (!page) throw new Error("a view outside of the page");
  return page;
}

/** A view behind a tab. A tab of a live Kant with the id of another stands in its place. */
export interface Tab {
  id: string;
  title: string;
  view: () => React.ReactNode;
  /** Whether the tab is there now; without it, always. */
  shown?: (page: Page) => boolean;
}
