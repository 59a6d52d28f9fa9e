// The answer of a what-if: what becomes of the change, of everybody's waits, of the cluster, and of those it touches most.

import { addressOf } from "../live/parts";
import { NONE, showCount, showMoment, showShare, showTime } from "../show";
import { Scroll } from "../views/tables";
import { Curve } from "./curve";
import type { Changed, Futures, Ratios, Spread, Submitted, Waits } from "./types";

const SOURCES: Record<string, string> = {
  recorded: "from the journal", learned: "learned (P50)", estimate: "as stated by their owners", limit: "up to their limits",
  assumed: "as the median of those that finished",
}; // prettier-ignore
const SHARES: [keyof Ratios, string][] = [["gar", "GAR mean"], ["sor", "SOR"], ["gfr", "GFR mean"]]; // less of these may be meant
const SPREADS: [keyof Spread, string][] = [["mean", "mean"], ["p50", "P50"], ["p90", "P90"]];

export function Answer({ found }: { found: Futures }) {
  const { all, by_queue, by_size } = found.waits;
  const sources = Object.entries(found.run_times).map(([source, count]) => `${showCount(count)} ${SOURCES[source] ?? source}`);
  const groups: [string, string, [string, Waits][]][] = [
    ["", "everybody", [["", all]]],
    ["queue", "by queue", Object.entries(by_queue)],
    ["GPUs", "by size", Object.entries(by_size)],
  ];
  return (
    <>
      <p className="hint" id="sources">
        From {showMoment(found.time_us, found.zero_us)} on. Run times: {sources.join(", ") || "none known"}. No later arrivals are known.
      </p>
      {found.submitted.length > 0 && <ul className="plain" id="submitted">{found.submitted.map((job) => <li key={job.job}>{fate(job, found)}</li>)}</ul>}
      {all.jobs === 0 && <p className="empty">No job waits in either future.</p>}
      {all.jobs > 0 && (
        <>
          <div className="answer">
            <Curve curve={found.curve} words={`${sentence(all)}.`} />
            <div className="cards">
              {SPREADS.map(([key, name]) => (
                <Card key={key} name={`${name} wait`} before={showTime(all.before_s[key])} after={showTime(all.after_s[key])} change={gain(all.before_s[key], all.after_s[key])} />
              ))}
              {SHARES.map(([key, name]) => {
                const [before, after] = [found.ratios.before[key], found.ratios.after[key]];
                return <Card key={key} name={name} before={showShare(before)} after={showShare(after)} change={gain(before, after, true)} />;
              })}
            </div>
          </div>
          <h3>Waits, before and after</h3>
          <Scroll label="Waits, before and after">
            <table className="futures" id="waits-table">
              <thead>
                <tr>
                  <th scope="col" rowSpan={2}>jobs of</th><th scope="col" rowSpan={2} className="n">jobs</th>
                  {SPREADS.map(([key, name]) => <th key={key} scope="colgroup" colSpan={2} className="pair">{name}</th>)}
                  <th scope="col" rowSpan={2} className="n">sooner</th><th scope="col" rowSpan={2} className="n">later</th>
                </tr>
                <tr>{SPREADS.flatMap(([key]) => [<th key={`${key}b`} scope="col" className="n">before</th>, <th key={`${key}a`} scope="col" className="n">after</th>])}</tr>
              </thead>
              {groups.map(([kind, title, rows]) => (
                <tbody key={title} aria-label={title}>
                  {rows.map(([name, row]) => (
                    <tr key={name}>
                      <th scope="row">{kind ? `${kind} ${name}` : title}</th><td className="n">{showCount(row.jobs)}</td>
                      {SPREADS.flatMap(([key]) => [
                        <td key={`${key}b`} className="n">{showTime(row.before_s[key])}</td>,
                        <td key={`${key}a`} className={`n ${side(row.before_s[key], row.after_s[key])}`}>{showTime(row.after_s[key])}</td>,
                      ])}
                      <td className="n">{moved(row.sooner)}</td><td className="n">{moved(row.later)}</td>
                    </tr>
                  ))}
                </tbody>
              ))}
            </table>
          </Scroll>
          <div className="columns">
            <Most title="Those that gain most" rows={found.helped} none="No job starts sooner." />
            <Most title="Those that lose most" rows={found.harmed} none="No job starts later." />
          </div>
        </>
      )}
    </>
  );
}

function fate(job: Submitted, found: Futures): string {
  if (job.start_us === null) return `${job.job} ${job.status === "rejected" ? "is rejected" : "does not start"}${job.sentence && `: ${job.sentence}`}.`;
  if (job.start_us === found.time_us) return `${job.job} starts at once.`;
  const after = showTime(Math.round((job.start_us - found.time_us) / 1e6));
  return `${job.job} starts ${showMoment(job.start_us, found.zero_us)}, after ${after}${job.sentence && `: ${job.sentence}`}.`;
}

function sentence({ before_s: before, after_s: after }: Waits): string {
  return `The mean is ${showTime(before.mean)} as it is and ${showTime(after.mean)} with the change`;
}

const moved = ({ jobs, mean_s }: Waits["sooner"]): string => (jobs ? `${showCount(jobs)} by ${showTime(mean_s)}` : NONE);

/** Whether a wait has changed for the better. */
function side(before: number | null, after: number | null): "" | "better" | "worse" {
  if (before === null || after === null || before === after) return "";
  return after < before ? "better" : "worse";
}

export function gain(before: number | null, after: number | null, share = false): React.ReactNode {
  const said = share ? "" : side(before, after);
  if (before === null || after === null || before === after) return <span className="gain">no change</span>;
  const by = after - before;
  const text = share ? `${(Math.abs(by) * 100).toFixed(2)} points` : showTime(Math.abs(by));
  return <span className={`gain ${said}`}>{by > 0 ? "▲ +" : "▼ −"}{text} {said && <span className="said">{said}</span>}</span>;
}

export function Card({ name, before, after, change }: { name: string; before: string; after: string; change: React.ReactNode }) {
  return (
    <article className="card">
      <h3>{name}</h3>
      <p className="then">{before} <span aria-label="becomes">→</span> <strong>{after}</strong></p>
      {change}
    </article>
  );
}

function Most({ title, rows, none }: { title: string; rows: Changed[]; none: string }) {
  const open = (job: string) => void (location.hash = addressOf(job));
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      {rows.length === 0 && <p className="empty">{none}</p>}
      {rows.length > 0 && (
        <Scroll label={title}>
          <table className="futures">
            <thead><tr>{["job", "queue", "GPUs", "before", "after", "change"].map((name, i) => <th key={name} scope="col" className={i > 1 ? "n" : ""}>{name}</th>)}</tr></thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.job}>
                  <th scope="row"><button type="button" className="link" onClick={() => open(row.job)}>{row.job}</button></th>
                  <td>{row.queue}</td><td className="n">{showCount(row.gpus)}</td><td className="n">{showTime(row.before_s)}</td><td className="n">{showTime(row.after_s)}</td>
                  <td className={`n ${side(row.before_s, row.after_s)}`}>{row.after_s > row.before_s ? "+" : "−"}{showTime(Math.abs(row.after_s - row.before_s))}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </section>
  );
}
