// Opens the pages of tools (MCP Apps) in the web interface with headless Chromium. Prints its observations as one JSON object.
//
//   node web_frame.mjs URL TOKEN
import { chromium } from "playwright-core";

const [base, token] = process.argv.slice(2);
// Time limit of each step, in milliseconds. It is long, since a busy machine may be slow and no step measures time.
const PATIENCE_MS = Number(process.env.PATIENCE ?? 60_000);

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const context = await browser.newContext({ httpCredentials: { username: "admin", password: token } });
context.setDefaultTimeout(PATIENCE_MS);
const page = await context.newPage();
const seen = { strangers: [] };
const isStranger = (request) => !request.url().startsWith(base) && !/^(data|blob):/.test(request.url());
// `strangers`: requests to other hosts that left the browser. Requests that the policy forbids fail before and are not counted.
context.on("response", (response) => isStranger(response.request()) && seen.strangers.push(response.url()));
context.on("requestfailed", (request) => isStranger(request) && !/CSP/i.test(request.failure().errorText) && seen.strangers.push(`${request.url()} ${request.failure().errorText}`));
const frame = page.frameLocator("iframe.app-frame");
const call = async (namespace, tool) => {
  await page.goto(`${base}/#/namespaces/${namespace}/tools/${tool}`);
  await page.getByRole("button", { name: "Call", exact: true }).click();
  await page.getByRole("button", { name: "Show the page", exact: true }).click();
};

try {
  await call("sales", "show_sales");
  await frame.getByRole("heading", { name: "Sales of 2026" }).waitFor();
  seen.bars = await frame.locator("rect").count();
  await frame.getByLabel("Year").fill("2025");
  await frame.getByRole("button", { name: "Show" }).click();
  await frame.getByRole("heading", { name: "Sales of 2025" }).waitFor();

  // The hostile page writes a list of what it could reach into `#told`.
  await call("hostile", "show");
  const told = frame.locator("#told");
  await told.waitFor();
  seen.reached = JSON.parse(await told.innerText());
  seen.stayed = page.url();
  seen.title = await page.title();
  seen.warned = await page.getByText("loads nothing from other hosts").innerText();

  const refused = page.waitForEvent("console", (message) => message.text().includes("frame-src"));
  await call("hostile", "leave");
  await refused;
  seen.stayedThen = page.url();
} catch (error) {
  const shown = await page.locator("body").innerText().catch(() => "nothing");
  console.error(`${error.message}\n--- shown at ${page.url()}\n${shown.slice(0, 4000)}\n--- ${JSON.stringify(seen)}`);
  await browser.close();
  process.exit(1);
}
await browser.close();
console.log(JSON.stringify(seen));
