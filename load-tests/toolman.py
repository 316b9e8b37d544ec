#!/usr/bin/env python3
"""Thirty servers with 600 tools behind `tooldock toolman`: how long the start takes, what it costs, how large the lists are.

    cargo build --release --bin tooldock
    python3 load-tests/toolman.py target/release/tooldock

Prints one line per number. The servers are small Python programs, so the time until all of them are listed is mostly the
time of thirty interpreters that start at once.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SERVERS, TOOLS, ACTIVATIONS = 30, 20, 50
FIXTURE = os.path.join(os.path.dirname(__file__), "../tests/fixtures/servers/toolman.py")


def file(folder):
    """The `tools.toml` with nothing active."""
    servers = [
        f'[[servers]]\nnamespace = "s{number}"\ncommand = "exec python3 {os.path.abspath(FIXTURE)} --name vec --tools {TOOLS - 2}"\n'
        for number in range(SERVERS)
    ]
    with open(os.path.join(folder, "tools.toml"), "w") as file:
        file.write("\n".join(servers))


class Client:
    def __init__(self, program, folder):
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            [os.path.abspath(program), "toolman"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.id = 0

    def ask(self, method, params):
        self.id += 1
        self.send({"id": self.id, "method": method, "params": params})
        while True:
            message = json.loads(self.process.stdout.readline())
            if message.get("id") == self.id:
                return message["result"]

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def since_start(self):
        return (time.monotonic() - self.begun) * 1000

    def memory(self):
        """Resident memory of the process itself, in MiB."""
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        file(folder)
        client = Client(program, folder)
        client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}})
        print(f"answer to initialize after the start: {client.since_start():.0f} ms")
        client.send({"method": "notifications/initialized"})
        tools = client.ask("tools/list", {})["tools"]
        print(f"list of all {SERVERS} servers after the start: {client.since_start():.0f} ms")
        catalogue = next(tool["description"] for tool in tools if tool["name"] == "toolman_activate")
        print(f"catalogue: {len(catalogue)} characters for {SERVERS * TOOLS} tools")
        nothing = len(json.dumps(tools))
        lists = {"tools_on": [], "tools_off": [], "resources_on": [], "resources_off": []}
        times = []
        for number in range(ACTIVATIONS):
            name = f"s{number % SERVERS}_search"
            for key in ["tools_on", "tools_off"]:
                begun = time.monotonic()
                client.ask("tools/call", {"name": "toolman_activate", "arguments": {**lists, key: [name]}})
                times.append((time.monotonic() - begun) * 1000)
        print(f"one activation: median {statistics.median(times):.2f} ms, longest {max(times):.2f} ms")
        every = [line.split(":")[0] for line in catalogue.split("TOOLS:")[1].split("RESOURCES:")[0].split("\n") if line.strip()]
        client.ask("tools/call", {"name": "toolman_activate", "arguments": {**lists, "tools_on": every}})
        whole = len(json.dumps(client.ask("tools/list", {})["tools"]))
        print(f"tools/list: {nothing} characters with nothing active, {whole} with all {len(every)} tools active")
        print(f"resident memory: {client.memory():.1f} MiB")
        client.process.stdin.close()
        begun = time.monotonic()
        print(f"exit code {client.process.wait(60)} after {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1])
