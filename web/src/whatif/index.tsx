// What if? A change is tried on a copy of the live state: the form, and both futures beside each other.

import { useEffect, useRef, useState } from "react";
import { send } from "../data/api";
import { type Tab, Store, useStore } from "../store";
import { Answer } from "./answer";
import { Fields } from "./form";
import type { Futures } from "./types";
import { EMPTY, type Form, questionOf } from "./words";
import "./whatif.css";

/** What was asked last stays while other views are open. */
class Asked extends Store {
  form: Form = EMPTY;
  found: Futures | null = null;
  trouble = "";
  going: AbortController | null = null;

  set(change: Partial<Pick<Asked, "form" | "found" | "trouble" | "going">>): void {
    Object.assign(this, change);
    this.changed();
  }

  async ask(): Promise<void> {
    const question = questionOf(this.form);
    if (!question) {
      this.set({ trouble: "Fill in at least one change." });
      return;
    }
    const going = new AbortController();
    this.set({ going, trouble: "" });
    try {
      const found = await send<Futures>("POST", "/v1/whatif", question, going.signal);
      this.set({ found });
    } catch (reason) {
      if (!going.signal.aborted) this.set({ trouble: reason instanceof TypeError ? "No connection to Kant." : reason instanceof Error ? reason.message : String(reason) });
    }
    this.set({ going: null });
  }
}

const asked = new Asked();

/** Open the view with this form, and try it at once. */
export function tryNow(form: Form): void {
  asked.going?.abort();
  asked.set({ form, found: null, trouble: "", going: null });
  location.hash = "#whatif";
  void asked.ask();
}

function WhatIf() {
  useStore(asked);
  const { form, found, trouble, going } = asked;
  const title = useRef<HTMLHeadingElement>(null);
  const [last, setLast] = useState(found);
  useEffect(() => {
    if (found !== last) {
      setLast(found);
      title.current?.focus();
    }
  }, [found, last]);
  return (
    <section aria-labelledby="whatif-title">
      <h2 id="whatif-title">What if …?</h2>
      <p className="hint">Two futures are simulated from the present state: one without changes, one with all of these. The cluster itself does not change.</p>
      <form
        className="whatif" aria-label="Changes" onSubmit={(event) => {
          event.preventDefault();
          if (!going) void asked.ask();
        }}
      >
        <Fields form={form} change={(part) => asked.set({ form: { ...asked.form, ...part }, trouble: "" })} />
        <p className="tools">
          <button type="submit" className="primary" aria-disabled={going !== null}>{going ? "Simulating …" : "Try it"}</button>
          {going && <button type="button" onClick={() => going.abort()}>Stop</button>}
          {!going && <button type="button" className="quiet" onClick={() => asked.set({ form: EMPTY, found: null, trouble: "" })}>Clear</button>}
          <span className="hint" role="status">{going ? "Both futures are being simulated; this takes some seconds." : ""}</span>
        </p>
      </form>
      {trouble && <p className="banner" role="alert">{trouble}</p>}
      {found && (
        <section aria-labelledby="answer-title" aria-busy={going !== null} id="answer">
          <h2 id="answer-title" tabIndex={-1} ref={title}>If {found.change.join("; ")}</h2>
          <Answer found={found} />
        </section>
      )}
    </section>
  );
}

export const whatifTabs: Tab[] = [{ id: "whatif", title: "What if", view: WhatIf, shown: ({ source }) => source.may.includes("whatif") }];
