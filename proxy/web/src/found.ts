// The pages of search results.
import type { FoundThing } from "./types.ts";

function address(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

/** The page of a result. */
export function placeOf(found: FoundThing): string {
  const of = found.of ?? "";
  if (found.kind === "namespace") return address("namespaces", found.name);
  if (found.kind === "tool") return address("namespaces", of, "tools", found.name);
  if (found.kind === "server") return address("namespaces", found.name);
  if (found.kind === "folder") return address("sources", found.name);
  if (found.kind === "secret") return address("secrets");
  return address("keys", found.name);
}
