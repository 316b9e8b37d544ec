// A long list of which only the rows in sight exist in the page: 10,000 tools scroll like ten.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const AHEAD = 8;

/**
 * Rows of one height. Each row is a link or button made by `row`; the arrow keys, Home and End move between the rows,
 * and Tab leaves the list. `onEnd` is called when the last row comes into sight, to load more.
 */
export function Windowed<T>(props: {
  items: T[];
  rowHeight: number;
  label: string;
  keyOf: (item: T) => string;
  row: (item: T, tabIndex: number, index: number) => ComponentChildren;
  total?: number;
  onEnd?: () => void;
  class?: string;
}) {
  const { items, rowHeight } = props;
  const element = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [active, setActive] = useState(0);
  const focusWanted = useRef<number | null>(null);
  useEffect(() => {
    const watcher = new ResizeObserver(() => element.current && setHeight(element.current.clientHeight));
    watcher.observe(element.current!);
    return () => watcher.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(top / rowHeight) - AHEAD);
  const last = Math.min(items.length, Math.ceil((top + height) / rowHeight) + AHEAD);
  const rested = Math.min(active, items.length - 1);
  useEffect(() => {
    if (last >= items.length && items.length) props.onEnd?.();
  }, [last, items.length]);
  // Before the browser does anything else: the row that had the focus may just have left the page.
  useLayoutEffect(() => {
    const row = element.current!.querySelector<HTMLElement>(`[data-index="${focusWanted.current}"] a, [data-index="${focusWanted.current}"] button`);
    if (focusWanted.current === null || !row) return;
    focusWanted.current = null;
    row.focus({ preventScroll: true });
  });
  const move = (to: number) => {
    const index = Math.max(0, Math.min(items.length - 1, to));
    const box = element.current!;
    if (index * rowHeight < box.scrollTop) box.scrollTop = index * rowHeight;
    if ((index + 1) * rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = (index + 1) * rowHeight - box.clientHeight;
    focusWanted.current = index;
    setTop(box.scrollTop);
    setActive(index);
  };
  const page = Math.max(1, Math.floor(height / rowHeight) - 1);
  const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  return (
    <div
      ref={element}
      class={`windowed ${props.class ?? ""}`}
      role="list"
      aria-label={props.label}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown={(event) => {
        const step = steps[event.key];
        if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        move(rested + step);
      }}
      onFocusIn={(event) => {
        const index = (event.target as HTMLElement).closest<HTMLElement>("[data-index]")?.dataset.index;
        if (index) setActive(Number(index));
      }}
    >
      <Spacer height={first * rowHeight} />
      {items.slice(first, last).map((item, offset) => {
        const index = first + offset;
        // The row that Tab reaches is one that exists.
        const reached = rested >= first && rested < last ? rested : first;
        return (
          <div key={props.keyOf(item)} role="listitem" class="windowed-row" data-index={index} aria-setsize={props.total ?? items.length} aria-posinset={index + 1} style={{ height: `${rowHeight}px` }}>
            {props.row(item, index === reached ? 0 : -1, index)}
          </div>
        );
      })}
      <Spacer height={(items.length - last) * rowHeight} />
    </div>
  );
}

/** Styles are set from code (the policy forbids them in markup). */
export function Spacer({ height }: { height: number }) {
  return <div aria-hidden="true" style={{ height: `${Math.max(0, height)}px` }} />;
}
