// Lines over one axis, drawn by uPlot: all runs overlaid, the charts of one `group` zoomed together.

import { useEffect, useRef } from "react";
import uPlot from "uplot";
import { cssVar, runColour, theme } from "../theme";
import { usePage } from "../store";

/** Charts that share their axis: the first is asked for its span, all get it. */
export class Group {
  readonly charts = new Set<uPlot>();
  private sharing = false;

  share(from: uPlot): void {
    if (this.sharing) return;
    this.sharing = true;
    const { min, max } = from.scales.x!;
    for (const chart of this.charts) if (chart !== from && min != null && max != null) chart.setScale("x", { min, max });
    this.sharing = false;
  }

  span(): [number, number] | null {
    for (const { scales } of this.charts) if (scales.x!.min != null && scales.x!.max != null) return [scales.x!.min, scales.x!.max];
    return null;
  }

  zoom(min: number, max: number): void {
    for (const chart of this.charts) return chart.setScale("x", { min, max });
  }
}

export interface Line {
  label: string;
  values: (number | null)[];
}

interface Props {
  title: string;
  note: string;
  height: number;
  at: number[]; // along the axis
  lines: Line[];
  group: Group;
  show: (value: number, short: boolean) => string;
  showAt: (value: number, step?: number) => string; // with a step: a mark of the axis, that far from the next
  range: (low: number | null, high: number | null) => [number, number];
  steps?: number[]; // where marks may stand: multiples of these
  marks?: number[]; // or exactly here, on a logarithmic axis
  moment?: boolean; // whether the axis is the runs' time in microseconds
}

/** The colour of a series (the first is the axis) where CSS is understood: it follows the theme by itself. */
const runFill = (_: uPlot, series: number) => `var(--r${(series - 1) % 6})`;

export function LineChart(props: Props) {
  const { clock } = usePage();
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const { group, title, note } = props;
  const shape = props.lines.map(({ label }) => label).join("\n");

  useEffect(() => {
    const home = place.current!;
    const made = new uPlot(optionsOf(props, home.clientWidth, group), dataOf(props), home);
    chart.current = made;
    group.charts.add(made);
    const wide = new ResizeObserver(() => requestAnimationFrame(() => {
      if (home.clientWidth && home.clientWidth !== made.width) made.setSize({ width: home.clientWidth, height: props.height });
    }));
    wide.observe(home);
    const themed = theme.subscribe(() => made.redraw(false, true));
    const timed = props.moment ? followMoment(made, clock) : () => undefined;
    return () => {
      wide.disconnect();
      themed();
      timed();
      group.charts.delete(made);
      made.destroy();
      chart.current = null;
    };
    // a chart is made anew only for other lines; new points of a live run are given to it below
  }, [shape, group, clock]);

  useEffect(() => {
    const made = chart.current;
    if (!made || made.data[0].length === props.at.length) return;
    const { min, max } = made.scales.x!;
    const old = made.data[0];
    const whole = min === old[0] && max === old[old.length - 1];
    made.setData(dataOf(props), whole);
    if (!whole) made.redraw();
  });

  return (
    <figure className="chart">
      <figcaption>
        <strong>{title}</strong> <small>{note}</small>
      </figcaption>
      <div ref={place} role="img" aria-label={`${title}. ${note}`} />
    </figure>
  );
}

const dataOf = ({ at, lines }: Props): uPlot.AlignedData => [at, ...lines.map(({ values }) => values)];

function optionsOf(props: Props, width: number, group: Group): uPlot.Options {
  const { show, showAt } = props;
  const log = props.marks !== undefined;
  const axis = (extra: uPlot.Axis): uPlot.Axis => ({
    stroke: () => cssVar("--soft"),
    grid: { stroke: () => cssVar("--grid"), width: 1 },
    ticks: { stroke: () => cssVar("--line"), width: 1, size: 4 },
    font: "12px system-ui, sans-serif",
    ...extra,
  });
  const across: uPlot.Axis = log
    ? { size: 30, splits: (_, __, low, high) => props.marks!.filter((mark) => mark >= low && mark <= high), filter: (_, splits) => splits }
    : { size: 30, space: 80, incrs: props.steps ?? [] };
  return {
    width: Math.max(220, width),
    height: props.height,
    padding: [10, 16, 0, 0],
    axes: [
      axis({ ...across, values: (_, splits, __, ___, step) => splits.map((value) => showAt(value, step)) }),
      axis({ size: 56, values: (_, splits) => splits.map((value) => show(value, true)) }),
    ],
    scales: { x: { time: false, distr: log ? 3 : 1 }, y: { range: (_, low, high) => props.range(low, high) } },
    cursor: {
      sync: { key: props.moment ? "time" : "wait", scales: ["x", null] },
      y: false,
      points: { size: 7, fill: runFill, stroke: runFill },
    },
    legend: { markers: { fill: runFill, width: 0 } },
    series: [
      { label: log ? "wait ≤" : "at", value: (_, value) => (value == null ? "–" : showAt(value)) },
      ...props.lines.map(({ label }, i): uPlot.Series => ({
        label,
        stroke: () => runColour(i),
        width: log ? 2 : 1.5,
        points: { show: false },
        value: (_, value) => (value == null ? "–" : show(value, false)),
      })),
    ],
    hooks: { setScale: [(made, key) => key === "x" && group.share(made)] },
  };
}

/** A line at the moment of the page; a click without a drag moves the moment there. */
function followMoment(chart: uPlot, clock: ReturnType<typeof usePage>["clock"]): () => void {
  const line = document.createElement("div");
  line.className = "moment";
  chart.over.append(line);
  const put = () => {
    const { min, max } = chart.scales.x!;
    const inside = min != null && max != null && clock.at >= min && clock.at <= max;
    line.hidden = !inside;
    if (inside) line.style.transform = `translateX(${chart.valToPos(clock.at, "x")}px)`;
  };
  (chart.hooks.draw ??= []).push(put);
  let down = 0;
  chart.over.addEventListener("mousedown", (event) => (down = event.clientX));
  chart.over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - down) < 3) clock.set(chart.posToVal(event.clientX - chart.over.getBoundingClientRect().left, "x"));
  });
  put();
  return clock.subscribe(put);
}
