// What one job waited for: its causes, the longest first, each with its share of the wait.

import { showShare, showTime } from "../show";
import { Meter } from "./tables";

/** `times` are microseconds; a cause that took none is not shown. */
export function CauseBars({ times, label }: { times: Iterable<readonly [string, number]>; label: string }) {
  const waits = [...times].filter(([, time]) => time > 0).sort((a, b) => b[1] - a[1]);
  const total = waits.reduce((sum, [, time]) => sum + time, 0);
  return (
    <table className="bars causes" aria-label={label}>
      <tbody>
        {waits.map(([cause, time]) => (
          <tr key={cause}>
            <th scope="row">{cause}</th>
            <td>{showTime(time / 1e6)}</td>
            <td className="meter"><Meter share={time / total} /></td>
            <td>{showShare(time / total)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
