// A unified diff, line by line. The sign at the start of each line says what the colour says.
import { BigText } from "./bigtext.tsx";

const MOST_LINES = 5000;

export function Diff({ diff, label }: { diff: string; label: string }) {
  if (!diff.trim()) return <p class="quiet">No difference.</p>;
  const lines = diff.replace(/\n$/, "").split("\n");
  if (lines.length > MOST_LINES) return <BigText text={diff} label={label} />;
  return (
    <div class="bigtext diff" role="region" aria-label={label} tabIndex={0}>
      <pre>
        {lines.map((line, index) => {
          const kind = /^(\+\+\+|---)/.test(line) && index < 2 ? "head" : line[0] === "+" ? "plus" : line[0] === "-" ? "minus" : line.startsWith("@@") ? "hunk" : "";
          return <code key={index} class={`line ${kind}`}>{line || "\n"}</code>;
        })}
      </pre>
    </div>
  );
}
