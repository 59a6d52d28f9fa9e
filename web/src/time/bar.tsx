// The time bar: drag, keys, play, speed; on a live run, back to the present.

import { useSyncExternalStore } from "react";
import { showMoment } from "../show";
import { usePage, useStore } from "../store";
import type { Clock } from "./clock";

/** Renders the component again when the moment moves. */
export function useClock(): Clock {
  const { clock } = usePage();
  useSyncExternalStore(clock.subscribe, () => clock.version);
  return clock;
}

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];

export function TimeBar() {
  const { source } = usePage();
  const clock = useClock();
  useStore(source);
  const { begin, end, frames } = clock;
  if (end <= begin) return null;
  const at = frames ? frames.indexOf(clock.at) : clock.at;
  const words = showMoment(clock.at, clock.zero);
  const starts = (source.live ? source.runs[0]?.starts : null)?.slice(1).filter((start) => start > begin && start < end) ?? [];
  const keys = (event: React.KeyboardEvent) => {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -25, PageUp: 25 }[event.key];
    if (steps !== undefined) clock.step(steps);
    else if (event.key === "Home") clock.set(begin);
    else if (event.key === "End") clock.set(end);
    else if (event.key === " ") toggle(clock);
    else return;
    event.preventDefault();
  };
  return (
    <div className="timebar" role="group" aria-label="Time">
      <button id="play" type="button" aria-pressed={clock.playing} aria-label={clock.playing ? "Pause" : "Play"} onClick={() => toggle(clock)}>
        {clock.playing ? "❚❚" : "▶"}
      </button>
      <span className="when">
        {starts.map((start) => (
          <i key={start} style={{ "--at": (start - begin) / (end - begin) } as React.CSSProperties} title={`Kant was started: ${showMoment(start, clock.zero)}`} />
        ))}
        <input
          id="when" type="range" aria-label="Time" aria-valuetext={words} step="any" onKeyDown={keys}
          min={frames ? 0 : begin} max={frames ? frames.length - 1 : end} value={at}
          onChange={(event) => clock.set(frames ? frames[Math.round(+event.target.value)]! : +event.target.value)}
        />
      </span>
      <output id="clock" htmlFor="when">{words}</output>
      <select id="speed" aria-label="Speed" value={clock.speed} onChange={(event) => clock.setSpeed(+event.target.value)}>
        {SPEEDS.map((speed) => <option key={speed} value={speed}>{speed}×</option>)}
      </select>
      {source.live && (
        <button id="now" type="button" aria-pressed={clock.following} onClick={() => clock.follow(!clock.following)}>Live</button>
      )}
    </div>
  );
}

const toggle = (clock: Clock) => (clock.playing ? clock.pause() : clock.play());
