// The TypeScript client 2.x through everything a client does, in the mode it is told.
// Arguments: base URL, token, namespace, `legacy`, `auto` or a revision to pin. Prints one JSON line with what it saw.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

import { answerQuestions, base, everyStep, headers, mode, statusAfterTheEnd } from './typescript_shared.mjs';

const client = new Client(
  { name: 'tests', version: '1' },
  {
    capabilities: { sampling: {}, elicitation: {}, roots: {} },
    versionNegotiation: { mode: mode === 'legacy' || mode === 'auto' ? mode : { pin: mode } },
  },
);
answerQuestions((method, handler) => client.setRequestHandler(method, handler));
const transport = new StreamableHTTPClientTransport(new URL(`${base}/mcp`), { requestInit: { headers } });
await client.connect(transport);
const version = client.getNegotiatedProtocolVersion();
const modern = version >= '2026';
const seen = await everyStep(client, (method, handler) => client.setNotificationHandler(method, handler), { modern });
seen.version = version;
if (modern) {
  seen.sessions = transport.sessionId === undefined ? 0 : 1;
  await client.close();
} else {
  const session = transport.sessionId;
  await transport.terminateSession();
  await client.close();
  seen.ended = await statusAfterTheEnd(`${base}/mcp`, { 'Mcp-Session-Id': session, 'MCP-Protocol-Version': version });
}
console.log(JSON.stringify(seen));
process.exit(0);
