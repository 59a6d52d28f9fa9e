// The queues of a live Kant: their quotas, what they use of them, what they lend and borrow.

import { NONE, showCount } from "../show";
import { useClock } from "../time/bar";
import { useAsked } from "./asked";
import { Budgets } from "./budgets";
import { Then } from "./jobs";
import { ClusterOrders } from "./orders";
import type { Budget, QueueRow } from "./types";

export function LiveQueues() {
  const clock = useClock();
  return clock.following ? <Now /> : <Then id="queues" />;
}

function Now() {
  const { value, trouble } = useAsked<{ zero_us: number; queues: QueueRow[]; budgets?: Budget[] }>("/v1/queues");
  const rows = value?.queues ?? [];
  const most = Math.max(1, ...rows.map((row) => Math.max(row.nominal_gpus ?? 0, row.used_gpus ?? 0)));
  const limited = rows.some((row) => row.nominal_gpus !== null);
  return (
    <section aria-labelledby="queues-title">
      <h2 id="queues-title" className="said">Queues</h2>
      <ClusterOrders queues={[...new Set(rows.map((row) => row.queue).filter(Boolean))]} />
      {trouble && <p className="banner" role="alert">{trouble}</p>}
      {value && !rows.length && <p className="empty">No queue has a job, and none has a quota.</p>}
      {rows.length > 0 && (
        <>
          {limited && (
            <p className="legend lend" aria-hidden="true">
              <span className="key"><i className="used" />used of its own quota</span> <span className="key"><i className="borrowed" />borrowed</span>{" "}
              <span className="key"><i className="lent" />lent to others</span> <span className="key"><i className="free" />free</span>
            </p>
          )}
          <div className="scroll" tabIndex={0} role="region" aria-label="Table of queues">
            <table className="rows now">
              <thead>
                <tr>
                  <th scope="col">queue</th><th scope="col">model</th>
                  {limited && <th scope="col" className="qbar">quota and use</th>}
                  {["quota", "used", "borrowed", "lent", "running", "waiting", "GPUs waiting"].map((name) => <th key={name} scope="col" className="n">{name}</th>)}
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <tr key={`${row.queue}/${row.model}`} data-queue={row.queue}>
                    <th scope="row">{row.queue || "(no name)"}</th>
                    <td>{row.model}</td>
                    {limited && <td className="qbar"><Bar row={row} most={most} /></td>}
                    {[row.nominal_gpus, row.used_gpus, row.borrowed_gpus, row.lent_gpus].map((value, i) => <td key={i} className="n">{value === null ? NONE : showCount(value)}</td>)}
                    {[row.running, row.waiting, row.waiting_gpus].map((value, i) => <td key={i} className="n">{showCount(value)}</td>)}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {limited && <p className="hint">A queue's quota and use include all queues below it. docs/queues.md says how lent GPUs are counted.</p>}
        </>
      )}
      {value && <Budgets rows={value.budgets ?? []} zero={value.zero_us} />}
    </section>
  );
}

/** The quota as a frame: used of its own, lent, free; beyond it what is borrowed. The numbers stand beside it. */
function Bar({ row, most }: { row: QueueRow; most: number }) {
  if (row.nominal_gpus === null) return <span className="hint">no quota</span>;
  const borrowed = row.borrowed_gpus ?? 0;
  const lent = row.lent_gpus ?? 0;
  const own = (row.used_gpus ?? 0) - borrowed;
  const parts: [string, number][] = [["used", own], ["lent", lent], ["free", Math.max(0, row.nominal_gpus - own - lent)], ["borrowed", borrowed]];
  return (
    <span className="quota" aria-hidden="true">
      {parts.map(([name, value]) => value > 0 && <i key={name} className={name} style={{ width: `${(100 * value) / most}%` }} />)}
    </span>
  );
}
