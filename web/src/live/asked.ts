// An answer that is kept fresh: asked again when the run has changed, and after a while.

import { useEffect, useRef, useState } from "react";
import { ask } from "../data/api";
import { usePage, useStore } from "../store";

export interface Asked<T> {
  value: T | null;
  trouble: string;
  /** Ask again now. */
  again: () => void;
}

interface Known<T> {
  path: string | null;
  value: T | null;
  trouble: string;
}

/** Asks `path` (null: nothing) now, after each change of the run and every `every` milliseconds; one question at a time. */
export function useAsked<T>(path: string | null, every = 5000): Asked<T> {
  const { source } = usePage();
  const version = useStore(source);
  const [known, setKnown] = useState<Known<T>>({ path, value: null, trouble: "" });
  const wake = useRef((): void => undefined);
  useEffect(() => wake.current(), [version]);
  useEffect(() => {
    if (path === null) return;
    const gone = new AbortController();
    void keep<T>(path, every, gone.signal, wake, (value, trouble) =>
      setKnown((old) => ({ path, value: value ?? (old.path === path ? old.value : null), trouble })),
    );
    return () => gone.abort();
  }, [path, every]);
  const own = known.path === path;
  return { value: own ? known.value : null, trouble: own ? known.trouble : "", again: () => wake.current() };
}

/** Asks until `signal` aborts. A lost connection is said by the page as a whole, and not here. */
async function keep<T>(
  path: string, every: number, signal: AbortSignal, wake: { current: () => void }, heard: (value: T | null, trouble: string) => void,
): Promise<void> {
  let news = false;
  let go = (): void => undefined;
  wake.current = () => {
    news = true;
    go();
  };
  signal.addEventListener("abort", () => go());
  while (!signal.aborted) {
    news = false;
    try {
      const value = await ask<T>(path, signal);
      if (!signal.aborted) heard(value, "");
    } catch (reason) {
      if (signal.aborted) return;
      heard(null, reason instanceof TypeError ? "" : reason instanceof Error ? reason.message : String(reason));
    }
    if (!news && !signal.aborted) {
      let timer = 0;
      await new Promise<void>((resolve) => {
        go = resolve;
        timer = window.setTimeout(resolve, every);
      });
      clearTimeout(timer);
      go = () => undefined;
    }
  }
}
