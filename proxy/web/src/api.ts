// Requests to the gateway's own API: credentials, errors, streams. Nothing else in the app calls fetch().
import { signal } from "@preact/signals";

/** An answer that is no success, in the words of the server. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details?: unknown,
  ) {
    super(message);
  }
}

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

const KEPT = "tooldock-token";

/**
 * The page's half of a login, which localStorage gives to this scheme, host and port alone. The other half is a cookie that no
 * script can read, and that browsers send to every port of the host. A half alone is no credential.
 */
const HALF = "tooldock-login";

/** What the page keeps of a login by an issuer until the issuer redirects back: state, proof, and the place to return to. */
const BEGUN = "tooldock-begun";

/**
 * Only where the browser keeps no cookie does the token live in this tab: memory, and sessionStorage so that a reload does not
 * ask again.
 */
let token = sessionStorage.getItem(KEPT);

/** At this address nobody is logged in: a password that the browser still has is not sent. */
let anonymous = location.pathname.endsWith("/login");

/** Whether the server wants (new) credentials; the login form is shown while this is set. */
export const loginWanted = signal<"no" | "first" | "expired">("no");
let waiting: Array<{ again: () => void; never: () => void }> = [];
let answeredOnce = false;
/** Number of logins in this page: a 401 to a request from before the last one asks for no other. */
let logins = 0;
/** True from the start of a logout. The event streams end with the login, and their retries then open no login form. */
let leaving = false;

/** The login by an issuer that this page was opened for: while it ends, and why it failed. */
export const issuerLogin = signal<{ busy?: boolean; error?: Error }>({});

/** The header with the page's half. Read each time: another tab may have logged in. */
function halfOfLogin(): Record<string, string> {
  const half = anonymous ? null : localStorage.getItem(HALF);
  return half ? { "X-ToolDock-Login": half } : {};
}

/** Takes a token from the login form and repeats every request that waits for it. Throws if the token is refused. */
export async function logIn(given: string): Promise<void> {
  const headers = { "X-ToolDock-Request": "1", Authorization: `Bearer ${given}` };
  const opened = await fetch("/api/login", { method: "POST", headers, redirect: "error" });
  if (!opened.ok) throw await refusal(opened);
  anonymous = false;
  localStorage.setItem(HALF, (await opened.json()).login);
  const known = await fetch("/api/me", { headers: { "X-ToolDock-Request": "1", ...halfOfLogin() }, redirect: "error" });
  token = known.ok ? null : given;
  if (token) {
    sessionStorage.setItem(KEPT, token);
    localStorage.removeItem(HALF);
  } else sessionStorage.removeItem(KEPT);
  if (location.pathname.endsWith("/login") && !token) history.replaceState(null, "", `/${location.hash}`);
  repeatWaiting();
}

function repeatWaiting(): void {
  logins += 1;
  loginWanted.value = "no";
  const all = waiting;
  waiting = [];
  for (const one of all) one.again();
}

export interface LoginIssuer {
  issuer: string;
  name: string;
}

/** The issuers by which a person can log in here. Without an answer, the token is the only way. */
export async function loginIssuers(): Promise<LoginIssuer[]> {
  const answer = await fetch("/api/login/oauth", { redirect: "error", credentials: "omit" }).catch(() => null);
  return answer?.ok ? (await answer.json()).issuers : [];
}

/** Leaves for the issuer, which redirects back to /login. The place to return to stays in this browser's storage. */
export async function beginLogin(issuer: string): Promise<void> {
  const begun = await loginStep("/api/login/oauth", { issuer });
  const { address, state, proof } = begun;
  localStorage.setItem(BEGUN, JSON.stringify({ state, proof, hash: location.hash }));
  location.assign(address);
}

async function loginStep(path: string, body: Json): Promise<Record<string, string>> {
  const headers = { "X-ToolDock-Request": "1", "Content-Type": "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), redirect: "error" });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

/** Ends the login by an issuer whose answer stands in the page's address. The answer leaves the address first. */
export async function endLogin(): Promise<void> {
  const answered = new URLSearchParams(location.search);
  const state = answered.get("state");
  if (!location.pathname.endsWith("/login") || !state) return;
  history.replaceState(null, "", location.pathname);
  try {
    const begun = JSON.parse(localStorage.getItem(BEGUN) ?? "null");
    if (begun?.state !== state) throw new ApiError(400, "bad_request", "This login was not begun in this browser. Begin again.");
    localStorage.removeItem(BEGUN);
    if (String(begun.hash).startsWith("#/")) location.replace(begun.hash);
    const code = answered.get("code");
    // The address may come from anybody: of an error, only a code of the specification's form is shown.
    const error = /^[a-z_]{1,64}$/.exec(answered.get("error") ?? "")?.[0] ?? "no code";
    if (!code) throw new ApiError(403, error, `The issuer did not let you in (${error}).`);
    issuerLogin.value = { busy: true };
    const iss = answered.get("iss");
    const login = await loginStep("/api/login/oauth/code", { state, code, proof: begun.proof, ...(iss && { iss }) });
    anonymous = false;
    token = null;
    sessionStorage.removeItem(KEPT);
    localStorage.setItem(HALF, login.login!);
    history.replaceState(null, "", `/${location.hash}`);
    issuerLogin.value = {};
    repeatWaiting();
  } catch (error) {
    issuerLogin.value = { error: error as Error };
  }
}

/** Ends the login of this browser, and opens the login page. A login that has already expired counts as ended. */
export async function logOut(): Promise<void> {
  leaving = true;
  try {
    await send("/api/login", { method: "DELETE" });
  } catch (error) {
    leaving = (error as ApiError).status === 401;
    if (!leaving) throw error;
  }
  token = null;
  sessionStorage.removeItem(KEPT);
  localStorage.removeItem(HALF);
  location.assign("/login");
}

/** Closes the login form: the requests that wait fail, and the page keeps what was typed. */
export function doNotLogIn(): void {
  loginWanted.value = "no";
  const all = waiting;
  waiting = [];
  for (const one of all) one.never();
}

function whenLoggedIn(): Promise<boolean> {
  loginWanted.value = answeredOnce ? "expired" : "first";
  return new Promise((resolve) => waiting.push({ again: () => resolve(true), never: () => resolve(false) }));
}

export interface Asked {
  method?: string;
  body?: Json | FormData | string;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** One request; a 401 asks for a login and then repeats the request. */
export async function send(path: string, asked: Asked = {}): Promise<Response> {
  for (;;) {
    const headers: Record<string, string> = { "X-ToolDock-Request": "1", ...halfOfLogin(), ...asked.headers };
    if (token) headers.Authorization = `Bearer ${token}`;
    let body: BodyInit | undefined;
    if (asked.body instanceof FormData) body = asked.body;
    else if (typeof asked.body === "string") {
      body = asked.body;
      headers["Content-Type"] ??= "application/json";
    } else if (asked.body !== undefined) {
      body = JSON.stringify(asked.body);
      headers["Content-Type"] = "application/json";
    }
    const before = logins;
    let answer: Response;
    try {
      answer = await fetch(path, { method: asked.method ?? "GET", headers, body, signal: asked.signal, redirect: "error", credentials: anonymous ? "omit" : "same-origin" });
    } catch (error) {
      if (asked.signal?.aborted) throw error;
      throw new ApiError(0, "unreachable", "The gateway does not answer. Is the process running, and is the network up?");
    }
    if (answer.status !== 401) {
      answeredOnce = true;
      if (answer.ok) return answer;
      throw await refusal(answer);
    }
    if (before !== logins) continue;
    if (leaving) throw new ApiError(401, "unauthorized", "Logged out.");
    if (!(await whenLoggedIn())) throw new ApiError(401, "unauthorized", "Not logged in. Your entries are kept; log in and repeat the action.");
  }
}

async function refusal(answer: Response): Promise<ApiError> {
  const text = await answer.text().catch(() => "");
  try {
    const body = JSON.parse(text);
    const error = body.error ?? {};
    const message = error.message ?? (typeof body.detail === "string" ? body.detail : undefined);
    if (typeof message === "string") return new ApiError(answer.status, String(error.code ?? answer.status), message, error.details);
  } catch {
    // Not the API's own form: told below.
  }
  return new ApiError(answer.status, String(answer.status), text.slice(0, 300) || `The server answered ${answer.status} ${answer.statusText}.`);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send(path, { signal })).json() as Promise<T>;
}

export async function post<T>(path: string, body: Json | FormData, signal?: AbortSignal): Promise<T> {
  return (await send(path, { method: "POST", body, signal })).json() as Promise<T>;
}

export async function put<T>(path: string, body: Json, signal?: AbortSignal): Promise<T> {
  return (await send(path, { method: "PUT", body, signal })).json() as Promise<T>;
}

export async function remove<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send(path, { method: "DELETE", signal })).json() as Promise<T>;
}

/** A path from its parts; every part is escaped. */
export function path(parts: TemplateStringsArray, ...values: Array<string | number>): string {
  return parts.reduce((whole, part, index) => whole + encodeURIComponent(String(values[index - 1])) + part);
}

/** `?a=b` of what is set. */
export function query(values: Record<string, string | number | undefined>): string {
  const set = Object.entries(values).filter(([, value]) => value !== undefined && value !== "");
  return set.length ? `?${new URLSearchParams(set.map(([name, value]) => [name, String(value)]))}` : "";
}

export interface StreamEvent {
  event: string;
  data: string;
  id?: string;
}

/** The events of an answer as they come. Ends with the answer; throws where the connection breaks. */
export async function* events(answer: Response): AsyncGenerator<StreamEvent> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message";
  let data: string[] = [];
  let id: string | undefined;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      // A 5 MB line comes in many pieces: only what is new is searched for its end.
      let from = rest.length;
      rest += value;
      let start = 0;
      for (;;) {
        const end = rest.indexOf("\n", Math.max(from, start));
        if (end < 0) break;
        const line = rest.slice(start, rest[end - 1] === "\r" ? end - 1 : end);
        start = end + 1;
        from = start;
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n"), id };
          event = "message";
          data = [];
          continue;
        }
        if (line[0] === ":") continue;
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const content = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
        if (field === "data") data.push(content);
        else if (field === "event") event = content;
        else if (field === "id") id = content;
      }
      rest = rest.slice(start);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
