// One figure over the last minutes. The chart is for the eye; its label says the figures to screen readers.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { shownTheme } from "../theme.ts";
import { timesShown } from "./format.ts";

const HEIGHT_PX = 120;

export function Chart({ title, times, values, text }: { title: string; times: number[]; values: Array<number | null>; text: (value: number) => string }) {
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | undefined>(undefined);
  const shade = shownTheme.value;
  useEffect(() => {
    const styles = getComputedStyle(document.documentElement);
    const colour = (name: string) => styles.getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${styles.fontFamily}` };
    chart.current = new uPlot(
      {
        width: place.current!.clientWidth,
        height: HEIGHT_PX,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: true, range: (shown) => timesShown(shown.data[0], Date.now() / 1000) }, y: { range: (_, __, most) => [0, Math.max(most ?? 0, 1) * 1.1] } },
        axes: [{ ...axis, space: 70 }, { ...axis, size: 58, space: 20, values: (_, ticks) => ticks.map(text) }],
        series: [{}, { stroke: colour("--accent"), width: 1.5, fill: colour("--accent-faint"), points: { show: false }, spanGaps: false }],
      },
      [times, values] as uPlot.AlignedData,
      place.current!,
    );
    const watcher = new ResizeObserver(() => place.current && chart.current?.setSize({ width: place.current.clientWidth, height: HEIGHT_PX }));
    watcher.observe(place.current!);
    return () => {
      watcher.disconnect();
      chart.current?.destroy();
    };
  }, [shade]);
  useEffect(() => chart.current?.setData([times, values] as uPlot.AlignedData), [times, values]);
  const known = values.filter((value) => value !== null);
  const label = known.length ? `${title}: now ${text(known.at(-1)!)}, highest ${text(Math.max(...known))}` : `${title}: no calls yet`;
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={place} role="img" aria-label={label} />
    </figure>
  );
}
