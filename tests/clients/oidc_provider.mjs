// A real authorization server for tests: `oidc-provider` with one user, `ada`, who is logged in and consents at once.
// Prints its issuer, and ends with its standard input. Arguments: the lifetime of access tokens, in seconds, and a JSON array of
// registered clients (empty if it is missing).

import Provider from 'oidc-provider';

const scopes = 'mcp:all mcp:add';
const lifetime = Number(process.argv[2]);
const server = (await import('node:http')).createServer((request, response) => answer(request, response));
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: JSON.parse(process.argv[3] ?? '[]'),
  scopes: ['openid', 'offline_access', ...scopes.split(' ')],
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_context, resource) => ({
        audience: resource,
        scope: scopes,
        accessTokenTTL: lifetime,
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
  pkce: { required: () => true },
  issueRefreshToken: (_context, client) => client.grantTypeAllowed('refresh_token'),
  rotateRefreshToken: true,
});

// What a login page and a page that asks for consent would come to.
async function answer(request, response) {
  if (!request.url.startsWith('/interaction/')) return provider.callback()(request, response);
  const { prompt, params, grantId } = await provider.interactionDetails(request, response);
  let result = { login: { accountId: 'ada' } };
  if (prompt.name === 'consent') {
    const grant = grantId
      ? await provider.Grant.find(grantId)
      : new provider.Grant({ accountId: 'ada', clientId: params.client_id });
    const { missingOIDCScope, missingResourceScopes } = prompt.details;
    if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
    for (const [resource, wanted] of Object.entries(missingResourceScopes ?? {})) {
      grant.addResourceScope(resource, wanted.join(' '));
    }
    result = { consent: { grantId: await grant.save() } };
  }
  await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

console.log(issuer);
process.stdin.on('end', () => process.exit(0)).resume();
