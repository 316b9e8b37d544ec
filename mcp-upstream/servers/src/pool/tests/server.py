"""A stdio MCP server that does what its test needs: `server.py ERA [FOLDER]`.

In FOLDER: `down` keeps it from starting, `go` lets those go on that `hold`, `ran` has a line for each `pay_once` and
`look_once`, the first of which ends the process.
"""

import json
import os
import signal
import sys
import threading
import time

era = sys.argv[1]
folder = sys.argv[2] if len(sys.argv) > 2 else None
if folder and os.path.exists(folder + "/down"):
    sys.exit(1)
tools = [
    {"name": "look", "annotations": {"readOnlyHint": True}},
    {"name": "look_once", "annotations": {"readOnlyHint": True}},
    {"name": "pay"},
    {"name": "pay_once"},
]
writing = threading.Lock()
client = None
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
opened_by = None
subscribed, level = [], None
refused_once = False
listening = None


def send(message):
    with writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def tick(uri):
    while True:
        params = {"uri": uri}
        if listening is not None:
            params["_meta"] = {"io.modelcontextprotocol/subscriptionId": listening}
        send({"method": "notifications/resources/updated", "params": params})
        time.sleep(0.05)


def watch(uri):
    if uri == "test://ticking":
        threading.Thread(target=tick, args=[uri], daemon=True).start()


def changed():
    params = {}
    if listening is not None:
        params = {"_meta": {"io.modelcontextprotocol/subscriptionId": listening}}
    send({"method": "notifications/tools/list_changed", "params": params})


def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def ask(method):
    send({"id": "q", "method": method, "params": {}})
    while True:
        message = read()
        if message.get("id") == "q" and "method" not in message:
            return message


def refuse(code=-32601):
    raise LookupError(code)


def call(name):
    global listening
    if name == "exit":
        os._exit(0)
    if name == "crash":
        os._exit(3)
    if name == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if name == "hold":
        while not os.path.exists(folder + "/go"):
            time.sleep(0.01)
    if name in ("pay_once", "look_once"):
        with open(folder + "/ran", "a") as ran:
            ran.write(name + "\n")
        with open(folder + "/ran") as ran:
            if len(ran.readlines()) == 1:
                os._exit(3)
    if name == "grow":
        tools.append({"name": "grown"})
        changed()
    if name == "ask":
        return ask("elicitation/create")
    if name == "log":
        send({"method": "notifications/message", "params": {"level": "info", "data": "said"}})
    if name == "change":
        changed()
    if name == "task":
        return {"task": {"taskId": "t", "status": "working", "ttl": None}}
    if name == "hush":
        return None
    return {"content": [], "pid": os.getpid(), "client": client, "opened_by": opened_by, "subscribed": subscribed, "level": level}


def answer(method, params):
    global client, opened_by, level, listening, refused_once
    if method == "initialize" and era != "modern":
        if era in ("pinned", "reticent") and opened_by == "discover":
            refuse(-32600)
        client, opened_by = params["capabilities"], "initialize"
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": {"name": "fake", "version": "1"}}
    if method == "server/discover":
        if era == "touchy":
            os._exit(1)
        if era == "legacy":
            refuse()
        opened_by = opened_by or "discover"
        versions = ["2026-07-28"] + (["2025-11-25"] if era in ("dual", "pinned") else [])
        return {"supportedVersions": versions, "capabilities": CAPABILITIES, "resultType": "complete"}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": tools}
    if method == "tools/call":
        result = call(params["name"])
        if "text" in params.get("arguments", {}):
            result["content"] = [{"type": "text", "text": params["arguments"]["text"]}]
        return result
    if method == "resources/subscribe":
        if params["uri"] == "test://second" and not refused_once:
            refused_once = True
            refuse()
        subscribed.append(params["uri"])
        watch(params["uri"])
        return {}
    if method == "resources/unsubscribe":
        subscribed.remove(params["uri"])
        return {}
    if method == "logging/setLevel":
        level = params["level"]
        return {}
    refuse()


while True:
    message = read()
    if "id" not in message:
        continue
    if message["method"] == "subscriptions/listen" and era != "legacy":
        listening = message["id"]
        subscribed[:] = message["params"]["notifications"].get("resourceSubscriptions", [])
        for uri in subscribed:
            watch(uri)
        continue
    try:
        result = answer(message["method"], message.get("params") or {})
        if result is not None:
            send({"id": message["id"], "result": result})
    except LookupError as error:
        send({"id": message["id"], "error": {"code": error.args[0], "message": "no"}})
