// The TypeScript SDK 1.x through everything a client does, over Streamable HTTP or HTTP+SSE.
// Arguments: base URL, token, namespace, `streamable` or `sse`. Prints one JSON line with what it saw.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';

import { answerQuestions, base, everyStep, headers, mode, statusAfterTheEnd } from './typescript_shared.mjs';

const SCHEMAS = {
  'sampling/createMessage': types.CreateMessageRequestSchema,
  'elicitation/create': types.ElicitRequestSchema,
  'roots/list': types.ListRootsRequestSchema,
  'notifications/message': types.LoggingMessageNotificationSchema,
  'notifications/resources/updated': types.ResourceUpdatedNotificationSchema,
  'notifications/tools/list_changed': types.ToolListChangedNotificationSchema,
};

const client = new Client({ name: 'tests', version: '1' }, { capabilities: { sampling: {}, elicitation: {}, roots: {} } });
answerQuestions((method, handler) => client.setRequestHandler(SCHEMAS[method], handler));

let endpoint;
// The SDK keeps the endpoint to itself; its requests show it.
const watchingFetch = (url, options) => {
  if (options?.method === 'POST') endpoint = String(url);
  return fetch(url, options);
};
const transport = mode === 'sse'
  ? new SSEClientTransport(new URL(`${base}/sse`), {
    fetch: watchingFetch,
    eventSourceInit: { fetch: (url, options) => fetch(url, { ...options, headers: { ...options?.headers, ...headers } }) },
    requestInit: { headers },
  })
  : new StreamableHTTPClientTransport(new URL(`${base}/mcp`), { requestInit: { headers } });
await client.connect(transport);
const version = mode === 'sse' ? undefined : transport.protocolVersion;
// The first generation's `callTool` has a schema between its parameters and its options.
const callTool = client.callTool.bind(client);
client.callTool = (params, options) => callTool(params, undefined, options);
const seen = await everyStep(
  client,
  (method, handler) => client.setNotificationHandler(SCHEMAS[method], handler),
  { modern: false, forgetsProgress: true },
);
if (mode === 'sse') {
  await client.close();
  seen.ended = await statusAfterTheEnd(endpoint);
} else {
  seen.version = version;
  const session = transport.sessionId;
  await transport.terminateSession();
  await client.close();
  seen.ended = await statusAfterTheEnd(`${base}/mcp`, { 'Mcp-Session-Id': session, 'MCP-Protocol-Version': version });
}
console.log(JSON.stringify(seen));
process.exit(0);
