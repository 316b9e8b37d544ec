// Client of the TypeScript SDK 1.x whose principal lacks a personal credential. The gateway asks it to open a link during its
// call. Arguments: URL, token. Prints the link, and then one JSON line with the result.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema, ElicitationCompleteNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

const [url, token] = process.argv.slice(2);
const client = new Client({ name: 'tests', version: '1' }, { capabilities: { elicitation: { form: {}, url: {} } } });
const seen = {};
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  seen.asked = params.elicitationId;
  console.log(params.url);
  return { action: 'accept' };
});
client.setNotificationHandler(ElicitationCompleteNotificationSchema, ({ params }) => { seen.completed = params.elicitationId; });
const requestInit = { headers: { Authorization: `Bearer ${token}` } };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));
const result = await client.callTool({ name: 'x', arguments: {} });
if (seen.asked !== seen.completed) throw new Error(JSON.stringify(seen));
console.log(JSON.stringify({ text: result.who }));
await client.close();
process.exit(0);
