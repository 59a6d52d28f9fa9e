// What is booked: who has which GPUs, from when to when; as a table, and as bars on a line of time.

import { showCount, showMoment, showTime } from "../show";
import { usePage } from "../store";
import { useAsked } from "./asked";
import { addressOf } from "./parts";
import type { Reservation } from "./types";

const HOUR = 3.6e9; // microseconds

export function Reservations() {
  const { source } = usePage();
  const { value } = useAsked<{ reservations: Reservation[] }>(source.may.includes("reservations") ? "/v1/reservations" : null);
  const run = source.runs[0];
  const rows = value?.reservations ?? [];
  if (!rows.length || !run || run.zero === null) return null;
  const now = run.zero + run.end;
  const end = Math.max(now + HOUR, ...rows.map((row) => row.end));
  const at = (time: number): number => (100 * (Math.max(time, now) - now)) / (end - now);
  return (
    <section aria-labelledby="booked-title" id="booked">
      <h3 className="listed" id="booked-title">Reservations <small>{rows.length}</small></h3>
      <div className="scroll" tabIndex={0} role="region" aria-label="Reservations">
        <table className="jobs booked">
          <thead>
            <tr>
              <th scope="col">name</th><th scope="col">user</th><th scope="col" className="n">GPUs</th><th scope="col">from</th><th scope="col">until</th>
              <th scope="col" className="span"><span className="bookends"><span>now</span><span>in {showTime(Math.round((end - now) / 1e6))}</span></span></th>
              <th scope="col">where</th><th scope="col">jobs</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name} data-reservation={row.name}>
                <th scope="row">{row.name}</th>
                <td data-name="user">{row.user}</td>
                <td className="n" data-name="GPUs">{showCount(row.gpus)}</td>
                <td data-name="from">{row.start <= now ? "now" : showMoment(row.start, 0)}</td>
                <td data-name="until">{showMoment(row.end, 0)}</td>
                <td className="span" aria-hidden="true"><span className="bookline"><i className={row.phase} style={{ left: `${at(row.start)}%`, width: `${Math.max(at(row.end) - at(row.start), 0.5)}%` }} /></span></td>
                <td className="where" data-name="where">{Object.entries(row.place).map(([node, devices]) => `${node}: ${devices}`).join("; ")}</td>
                <td className="in" data-name="jobs">{row.jobs.length ? row.jobs.map((job) => <a key={job} href={addressOf(job)}>{job}</a>) : "none"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
