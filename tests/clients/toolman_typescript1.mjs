// The TypeScript SDK 1.x with `tooldock toolman` over its own stdio transport.
// Arguments: the program, the folder of the project. Prints one JSON line with what it saw.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

const [program, folder] = process.argv.slice(2);
const client = new Client({ name: 'tests', version: '1' });
const told = new Promise((resolve) => {
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => resolve(true));
});
await client.connect(new StdioClientTransport({ command: program, args: ['toolman'], cwd: folder }));
const has = async (name) => (await client.listTools()).tools.some((tool) => tool.name === name);
const seen = { before: await has('vec_index') };
const lists = { tools_on: ['vec_index'], tools_off: [], resources_on: [], resources_off: [] };
await client.callTool({ name: 'toolman_activate', arguments: lists });
seen.told = await told;
seen.after = await has('vec_index');
seen.ran = (await client.callTool({ name: 'vec_index', arguments: {} })).content[0].text;
seen.read = (await client.readResource({ uri: 'pjpd_projects://list' })).contents[0].text;
await client.close();
console.log(JSON.stringify(seen));
