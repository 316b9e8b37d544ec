"""Steps against servers of others, whichever generation of the SDK takes them.

Reads a JSON object of targets from standard input: how to connect, and the steps to take. Prints for each what its
server said, as the JSON that came over the wire: a client's own model of a result would hide what was lost on the way.
"""

import json
import sys
import time
from contextlib import asynccontextmanager

import anyio


class Wire:
    """What goes over one connection."""

    def __init__(self):
        self.methods = {}
        self.answers = []
        self.asked = []
        self.heard = []

    def sent(self, message):
        if "id" in message and "method" in message:
            self.methods[message["id"]] = message["method"]

    def received(self, message):
        if "id" not in message:
            self.heard.append({"method": message["method"], "params": message.get("params")})
        elif "method" in message:
            self.asked.append({"method": message["method"], "params": message.get("params")})
        else:
            answer = {key: message[key] for key in ("result", "error") if key in message}
            self.answers.append((self.methods.get(message["id"]), answer))

    @asynccontextmanager
    async def tapped(self, transport):
        """A transport that this wire listens to."""
        async with transport as (read, write, *_):
            yield Tap(read, self.received), Tap(write, self.sent)


class Tap:
    """One direction of a transport."""

    def __init__(self, stream, note):
        self._stream, self._note = stream, note

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def _noted(self, message):
        if not isinstance(message, Exception):
            envelope = getattr(message.message, "root", message.message)
            self._note(envelope.model_dump(mode="json", by_alias=True, exclude_unset=True))
        return message

    async def send(self, message):
        await self._stream.send(self._noted(message))

    async def receive(self):
        return self._noted(await self._stream.receive())

    def __aiter__(self):
        return self

    async def __anext__(self):
        return self._noted(await self._stream.__anext__())

    async def __aenter__(self):
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *failure):
        return await self._stream.__aexit__(*failure)


async def until(fact, seconds=20):
    """Whether a fact comes true in time."""
    with anyio.move_on_after(seconds):
        while not fact():
            await anyio.sleep(0.01)
    return bool(fact())


def updated(wire, uri):
    """Whether the server said that a resource changed."""
    changes = [said["params"]["uri"] for said in wire.heard if said["method"] == "notifications/resources/updated"]
    return uri in changes


METHODS = {
    "list": {
        "tools": "tools/list",
        "resources": "resources/list",
        "templates": "resources/templates/list",
        "prompts": "prompts/list",
    },
    "call": "tools/call",
    "read": "resources/read",
    "prompt": "prompts/get",
    "complete": "completion/complete",
    "level": "logging/setLevel",
    "subscribe": "resources/subscribe",
    "unsubscribe": "resources/unsubscribe",
    "updates": "resources/subscribe",
    "research": "tasks/result",
}


async def take(step, client, wire, failures):
    """Takes one step. Gives back the answer to its request, and what was said in between."""
    kind = next(kind for kind in METHODS if kind in step)
    method = METHODS[kind]
    if isinstance(method, dict):
        method = method[step[kind]]
    answers, heard, asked = len(wire.answers), len(wire.heard), len(wire.asked)
    seen = {"step": step}
    try:
        await getattr(client, kind)(step, seen)
    except failures as failure:
        seen["failure"] = type(failure).__name__
    own = [answer for answered, answer in wire.answers[answers:] if answered == method]
    if own:
        seen.update(own[-1])
        # What a modern client is asked comes in answers, too.
        seen["asked"] = [
            {"method": asked["method"], "params": asked.get("params")}
            for answer in own[:-1]
            for asked in answer.get("result", {}).get("inputRequests", {}).values()
        ]
    seen["asked"] = wire.asked[asked:] + seen.get("asked", [])
    # News of a resource repeats itself by the clock; who waits for it says so itself.
    seen["heard"] = [said for said in wire.heard[heard:] if said["method"] == "notifications/message"]
    return seen


async def says(ready, client, wire):
    """Whether a tool says that its server has taken in what it asked for."""
    await client.call(ready, {})
    called = [answer for method, answer in wire.answers if method == "tools/call"]
    return ready["says"] in json.dumps(called[-1])


async def visit(connect, target, failures):
    """All steps against one target."""
    begun = time.monotonic()
    wire = Wire()
    async with connect(target, wire) as client:
        opened = [answer["result"] for method, answer in wire.answers if "result" in answer]
        if "asked_first" in target:
            asked = lambda: any(it["method"] == target["asked_first"] for it in wire.asked)
            assert await until(asked), "the server did not ask"
            while not await says(target["ready"], client, wire):
                await anyio.sleep(0.01)
        steps = [await take(step, client, wire, failures) for step in target["steps"]]
    return {
        "opened": opened[-1] if opened else None,
        "asked": [asked["method"] for asked in wire.asked],
        "steps": steps,
        "seconds": round(time.monotonic() - begun, 2),
    }


def main(connect, failures):
    """Visits all targets side by side, prints what they said."""
    targets = json.load(sys.stdin)
    seen = {}

    async def run():
        async def one(name, target):
            seen[name] = await visit(connect, target, failures)

        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                for name, target in targets.items():
                    group.start_soon(one, name, target)

    anyio.run(run)
    print(json.dumps(seen))
