//! Namespace folders whose files make an MCP server, such as the quickstarts of the SDKs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::gateway::Builder;
use crate::support::programs::{self, root};
use crate::support::{Gateway, READY_DEADLINE, eventually, eventually_within};

/// Quickstart of the official SDK 1.x, with printed lines and a tool that fails.
const WEATHER: &str = r#"import os
from typing import Any

import httpx
from mcp.server.fastmcp import FastMCP

mcp = FastMCP("weather")
print("printed at import")


@mcp.tool()
async def get_alerts(state: str) -> str:
    """Get weather alerts for a US state.

    Args:
        state: Two-letter US state code (e.g. CA, NY)
    """
    print(f"printed for {state}")
    os.system("echo printed by a child")
    return f"No active alerts for {state}."


@mcp.tool()
def token() -> str:
    return os.environ["API_TOKEN"]


@mcp.tool()
def pid() -> str:
    return str(os.getpid())


def main():
    # Initialize and run the server
    mcp.run(transport="stdio")


if __name__ == "__main__":
    main()
"#;

/// Low-level server of the official SDK 1.x.
const LOW_LEVEL: &str = r#"import asyncio

import mcp.server.stdio
import mcp.types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions

server = Server("example-server")


@server.list_tools()
async def handle_list_tools() -> list[types.Tool]:
    schema = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
    return [types.Tool(name="add", description="Adds.", inputSchema=schema)]


@server.call_tool()
async def handle_call_tool(name: str, arguments: dict) -> list[types.TextContent]:
    return [types.TextContent(type="text", text=str(arguments["a"] + arguments["b"]))]


async def run():
    async with mcp.server.stdio.stdio_server() as (read_stream, write_stream):
        await server.run(
            read_stream,
            write_stream,
            InitializationOptions(
                server_name="example",
                server_version="0.1.0",
                capabilities=server.get_capabilities(
                    notification_options=NotificationOptions(), experimental_capabilities={}
                ),
            ),
        )


if __name__ == "__main__":
    asyncio.run(run())
"#;

/// Quickstart of the official SDK 2.x, which asks for the HTTP transport.
const DEMO: &str = r#""""
MCPServer quickstart example.
"""

from mcp.server.mcpserver import MCPServer

# Create an MCP server
mcp = MCPServer("Demo")


# Add an addition tool
@mcp.tool()
def add(a: int, b: int) -> int:
    """Add two numbers"""
    return a + b


# Add a dynamic greeting resource
@mcp.resource("greeting://{name}")
def get_greeting(name: str) -> str:
    """Get a personalized greeting"""
    return f"Hello, {name}!"


# Run with streamable HTTP transport
if __name__ == "__main__":
    mcp.run(transport="streamable-http", json_response=True)
"#;

/// Quickstart of FastMCP, with a mounted server.
const FAST: &str = r#"from fastmcp import FastMCP

mcp = FastMCP("Demo")
other = FastMCP("Other")


@mcp.tool
def add(a: int, b: int) -> int:
    """Add two numbers"""
    return a + b


@other.tool
def twice(a: int) -> int:
    return 2 * a


mcp.mount(other)

if __name__ == "__main__":
    mcp.run()
"#;

/// Quickstart of the TypeScript SDK, compiled to JavaScript.
const TYPESCRIPT: &str = r#"#!/usr/bin/env node
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

// Create server instance
const server = new McpServer({ name: "weather", version: "1.0.0" });

// Register weather tools
server.registerTool(
  "get_alerts",
  {
    description: "Get weather alerts for a state",
    inputSchema: { state: z.string().length(2).describe("Two-letter state code (e.g. CA, NY)") },
  },
  async ({ state }) => ({ content: [{ type: "text", text: `No active alerts for ${state}.` }] }),
);

async function main() {
  const transport = new StdioServerTransport();
  await server.connect(transport);
  console.error("Weather MCP Server running on stdio");
}

main().catch((error) => {
  console.error("Fatal error in main():", error);
  process.exit(1);
});
"#;

/// Python script that writes empty wheels (packages) of the SDKs. The base environment of a test has the real SDK.
const WHEELS: &str = r"
import sys, zipfile

for name, version in (('mcp', '1.30.0'), ('mcp', '2.3.0'), ('fastmcp', '4.1.2')):
    info = f'{name}-{version}.dist-info'
    with zipfile.ZipFile(f'{sys.argv[1]}/{name}-{version}-py3-none-any.whl', 'w') as wheel:
        wheel.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: cli\n')
        wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        wheel.writestr(f'{info}/RECORD', '')
";

/// Gateway whose base environment has an SDK. Its namespaces install the SDK from empty wheels, without a package index.
struct Bench {
    _wheels: tempfile::TempDir,
    builder: Builder,
}

impl Bench {
    /// `environment`: the base environment, one of those that `make test-environments` creates.
    fn with(environment: &str) -> Self {
        let wheels = tempfile::tempdir().unwrap();
        let mut python = programs::python("base");
        let made = python.args(["-c", WHEELS]).arg(wheels.path()).status();
        assert!(made.unwrap().success());
        let base = root().join("target/python-envs").join(environment);
        let base = fs::canonicalize(base).expect("make test-environments");
        let links = wheels.path().to_str().unwrap();
        let builder = Gateway::empty()
            .config(json!({"workers": {"base_env": base.to_str(), "ready_timeout": "20s"}}))
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", links)
            .env("UV_NO_INDEX", "1")
            .env("UV_FIND_LINKS", links);
        Self {
            _wheels: wheels,
            builder,
        }
    }

    async fn start(self, files: &[(&str, &str, &str)]) -> (Gateway, tempfile::TempDir) {
        let files: Vec<_> = files.iter().map(|it| (it.0, it.1, it.2)).collect();
        let write = |data: &Path| {
            for (namespace, file, text) in files {
                let path = data.join("tools").join(namespace).join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
        };
        let gateway = self.builder.start_with(write).await;
        environments_made(&gateway).await;
        (gateway, self._wheels)
    }
}

/// Waits until no namespace is starting. By then their packages are installed.
async fn environments_made(gateway: &Gateway) {
    eventually_within(READY_DEADLINE, "the environments are made", || async {
        let ready = gateway.request("GET", "/ready").send().await.ok()?;
        let ready: Value = ready.json().await.ok()?;
        let mut namespaces = ready["namespaces"].as_array()?.iter();
        namespaces.all(|it| it["state"] != "starting").then_some(())
    })
    .await;
}

async fn tools_of(gateway: &Gateway, namespace: &str) -> Vec<String> {
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (_, answer) = gateway.mcp(namespace, list).await;
    let tools = answer["result"]["tools"].as_array();
    let tools = tools.unwrap_or_else(|| panic!("{namespace}: {answer}\n{}", gateway.log()));
    let names = tools
        .iter()
        .map(|it| it["name"].as_str().unwrap().to_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Calls a tool. Returns the text of its answer.
async fn text(gateway: &Gateway, namespace: &str, tool: &str, arguments: Value) -> String {
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let (_, answer) = gateway.mcp(namespace, call).await;
    let text = answer["result"]["content"][0]["text"].as_str();
    let text = text.unwrap_or_else(|| panic!("{namespace}: {answer}\n{}", gateway.log()));
    text.to_owned()
}

fn issues_of<'a>(report: &'a Value, namespace: &str) -> Vec<(&'a str, &'a str)> {
    let issues = report["issues"].as_array().unwrap().iter();
    let own = issues.filter(|it| it["namespace"] == namespace);
    own.map(|it| {
        (
            it["code"].as_str().unwrap(),
            it["message"].as_str().unwrap(),
        )
    })
    .collect()
}

#[tokio::test]
async fn the_quickstarts_of_the_official_python_sdk_1_are_served_as_they_are() {
    let project = "[project]\nname = 'proj'\nversion = '0.1.0'\ndependencies = ['mcp[cli]<2']\n[project.scripts]\nproj = 'proj:main'\n";
    let package = "from . import server\n\n\ndef main():\n    server.mcp.run()\n";
    let echo = "from mcp.server.fastmcp import FastMCP\n\nmcp = FastMCP('proj')\n\n\n@mcp.tool()\ndef echo(text: str) -> str:\n    return text\n";
    let two = format!(
        "{WEATHER}\nsecond = FastMCP('second')\n\n\n@second.tool()\ndef only() -> str:\n    return 'second'\n"
    );
    let files = [
        ("weather", "weather.py", WEATHER),
        (
            "weather",
            "tooldock.yaml",
            "env: { API_TOKEN: from-the-manifest }\n",
        ),
        ("low", "server.py", LOW_LEVEL),
        ("project", "pyproject.toml", project),
        ("project", "src/proj/__init__.py", package),
        ("project", "src/proj/server.py", echo),
        ("named", "weather.py", &two),
        ("named", "tooldock.yaml", "server: weather.py:second\n"),
    ];
    let (gateway, _wheels) = Bench::with("clients-mcp1").start(&files).await;
    assert_eq!(
        tools_of(&gateway, "weather").await,
        ["get_alerts", "pid", "token"]
    );
    let answer = text(&gateway, "weather", "get_alerts", json!({"state": "CA"})).await;
    assert_eq!(answer, "No active alerts for CA.");
    let token = text(&gateway, "weather", "token", json!({})).await;
    assert_eq!(token, "from-the-manifest");
    for printed in ["printed at import", "printed for CA", "printed by a child"] {
        // The gateway limits the rate of logged lines. The SDK logs a long notice about the newest protocol version, and the
        // limit may then drop the printed line. The call is therefore repeated until the line is logged.
        eventually("the line is in the log", || async {
            text(&gateway, "weather", "get_alerts", json!({"state": "CA"})).await;
            gateway.log().contains(printed).then_some(())
        })
        .await;
    }
    assert_eq!(
        text(&gateway, "low", "add", json!({"a": 2, "b": 3})).await,
        "5"
    );
    let echoed = text(&gateway, "project", "echo", json!({"text": "x"})).await;
    assert_eq!(echoed, "x");
    assert_eq!(tools_of(&gateway, "named").await, ["only"]);
}

#[tokio::test]
async fn the_quickstart_of_the_official_python_sdk_2_is_served_although_it_asks_for_http() {
    let low = "from mcp.server import Server, ServerRequestContext\nimport mcp_types as types\n\n\n\
               async def list_tools(ctx: ServerRequestContext, params) -> types.ListToolsResult:\n    \
               return types.ListToolsResult(tools=[types.Tool(name='ping', input_schema={'type': 'object'})])\n\n\n\
               async def call_tool(ctx: ServerRequestContext, params) -> types.CallToolResult:\n    \
               return types.CallToolResult(content=[types.TextContent(type='text', text='pong')])\n\n\n\
               server = Server('low', on_list_tools=list_tools, on_call_tool=call_tool)\n";
    let files = [("demo", "server.py", DEMO), ("low", "server.py", low)];
    let (gateway, _wheels) = Bench::with("clients-mcp2").start(&files).await;
    assert_eq!(
        text(&gateway, "demo", "add", json!({"a": 2, "b": 3})).await,
        "5"
    );
    let read = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "greeting://Ada"}});
    let (_, answer) = gateway.mcp("demo", read).await;
    assert_eq!(
        answer["result"]["contents"][0]["text"], "Hello, Ada!",
        "{answer}"
    );
    assert_eq!(text(&gateway, "low", "ping", json!({})).await, "pong");
}

#[tokio::test]
async fn the_quickstart_of_fastmcp_is_served_with_the_servers_that_it_mounts() {
    let files = [("fast", "server.py", FAST)];
    let (gateway, _wheels) = Bench::with("clients-fastmcp").start(&files).await;
    assert_eq!(tools_of(&gateway, "fast").await, ["add", "twice"]);
    assert_eq!(text(&gateway, "fast", "twice", json!({"a": 4})).await, "8");
}

#[tokio::test]
async fn servers_for_node_are_served_and_no_script_of_a_package_runs() {
    let (_, node) = programs::node();
    let local = tempfile::tempdir().unwrap();
    let ran = local.path().join("ran");
    let package = json!({"name": "local", "version": "1.0.0", "main": "index.js", "scripts": {"postinstall": format!("touch {}", ran.display())}});
    fs::write(local.path().join("package.json"), package.to_string()).unwrap();
    fs::write(
        local.path().join("index.js"),
        "module.exports = 'from a package';\n",
    )
    .unwrap();
    let own = json!({"name": "own", "dependencies": {"local": format!("file:{}", local.path().display())}});
    let sdk = json!({"name": "weather", "type": "module", "bin": {"weather": "./build/index.js"},
        "dependencies": {"@modelcontextprotocol/sdk": "^1.0.0", "zod": "^3"}});
    let unbuilt = sdk.to_string().replace("build/index.js", "build/other.js");
    // A server without an SDK, which answers three methods.
    let plain = r#"const local = require("local");
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: { protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "plain", version: "1" } },
    "tools/list": { tools: [{ name: "say", inputSchema: { type: "object" } }] },
    "tools/call": { content: [{ type: "text", text: local }] },
  };
  const result = results[method];
  const error = { code: -32601, message: "no such method" };
  console.log(JSON.stringify(result ? { jsonrpc: "2.0", id, result } : { jsonrpc: "2.0", id, error }));
});
"#;
    let files = [
        ("weather", "package.json", &*sdk.to_string()),
        ("weather", "build/index.js", TYPESCRIPT),
        ("own", "package.json", &own.to_string()),
        ("own", "server.js", plain),
        ("own", "tooldock.yaml", "server: server.js\n"),
        ("unbuilt", "package.json", &unbuilt),
    ];
    let gateway = Gateway::empty()
        .start_with(|data| {
            for (namespace, file, text) in files {
                let path = data.join("tools").join(namespace).join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            // Packages that the author installed, which the gateway uses as they are.
            let modules = fs::canonicalize(node.join("node_modules")).unwrap();
            symlink(modules, data.join("tools/weather/node_modules")).unwrap();
        })
        .await;
    environments_made(&gateway).await;
    let answer = text(&gateway, "weather", "get_alerts", json!({"state": "CA"})).await;
    assert_eq!(answer, "No active alerts for CA.");
    assert_eq!(
        text(&gateway, "own", "say", json!({})).await,
        "from a package"
    );
    assert!(!ran.exists(), "a script of a package ran");
    let report = gateway.reload().await;
    let failed = report["failed"].to_string();
    assert!(failed.contains("npm run build"), "{report}");
    assert_eq!(report["workers_restarted"], json!([]), "{report}");
}

#[tokio::test]
async fn a_server_file_that_cannot_run_is_told_in_a_sentence_and_the_rest_serves() {
    let broken = WEATHER.replace(
        "print(\"printed at import\")",
        "raise ValueError('no table')",
    );
    let missing = WEATHER.replace("import httpx\n", "import httpx\nimport not_there\n");
    let empty = "from mcp.server.fastmcp import FastMCP\n\nmcp = FastMCP('empty')\n";
    let never = format!("{empty}while True:\n    pass\n");
    let lacking =
        "from mcp.server.fastmcp import FastMCP\n\n\ndef make():\n    return FastMCP('made')\n";
    let files = [
        ("good", "server.py", WEATHER),
        ("broken", "server.py", &broken),
        ("missing", "server.py", &missing),
        ("empty", "server.py", empty),
        ("never", "server.py", &never),
        ("lacking", "server.py", lacking),
        ("lacking", "tooldock.yaml", "server: server.py\n"),
        ("made", "server.py", lacking),
        ("made", "tooldock.yaml", "server: server.py:make\n"),
    ];
    let mut bench = Bench::with("clients-mcp1");
    bench.builder = bench
        .builder
        .config(json!({"workers": {"ready_timeout": "10s"}}));
    let (gateway, _wheels) = bench.start(&files).await;
    let report = gateway.reload().await;
    let failed = report["failed"].as_array().unwrap();
    let of = |namespace: &str| {
        let found = failed.iter().find(|it| it["namespace"] == namespace);
        found.unwrap_or_else(|| panic!("{namespace}: {report}"))["message"]
            .as_str()
            .unwrap()
    };
    assert_eq!(
        of("broken"),
        "server.py: ValueError: no table (server.py line 8)"
    );
    let package = "server.py: No module named 'not_there'; write not_there into requirements.txt (server.py line 5)";
    assert_eq!(of("missing"), package);
    let limit = "server.py: the import took longer than 10 s (server.py line 5)";
    assert!(
        of("never").starts_with("server.py: the import took longer"),
        "{limit}: {report}"
    );
    assert!(
        of("lacking").contains("makes no MCP server at its top level"),
        "{report}"
    );
    let nothing = [(
        "no_tools",
        "its MCP server registers no tool, resource or prompt",
    )];
    assert_eq!(issues_of(&report, "empty"), nothing);
    assert_eq!(tools_of(&gateway, "made").await, [] as [&str; 0]);
    let ready = gateway.request("GET", "/ready").send().await.unwrap();
    let ready: Value = ready.json().await.unwrap();
    let namespaces = ready["namespaces"].as_array().unwrap();
    let broken = namespaces.iter().find(|it| it["name"] == "broken").unwrap();
    assert_eq!(broken["state"], "failed", "{ready}");
    assert_eq!(
        text(&gateway, "good", "get_alerts", json!({"state": "NY"})).await,
        "No active alerts for NY."
    );
}

#[tokio::test]
async fn a_changed_server_file_gets_a_new_process_and_a_broken_one_leaves_the_old_process() {
    let files = [("one", "server.py", WEATHER), ("two", "server.py", WEATHER)];
    let (gateway, _wheels) = Bench::with("clients-mcp1").start(&files).await;
    let pid = async |namespace: &str| text(&gateway, namespace, "pid", json!({})).await;
    let (one, two) = (pid("one").await, pid("two").await);
    let report = gateway.reload().await;
    assert_eq!(report["workers_restarted"], json!([]), "{report}");
    assert_eq!(
        (pid("one").await, pid("two").await),
        (one.clone(), two.clone())
    );
    let changed = WEATHER.replace("No active alerts", "No alerts");
    gateway.drop_tool("one", "server.py", &changed);
    let report = gateway.reload().await;
    assert_eq!(report["workers_restarted"], json!(["one"]), "{report}");
    let answer = text(&gateway, "one", "get_alerts", json!({"state": "CA"})).await;
    assert_eq!(answer, "No alerts for CA.");
    assert_eq!(pid("two").await, two);
    gateway.drop_tool(
        "one",
        "server.py",
        "import mcp.server.fastmcp\nmcp = mcp.server.fastmcp.FastMCP(\n",
    );
    gateway.drop_tool(
        "two",
        "server.py",
        "raise ValueError\nfrom mcp.server.fastmcp import FastMCP\nmcp = FastMCP('x')\n",
    );
    let report = gateway.reload().await;
    assert!(
        report["failed"].to_string().contains("server.py line 1"),
        "{report}"
    );
    assert_eq!(pid("two").await, two, "the old process serves on");
    let issues = issues_of(&report, "two");
    assert!(
        issues
            .iter()
            .any(|it| it.1.contains("the last change is not served")),
        "{report}"
    );
}
