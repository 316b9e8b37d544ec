// An editor for code: a plain text area (so the keyboard, screen readers and undo work as everywhere) over coloured text.
import { useId, useMemo, useRef, useState } from "preact/hooks";
import { CodeLines } from "./bigtext.tsx";
import { tokenize, type Language, type LineState } from "./highlight.ts";

const LINE_PX = 20;
const AHEAD = 10;

export function Editor(props: {
  value: string;
  onInput: (value: string) => void;
  language: Language;
  label: string;
  /** Line of a mistake, from 1, and what is wrong there. */
  mistake?: { line: number | null; message: string };
  onSave?: () => void;
  rows?: number;
}) {
  const { value, language, mistake } = props;
  const id = useId();
  const layer = useRef<HTMLDivElement>(null);
  const numbers = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const leave = useRef(false);
  const lines = useMemo(() => value.split("\n"), [value]);
  const states = useMemo(() => {
    const all: LineState[] = [];
    let state: LineState = "";
    for (const line of lines) {
      all.push(state);
      state = tokenize(line, language, state).after;
    }
    return all;
  }, [lines, language]);
  const rows = props.rows ?? 24;
  const first = Math.max(0, Math.floor(top / LINE_PX) - AHEAD);
  const last = Math.min(lines.length, first + rows + 2 * AHEAD + 20);
  const marked = mistake?.line ? mistake.line - 1 : -1;

  const follow = (area: HTMLTextAreaElement) => {
    setTop(area.scrollTop);
    layer.current!.style.transform = `translate(${-area.scrollLeft}px, ${-area.scrollTop}px)`;
    numbers.current!.style.transform = `translateY(${-area.scrollTop}px)`;
  };
  const insert = (area: HTMLTextAreaElement, text: string) => {
    // Deprecated, and the only way that keeps the browser's undo.
    if (!document.execCommand("insertText", false, text)) area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
    props.onInput(area.value);
  };

  return (
    <div class={`editor${mistake ? " wrong" : ""}`}>
      <div class="editor-body" style={{ height: `${rows * LINE_PX + 18}px` }}>
        <div class="editor-gutter" aria-hidden="true">
          <div ref={numbers}>
            <div style={{ height: `${first * LINE_PX}px` }} />
            {lines.slice(first, last).map((_, index) => (
              <span key={first + index} class={first + index === marked ? "marked" : undefined}>{first + index + 1}</span>
            ))}
          </div>
        </div>
        <div class="editor-text">
          <div class="editor-layer" aria-hidden="true">
            <div ref={layer}>
              <div style={{ height: `${first * LINE_PX}px` }} />
              <pre><CodeLines lines={lines.slice(first, last)} language={language} states={states.slice(first, last)} marked={marked - first} /></pre>
            </div>
          </div>
          <textarea
            value={value}
            aria-label={props.label}
            aria-describedby={mistake ? `${id}-mistake` : `${id}-keys`}
            aria-invalid={mistake ? "true" : undefined}
            spellcheck={false}
            autocomplete="off"
            autocapitalize="off"
            wrap="off"
            onInput={(event) => props.onInput(event.currentTarget.value)}
            onScroll={(event) => follow(event.currentTarget)}
            onKeyDown={(event) => {
              const area = event.currentTarget;
              if (event.key === "s" && (event.ctrlKey || event.metaKey) && props.onSave) {
                event.preventDefault();
                props.onSave();
              } else if (event.key === "Escape") {
                leave.current = true;
              } else if (event.key === "Tab" && !event.shiftKey && !leave.current) {
                event.preventDefault();
                insert(area, language === "python" ? "    " : "  ");
              } else if (event.key === "Enter" && !event.ctrlKey) {
                const line = area.value.slice(area.value.lastIndexOf("\n", area.selectionStart - 1) + 1, area.selectionStart);
                const indent = line.match(/^[ \t]*/)![0] + (language === "python" && /:\s*$/.test(line) ? "    " : "");
                if (indent) {
                  event.preventDefault();
                  insert(area, `\n${indent}`);
                }
                leave.current = false;
              } else if (event.key !== "Tab" && event.key !== "Shift") leave.current = false;
            }}
          />
        </div>
      </div>
      {mistake && (
        <p class="complaint" id={`${id}-mistake`} role="alert">
          {mistake.line ? <strong>Line {mistake.line}: </strong> : null}
          {mistake.message}
        </p>
      )}
      <p class="hint" id={`${id}-keys`}>Tab indents; Escape, then Tab leaves the editor.{props.onSave ? " Ctrl+S saves." : ""}</p>
    </div>
  );
}
