// Buttons that copy a call, and the address they name.
import type { JsonObject } from "../api.ts";
import { get } from "../api.ts";
import { useLoad } from "../hooks.ts";
import { configuration, curl, python } from "../snippets.ts";
import type { Me } from "../types.ts";
import { Copy } from "../ui/basics.tsx";
import { BigText } from "../ui/bigtext.tsx";

/** The address that clients use. */
export function useAddress(namespace: string): string {
  const me = useLoad("me", (abort) => get<Me>("/api/me", abort));
  const base = (me.data?.mcp_url ?? location.origin).replace(/\/$/, "");
  return `${base}/mcp/${encodeURIComponent(namespace)}`;
}

export function Snippets({ namespace, tool, args }: { namespace: string; tool: string; args: () => JsonObject }) {
  const address = useAddress(namespace);
  return (
    <section class="snippets" aria-label="The same call from elsewhere">
      <h3>From elsewhere</h3>
      <div class="actions">
        <Copy label="Copy as curl" text={() => curl(address, tool, args())} />
        <Copy label="Copy as Python" text={() => python(address, tool, args())} />
        <Copy label="Copy client configuration" text={() => configuration(address, namespace)} />
      </div>
    </section>
  );
}

export function Snippet({ title, text, language }: { title: string; text: string; language: "json" | "python" | "text" }) {
  return (
    <div class="text-block">
      <div class="form-head"><h2>{title}</h2><Copy text={text} label="Copy" /></div>
      <BigText text={text} language={language} label={title} />
    </div>
  );
}
