// Numbers, sizes and times as people read them.
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Number.isInteger(value) ? whole.format(value) : plain.format(value);
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  return `${plain.format(share * 100)} %`;
}

export function milliseconds(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0 ms";
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return duration(value / 1000);
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${plain.format(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${plain.format(bytes / 1024)} KB`;
  return `${plain.format(bytes / 1024 / 1024)} MB`;
}

/** A moment from RFC 3339 or seconds/milliseconds since 1970. */
export function moment(value: string | number | null | undefined): Date | undefined {
  if (value === null || value === undefined || value === "") return undefined;
  const date = typeof value === "number" ? new Date(value < 1e11 ? value * 1000 : value) : new Date(value);
  return Number.isNaN(date.getTime()) ? undefined : date;
}

const pad = (value: number, digits = 2) => String(value).padStart(digits, "0");

/** The time of today, with the date before it on other days. */
export function time(value: string | number | null | undefined, withMilliseconds = false): string {
  const date = moment(value);
  if (!date) return "–";
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}${withMilliseconds ? `.${pad(date.getMilliseconds(), 3)}` : ""}`;
  const today = new Date();
  if (date.toDateString() === today.toDateString()) return clock;
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clock}`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** The time axis of a chart covers at least this much. */
const SHORTEST_AXIS_S = 120;

/** The first and last second of a chart's time axis. uPlot's own guess for a single sample is years. */
export function timesShown(times: ArrayLike<number>, now: number): [number, number] {
  const to = times[times.length - 1] ?? now;
  return [Math.min(times[0] ?? to, to - SHORTEST_AXIS_S), to];
}
