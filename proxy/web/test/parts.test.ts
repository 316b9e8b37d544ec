// The parts that need no browser: node --test test/*.test.ts
import assert from "node:assert/strict";
import { test } from "node:test";
import type { JsonObject } from "../src/api.ts";
import { appHost, isForPages, pageIn, pageOf } from "../src/app-host.ts";
import { placeOf } from "../src/found.ts";
import { headerValue } from "../src/meta.ts";
import { choiceOf, describe, initial, type Schema } from "../src/schema.ts";
import { configuration, curl, python, pythonValue } from "../src/snippets.ts";
import { duration, milliseconds, size, timesShown } from "../src/ui/format.ts";
import { tokenize, type LineState } from "../src/ui/highlight.ts";
import { parseList, parseVariables, parseWords } from "../src/words.ts";

test("a command line is split as a shell does, and nothing of it is expanded", () => {
  assert.deepEqual(parseWords(`npx -y "a b" 'c "d"' e\\ f "" $HOME`).all, ["npx", "-y", "a b", 'c "d"', "e f", "", "$HOME"]);
  assert.match(parseWords('npx "a').wrong!, /not closed/);
});

test("variables are one a line, and a wrong line is named", () => {
  assert.deepEqual(parseVariables("A=1\n\nB=x=y\n").all, { A: "1", B: "x=y" });
  assert.match(parseVariables("A=1\nno").wrong!, /Line 2/);
});

test("names in a field are separated by spaces, commas and lines", () => {
  assert.deepEqual(parseList(" dev-*, shared\n_system "), ["dev-*", "shared", "_system"]);
  assert.deepEqual(parseList("  "), []);
});

test("every result of the search leads to its page, whatever its name", () => {
  assert.equal(placeOf({ kind: "tool", name: "a/b?", of: "team" }), "#/namespaces/team/tools/a%2Fb%3F");
  assert.equal(placeOf({ kind: "folder", name: "team" }), "#/sources/team");
  assert.equal(placeOf({ kind: "key", name: "0123456789ab", about: "key:ci" }), "#/keys/0123456789ab");
  assert.equal(placeOf({ kind: "secret", name: "TOKEN", of: "global" }), "#/secrets");
});

test("references, merged parts and optional types become one description", () => {
  const root: Schema = {
    $defs: { point: { type: "object", properties: { x: { type: "number" } }, required: ["x"] } },
    properties: {
      at: { $ref: "#/$defs/point", description: "where" },
      note: { anyOf: [{ type: "string" }, { type: "null" }], default: null },
      both: { allOf: [{ $ref: "#/$defs/point" }, { properties: { y: { type: "number" } } }] },
      sides: { type: ["integer", "string"] },
      colour: { oneOf: [{ const: "red" }, { const: "blue" }] },
    },
  };
  const properties = root.properties!;
  assert.equal(describe(properties.at, root).kind, "object");
  assert.equal(describe(properties.at, root).schema.description, "where");
  assert.deepEqual([describe(properties.note, root).kind, describe(properties.note, root).nullable], ["string", true]);
  assert.deepEqual(Object.keys(describe(properties.both, root).schema.properties!).sort(), ["x", "y"]);
  assert.deepEqual(describe(properties.sides, root).choices.map((choice) => choice.type), ["integer", "string"]);
  assert.deepEqual(describe(properties.colour, root).schema.enum, ["red", "blue"]);
});

test("a schema that refers to itself ends", () => {
  const root: Schema = { $ref: "#", type: "object" };
  assert.equal(describe(root, root).kind, "any");
  const tree: Schema = { type: "object", properties: { left: { $ref: "#" } }, required: ["left"] };
  assert.ok(JSON.stringify(initial(tree, tree, true)).length < 200);
});

test("a form begins with defaults and with what must be there", () => {
  const schema: Schema = {
    type: "object",
    properties: { a: { type: "integer", default: 3 }, b: { type: "string" }, c: { type: "object", properties: { d: { const: "x" } }, required: ["d"] } },
    required: ["b", "c"],
  };
  assert.deepEqual(initial(schema, schema, true), { a: 3, c: { d: "x" } });
});

test("the alternative of a value is the one it fits", () => {
  const choices: Schema[] = [
    { type: "object", properties: { kind: { const: "circle" }, r: {} } },
    { type: "object", properties: { kind: { const: "box" }, w: {} } },
  ];
  assert.equal(choiceOf({ kind: "box", w: 1 }, choices, {}), 1);
  assert.equal(choiceOf("none", choices, {}), -1);
});

test("strings of several lines stay strings, and every letter is kept", () => {
  let state: LineState = "";
  const lines = ['def f(x):  # "no string"', '    """Says', "    it's fine", '    """', '    return f"{x}" + r\'\\d\' + 0x1F'];
  const kinds = lines.map((line) => {
    const { tokens, after } = tokenize(line, "python", state);
    state = after;
    assert.equal(tokens.map(([, text]) => text).join(""), line);
    return tokens.map(([kind]) => kind).filter(Boolean).join("");
  });
  assert.deepEqual(kinds, ["kfc", "s", "s", "s", "kssn"]);
  assert.equal(state, "");
});

test("copied calls quote what a shell, Python and headers would read otherwise", () => {
  const text = curl("http://gw/mcp/x", "say", { text: "it's" });
  assert.match(text, /it'\\''s/);
  assert.match(text, /Bearer \$BEARER_TOKEN/);
  assert.equal(pythonValue({ a: [true, null, "x"], b: {} }), '{\n    "a": [True, None, "x"],\n    "b": {},\n}');
  assert.match(python("http://gw/mcp/x", "say", {}), /call_tool\("say", \{\}\)/);
  assert.equal(JSON.parse(configuration("http://gw/mcp/x", "x")).mcpServers.x.url, "http://gw/mcp/x");
  assert.equal(headerValue("größe"), "=?base64?Z3LDtsOfZQ==?=");
  assert.equal(headerValue("plain name"), "plain name");
});

test("figures are short", () => {
  assert.deepEqual([milliseconds(0), milliseconds(0.5), milliseconds(12.4), milliseconds(1500), milliseconds(null)], ["0 ms", "0.50 ms", "12 ms", "1.5 s", "–"]);
  assert.deepEqual([duration(61), duration(90_061)], ["1 min 1 s", "1 d 1 h"]);
  assert.equal(size(1536), "1.5 KB");
});

test("a chart of one sample shows the minutes before it", () => {
  assert.deepEqual(timesShown([5000], 9000), [4880, 5000]);
  assert.deepEqual(timesShown([], 9000), [8880, 9000]);
  assert.deepEqual(timesShown([1000, 5000], 9000), [1000, 5000]);
});

test("a page of a tool gets its call, calls tools for pages alone, and has its requests bounded", async () => {
  const posted: JsonObject[] = [];
  const heights: number[] = [];
  const waits: (() => void)[] = [];
  const take = appHost({
    input: { year: 2026 },
    result: { content: [] },
    theme: "dark",
    post: (message) => posted.push(message),
    mayCall: async (name) => name === "refresh",
    mayRead: async (uri) => uri === "ui://a/b",
    request: (method, params) => new Promise((resolve) => waits.push(() => resolve({ method, params }))),
    resize: (height) => heights.push(height),
  });
  const settled = () => new Promise((resolve) => setImmediate(resolve));
  take("no message");
  take({ id: 1, result: {} });
  take({ id: 1, method: "ui/initialize" });
  await settled();
  assert.equal((posted[0]!.result as JsonObject).protocolVersion, "2026-01-26");
  for (let time = 0; time < 3; time += 1) take({ method: "ui/notifications/initialized" });
  assert.deepEqual(posted.slice(1).map((message) => message.params), [{ arguments: { year: 2026 } }, { content: [] }]);
  take({ method: "ui/notifications/size-changed", params: { height: 1e9 } });
  take({ method: "ui/notifications/size-changed", params: { height: "9" } });
  assert.deepEqual(heights, [1200]);
  posted.length = 0;
  take({ id: "a", method: "tools/call", params: { name: "delete_all" } });
  take({ id: "b", method: "ui/open-link", params: { url: "https://a.example" } });
  take({ id: "c", method: "resources/read", params: { uri: "secret://x" } });
  await settled();
  assert.deepEqual(posted.map((message) => [message.id, (message.error as JsonObject).code]).sort(), [["a", -32602], ["b", -32601], ["c", -32602]]);
  posted.length = 0;
  for (let id = 0; id < 9; id += 1) take({ id, method: "tools/call", params: { name: "refresh" } });
  await settled();
  assert.deepEqual(posted.map((message) => message.id), [8]);
  for (const go of waits) go();
  await settled();
  assert.equal(posted.length, 9);
});

test("the page of a tool and the hosts that it wants are read from their metadata", () => {
  assert.equal(pageOf({ _meta: { ui: { resourceUri: "ui://a/b" } } }), "ui://a/b");
  assert.equal(pageOf({ _meta: { "ui/resourceUri": "ui://a/b" } }), "ui://a/b");
  for (const tool of [{}, { _meta: null }, { _meta: { ui: { resourceUri: "https://a" } } }]) assert.equal(pageOf(tool), undefined);
  assert.equal(isForPages({ _meta: { ui: { visibility: ["model"] } } }), false);
  assert.equal(isForPages({ _meta: {} }), true);
  const contents = { blob: btoa("<p>"), _meta: { ui: { csp: { connectDomains: ["https://a"], frameDomains: null } } } };
  assert.deepEqual(pageIn({ contents: [contents] }), { html: "<p>", wanted: ["https://a"] });
  assert.equal(pageIn({ contents: [] }), undefined);
});
