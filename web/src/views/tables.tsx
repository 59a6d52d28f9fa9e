// The numbers of a report's runs side by side: cards, every number, by pool and queue, waits by size and by cause.

import { Fragment } from "react";
import type { Report, RunReport } from "../data/report";
import { CARDS, dig, number, POOL, QUEUE, type Row, SECTIONS, show, showGain, TENANTS, verdict } from "./numbers";
import { showTime } from "../show";

/** The name of a run, in the colour that it has in every picture. */
export function RunName({ index, label }: { index: number; label: string }) {
  return <span className={`run r${index % 6}`}>{label}</span>;
}

/** The change against the baseline, marked better or worse in colour, in shape and in words. */
function Gain({ value, base, row }: { value: unknown; base: unknown; row: Row }) {
  const text = showGain(value, base, row.kind);
  if (!text) return null;
  const said = verdict(value, base, row.better);
  const up = (number(value) ?? 0) - (number(base) ?? 0);
  return (
    <span className={`gain ${said}`}>
      {up > 0 ? "▲ " : up < 0 ? "▼ " : ""}
      {text}
      {said === "better" && <span className="said"> better</span>}
      {said === "worse" && " worse"}
    </span>
  );
}

export function Cards({ runs }: { runs: RunReport[] }) {
  return (
    <div className="cards" id="five">
      <h2 className="said">Five metrics</h2>
      {CARDS.map((row) => (
        <article className="card" key={row.name}>
          <h3>{row.name}</h3>
          <p>{row.words} <em>{row.better > 0 ? "higher is better" : "lower is better"}</em></p>
          <ul>
            {runs.map((run, i) => {
              const value = dig(run.summary, ...row.keys);
              return (
                <li key={i}>
                  <RunName index={i} label={run.label} />
                  <strong>{show(value, row.kind)}</strong>
                  {i > 0 && <Gain value={value} base={dig(runs[0]!.summary, ...row.keys)} row={row} />}
                </li>
              );
            })}
          </ul>
        </article>
      ))}
    </div>
  );
}

function RunHeads({ runs }: { runs: RunReport[] }) {
  return runs.map((run, i) => (
    <th scope="col" key={i}>
      <RunName index={i} label={run.label} />
      {i === 0 && runs.length > 1 && <small>baseline</small>}
    </th>
  ));
}

/** A bar for a share of a whole. */
export function Meter({ share, run }: { share: number; run?: number }) {
  return <span className="tube" aria-hidden="true"><i className={run === undefined ? "" : `r${run % 6}`} style={{ width: `${100 * share}%` }} /></span>;
}

/** A table that may be wider than its place. */
export function Scroll({ label, children }: { label: string; children: React.ReactNode }) {
  return <div className="scroll" tabIndex={0} role="region" aria-label={`${label} (table)`}>{children}</div>;
}

/** Every number of every run, with its gain against the first. */
export function EveryNumber({ runs }: { runs: RunReport[] }) {
  const shared = runs.some((run) => number(dig(run.summary, "fairness", "mean")) !== null);
  const sections = shared ? [...SECTIONS, TENANTS] : SECTIONS;
  return (
    <Scroll label="Every number">
      <table id="metrics">
        <thead><tr><th scope="col" colSpan={2}>metric</th><RunHeads runs={runs} /></tr></thead>
        {sections.map((section) => (
          <tbody key={section.name}>
            {section.rows.map((row, at) => (
              <tr key={row.name} className={at === 0 ? "first" : ""}>
                {at === 0 && <th scope="rowgroup" rowSpan={section.rows.length}>{section.name}<small>{section.words}</small></th>}
                <th scope="row">{row.name}</th>
                {runs.map((run, i) => {
                  const value = dig(run.summary, ...row.keys);
                  return (
                    <td key={i}>
                      <span>{show(value, row.kind)}</span>{" "}
                      {i > 0 && <Gain value={value} base={dig(runs[0]!.summary, ...row.keys)} row={row} />}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        ))}
        <tbody>
          <tr className="first">
            <th scope="row" colSpan={2}>digest of the decisions</th>
            {runs.map((run, i) => <td key={i}><Digest run={run} length={12} /></td>)}
          </tr>
        </tbody>
      </table>
    </Scroll>
  );
}

export function Digest({ run, length = Infinity }: { run: RunReport; length?: number }) {
  const whole = dig(run.summary, "digest");
  if (whole == null) return "–";
  const text = String(whole);
  return <code title={text}>{text.length > length ? `${text.slice(0, length)}…` : text}</code>;
}

/** A table by pool or by queue, where the summaries have more than one. */
export function Parts({ report, part, word }: { report: Report; part: "by_pool" | "by_queue"; word: string }) {
  const { runs } = report;
  const columns = part === "by_pool" ? POOL : QUEUE;
  const all = number(dig(runs[0]!.summary, "parts", part)) ?? 0;
  const names = new Map<string, number>();
  for (const run of runs) {
    for (const [name, own] of Object.entries((dig(run.summary, part) ?? {}) as Record<string, unknown>)) {
      names.set(name, (names.get(name) ?? 0) + (number(dig(own, "gpu_hours")) ?? 0));
    }
  }
  if (names.size < 2) return null;
  const ordered = [...names].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
  const more = all > ordered.length ? `, the ${ordered.length} with most GPU-hours` : "";
  return (
    <details>
      <summary>By {word} ({all.toLocaleString("en")}{more})</summary>
      <Scroll label={`By ${word}`}>
        <table className="parts">
          <thead>
            <tr><th scope="col">{word}</th><th scope="col">run</th>{columns.map((column) => <th scope="col" key={column.name}>{column.name}</th>)}</tr>
          </thead>
          {ordered.map((name) => (
            <tbody key={name}>
              {runs.map((run, i) => (
                <tr key={i} className={i === 0 ? "first" : ""}>
                  {i === 0 && <th scope="rowgroup" rowSpan={runs.length}>{name || "(no name)"}</th>}
                  <th scope="row"><RunName index={i} label={run.label} /></th>
                  {columns.map((column) => <td key={column.name}>{show(dig(run.summary, part, name, ...column.keys), column.kind)}</td>)}
                </tr>
              ))}
            </tbody>
          ))}
        </table>
      </Scroll>
    </details>
  );
}

const TIMES = ["mean", "p50", "p90", "p99", "max"];

/** Waiting time and JTTED of each size class, for each run. */
export function WaitsTable({ report }: { report: Report }) {
  const { runs, classes } = report;
  const some = (size: number) => runs.some((run) => number(run.waits[size]!.row.count) || number(run.waits[size]!.row.censored));
  const shown = classes.map((name, size) => ({ name, size })).filter(({ size }) => some(size));
  if (!shown.length) return <p className="empty">No job arrived.</p>;
  return (
    <Scroll label="Waiting time by job size">
      <table id="waits" className="parts">
        <thead>
          <tr>{["GPUs", "run", "jobs", "censored", "mean", "P50", "P90", "P99", "max", "JTTED"].map((name) => <th scope="col" key={name}>{name}</th>)}</tr>
        </thead>
        {shown.map(({ name, size }) => (
          <tbody key={name}>
            {runs.map((run, i) => {
              const { row } = run.waits[size]!;
              const jtted = dig(run.summary, "jtted", "by_size", name);
              return (
                <tr key={i} className={i === 0 ? "first" : ""}>
                  {i === 0 && <th scope="rowgroup" rowSpan={runs.length}>{name}</th>}
                  <th scope="row"><RunName index={i} label={run.label} /></th>
                  <td>{show(row.count, "count")}</td>
                  <td>{show(row.censored, "count")}</td>
                  {TIMES.map((key) => <td key={key}>{show(row[key], "time")}</td>)}
                  <td>{show(number(jtted) ?? dig(jtted, "mean"), "factor")}</td>
                </tr>
              );
            })}
          </tbody>
        ))}
      </table>
    </Scroll>
  );
}

/** What all jobs waited for, where a ledger was kept: causes with their share of all waiting. */
export function CausesTable({ runs }: { runs: Pick<RunReport, "label" | "summary">[] }) {
  const totals = runs.map((run) => dig(run.summary, "wait_by_cause", "total") as Record<string, number> | undefined);
  const sums = totals.map((total) => Object.values(total ?? {}).reduce((sum, time) => sum + time, 0));
  const causes = [...new Set(totals.flatMap((total) => Object.entries(total ?? {}).filter(([, time]) => time > 0).map(([cause]) => cause)))];
  if (!causes.length) return null;
  const most = (cause: string) => Math.max(...totals.map((total) => total?.[cause] ?? 0));
  causes.sort((a, b) => most(b) - most(a));
  return (
    <section aria-labelledby="causes-h">
      <h2 id="causes-h">Waiting time by cause</h2>
      <Scroll label="Waiting time by cause">
        <table id="causes" className="bars">
          <thead>
            <tr>
              <th scope="col">cause</th>
              {runs.map((run, i) => <th scope="colgroup" colSpan={2} key={i}><RunName index={i} label={run.label} /></th>)}
            </tr>
          </thead>
          <tbody>
            {causes.map((cause) => (
              <tr key={cause}>
                <th scope="row">{cause}</th>
                {runs.map((_, i) => {
                  const time = totals[i]?.[cause] ?? 0;
                  const share = sums[i] ? time / sums[i]! : 0;
                  return (
                    <Fragment key={i}>
                      <td>{showTime(time)}</td>
                      <td className="meter"><Meter share={share} run={i} />{show(share, "share")}</td>
                    </Fragment>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}
