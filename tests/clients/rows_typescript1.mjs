// Calls tools through the official TypeScript SDK, 1.x, which checks each result against the tool's output schema.
//
// Arguments: URL of the MCP endpoint, token. Reads from standard input a JSON list of calls, each `[tool, arguments]`.
// Prints one JSON object: `instructions` of the server; `listed`, the description of each tool by its name; and
// `results`, for each call `[end, text]`, where the end is `ok`, `refused` (a result with isError) or `raised` (the SDK
// refused the answer). An argument `$MEMBER` stands for that member of the last result that had one.

import { readFileSync } from 'node:fs';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const [url, token] = process.argv.slice(2);
const calls = JSON.parse(readFileSync(0, 'utf8'));
const client = new Client({ name: 'tests', version: '1' });
const headers = { Authorization: `Bearer ${token}` };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const tools = (await client.listTools()).tools;
const listed = Object.fromEntries(tools.map((tool) => [tool.name, tool.description]));
const results = [];
const members = {};
for (const [tool, given] of calls) {
  const args = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, members[value] ?? value]));
  try {
    const result = await client.callTool({ name: tool, arguments: args }, undefined, { timeout: 120_000 });
    for (const [name, value] of Object.entries(result.structuredContent ?? {})) members[`$${name}`] = value;
    results.push([result.isError ? 'refused' : 'ok', result.content[0].text]);
  } catch (error) {
    results.push(['raised', String(error)]);
  }
}
await client.close();
console.log(JSON.stringify({ instructions: client.getInstructions(), listed, results }));
process.exit(0);
