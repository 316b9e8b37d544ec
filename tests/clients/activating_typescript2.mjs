// The TypeScript client 2.x turns a tool of an aggregate on, in the mode it is told.
// Arguments: base URL, token, namespace, `legacy` or a revision to pin. Prints one JSON line with what it saw.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const [base, token, namespace, mode] = process.argv.slice(2);
const seen = {};

async function visit(url, activate) {
  const versionNegotiation = { mode: mode === 'legacy' ? mode : { pin: mode } };
  const client = new Client({ name: 'tests', version: '1' }, { capabilities: {}, versionNegotiation });
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));
  seen.version = client.getNegotiatedProtocolVersion();
  const names = async () => (await client.listTools()).tools.map((tool) => tool.name);
  let handle;
  if (activate) {
    seen.before = (await names()).includes('vec_index');
    const lists = { tools_on: ['vec_index'], tools_off: [], resources_on: [], resources_off: [] };
    const result = await client.callTool({ name: 'toolman_activate', arguments: lists });
    seen.said = JSON.parse(result.content[0].text).success;
    handle = result._meta?.['tooldock/toolset'];
  }
  if (!activate || handle === undefined) {
    const listed = async () => (await client.listTools(undefined, { cacheMode: 'refresh' })).tools;
    seen.after = (await listed()).some((tool) => tool.name === 'vec_index');
    seen.called = (await client.callTool({ name: 'vec_index', arguments: {} })).content[0].text;
    seen.read = (await client.readResource({ uri: 'pjpd_item://42' })).contents[0].text;
    seen.prompts = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
  }
  await client.close();
  return handle;
}

const url = `${base}/mcp/${namespace}`;
const handle = await visit(url, true);
if (handle !== undefined) {
  await visit(`${url}?toolset=${handle}`, false);
}
console.log(JSON.stringify(seen));
process.exit(0);
