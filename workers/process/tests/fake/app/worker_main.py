"""A worker that behaves as it is told: the protocol from the other side, for tests. Standard library only.

FAKE_BOOT says how it starts, the tool's name what it does with a call. FAKE_DIR is a folder of its own.
"""

import json
import os
import signal
import socket
import sys
import threading
import time


def option(name):
    return sys.argv[sys.argv.index("--" + name) + 1]


NAMESPACE = option("namespace")
GENERATION = int(option("generation"))
MAX_FRAME = int(option("max-frame"))
BOOT = os.environ.get("FAKE_BOOT", "ok")
lock = threading.Condition()
cancelled = []
late = {}
answers = {}


def boots_so_far():
    # The position after this process's own write: the file's size would count a boot beside this one, too.
    with open(os.path.join(os.environ["FAKE_DIR"], "boots"), "ab", buffering=0) as file:
        file.write(b".")
        return file.tell()


def greeting(generation=GENERATION):
    schema = {"type": "object"}
    tools = [{"name": "echo", "description": "x" * 20000, "inputSchema": schema, "filename": "a.py"}]
    issues = [{"code": "import_error", "subject": "b.py", "message": "no"}]
    line = {"op": "ready", "namespace": NAMESPACE, "generation": generation, "tools": tools, "issues": issues}
    line["resources"] = [{"definition": {"uri": "a://b", "name": "b"}, "filename": "a.py", "context": False}]
    return json.dumps(line)


def family():
    """Starts a grandchild that leaves the group, the session and the parent, and ignores SIGTERM. Gives its pid."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(write, str(os.getpid()).encode())
            os.close(write)
            while True:
                time.sleep(1000)
        os._exit(0)
    os.close(write)
    pid = int(os.read(read, 20))
    os.wait()
    return pid


class Connection:
    def __init__(self, stream):
        self.stream = stream

    def send(self, value):
        self.send_raw(json.dumps(value).encode())

    def send_raw(self, line):
        with lock:
            self.stream.sendall(line + b"\n")

    def serve(self):
        self.send_raw(greeting().encode())
        for line in self.stream.makefile("rb"):
            request = json.loads(line)
            if request["op"] == "tools.call":
                threading.Thread(target=self.call, args=(request,), daemon=True).start()
            elif request["op"] == "resources.read" and request["uri"] == "a://none":
                error = {"code": "resource_not_found", "message": "Unknown resource"}
                self.send({"id": request["id"], "ok": False, "error": error})
            elif request["op"] in ("resources.read", "prompts.get", "completion.complete"):
                self.answer(request["id"], request)
            elif request["op"] == "answer":
                with lock:
                    answer = {name: request[name] for name in ("result", "error") if name in request}
                    answers.setdefault(request["target"], {})[request["key"]] = answer
                    lock.notify_all()
            elif request["op"] == "cancel":
                with lock:
                    cancelled.append(request["target"])
                    lock.notify_all()
                if request["target"] in late:
                    self.answer(request["target"], "late")
            elif request["op"] == "ping":
                self.answer(request["id"], {"pong": True})
            elif request["op"] == "shutdown" and BOOT != "stubborn":
                self.answer(request["id"], {"shutdown": True})
                os._exit(0)

    def answer(self, id, result, **more):
        self.send({"id": id, "ok": True, "result": result, "latency_ms": 0, **more})

    def call(self, request):
        id, tool, arguments = request["id"], request["tool"], request["arguments"]
        if tool == "echo":
            self.answer(id, {"arguments": arguments, "pid": os.getpid()})
        elif tool == "image":
            self.answer(id, None, content=[{"type": "image"}])
        elif tool == "boom":
            error = {"code": "internal_error", "message": "boom", "details": {"traceback": "t"}}
            self.send({"id": id, "ok": False, "error": error})
        elif tool == "never":
            self.progress(id)
        elif tool == "until":
            # Answers when the file appears.
            self.progress(id)
            while not os.path.exists(arguments["path"]):
                time.sleep(0.005)
            self.answer(id, os.getpid())
        elif tool == "ask":
            # One frame with all questions; answers with what came for each.
            keys = arguments["keys"]
            questions = [{"key": key, "method": "roots/list", "params": {"of": key}} for key in keys]
            self.send({"op": "ask", "id": id, "questions": questions})
            with lock:
                lock.wait_for(lambda: len(answers.get(id, {})) == len(keys))
                given = answers.pop(id)
            self.answer(id, given)
        elif tool == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif tool == "hang_up":
            self.stream.shutdown(socket.SHUT_RDWR)
        elif tool == "twice":
            self.answer(id, 1)
            self.answer(id, 2)
        elif tool == "late":
            late[id] = True
            self.progress(id)
        elif tool == "await_cancel":
            with lock:
                lock.wait_for(lambda: cancelled)
            self.answer(id, cancelled)
        elif tool == "nonsense":
            for line in [b"", b"hello", b"\xff\x00", b"[1]", b'{"op":"dance"}', b'{"id":', b"}" * 1000]:
                self.send_raw(line)
            self.answer(9007199254740991, "to nobody")
            self.answer("x", "to nobody")
            self.answer(id, "at last")
        elif tool == "only_nonsense":
            for _ in range(150):
                self.send_raw(b"hello")
        elif tool == "neither":
            self.send({"id": id, "ok": "perhaps"})
        elif tool == "big":
            self.answer(id, "x" * arguments["size"])
        elif tool == "endless_line":
            self.send_raw(b"x" * (2 * MAX_FRAME))
        elif tool == "print":
            for number in range(arguments["lines"]):
                print("line", number, file=sys.stderr if number % 2 else sys.stdout)
            sys.stdout.write("x" * 1_000_000)
            sys.stdout.flush()
            self.answer(id, "printed")
        elif tool == "family":
            self.answer(id, family())
        elif tool == "recycle":
            self.send({"op": "recycle", "reason": "4 threads were abandoned"})
            self.answer(id, os.getpid())
        elif tool == "blocks":
            # As a process whose loop does not turn: reports the call, and answers nothing more for it.
            self.progress(id)
            report = {"op": "blocked", "subject": tool, "request": request["request"], "place": "a.py:3 in blocks"}
            print(json.dumps({**report, "id": id, "running_ms": arguments["running_ms"]}), flush=True)
        elif tool == "turns":
            print(json.dumps({"op": "unblocked"}), flush=True)
            self.answer(id, os.getpid())
        elif tool == "waits":
            for _ in range(arguments["times"]):
                print(json.dumps({"op": "waited", "count": 2}), flush=True)
            self.answer(id, os.getpid())
        elif tool == "about":
            self.answer(id, {"argv": sys.orig_argv, "environ": sorted(os.environ), "cwd": os.getcwd()})

    def progress(self, id):
        self.send({"op": "progress", "id": id, "params": {"progress": 1, "total": 2}})


def main():
    if BOOT == "exit" or BOOT.startswith("exit_first:") and boots_so_far() <= int(BOOT.split(":")[1]):
        sys.exit(3)
    if BOOT == "failed":
        print(json.dumps({"op": "failed", "code": "dependency_error", "message": "pydantic 1 is too old"}), flush=True)
        sys.exit(1)
    if BOOT in ("silent", "stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if BOOT == "silent":
        while True:
            time.sleep(1000)
    if BOOT == "chatty":
        print("hello")
        print("x" * 100000)
        print('{"op":"dance"}')

    if BOOT == "threads":
        for _ in range(3):
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

    path = option("socket")
    own = path + "." + str(os.getpid())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(own)
    listener.listen()
    os.rename(own, path)
    print(greeting(GENERATION + (BOOT == "wrong_generation")), flush=True)
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=Connection(stream).serve, daemon=True).start()


main()
