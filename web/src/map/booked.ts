// What is booked, GPU by GPU. Only the present is known: of an earlier moment nobody has kept what was booked then.

import type { Cluster } from "../data/model";
import type { Reservation } from "../live/types";
import { showMoment } from "../show";

/** Of each GPU that is booked its reservations, the first to begin first. */
export type Booked = Map<number, Reservation[]>;

/** The GPUs of reservations, which name nodes and the indices of their devices. */
export function bookedOf(cluster: Cluster | null, rows: Reservation[]): Booked {
  const found: Booked = new Map();
  for (const row of rows.toSorted((one, other) => one.start - other.start)) {
    for (const [name, devices] of Object.entries(row.place)) {
      const node = cluster?.names.indexOf(name) ?? -1;
      if (!cluster || node < 0) continue;
      for (const device of devices.split(",")) {
        const gpu = cluster.first[node]! + Number(device);
        found.set(gpu, [...(found.get(gpu) ?? []), row]);
      }
    }
  }
  return found;
}

/** From when on it is booked, or until when. */
export const span = (row: Reservation): string => (row.phase === "active" ? `until ${showMoment(row.end, 0)}` : `from ${showMoment(row.start, 0)}`);

/** What there is to say about a GPU that is booked. */
export const told = (rows: Reservation[] | undefined): string[] =>
  (rows ?? []).map((row) => `booked: ${row.name} of ${row.user}, ${row.phase === "active" ? "now" : showMoment(row.start, 0)} – ${showMoment(row.end, 0)}`);

/** Changes when what is drawn of it does. */
export const stamp = (booked: Booked): string => [...booked].map(([gpu, [row]]) => `${gpu} ${row!.name} ${span(row!)}`).join();
