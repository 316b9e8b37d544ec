// What both generations of the TypeScript SDK are put through. Their clients differ in how handlers are registered only.

export const [base, token, namespace, mode] = process.argv.slice(2);
export const headers = { Authorization: `Bearer ${token}`, 'X-Namespace': namespace };

const WATCHED = 'test://watched-resource';
const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Does something again and again until a fact is true. A fact may need a moment to arrive.
async function until(fact, attempt) {
  for (let tries = 0; tries < 40; tries++) {
    await attempt();
    for (let polls = 0; polls < 10; polls++) {
      if (fact()) return true;
      await sleep(20);
    }
  }
  return false;
}

// The answers to what servers ask: `onRequest(method, handler)` is the SDK's registration.
export function answerQuestions(onRequest) {
  onRequest('sampling/createMessage', async () => ({
    role: 'assistant', model: 'none', content: { type: 'text', text: 'hi from the client' },
  }));
  onRequest('elicitation/create', async () => ({
    action: 'accept', content: { username: 'ada', email: 'ada@example.org' },
  }));
  onRequest('roots/list', async () => ({ roots: [{ uri: 'file:///workspace', name: 'workspace' }] }));
}

// The status of a ping that names a session which has ended.
export async function statusAfterTheEnd(url, more = {}) {
  let status;
  for (let tries = 0; tries < 50; tries++) {
    const answer = await fetch(url, {
      method: 'POST',
      headers: { ...headers, ...more, 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
    });
    status = answer.status;
    if (status === 404) break;
    await sleep(50);
  }
  return status;
}

// Everything between the handshake and the end. `onNotification(method, handler)` is the SDK's registration. A client
// that forgets progress it reads together with the answer is given a tool that pauses in between.
export async function everyStep(client, onNotification, { modern, forgetsProgress = false }) {
  const seen = {};
  const heard = [];
  const logs = [];
  onNotification('notifications/message', async (notification) => void logs.push(notification.params.data));
  for (const method of ['notifications/resources/updated', 'notifications/tools/list_changed']) {
    onNotification(method, async () => void heard.push(method));
  }
  const call = async (name, args = {}, options = undefined, meta = undefined) => {
    const params = { name, arguments: args, ...(meta ? { _meta: meta } : {}) };
    const result = await client.callTool(params, options);
    return { result, text: result.content[0].text };
  };
  const names = new Set((await client.listTools()).tools.map((tool) => tool.name));
  seen.listed = ['test_simple_text', 'slow', 'update_resource'].every((name) => names.has(name));
  seen.text = (await call('test_simple_text')).text;
  seen.failed = (await call('test_error_handling')).result.isError;
  const callsWithProgress = async (name, args) => {
    const steps = [];
    await call(name, args, { onprogress: ({ progress }) => steps.push(progress) });
    return steps;
  };
  seen.progress = forgetsProgress
    ? await callsWithProgress('slow', { ms: 150, every: 50 })
    : await callsWithProgress('test_tool_with_progress');
  if (!modern) await client.setLoggingLevel('debug');
  await call('test_tool_with_logging', {}, undefined, modern ? { [LOG_LEVEL]: 'debug' } : undefined);
  seen.logs = [...logs];
  seen.elicited = (await call('test_elicitation', { message: 'Who?' })).text.includes('ada@example.org');
  seen.sampled = (await call('test_sampling', { prompt: 'Hi' })).text.includes('hi from the client');
  const asksRoots = modern ? 'test_input_required_result_list_roots' : 'list_roots';
  seen.roots = (await call(asksRoots)).text.includes('file:///workspace');
  const completion = await client.complete({
    ref: { type: 'ref/prompt', name: 'city_prompt' }, argument: { name: 'city', value: 'par' },
  });
  seen.completed = completion.completion.values;
  seen.resource = (await client.readResource({ uri: 'test://static-text' })).contents[0].text;
  seen.template = JSON.parse((await client.readResource({ uri: 'test://template/7/data' })).contents[0].text).id;
  const prompt = await client.getPrompt({
    name: 'test_prompt_with_arguments', arguments: { arg1: 'one', arg2: 'two' },
  });
  seen.prompt = prompt.messages[0].content.text;

  const subscription = modern
    ? await client.listen({ toolsListChanged: true, resourceSubscriptions: [WATCHED] })
    : void (await client.subscribeResource({ uri: WATCHED }));
  seen.updated = await until(
    () => heard.includes('notifications/resources/updated'), () => call('update_resource', { uri: WATCHED }));
  seen.list_changed = await until(
    () => heard.includes('notifications/tools/list_changed'), () => call('test_trigger_tool_change'));
  if (subscription) await subscription.close();
  else await client.unsubscribeResource({ uri: WATCHED });

  // A legacy client resumes what the gateway closes meanwhile; a modern stream stays open to the end.
  seen.resumed = await callsWithProgress('slow', { ms: 1000, every: 100 });

  const count = async () => JSON.parse((await call('cancelled_ids')).text).length;
  const cancelled = await count();
  const abort = new AbortController();
  const running = call('slow', { ms: 60_000, every: 100 }, { signal: abort.signal }).catch(() => undefined);
  await sleep(300);
  abort.abort();
  await running;
  let counted = cancelled;
  seen.cancelled = await until(() => counted === cancelled + 1, async () => { counted = await count(); });
  return seen;
}
