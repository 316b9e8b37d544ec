// The TypeScript SDK's own OAuth client: it knows nothing but the URL of a namespace.
// Arguments: URL. Prints one JSON line with what it saw.

import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const url = new URL(process.argv[2]);
const callback = 'http://127.0.0.1:1/callback';
const kept = {};
let code;

// What a browser does whose user agrees: follows redirects, with cookies, until it is sent back to the client.
async function browse(address) {
  const cookies = new Map();
  for (let at = address; ; ) {
    const headers = { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') };
    const answer = await fetch(at, { redirect: 'manual', headers });
    for (const cookie of answer.headers.getSetCookie()) {
      const [, name, value] = cookie.match(/^([^=]+)=([^;]*)/);
      cookies.set(name, value);
    }
    const next = answer.headers.get('location');
    if (!next) throw new Error(`${at}: ${answer.status} ${await answer.text()}`);
    at = new URL(next, at);
    if (at.href.startsWith(callback)) return at.searchParams.get('code');
  }
}

const authProvider = {
  get redirectUrl() { return callback; },
  get clientMetadata() {
    return { client_name: 'tests', redirect_uris: [callback], grant_types: ['authorization_code'], response_types: ['code'], token_endpoint_auth_method: 'none' };
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => { kept.client = client; },
  tokens: () => kept.tokens,
  saveTokens: (tokens) => { kept.tokens = tokens; },
  codeVerifier: () => kept.verifier,
  saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
  redirectToAuthorization: async (address) => { code = await browse(address); },
};

const seen = {};
let transport = new StreamableHTTPClientTransport(url, { authProvider });
try {
  await new Client({ name: 'tests', version: '1' }).connect(transport);
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
  seen.challenged = true;
  await transport.finishAuth(code);
}
transport = new StreamableHTTPClientTransport(url, { authProvider });
const client = new Client({ name: 'tests', version: '1' });
await client.connect(transport);
seen.tools = (await client.listTools()).tools.map((tool) => tool.name).sort();
seen.sum = (await client.callTool({ name: 'add', arguments: { a: 2, b: 3 } })).structuredContent;
await client.close();
console.log(JSON.stringify(seen));
process.exit(0);
