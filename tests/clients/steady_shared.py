"""SDK clients that keep calling while replicas fail and return, and the outcomes of their calls.

The first argument of a client script is a JSON list of clients, objects with `name`, `base` (a URL), `namespace`, `mode` and
`marks` (the file to which calls append their marks). When its standard input ends, the script stops each client after a call
that has a result, and prints one line of JSON: the `outcomes` of calls by mark, and the list `wrong` of lost or repeated events
and of failures that no fault explains.
"""

import asyncio
import json
import re
import sys

STEPS = 4
# Time limit for an answer, in seconds.
PATIENCE = 60
# Error codes of requests that were not carried out. Such an answer has `Retry-After`, and the client repeats the request.
UNAVAILABLE = {"replica_unavailable", "session_store_unavailable", "shutting_down", "starting"}
# Failures that a client may meet while replicas fail and return: errors of the gateway, answers of nginx for a replica that is
# gone, and broken connections. An unknown session, and a call without an answer, are not among them.
TYPED = re.compile(
    "replica_lost|worker_unavailable|upstream_error|not_initialized|status 50[234]"
    "|-32603 Server returned an error response|-32000 Connection closed|RemoteProtocolError|ReadError|ClosedResourceError"
    "|Refused|reconnection attempts were exhausted"
)


class Refused(Exception):
    """A message over HTTP+SSE that the gateway refused, or a call that the SDK gave up."""


class Caller:
    """A client that makes one call at a time."""

    def __init__(self, spec, stop):
        self.name, self.base, self.mode = spec["name"], spec["base"], spec["mode"]
        self.namespace, self.marks = spec["namespace"], spec["marks"]
        self.uri = f"test://{self.name}"
        self.stop = stop
        self.made = 0
        self.running = None
        self.steps, self.outcomes = {}, {}
        self.updates = 0
        self.wrong = []

    def hears(self, data):
        """Records a log message of a call. A message out of order is wrong."""
        mark, step = re.search(r"([\w-]+-\d+) (\d+)", json.dumps(data)).groups()
        steps = self.steps.setdefault(mark, [])
        if int(step) != len(steps):
            self.wrong.append(f"{mark}: {step} after {steps}")
        steps.append(int(step))

    def ends(self, failure=None):
        if failure is None:
            self.outcomes[self.running] = "done"
        else:
            self.outcomes[self.running] = f"failed: {failure}"
            if not TYPED.search(failure):
                self.wrong.append(f"{self.running}: {failure}")
        self.running = None

    async def calls(self, call):
        """Makes calls until one that began after `stop` has a result. `call` returns true for a failure, and the text."""
        while True:
            last = self.stop.is_set()
            self.made += 1
            mark = self.running = f"{self.name}-{self.made}"
            try:
                failed, text = await call({"file": self.marks, "mark": mark, "uri": self.uri})
            except Exception as error:
                code = code_of(error)
                # A replica that fails may lose `notifications/initialized`. Its session is then of no use, so another one is
                # opened.
                if code in (None, "not_initialized"):
                    raise
                failed, text = True, code
            if failed:
                self.ends(text)
            else:
                for _ in range(100):
                    if len(self.steps.get(mark, [])) >= STEPS:
                        break
                    await asyncio.sleep(0.02)
                self.ends()
                if self.steps.get(mark) != list(range(STEPS)):
                    self.wrong.append(f"{mark} is done after {self.steps.get(mark)}")
                if last:
                    return
            await asyncio.sleep(0.1)

    async def go_on(self, connect):
        """Makes calls in one session at a time. When a session breaks, the next one is opened."""
        while True:
            try:
                async with connect(self) as call:
                    await self.calls(call)
                    break
            except Exception as error:
                if self.running is not None:
                    self.ends(reason(error))
                else:
                    print(f"{self.name}: no session: {reason(error)}", file=sys.stderr)
            await asyncio.sleep(0.1)
        print(f"{self.name}: {self.updates} updates of {self.made} calls", file=sys.stderr)


def leaves(error):
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def code_of(error):
    """Returns the gateway's stable code in an error; None for errors without such a code."""
    data = getattr(getattr(error, "error", None), "data", None)
    return data.get("code") if isinstance(data, dict) else None


def reason(error):
    """Returns the causes of a session's end in one line: codes of errors, HTTP statuses, kinds of broken connections."""
    told = []
    for leaf in leaves(error):
        response = getattr(leaf, "response", None)
        if code_of(leaf):
            told.append(code_of(leaf))
        elif response is not None:
            told.append(f"status {response.status_code}")
        elif hasattr(leaf, "error"):
            told.append(f"{leaf.error.code} {leaf.error.message}")
        else:
            told.append(f"{type(leaf).__name__}: {leaf}")
    return ", ".join(sorted(set(told)))


def retrying(httpx, caller):
    """Returns a transport for the SDK's HTTP client. It repeats requests that were not carried out, as an application would."""

    class Retrying(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request):
            while True:
                try:
                    response = await super().handle_async_request(request)
                except httpx.ConnectError:
                    await asyncio.sleep(0.1)
                    continue
                if response.status_code != 503:
                    return response
                body = await response.aread()
                try:
                    code = json.loads(body)["error"]["data"]["code"]
                except (ValueError, LookupError, TypeError):
                    code = None
                if code is None or (code in UNAVAILABLE and "retry-after" not in response.headers):
                    caller.wrong.append(f"503 {body!r}")
                if code not in UNAVAILABLE:
                    return response
                await response.aclose()
                await asyncio.sleep(0.2)

    return Retrying()


async def run(connect):
    stop = asyncio.Event()
    callers = [Caller(spec, stop) for spec in json.loads(sys.argv[1])]
    async with asyncio.TaskGroup() as group:
        for caller in callers:
            group.create_task(caller.go_on(connect))
        await asyncio.to_thread(sys.stdin.read)
        stop.set()
    outcomes = {mark: outcome for caller in callers for mark, outcome in caller.outcomes.items()}
    print(json.dumps({"outcomes": outcomes, "wrong": [wrong for caller in callers for wrong in caller.wrong]}))
