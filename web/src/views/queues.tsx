// The queues at the moment: what each uses, and who waits in it.

import type { Run } from "../data/model";
import { occupancyAt } from "../map/occupancy";
import { showCount, showGpus } from "../show";
import { usePage, useStore } from "../store";
import { useClock } from "../time/bar";
import { stateAt } from "./jobs";
import { Meter, RunName, Scroll } from "./tables";

interface Row {
  name: string;
  used: number;
  running: number;
  waiting: number;
  asked: number;
}

function rowsAt(run: Run, time: number): Row[] {
  const now = occupancyAt(run, time);
  const { jobs } = run;
  const rows = run.queues.map((name, i): Row => ({ name, used: now.byQueue[i]!, running: 0, waiting: 0, asked: 0 }));
  for (let job = 0; job < jobs.length; job++) {
    const row = rows[jobs.queue.data[job]!]!;
    const state = stateAt(run, now, job, time);
    if (state === "running") row.running++;
    if (state !== "waiting") continue;
    row.waiting++;
    row.asked += jobs.milli.data[job]!;
  }
  return rows;
}

export function QueuesView() {
  const { source } = usePage();
  useStore(source);
  const clock = useClock();
  return (
    <section aria-labelledby="queues-h">
      <h2 id="queues-h" className="said">Queues</h2>
      <div className="panels">
        {source.runs.map((run, i) => run.cluster && (
          <article className="panel flat" key={i}>
            <h2><RunName index={i} label={run.label} /></h2>
            <QueueTable rows={rowsAt(run, clock.at)} gpus={run.cluster.total} index={i} label={run.label} complete={run.wholeJobs} />
          </article>
        ))}
      </div>
    </section>
  );
}

function QueueTable({ rows, gpus, index, label, complete }: { rows: Row[]; gpus: number; index: number; label: string; complete: boolean }) {
  return (
    <>
      <Scroll label={`Queues of ${label}`}>
        <table className="rows queues">
          <thead>
            <tr>
              <th scope="col">queue</th><th scope="col">GPUs in use</th><th scope="col">of the cluster</th><th scope="col">running</th>
              {complete && <><th scope="col">waiting</th><th scope="col">GPUs waited for</th></>}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}>
                <th scope="row">{row.name || "(no name)"}</th>
                <td>{showGpus(row.used)}</td>
                <td className="meter"><Meter share={gpus ? row.used / gpus / 1000 : 0} run={index} />{gpus ? `${(row.used / gpus / 10).toFixed(1)}%` : ""}</td>
                <td>{showCount(row.running)}</td>
                {complete && <><td>{showCount(row.waiting)}</td><td>{showGpus(row.asked)}</td></>}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {!complete && <p className="hint">Of this large run only the jobs in the map are here, so waiting jobs are not counted by queue.</p>}
    </>
  );
}
