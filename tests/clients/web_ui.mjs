// A person with a browser: Chromium drives the web interface of a real gateway, from an empty namespace to the call in
// Activity. Prints what it saw as JSON; an error ends it with what was shown at that moment.
//
//   node web_ui.mjs URL TOKEN FOLDER [SCREENSHOTS]
//
// With SCREENSHOTS, a folder, the pictures of the documentation are taken there (`make screenshots`).
// FOLDER holds what the steps need: the command of a server in server.json, and a file that the steps make, `go`.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [base, token, folder, screenshots] = process.argv.slice(2);
// With --preserve-symlinks the packages stand beside the link that this script was reached by.
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
// A busy machine may be slow; nothing here measures time.
const PATIENCE_MS = Number(process.env.PATIENCE ?? 60_000);

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const context = await browser.newContext({
  viewport: { width: 1280, height: 800 },
  colorScheme: "light",
  reducedMotion: "reduce",
  httpCredentials: { username: "admin", password: token },
});
context.setDefaultTimeout(PATIENCE_MS);

const seen = { axe: {}, wide: [], strangers: [], complaints: [] };
context.on("request", (request) => {
  const url = request.url();
  if (!url.startsWith(base) && !/^(data|blob):/.test(url)) seen.strangers.push(url);
  if (url.includes(token)) seen.strangers.push("a token in an address");
});
let page = await context.newPage();
page.on("pageerror", (error) => seen.complaints.push(error.message));
page.on("console", (message) => {
  // A refused request is told in the page, too; whatever else the browser complains of is a mistake.
  if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) seen.complaints.push(message.text());
});

const button = (name) => page.getByRole("button", { name, exact: true });
const heading = (name) => page.getByRole("heading", { name, exact: true });
const goTo = async (place, title) => {
  await page.goto(`${base}/#/${place}`);
  await page.getByRole("heading", { level: 1, name: title, exact: true }).waitFor();
};

/** What axe finds in what is shown, in light and in dark colours, and whether 360 pixels hold it. */
async function looksWell(name) {
  const cdp = await context.newCDPSession(page);
  // The page's policy forbids foreign scripts; the debugger is not bound by it.
  await cdp.send("Runtime.evaluate", { expression: axe });
  const findings = async (options) => {
    const { violations } = await page.evaluate((given) => window.axe.run(document, given), options);
    return violations.flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.target} ${node.failureSummary}`));
  };
  const found = await findings({ resultTypes: ["violations"] });
  await page.emulateMedia({ colorScheme: "dark" });
  found.push(...(await findings({ runOnly: ["color-contrast"], resultTypes: ["violations"] })));
  await page.emulateMedia({ colorScheme: "light" });
  seen.axe[name] = found;
  await page.setViewportSize({ width: 360, height: 740 });
  const surplus = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (surplus > 0) seen.wide.push(`${name}: ${surplus}px`);
  await page.setViewportSize({ width: 1280, height: 800 });
  await cdp.detach();
}

const SCRIPT = '<img src=x onerror=window.hurt=1>';
const code = (greeting, mistake = "") => `import asyncio
import os

from fastmcp import Context
from fastmcp.tools import tool


@tool
async def count(steps: int, wait_for: str, ctx: Context, style: str = "plain") -> dict:
    """Count up, and tell of each step. ${SCRIPT}"""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
        await ctx.info(f"${SCRIPT} at {step}")
        while step == 1 and not os.path.exists(wait_for):
            await asyncio.sleep(0.05)
    return {"${greeting}": steps, "style": style}${mistake}
`;

const FORECAST = `from typing import Literal

from fastmcp import Context
from fastmcp.tools import tool


Unit = Literal["celsius", "fahrenheit"]


@tool
async def forecast(city: str, ctx: Context, days: int = 3, unit: Unit = "celsius") -> dict:
    """The weather of the next days in a city."""
    await ctx.info(f"asking the station nearest to {city}")
    for day in range(1, days + 1):
        await ctx.report_progress(day, days, f"day {day}")
    highest = [21, 19, 24, 23, 18, 17, 20]
    return {"city": city, "unit": unit, "highest": highest[:days]}
`;

/** The pictures of the documentation: a small namespace that does well. */
async function takePictures() {
  const ask = (method, path, data, headers = {}) =>
    context.request.fetch(base + path, { method, data, headers: { Authorization: `Bearer ${token}`, "X-ToolDock-Request": "1", ...headers }, failOnStatusCode: true });
  const picture = async (name, height) => {
    await page.mouse.move(0, 0);
    const { width } = page.viewportSize();
    await page.screenshot({ path: join(screenshots, `${name}.png`), clip: { x: 0, y: 0, width, height } });
  };
  const method = { "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "forecast", Accept: "application/json, text/event-stream" };
  const meta = { "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": { name: "pictures", version: "1" }, "io.modelcontextprotocol/clientCapabilities": {} };
  const call = (city) =>
    ask("POST", "/mcp/weather", { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: "forecast", arguments: { city }, _meta: meta } }, method);
  await ask("POST", "/api/folders", { name: "weather" });
  await ask("POST", "/api/folders/weather/tools", { filename: "forecast.py", content: FORECAST });
  await ask("POST", "/api/reload");
  await page.setViewportSize({ width: 1120, height: 900 });

  await goTo("sources/weather/forecast.py", "forecast.py");
  await page.getByText("Checked: forecast").waitFor();
  await picture("sources", 690);

  await goTo("namespaces/weather/tools/forecast", "weather");
  await page.getByLabel(/^city/).fill("Ulm");
  await button("Call").click();
  await heading("Result").waitFor();
  await page.getByRole("link", { name: "in Activity" }).waitFor();
  await picture("namespace", 880);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.setViewportSize({ width: 360, height: 740 });
  await picture("narrow-dark", 740);
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1120, height: 900 });

  await page.goto(`${base}/#/`);
  await heading("Overview").waitFor();
  await page.getByText("live", { exact: true }).waitFor();
  // The charts grow by a sample a second.
  for (let second = 0; second < 20; second++) {
    for (const city of ["Ulm", "Graz", "Bern"].slice(second % 3)) await call(city);
    await page.waitForTimeout(1000);
  }
  await picture("overview", 490);

  await goTo("activity", "Activity");
  await page.getByLabel("Namespace").fill("weather");
  await page.getByRole("list", { name: "Calls, newest first" }).getByRole("button", { name: /weather forecast ok/ }).first().waitFor();
  await picture("activity", 580);

  await ask("DELETE", "/api/folders/weather?force=true");
  await ask("POST", "/api/reload");
  await page.setViewportSize({ width: 1280, height: 800 });
}

const steps = {
  ...(screenshots && { pictures_for_the_documentation: takePictures }),

  async overview() {
    await page.goto(base);
    await heading("Overview").waitFor();
    await page.getByText("live", { exact: true }).waitFor();
    await page.getByText("Calls per minute").first().waitFor();
    // The pictures have called a tool already.
    if (!screenshots) await heading("What to do next").waitFor();
    await looksWell("overview");
  },

  async a_namespace_and_a_tool_with_a_mistake() {
    await page.getByRole("link", { name: "Namespaces", exact: true }).click();
    await button("New namespace").click();
    await page.getByLabel("Name", { exact: true }).fill("Team");
    await page.getByText("1 to 63 lowercase letters").waitFor();
    await page.getByLabel("Name", { exact: true }).fill("team");
    await button("Create").click();
    await page.getByRole("heading", { level: 1, name: "team" }).waitFor();
    await looksWell("folder");
    await button("New file").click();
    await page.getByLabel("Name of the file").fill("counting");
    await button("Write it").click();
    const editor = page.getByLabel("Code of counting.py");
    await editor.fill(code("counted", " +"));
    const line = code("counted").split("\n").length - 1;
    await page.getByText(`Line ${line}:`).waitFor();
    await button("Save").click();
    await page.getByText("Has a mistake").waitFor();
    await looksWell("editor");
    await editor.fill(code("counted"));
    await page.getByText("Checked: count").waitFor();
    await button("Save").click();
    await page.getByText("In service.").waitFor();
  },

  async a_call_by_its_form() {
    await page.getByRole("link", { name: "Try the tools" }).click();
    await page.getByRole("list", { name: "Tools" }).getByRole("link", { name: /^count/ }).click();
    await button("Call").click();
    await page.getByText("Required.").first().waitFor();
    await page.getByLabel(/^steps/).fill("2");
    const gate = join(folder, "go");
    await page.getByLabel(/^wait_for/).fill(gate);
    await button("Call").click();
    await page.getByText("step 1 · 1 of 2").waitFor();
    await page.getByRole("log").getByText(`${SCRIPT} at 1`).waitFor();
    await looksWell("tool");
    writeFileSync(gate, "");
    await heading("Result").waitFor();
    seen.result = JSON.parse(await page.getByRole("region", { name: "Result" }).last().innerText());
    await page.getByRole("link", { name: "in Activity" }).waitFor();
    await page.getByLabel("Raw JSON").check();
    const raw = page.getByLabel("Arguments as JSON");
    await raw.fill("{");
    await button("Call").click();
    await page.locator(".complaint").waitFor();
    await raw.fill(JSON.stringify({ steps: "many", wait_for: gate }));
    await button("Call").click();
    await heading("The tool failed").or(page.getByText("The call failed.")).waitFor();
  },

  async back_to_an_earlier_version() {
    await goTo("sources/team/counting.py", "counting.py");
    const editor = page.getByLabel("Code of counting.py");
    await editor.fill(code("newer"));
    await editor.press("Control+s");
    await page.getByText("In service.").waitFor();
    await button("Version 1").click();
    await page.getByRole("region", { name: "From version 1" }).getByText('+    return {"newer"').waitFor();
    await button("Go back to version 1").click();
    await button("Go back").click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.waitForFunction((text) => document.querySelector(".editor textarea").value === text, code("counted"));
    await page.getByText("In service.").waitFor();
  },

  async an_expired_login_keeps_what_was_typed() {
    const editor = page.getByLabel("Code of counting.py");
    const kept = `${code("counted")}# kept over the login\n`;
    await editor.fill(kept);
    await page.getByText("Checked: count").waitFor();
    // Until the login, the gateway is asked with a token that it does not know.
    await page.route("**/api/**", async (route) => {
      const headers = await route.request().allHeaders();
      await route.continue({ headers: headers.authorization?.startsWith("Bearer") ? headers : { ...headers, authorization: "Bearer old" } });
    });
    await button("Save").click();
    await heading("Your login has expired").waitFor();
    await looksWell("login");
    await page.getByLabel("Token", { exact: true }).fill(token);
    await button("Log in").click();
    // The page may say "In service." of the save before: the login is over when its form is gone.
    await heading("Your login has expired").waitFor({ state: "hidden" });
    await page.getByText("In service.").waitFor();
    if ((await editor.inputValue()) !== kept) throw new Error("what was typed is gone");
    // A request of the page may be on its way through the handler.
    await page.unrouteAll({ behavior: "wait" });
    seen.kept = await page.evaluate(() => Object.keys(localStorage));
  },

  async a_server_with_10_000_tools_and_bad_intentions() {
    await goTo("servers", "Servers");
    await button("Add a server").click();
    await page.getByLabel("Name", { exact: true }).fill("many");
    const { command, args } = JSON.parse(readFileSync(join(folder, "server.json"), "utf8"));
    await page.getByRole("textbox", { name: "Command" }).fill([command, ...args].map((word) => `"${word}"`).join(" "));
    await page.getByLabel("Environment (optional)").fill("API_PASSWORD=hunter2-canary");
    await looksWell("add a server");
    await button("Add").click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.getByText(/API_PASSWORD=\*+MASKED/).waitFor();
    if ((await page.content()).includes("hunter2-canary")) throw new Error("the value of a variable is shown");
    await looksWell("servers");
    await page.getByText("10,000 tools").waitFor();
    await button("Standard error of many").click();
    const output = page.getByRole("region", { name: "Lines of many, newest last" });
    await output.getByText('window.hurt="stderr"').waitFor();
    await page.getByRole("dialog").getByText("live").waitFor();
    await looksWell("standard error");
    const lines = () => output.getByText('window.hurt="stderr"').count();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await button("Restart many").click();
    await looksWell("restart a server");
    await button("Restart").click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await button("Standard error of many").click();
    // The new process says the same again, and the open page hears it.
    for (const end = Date.now() + PATIENCE_MS; (await lines()) < 2; ) {
      if (Date.now() > end) throw new Error("the restarted server's standard error did not come");
      await page.waitForTimeout(20);
    }
    await page.keyboard.press("Escape");
    await page.getByText("10,000 tools").waitFor();
    await goTo("namespaces/many", "many");
    const list = page.getByRole("list", { name: "Tools" });
    await page.getByRole("status").getByText("10,000 tools").waitFor();
    await list.getByRole("link").first().focus();
    // Each End loads what comes after; only what is in sight is in the page.
    const focused = () => page.evaluate(() => document.activeElement.textContent);
    for (const end = Date.now() + PATIENCE_MS; !(await focused()).includes("tool_9997") && Date.now() < end; ) {
      await page.keyboard.press("End");
      await page.waitForTimeout(20);
    }
    seen.last = await focused();
    seen.elements = await page.evaluate(() => document.querySelectorAll("*").length);
    await looksWell("10,000 tools");
    await page.getByLabel("Find a tool").fill("tool_777");
    await page.getByRole("status").getByText("11 tools").waitFor();
    await goTo("namespaces/many/tools/huge", "many");
    await button("Call").click();
    await heading("Result").waitFor();
    seen.elements_of_5_mb = await page.evaluate(() => document.querySelectorAll("*").length);
    await page.getByRole("region", { name: "Part 1" }).press("End");
    await goTo("namespaces/many/tools/hostile", "many");
    await button("Call").click();
    await heading("The tool failed").waitFor();
    await page.getByRole("region", { name: "Part 1" }).getByText("window.hurt=\"result\"").waitFor();
    await looksWell("hostile");
  },

  async secrets_are_written_and_never_read() {
    await goTo("secrets", "Secrets");
    await button("Set a secret").click();
    await page.getByLabel("Name", { exact: true }).fill("WEATHER_KEY");
    await page.getByLabel("Value").fill("canary-of-the-page");
    await button("Set").click();
    await page.getByRole("row", { name: /WEATHER_KEY/ }).getByText("set", { exact: true }).waitFor();
    if ((await page.content()).includes("canary-of-the-page")) throw new Error("the value of a secret is shown");
    await looksWell("secrets");
    await button("Remove WEATHER_KEY").click();
    await button("Remove").click();
    await page.getByRole("row", { name: /WEATHER_KEY/ }).waitFor({ state: "detached" });
  },

  async the_call_in_activity() {
    await goTo("activity", "Activity");
    await page.getByLabel("Namespace").fill("team");
    await page.getByLabel("Outcome").selectOption("ok");
    const calls = page.getByRole("list", { name: "Calls, newest first" });
    await calls.getByRole("button", { name: /team count ok/ }).first().waitFor();
    await looksWell("activity");
    await calls.getByRole("button", { name: /team count ok/ }).first().click();
    await heading("count: ok").waitFor();
    await looksWell("one call");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  },

  async a_key_is_made_shown_once_used_and_revoked() {
    await goTo("keys", "Keys");
    await page.getByText("No keys yet").waitFor();
    await button("Make a key").click();
    await page.getByLabel("Name", { exact: true }).fill("alice");
    await page.getByLabel("admin", { exact: true }).check();
    await page.getByLabel("Namespaces", { exact: true }).fill("te[am");
    await looksWell("make a key");
    await button("Make").click();
    await page.getByRole("alert").getByText("namespaces").waitFor();
    await page.getByLabel("Namespaces", { exact: true }).fill("team");
    await button("Make").click();
    await heading("The key of key:alice").waitFor();
    const key = await page.getByLabel("Key", { exact: true }).inputValue();
    await looksWell("a new key");
    await button("I have it").click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    const kept = await page.evaluate(() => JSON.stringify([{ ...sessionStorage }, { ...localStorage }, location.href]));
    if ((await page.content()).includes(key) || kept.includes(key)) throw new Error("the key is kept in the page");
    const count = () =>
      fetch(`${base}/mcp/team`, {
        method: "POST",
        headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json", Accept: "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "count" },
        body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: "count", arguments: { steps: 1, wait_for: join(folder, "go") }, _meta: { "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": { name: "alice", version: "1" }, "io.modelcontextprotocol/clientCapabilities": {} } } }),
      });
    const called = await count();
    const answer = await called.text();
    if (!called.ok || !answer.includes("counted")) throw new Error(`the key calls nothing: ${called.status} ${answer}`);
    await looksWell("keys");
    await page.getByRole("link", { name: "key:alice", exact: true }).click();
    await heading("What it may do").waitFor();
    await button("Tools and rules of team").click();
    await page.getByRole("link", { name: "count", exact: true }).waitFor();
    await looksWell("one key");
    await button("Revoke").click();
    await looksWell("revoke a key");
    await page.getByRole("dialog").getByRole("button", { name: "Revoke", exact: true }).click();
    await page.getByText("revoked", { exact: true }).first().waitFor();
    const refused = await count();
    if (refused.status !== 401) throw new Error(`the revoked key is answered with ${refused.status}`);
  },

  async the_gateways_state_and_its_log_as_it_is_written() {
    await goTo("operations", "Operations");
    await heading("Backends and members").waitFor();
    await button("Reload").click();
    await page.getByRole("dialog").getByText(/namespaces?, .* started anew/).waitFor();
    await looksWell("reload");
    await button("Close").last().click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await looksWell("operations");
    await page.getByRole("link", { name: "Configuration", exact: true }).click();
    await page.getByText("Nothing: the files and variables are as they are in force.").waitFor();
    await page.getByRole("row", { name: /workers.base_env/ }).waitFor();
    await page.getByLabel("Defaults, too").check();
    await page.getByLabel("Find").fill("admission.limits.body");
    await page.getByRole("row", { name: /admission.limits.body .*default/ }).waitFor();
    await looksWell("configuration");
    await page.getByRole("link", { name: "Log", exact: true }).click();
    await heading("Log").waitFor();
    const lines = page.getByRole("list", { name: "Lines of the log, newest first" });
    await lines.getByRole("button").first().waitFor();
    await page.getByText("live", { exact: true }).waitFor();
    await looksWell("log");
    // A line that is written while the page is open.
    await page.getByLabel("Find").fill("later_namespace");
    await page.getByText("No line of the last 500 fits.").waitFor();
    await page.getByText("live", { exact: true }).waitFor();
    const created = await context.request.post(`${base}/api/folders/team/tools`, { data: { filename: "later_namespace.py", content: "import no_such_module_of_the_page\n\nfrom fastmcp.tools import tool\n\n\n@tool\ndef later() -> int:\n    \"\"\"Later.\"\"\"\n    return 1\n" }, headers: { Authorization: `Bearer ${token}` } });
    if (!created.ok()) throw new Error(`not written: ${created.status()} ${await created.text()}`);
    await lines.getByRole("button").first().click();
    await page.getByRole("dialog").getByText("later_namespace").first().waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await context.request.delete(`${base}/api/folders/team/tools/later_namespace.py`, { headers: { Authorization: `Bearer ${token}` } });
    await goTo("namespaces/team/log", "team");
    await page.getByRole("list", { name: "Log of team, newest first" }).getByRole("button", { name: /count/ }).first().waitFor();
    await looksWell("log of a namespace");
  },

  async the_audit_log_is_exported() {
    await goTo("activity", "Activity");
    // The filters count once they stand in the address. A busy browser may show the page anew after the first input.
    const isFiltered = () => page.waitForFunction(() => location.hash.endsWith("?namespace=team&tool=count"), undefined, { timeout: PATIENCE_MS / 8 });
    do {
      await page.getByLabel("Namespace").fill("team");
      await page.getByLabel("Tool").fill("count");
    } while (!(await isFiltered().catch(() => false)));
    await page.getByRole("list", { name: "Calls, newest first" }).getByRole("button", { name: /_system/ }).first().waitFor({ state: "detached" });
    await page.getByRole("list", { name: "Calls, newest first" }).getByRole("button", { name: /team count/ }).first().waitFor();
    await button("Export").click();
    await looksWell("export");
    const saved = async () => {
      const [download] = await Promise.all([page.waitForEvent("download"), button("Save the file").click()]);
      return [download.suggestedFilename(), readFileSync(await download.path(), "utf8")];
    };
    const [lines, records] = await saved();
    const parsed = records.trim().split("\n").map((line) => JSON.parse(line));
    if (lines !== "audit.jsonl" || !parsed.length || parsed.some((record) => record.namespace !== "team" || record.tool !== "count")) throw new Error(`${lines}: ${records}`);
    await page.getByText("Everything that fits is saved.").waitFor();
    await page.getByLabel("Format").selectOption("csv");
    const [table, rows] = await saved();
    if (table !== "audit.csv" || !rows.startsWith("ts,namespace,") || rows.trim().split("\r\n").length !== parsed.length + 1) throw new Error(`${table}: ${rows}`);
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  },

  async keys_of_the_keyboard_and_the_search_over_everything() {
    await goTo("namespaces", "Namespaces");
    await page.keyboard.press("g");
    await page.keyboard.press("k");
    await heading("Keys").waitFor();
    await page.keyboard.press("?");
    await heading("Keyboard").waitFor();
    await looksWell("keyboard");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    // A letter in a field is text.
    await page.getByLabel("Find").fill("");
    await page.getByLabel("Find").press("/");
    if ((await page.getByLabel("Find").inputValue()) !== "/") throw new Error("a field lost its letter");
    await page.getByLabel("Find").fill("");
    await heading("Keys").focus();
    await page.keyboard.press("/");
    const search = page.getByRole("combobox", { name: /^Pages, namespaces/ });
    await search.fill("count");
    await page.getByRole("option", { name: /tool count/ }).waitFor();
    await looksWell("search");
    await search.fill("tool_9997");
    await page.getByRole("option", { name: /tool tool_9997/ }).waitFor();
    await search.press("Enter");
    await page.getByRole("heading", { level: 1, name: "many", exact: true }).waitFor();
    await page.keyboard.press("/");
    await search.fill("alice");
    await page.getByRole("option", { name: /key key:alice/ }).click();
    await page.getByRole("heading", { level: 1, name: "key:alice", exact: true }).waitFor();
  },

  async a_login_by_the_page_is_a_cookie_and_ends() {
    // A browser that was asked for no password.
    const other = await browser.newContext({ viewport: { width: 1280, height: 800 } });
    other.setDefaultTimeout(PATIENCE_MS);
    const first = page;
    page = await other.newPage();
    page.on("pageerror", (error) => seen.complaints.push(error.message));
    await page.goto(`${base}/login#/keys`);
    await heading("Log in").waitFor();
    await page.getByLabel("Token", { exact: true }).fill("wrong");
    await button("Log in").click();
    await page.getByRole("dialog").getByRole("alert").waitFor();
    await page.getByLabel("Token", { exact: true }).fill(token);
    await button("Log in").click();
    await page.getByRole("link", { name: "key:alice", exact: true }).waitFor();
    const [cookie] = await other.cookies();
    if (!cookie.httpOnly || cookie.sameSite !== "Strict" || cookie.value.includes(token)) throw new Error(`the cookie ${JSON.stringify(cookie)}`);
    const kept = await page.evaluate(() => JSON.stringify([{ ...sessionStorage }, { ...localStorage }, document.cookie, location.href]));
    if (kept.includes(token) || kept.includes(cookie.value)) throw new Error(`a script reads the login: ${kept}`);
    const half = await page.evaluate(() => localStorage.getItem("tooldock-login"));
    const asked = async (headers) => (await fetch(`${base}/api/me`, { headers })).status;
    const halves = { Cookie: `${cookie.name}=${cookie.value}`, "X-ToolDock-Login": half };
    if ((await asked({ Cookie: halves.Cookie })) !== 401) throw new Error("the cookie alone is a login");
    if ((await asked(halves)) !== 200) throw new Error("the page keeps no half of the login");
    await page.reload();
    await page.getByRole("link", { name: "key:alice", exact: true }).waitFor();
    await button("Log out").click();
    await heading("Log in").waitFor();
    const again = await asked(halves);
    if (again !== 401) throw new Error(`the login goes on: ${again}`);
    if (await page.evaluate(() => localStorage.getItem("tooldock-login"))) throw new Error("the page keeps its half of an ended login");
    page = first;
    await other.close();
  },

  async the_other_pages() {
    for (const [place, title] of [["namespaces", "Namespaces"], ["namespaces/team/resources", "team"], ["namespaces/team/prompts", "team"], ["namespaces/team/connect", "team"], ["sources", "Sources"]]) {
      await goTo(place, title);
      await page.getByText("Loading").waitFor({ state: "detached" });
      await looksWell(place);
    }
    await page.keyboard.press("Tab");
    await page.getByLabel("Colours").selectOption("dark");
    seen.theme = await page.evaluate(() => document.documentElement.dataset.theme);
    seen.hurt = await page.evaluate(() => window.hurt ?? null);
  },
};

for (const [name, step] of Object.entries(steps)) {
  try {
    await step();
    const hurt = await page.evaluate(() => window.hurt ?? null);
    if (hurt) throw new Error(`a script of the server ran: ${hurt}`);
  } catch (error) {
    const shown = await page.locator("body").innerText().catch(() => "nothing");
    console.error(`${name}: ${error.message}\n--- shown at ${page.url()}\n${shown.slice(0, 4000)}\n--- ${JSON.stringify(seen.complaints)}`);
    if (process.env.SHOT) await page.screenshot({ path: process.env.SHOT });
    await browser.close();
    process.exit(1);
  }
}
await browser.close();
console.log(JSON.stringify(seen));
