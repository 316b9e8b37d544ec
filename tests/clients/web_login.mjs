// A person with a browser logs in at the web interface by an issuer. Prints what it saw as JSON.
//
//   node web_login.mjs URL ISSUER
import { chromium } from "playwright-core";

const [base, issuer] = process.argv.slice(2);
// A busy machine may be slow; nothing here measures time.
const PATIENCE_MS = Number(process.env.PATIENCE ?? 60_000);

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const context = await browser.newContext();
context.setDefaultTimeout(PATIENCE_MS);
const page = await context.newPage();
const seen = { complaints: [] };
page.on("pageerror", (error) => seen.complaints.push(error.message));
let code = "";
page.on("request", (request) => {
  const url = new URL(request.url());
  if (url.origin === base && url.searchParams.has("code")) code = url.searchParams.get("code");
});
const problem = (text) => page.getByRole("dialog").getByRole("alert").filter({ hasText: text });

try {
  // An address that somebody else made leads nowhere, whatever it says.
  await page.goto(`${base}/login?code=x&state=y&error_description=call%20us`);
  await problem("This login was not begun in this browser").waitFor();
  seen.forged = page.url() === `${base}/login` && !(await page.locator("body").innerText()).includes("call us");

  await page.goto(`${base}/login#/keys`);
  const leave = page.getByRole("button", { name: `Log in with ${new URL(issuer).host}`, exact: true });
  await leave.click();
  // The page that the issuer redirects to has no dialog before its first 401, and leaves /login at the end of the login.
  await page.waitForURL(`${base}/#/keys`);
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("heading", { level: 1, name: "Keys", exact: true }).waitFor();
  seen.place = page.url();
  seen.principal = await page.evaluate(async () => {
    const headers = { "X-ToolDock-Login": localStorage.getItem("tooldock-login") };
    return (await (await fetch("/api/me", { headers })).json()).principal;
  });
  const kept = await page.evaluate(() => [JSON.stringify({ ...sessionStorage }), JSON.stringify({ ...localStorage }), document.cookie, location.href]);
  seen.kept = kept.filter((text) => !code || text.includes(code) || text.includes("eyJ") || text.includes("tooldock-begun"));

  // The issuer's refusal is told by its code.
  await page.getByRole("button", { name: "Log out", exact: true }).click();
  await context.route(`${issuer}/**`, (route) => {
    const state = new URL(route.request().url()).searchParams.get("state");
    return route.fulfill({ status: 302, headers: { Location: `${base}/login?error=access_denied&state=${state}` } });
  });
  await leave.click();
  await problem("The issuer did not let you in (access_denied)").waitFor();
  seen.denied = true;
} catch (error) {
  const shown = await page.locator("body").innerText().catch(() => "nothing");
  console.error(`${error.message}\n--- shown at ${page.url()}\n${shown.slice(0, 4000)}\n--- ${JSON.stringify(seen)}`);
  await browser.close();
  process.exit(1);
}
await browser.close();
console.log(JSON.stringify(seen));
