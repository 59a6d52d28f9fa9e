// The moment that the whole page shows: moved by hand, by playing, or by the present of a live run.

const FULL = 30; // seconds in which a whole run plays at speed 1
const STEPS = 500; // steps of the arrow keys over the whole span

type Watcher = () => void;

/** One moment for all views, in microseconds of the runs' clock. */
export class Clock {
  version = 0;
  at = 0;
  begin = 0;
  end = 0;
  zero: number | null = null;
  frames: Float64Array | null = null; // the only moments there are, where the map is sampled
  playing = false;
  speed = 1;
  following = false; // stays at the end while that grows
  private readonly watchers = new Set<Watcher>();
  private frame = 0;
  private last = 0;
  private exact = 0; // where playing is, between frames

  readonly subscribe = (watcher: Watcher): (() => void) => {
    this.watchers.add(watcher);
    return () => void this.watchers.delete(watcher);
  };

  changed(): void {
    this.version++;
    for (const watcher of this.watchers) watcher();
  }

  /** The span that there is to move in. With `following` the moment moves to its end. */
  span(begin: number, end: number): void {
    if (begin === this.begin && end === this.end) return;
    this.begin = begin;
    this.end = end;
    this.at = this.snapped(this.following ? end : this.at);
    this.changed();
  }

  /** The same moment on a clock whose zero is so much earlier. */
  shift(by: number): void {
    this.at += by;
    this.exact += by;
  }

  /** Go to a moment; ends the following. */
  set(at: number): void {
    this.following = false;
    this.exact = at;
    const next = this.snapped(at);
    if (next === this.at && this.version) return this.changed();
    this.at = next;
    this.changed();
  }

  /** Some steps earlier (negative) or later. */
  step(count: number): void {
    if (this.frames) {
      const at = this.frames.indexOf(this.at);
      return this.set(this.frames[Math.max(0, Math.min(this.frames.length - 1, at + count))]!);
    }
    this.set(this.at + (count * (this.end - this.begin)) / STEPS);
  }

  /** Stay with the present of a live run, or not. */
  follow(on: boolean): void {
    this.following = on;
    if (on) {
      this.pause();
      this.at = this.snapped(this.end);
    }
    this.changed();
  }

  play(): void {
    if (this.playing || this.end <= this.begin) return;
    this.playing = true;
    this.following = false;
    this.exact = this.at >= this.snapped(this.end) ? this.begin : this.at;
    this.last = 0;
    this.frame = requestAnimationFrame(this.advance);
    this.changed();
  }

  pause(): void {
    if (!this.playing) return;
    this.playing = false;
    cancelAnimationFrame(this.frame);
    this.changed();
  }

  setSpeed(speed: number): void {
    this.speed = speed;
    this.changed();
  }

  private readonly advance = (now: number): void => {
    if (!this.playing) return;
    if (this.last) this.exact += ((now - this.last) / 1000 / FULL) * this.speed * (this.end - this.begin);
    this.last = now;
    const next = this.snapped(this.exact);
    if (next !== this.at) {
      this.at = next;
      this.changed();
    }
    if (this.exact >= this.end) this.pause();
    else this.frame = requestAnimationFrame(this.advance);
  };

  /** The moment at or nearest to `at` that there is something to show of. The last microsecond is before the end. */
  private snapped(at: number): number {
    if (!this.frames?.length) return Math.round(Math.max(this.begin, Math.min(this.end, at)));
    let low = 0;
    let high = this.frames.length - 1;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.frames[middle]! < at) low = middle + 1;
      else high = middle;
    }
    const before = this.frames[low - 1];
    return before !== undefined && at - before < this.frames[low]! - at ? before : this.frames[low]!;
  }
}
