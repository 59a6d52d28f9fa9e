// Numbers for people.

export const NONE = "–";

const UNITS: readonly (readonly [string, number])[] = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** Seconds as two significant parts, such as `1d 4h`. */
export function showTime(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0) return `−${showTime(-seconds)}`;
  if (seconds < 60) return `${+seconds.toPrecision(3)}s`;
  const parts: [number, string][] = [];
  let rest = Math.round(seconds);
  for (const [name, unit] of UNITS) {
    if (rest >= unit || parts.length) {
      parts.push([Math.floor(rest / unit), name]);
      rest %= unit;
    }
    if (parts.length === 2) break;
  }
  return parts.filter(([count], i) => i === 0 || count).map(([count, name]) => count + name).join(" ");
}

const two = (value: number) => String(value).padStart(2, "0");

/** A moment of a run, in microseconds: the local date and time where `zero` is known, else such as `3d 04:05:06`. */
export function showMoment(micros: number, zero: number | null): string {
  if (!Number.isFinite(micros)) return NONE;
  if (zero !== null) {
    const date = new Date((zero + micros) / 1000);
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  }
  const whole = Math.floor(micros / 1e6);
  const day = Math.floor(whole / 86400);
  const clock = `${two(Math.floor(whole / 3600) % 24)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return day ? `${day}d ${clock}` : clock;
}

export const showShare = (value: number | null | undefined): string =>
  value == null || !Number.isFinite(value) ? NONE : `${(value * 100).toFixed(2)}%`;

export const showCount = (value: number | null | undefined): string =>
  value == null || !Number.isFinite(value)
    ? NONE
    : value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 2 : 0 });

/** milli-GPUs as GPUs. */
export const showGpus = (milli: number): string =>
  Number.isFinite(milli) ? (milli / 1000).toLocaleString("en", { maximumFractionDigits: 2 }) : NONE;

/** A word of a command line, for a shell. */
export const word = (text: string): string => (/^[\w.:@%+/][\w.:@%+/-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

export const counted = (count: number, one: string, many: string): string =>
  `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
