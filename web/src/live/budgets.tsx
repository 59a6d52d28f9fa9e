// Budgets of queues and users: what is used of them, when they are expected to run dry, and a line where one is used up.

import { showCount } from "../show";
import { usePage } from "../store";
import { useAsked } from "./asked";
import { when } from "./parts";
import type { Budget, Eta, QueueRow } from "./types";

const hours = (value: number | null) => (value === null ? "–" : showCount(value < 10 ? Number(value.toPrecision(2)) : Math.round(value)));
const nameOf = (row: { queue: string; user: string }) => (row.user ? `${row.user} in queue ${row.queue}` : `Queue ${row.queue}`);

export function Budgets({ rows, zero }: { rows: Budget[]; zero: number }) {
  const { source } = usePage();
  const eta = useAsked<Eta>(rows.length && source.may.includes("eta") ? "/v1/eta" : null).value;
  if (!rows.length) return null;
  const dry = (row: Budget, limit: string) => {
    const found = eta?.budgets?.find((one) => one.queue === row.queue && one.user === row.user && one.limit === limit);
    return found ? when(eta!.zero_us + (found.expected_us.p50 ?? found.expected_us.p10!)) : "–";
  };
  return (
    <section aria-labelledby="budgets-title" id="budgets">
      <h3 className="listed" id="budgets-title">Budgets <small>GPU-hours until {when(zero + rows[0]!.until_us)}</small></h3>
      <div className="scroll" tabIndex={0} role="region" aria-label="Table of budgets">
        <table className="rows now">
          <thead>
            <tr>
              <th scope="col">queue</th><th scope="col">user</th>
              {["used", "soft", "hard", "soft used up", "hard used up"].map((name) => <th key={name} scope="col" className="n">{name}</th>)}
              <th scope="col">state</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={`${row.queue}/${row.user}`} data-budget={`${row.queue}/${row.user}`}>
                <th scope="row">{row.queue}</th><td>{row.user || "all"}</td>
                {[row.used_gpu_hours, row.soft_gpu_hours, row.hard_gpu_hours].map((value, i) => <td key={i} className="n">{hours(value)}</td>)}
                <td className="n">{dry(row, "soft")}</td><td className="n">{dry(row, "hard")}</td>
                <td>{row.state && `${row.state} budget is used up`}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** What everybody should know: budgets that are used up, and what Kant complains of. */
export function Notices() {
  const { source } = usePage();
  const queues = useAsked<{ zero_us: number; queues: QueueRow[]; budgets?: Budget[] }>(source.may.includes("queues") ? "/v1/queues" : null).value;
  const health = useAsked<{ complaint?: string }>(source.may.includes("health") ? "/v1/health" : null, 15_000).value;
  const over = (queues?.budgets ?? []).filter((row) => row.state);
  const said = over.map((row) =>
    row.state === "hard"
      ? `${nameOf(row)} has used up the hard budget: nothing more starts before ${when(queues!.zero_us + row.until_us)}.`
      : `${nameOf(row)} has used up the soft budget: its jobs go after all others.`,
  );
  if (health?.complaint) said.push(`${health.complaint}.`);
  return <>{said.map((line) => <p key={line} className="banner notice" role="status">{line}</p>)}</>;
}
