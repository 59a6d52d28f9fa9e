// The page: a header with the time bar, tabs, and the view behind the chosen one.

import { useEffect, useRef, useState } from "react";
import { keepToken } from "./data/api";
import { liveTabs } from "./live";
import { addressOf } from "./live/parts";
import { counted, showGpus } from "./show";
import { type Page, type Tab, usePage, useStore } from "./store";
import { theme } from "./theme";
import { TimeBar } from "./time/bar";
import { reportTabs } from "./views";
import { whatifTabs } from "./whatif";

/** The tabs there are now: those of a live Kant stand in the place of others with their id. */
function tabsOf(page: Page): Tab[] {
  const more = page.source.live ? [...liveTabs, ...whatifTabs] : [];
  const own = reportTabs.map((tab) => more.find((other) => other.id === tab.id) ?? tab);
  const rest = more.filter((tab) => !reportTabs.some((other) => other.id === tab.id));
  return [...own, ...rest].filter((tab) => !tab.shown || tab.shown(page));
}

/** A part of the address; one that is no text names no job. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

export function App() {
  const page = usePage();
  const [signing, setSigning] = useState(false);
  useStore(page.source);
  useStore(page.choice);
  const { source, choice } = page;
  useEffect(() => {
    const read = () => {
      const [tab = "", job] = location.hash.slice(1).split("/");
      choice.set(job !== undefined || tab === "jobs" ? { tab, job: decoded(job ?? "") } : { tab });
    };
    read();
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, [choice]);
  useEffect(() => {
    if (source.ready) requestAnimationFrame(() => requestAnimationFrame(() => (document.documentElement.dataset.ready = "true")));
  }, [source.ready]);
  const tabs = source.ready ? tabsOf(page) : [];
  const first = source.live ? "jobs" : "overview"; // who comes to a Kant that runs looks for jobs
  const open = tabs.find((tab) => tab.id === choice.tab) ?? tabs.find((tab) => tab.id === first) ?? tabs[0];
  return (
    <>
      <Header sign={() => setSigning(!signing)} />
      {source.trouble && <p className="banner" role="alert"><span>{source.trouble}</span></p>}
      {source.stranger && <TokenForm />}
      {!source.stranger && signing && <TokenForm own={() => setSigning(false)} />}
      {open && (
        <>
          <nav className="bar" aria-label="View and time">
            <TabList tabs={tabs} open={open.id} />
            <TimeBar />
          </nav>
          <main>
            <div id={`panel-${open.id}`} role="tabpanel" aria-labelledby={`tab-${open.id}`}>
              <open.view key={open.id} />
            </div>
          </main>
        </>
      )}
      {!open && !source.trouble && !source.stranger && <p className="empty" role="status">Reading the data…</p>}
    </>
  );
}

/** Asks for the token with which Kant lets people in; with `own` for one of the cluster, by which it gives their orders. */
function TokenForm({ own }: { own?: () => void }) {
  const { source } = usePage();
  const [typed, setTyped] = useState("");
  const refused = source.signs && !own; // the cluster does not know the token that was given
  const enter = (event: React.FormEvent) => {
    event.preventDefault();
    keepToken(typed.trim());
    setTyped("");
    if (own || refused) location.reload();
    else source.enter();
  };
  if (own || refused)
    return (
      <form className="panel token" onSubmit={enter}>
        <h2>Sign in to change jobs, queues and nodes</h2>
        <p className="hint">
          Kant acts with your own rights: it forwards your token, which only this tab keeps. <code>kubectl create token NAME --duration 1h</code> prints one of a
          service account.
        </p>
        <label>Token <input type="password" autoComplete="off" spellCheck={false} required={!!own} autoFocus value={typed} onChange={(event) => setTyped(event.target.value)} /></label>{" "}
        <button type="submit">{own ? "Sign in" : "Try again, or view without a token"}</button> {own && <button type="button" onClick={own}>View only</button>}
      </form>
    );
  return (
    <form className="panel token" onSubmit={enter}>
      <h2>Sign in</h2>
      <p className="hint">This page requires a token. <code>kant page</code> on Kant's machine prints the address with the owner's token; <code>kant token new</code> creates others.</p>
      <label>Token <input type="password" autoComplete="off" spellCheck={false} required autoFocus value={typed} onChange={(event) => setTyped(event.target.value)} /></label>{" "}
      <button type="submit">Sign in</button>
    </form>
  );
}

function Header({ sign }: { sign: () => void }) {
  const { source } = usePage();
  const leave = () => {
    keepToken("");
    location.reload();
  };
  useStore(theme);
  const cluster = source.runs[0]?.cluster;
  return (
    <header className="top">
      <p className="brand">
        <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
          <rect x="2" y="2" width="9" height="9" rx="2" className="b0" />
          <rect x="13" y="2" width="9" height="9" rx="2" className="b1" />
          <rect x="2" y="13" width="9" height="9" rx="2" className="b1" />
          <rect x="13" y="13" width="9" height="9" rx="2" className="b2" />
        </svg>
        Kant
      </p>
      <h1>{source.report?.title ?? cluster?.name ?? ""}</h1>
      {source.live && cluster && (
        <p className="hint">
          {counted(cluster.gpus.length, "node", "nodes")} · {showGpus(cluster.total * 1000)} GPUs · {source.runs[0]!.profile}
        </p>
      )}
      {source.may.includes("sign_in") && (
        source.user
          ? <button id="sign" type="button" className="quiet" onClick={leave}>{source.user} · Sign out</button>
          : <button id="sign" type="button" className="quiet" onClick={sign}>Sign in</button>
      )}
      <button id="theme" type="button" className="quiet" onClick={() => theme.turn()}>Theme: {theme.chosen}</button>
    </header>
  );
}

/** Tabs as the pattern of ARIA has them: arrow keys move, the address keeps the choice. */
function TabList({ tabs, open }: { tabs: Tab[]; open: string }) {
  const list = useRef<HTMLDivElement>(null);
  const { choice } = usePage();
  const go = (id: string) => void (location.hash = id === "jobs" && choice.job ? addressOf(choice.job) : id);
  const move = (event: React.KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.id === open);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const tab = tabs[(to + tabs.length) % tabs.length]!;
    go(tab.id);
    list.current?.querySelector<HTMLElement>(`#tab-${tab.id}`)?.focus();
  };
  return (
    <div className="tabs" role="tablist" aria-label="Views" ref={list} onKeyDown={move}>
      {tabs.map((tab) => (
        <button
          key={tab.id} id={`tab-${tab.id}`} type="button" role="tab" aria-selected={tab.id === open}
          aria-controls={tab.id === open ? `panel-${tab.id}` : undefined} tabIndex={tab.id === open ? 0 : -1} onClick={() => go(tab.id)}
        >
          {tab.title}
        </button>
      ))}
    </div>
  );
}
