// Dark or light: the system's choice until the switch says otherwise.
import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEPT = "tooldock-theme";

function kept(): Theme {
  const value = localStorage.getItem(KEPT);
  return value === "light" || value === "dark" ? value : "system";
}

export const theme = signal<Theme>(kept());
const system = matchMedia("(prefers-color-scheme: dark)");

/** What is shown in the end; charts are drawn again when this changes. */
export const shownTheme = signal<"light" | "dark">("light");

function show(): void {
  shownTheme.value = theme.value === "system" ? (system.matches ? "dark" : "light") : theme.value;
  document.documentElement.dataset.theme = shownTheme.value;
}

system.addEventListener("change", show);
show();

export function setTheme(value: Theme): void {
  theme.value = value;
  if (value === "system") localStorage.removeItem(KEPT);
  else localStorage.setItem(KEPT, value);
  show();
}
