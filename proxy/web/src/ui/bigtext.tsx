// Text of any size: only the lines in sight are in the page. Everything is text; nothing the server sends is markup.
import { useMemo, useRef, useState, useEffect } from "preact/hooks";
import { tokenize, type Language, type LineState, type Token } from "./highlight.ts";
import { Spacer } from "./windowed.tsx";

const LINE_PX = 20;
const AHEAD = 20;
/** A longer line is broken here, so that one line of 5 MB is no load for the page either. */
const LONGEST = 500;
/** Up to this many lines the whole text stands in the page, where search and selection of the browser find all of it. */
const WHOLE = 300;

export function linesOf(text: string): string[] {
  const lines: string[] = [];
  for (const line of text.split("\n")) {
    if (line.length <= LONGEST) lines.push(line);
    else for (let from = 0; from < line.length; from += LONGEST) lines.push(line.slice(from, from + LONGEST));
  }
  return lines;
}

export function BigText({ text, language = "text", label }: { text: string; language?: Language; label: string }) {
  const lines = useMemo(() => linesOf(text), [text]);
  const element = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(480);
  useEffect(() => {
    const watcher = new ResizeObserver(() => element.current && setHeight(element.current.clientHeight));
    watcher.observe(element.current!);
    return () => watcher.disconnect();
  }, []);
  const windowed = lines.length > WHOLE;
  const first = windowed ? Math.max(0, Math.floor(top / LINE_PX) - AHEAD) : 0;
  const last = windowed ? Math.min(lines.length, Math.ceil((top + height) / LINE_PX) + AHEAD) : lines.length;
  return (
    <div ref={element} class="bigtext" role="region" aria-label={label} tabIndex={0} onScroll={(event) => windowed && setTop(event.currentTarget.scrollTop)}>
      <Spacer height={first * LINE_PX} />
      <pre><CodeLines lines={lines.slice(first, last)} language={language} /></pre>
      <Spacer height={(lines.length - last) * LINE_PX} />
    </div>
  );
}

/** Lines in colour; `states` says which string is open before each line. */
export function CodeLines({ lines, language, states, marked }: { lines: string[]; language: Language; states?: LineState[]; marked?: number }) {
  let state: LineState = states?.[0] ?? "";
  return (
    <>
      {lines.map((line, index) => {
        const { tokens, after } = tokenize(line, language, state);
        state = after;
        return <code key={index} class={index === marked ? "line marked" : "line"}>{line ? paint(tokens) : "\n"}</code>;
      })}
    </>
  );
}

function paint(tokens: Token[]) {
  return tokens.map(([kind, text], index) => (kind ? <span key={index} class={`t-${kind}`}>{text}</span> : text));
}
