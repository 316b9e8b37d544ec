// Files from the user's machine: a button that works by keyboard, and a place to drop them.
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";

export function FileInput({ control, label, accept, multiple, onFile }: {
  control?: Record<string, unknown>;
  label: string;
  accept?: string;
  multiple?: boolean;
  onFile: (file: File) => void;
}) {
  return (
    <input
      {...control}
      type="file"
      aria-label={control ? undefined : label}
      accept={accept}
      multiple={multiple}
      onChange={(event) => {
        for (const file of event.currentTarget.files ?? []) onFile(file);
        event.currentTarget.value = "";
      }}
    />
  );
}

/** A part of the page that takes dropped files. What it does can be done by its button as well. */
export function DropZone({ onFile, children }: { onFile: (file: File) => void; children: ComponentChildren }) {
  const [over, setOver] = useState(false);
  const depth = useRef(0);
  return (
    <div
      class={over ? "drop-zone over" : "drop-zone"}
      onDragEnter={(event) => {
        if (!event.dataTransfer?.types.includes("Files")) return;
        depth.current += 1;
        setOver(true);
      }}
      onDragLeave={() => {
        depth.current = Math.max(0, depth.current - 1);
        if (!depth.current) setOver(false);
      }}
      onDragOver={(event) => event.dataTransfer?.types.includes("Files") && event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        depth.current = 0;
        setOver(false);
        for (const file of event.dataTransfer?.files ?? []) onFile(file);
      }}
    >
      {children}
    </div>
  );
}
