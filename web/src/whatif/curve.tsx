// The waits before and after as two curves: the share of the jobs that wait no longer than so long.

import { showTime } from "../show";
import type { Futures } from "./types";

const WIDTH = 640;
const HEIGHT = 230;
const LEFT = 44;
const RIGHT = 14;
const TOP = 12;
const BOTTOM = 30;
const MARKS = [1, 10, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 4 * 86400, 8 * 86400, 16 * 86400, 32 * 86400, 64 * 86400];
const FEWEST_MARKS = 3;
const MOST_MARKS = 7;

/** A logarithmic axis over all waits, and where its marks stand. */
function axisOf(waits: number[]): { at: (seconds: number) => number; marks: number[] } {
  const low = Math.max(1, Math.min(...waits) * 0.8);
  const high = Math.max(low * 1.6, Math.max(...waits) * 1.15);
  const at = (seconds: number) => LEFT + ((WIDTH - LEFT - RIGHT) * Math.log(Math.max(seconds, low) / low)) / Math.log(high / low);
  let marks = MARKS.filter((mark) => mark >= low && mark <= high);
  while (marks.length > MOST_MARKS) marks = marks.filter((_, i) => i % 2 === 0);
  if (marks.length < FEWEST_MARKS) marks = [low * (high / low) ** 0.1, Math.sqrt(low * high), low * (high / low) ** 0.9];
  return { at, marks };
}

const heightOf = (share: number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - share);

export function Curve({ curve, words }: { curve: Futures["curve"]; words: string }) {
  const { before_s: before, after_s: after } = curve;
  if (before.length === 0) return null;
  const { at, marks } = axisOf([...before, ...after]);
  const line = (waits: number[]) => waits.map((wait, i) => `${i ? "L" : "M"}${at(wait).toFixed(1)} ${heightOf(i / (waits.length - 1)).toFixed(1)}`).join("");
  const between = `${line(before)}${[...after].reverse().map((wait, i) => `L${at(wait).toFixed(1)} ${heightOf(1 - i / (after.length - 1)).toFixed(1)}`).join("")}Z`;
  return (
    <figure className="chart curve">
      <figcaption>
        <h3>Waits</h3>
        <span className="legend"><span className="key before">as it is</span><span className="key after">with the change</span></span>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`Share of the jobs by waiting time. ${words}`}>
        {[0, 0.25, 0.5, 0.75, 1].map((share) => (
          <g key={share}>
            <line className="grid" x1={LEFT} x2={WIDTH - RIGHT} y1={heightOf(share)} y2={heightOf(share)} />
            <text x={LEFT - 7} y={heightOf(share)} textAnchor="end" dominantBaseline="central">{share * 100}%</text>
          </g>
        ))}
        {marks.map((mark) => (
          <g key={mark}>
            <line className="grid" x1={at(mark)} x2={at(mark)} y1={TOP} y2={HEIGHT - BOTTOM} />
            <text x={at(mark)} y={HEIGHT - BOTTOM + 17} textAnchor="middle">{showTime(Math.round(mark))}</text>
          </g>
        ))}
        <path className="between" d={between} />
        <path className="before" d={line(before)} />
        <path className="after" d={line(after)} />
      </svg>
    </figure>
  );
}
