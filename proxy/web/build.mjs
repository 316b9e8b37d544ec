// Bundles src/ into dist/, which is committed and embedded in the binary: `make web`, or `node build.mjs [OUTPUT]`.
// The same sources and the pinned esbuild give the same bytes on every machine; tests/web_ui.rs holds them against dist/.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const output = process.argv[2] ?? join(here, "dist");

// The licences of what is bundled ask for their notice.
const notices = `/*! With Preact and its signals (MIT, (c) Jason Miller, the Preact authors) and uPlot (MIT, (c) Leon Sorokin). */`;

const bundled = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: output,
  bundle: true,
  write: false,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: notices },
  logLevel: "warning",
});

mkdirSync(output, { recursive: true });
const files = new Map(bundled.outputFiles.map((file) => [basename(file.path), file.contents]));
for (const name of ["icon.svg", "frame.html"]) files.set(name, readFileSync(join(here, "src", name)));

// A name never changes, its query does with the content: the gateway lets browsers keep for ever what has a query.
let page = readFileSync(join(here, "src/index.html"), "utf8");
for (const [name, contents] of files) {
  writeFileSync(join(output, name), contents);
  const hash = createHash("sha256").update(contents).digest("hex").slice(0, 12);
  page = page.replaceAll(`/assets/${name}`, `/assets/${name}?v=${hash}`);
}
writeFileSync(join(output, "index.html"), page);
