//! A sample for each language, and the bounds of an analysis.

use tooldock_process::repositories::FoundParameter;

use super::*;

fn analysed(files: &[(&str, &str)]) -> Analysis {
    let temp = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(temp.path().to_owned(), 64 * 1024 * 1024);
    for (path, text) in files {
        assert!(tree.admits(path, text.len() as u64).unwrap());
        tree.write(path, text.as_bytes()).unwrap();
    }
    analyse("https://h/repo", &tree, &|_| {})
}

fn tool(analysis: &Analysis, name: &str) -> FoundTool {
    let found = analysis.tools_found.iter().find(|it| it.name == name);
    found
        .cloned()
        .unwrap_or_else(|| panic!("{name} in {analysis:#?}"))
}

fn parameters(tool: &FoundTool) -> Vec<String> {
    let shown = |it: &FoundParameter| {
        let optional = if it.required { "" } else { "?" };
        format!("{}{optional}: {} {}", it.name, it.kind, it.description)
            .trim_end()
            .to_owned()
    };
    tool.parameters.iter().map(shown).collect()
}

#[test]
fn a_typescript_server_of_the_sdk() {
    let analysis = analysed(&[
        (
            "package.json",
            r#"{"name":"x","dependencies":{"@modelcontextprotocol/sdk":"^1.0.0","@octokit/rest":"^20.0.0","zod":"^3"}}"#,
        ),
        ("README.md", "Call https://docs.unrelated.io"),
        (
            "src/index.ts",
            r#"
            import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
            import { z } from "zod";
            import { listIssues } from "./tools/issues.js";
            const server = new McpServer({ name: "github", version: "1.0.0" });
            const base: string = "https://uploads.github.com/repos";
            const TOKEN = process.env.GITHUB_TOKEN!;
            const { OTHER_API_KEY, PORT } = process.env;
            server.tool("create_issue", "Create " + "an issue", {
                owner: z.string().describe("The owner"),
                labels: z.array(z.string()).optional(),
            }, async ({ owner }) => ({ content: [] }));
            const Search = z.object({ query: z.string().min(1), page: z.number().default(1) }).strict();
            server.registerTool("search", { title: "Search", description: `Search
                everything`, inputSchema: Search.shape }, async (args) => run(args));
            server.tool("ping", async () => ({ content: [] }));
            "#,
        ),
        (
            "src/tools/issues.ts",
            r#"
            import { Octokit } from "@octokit/rest";
            enum Names { LIST = "list_issues" }
            server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools: [
                { name: Names.LIST, description: "List GitHub issues", inputSchema: { type: "object", properties: {} } },
                { name: "get_issue", description: "One issue", inputSchema: { type: "object" as const,
                    properties: { number: { type: "number", description: "Which" }, repo: { type: "string" } },
                    required: ["number"] } },
            ] }));
            "#,
        ),
        (
            "src/index.test.ts",
            r#"server.tool("of_a_test", {}, f); process.env.TEST_TOKEN;"#,
        ),
        (
            "node_modules/x/index.js",
            r#"server.tool("vendored", {}, f);"#,
        ),
    ]);
    assert_eq!(analysis.language, "typescript");
    assert_eq!(analysis.framework, "mcp-sdk");
    assert_eq!(analysis.dependencies["@octokit/rest"], "^20.0.0");
    assert_eq!(
        analysis.apis_called,
        ["api.github.com", "uploads.github.com"]
    );
    assert_eq!(analysis.secrets_needed, ["GITHUB_TOKEN", "OTHER_API_KEY"]);
    assert!(analysis.files.contains(&"src/index.ts".to_owned()));
    let names: Vec<_> = analysis
        .tools_found
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["create_issue", "search", "ping", "list_issues", "get_issue"]
    );
    let create = tool(&analysis, "create_issue");
    assert_eq!(
        (create.file.as_str(), create.description.as_str()),
        ("src/index.ts", "Create an issue")
    );
    assert_eq!(
        parameters(&create),
        ["owner: string The owner", "labels?: array"]
    );
    let search = tool(&analysis, "search");
    assert_eq!(search.description, "Search\neverything");
    assert_eq!(parameters(&search), ["query: string", "page?: number"]);
    let list = tool(&analysis, "list_issues");
    assert_eq!(
        (list.file.as_str(), list.description.as_str()),
        ("src/tools/issues.ts", "List GitHub issues")
    );
    assert_eq!(list.parameters, []);
    assert_eq!(
        parameters(&tool(&analysis, "get_issue")),
        ["number: number Which", "repo?: string"]
    );
}

#[test]
fn a_javascript_package_that_is_only_there_as_built() {
    let analysis = analysed(&[
        (
            "package.json",
            r#"{"dependencies":{"fastmcp":"^3","zod":"^3"}}"#,
        ),
        (
            "dist/index.js",
            r#"
            const { FastMCP } = require("fastmcp");
            const args = { url: z.string() };
            server.addTool({ name: "fetch_page", description: "Fetch", parameters: z.object(args),
                execute: async ({ url }) => fetch("https://api.pages.io/v1?u=" + url, { headers: { k: process.env["PAGES_API_KEY"] } }) });
            "#,
        ),
    ]);
    assert_eq!(
        (analysis.language.as_str(), analysis.framework.as_str()),
        ("javascript", "fastmcp")
    );
    assert_eq!(parameters(&tool(&analysis, "fetch_page")), ["url: string"]);
    assert_eq!(analysis.apis_called, ["api.pages.io"]);
    assert_eq!(analysis.secrets_needed, ["PAGES_API_KEY"]);
}

#[test]
fn a_python_server_in_each_form() {
    let analysis = analysed(&[
        (
            "pyproject.toml",
            "[project]\nname='x'\ndependencies=['mcp[cli]>=1.2', 'httpx']\n",
        ),
        (
            "src/x/server.py",
            r#"
"""Of https://docs.unrelated.io."""
import os
from typing import Annotated
from mcp.server.fastmcp import FastMCP, Context

mcp = FastMCP("weather")
KEY = os.environ["WEATHER_API_KEY"]
URL = f"https://api.weather.gov/points/{KEY}"

@mcp.tool()
async def forecast(ctx: Context, city: str, days: int = 3, *, units: Annotated[str, Field(description="Which")] = "c") -> str:
    """Tell the weather.

    See https://docs.unrelated.io.
    """
    return os.getenv("OTHER_TOKEN", "")

@mcp.tool(name="alerts", description="Warn")
def get_alerts(state) -> str:
    return ""

@mcp.resource("x://y")
def no_tool() -> str: ...

def plain(x: list[str]) -> None:
    "Plain."

mcp.add_tool(plain)
"#,
        ),
        (
            "src/x/low.py",
            r#"
import mcp.types as types
@server.list_tools()
async def handle() -> list[types.Tool]:
    return [types.Tool(name="add-note", description="Add " "a note", inputSchema={
        "type": "object", "properties": {"name": {"type": "string", "description": "Its name"}, "x": {}}, "required": ["name"]})]
"#,
        ),
        (
            "tests/test_server.py",
            "@mcp.tool()\ndef of_a_test(): ...\n",
        ),
    ]);
    assert_eq!(
        (analysis.language.as_str(), analysis.framework.as_str()),
        ("python", "fastmcp")
    );
    assert_eq!(analysis.dependencies["mcp"], ">=1.2");
    let names: Vec<_> = analysis
        .tools_found
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(names, ["add-note", "forecast", "alerts", "plain"]);
    let forecast = tool(&analysis, "forecast");
    assert_eq!(
        forecast.description,
        "Tell the weather.\n\nSee https://docs.unrelated.io."
    );
    assert_eq!(
        parameters(&forecast),
        ["city: str", "days?: int", "units?: str Which"]
    );
    assert_eq!(tool(&analysis, "alerts").description, "Warn");
    assert_eq!(parameters(&tool(&analysis, "plain")), ["x: list[str]"]);
    assert_eq!(
        parameters(&tool(&analysis, "add-note")),
        ["name: string Its name", "x?: any"]
    );
    assert_eq!(analysis.apis_called, ["api.weather.gov"]);
    assert_eq!(analysis.secrets_needed, ["OTHER_TOKEN", "WEATHER_API_KEY"]);
}

#[test]
fn a_go_server_of_either_library() {
    let analysis = analysed(&[
        (
            "go.mod",
            "module x\n\nrequire github.com/mark3labs/mcp-go v0.20.0\n",
        ),
        (
            "main.go",
            r#"
package main
import ("os"; "github.com/mark3labs/mcp-go/mcp")
func main() {
	tool := mcp.NewTool("calculate", mcp.WithDescription("Do " + "sums"),
		mcp.WithString("operation", mcp.Required(), mcp.Description("Which"), mcp.Enum("add")),
		mcp.WithNumber("x"))
	_ = os.Getenv("CALC_TOKEN")
	http.Get(`https://api.calc.dev/v1`)
}
"#,
        ),
        (
            "sdk/sdk.go",
            r#"
package sdk
type Input struct {
	Name string `json:"name" jsonschema:"who to greet"`
	Loud bool   `json:"loud,omitempty"`
	skip int    `json:"-"`
}
func Hi(ctx context.Context, req *mcp.CallToolRequest, in Input) (*mcp.CallToolResult, any, error) { return nil, nil, nil }
func main() {
	mcp.AddTool(server, &mcp.Tool{Name: "greet", Description: "say hi"}, Hi)
}
"#,
        ),
        (
            "main_test.go",
            "package main\nvar _ = mcp.NewTool(\"of_a_test\")\n",
        ),
    ]);
    assert_eq!(
        (analysis.language.as_str(), analysis.framework.as_str()),
        ("go", "mcp-go")
    );
    assert_eq!(
        analysis.dependencies["github.com/mark3labs/mcp-go"],
        "v0.20.0"
    );
    assert_eq!(analysis.tools_found.len(), 2);
    let calculate = tool(&analysis, "calculate");
    assert_eq!(calculate.description, "Do sums");
    assert_eq!(
        parameters(&calculate),
        ["operation: string Which", "x?: number"]
    );
    let greet = tool(&analysis, "greet");
    assert_eq!(greet.description, "say hi");
    assert_eq!(
        parameters(&greet),
        ["name: string who to greet", "loud?: bool"]
    );
    assert_eq!(analysis.apis_called, ["api.calc.dev"]);
    assert_eq!(analysis.secrets_needed, ["CALC_TOKEN"]);
}

#[test]
fn a_rust_server_of_rmcp() {
    let analysis = analysed(&[
        (
            "Cargo.toml",
            "[dependencies]\nrmcp = { version = \"0.8\" }\n",
        ),
        (
            "src/main.rs",
            r##"
use rmcp::{tool, handler::server::wrapper::Parameters};
#[derive(Deserialize, JsonSchema)]
struct Sum {
    /// The left hand side
    a: i32,
    #[schemars(description = "The right one")]
    b: Option<i32>,
}
#[tool_router]
impl Calculator {
    #[tool(description = "Add two numbers")]
    fn sum(&self, Parameters(Sum { a, b }): Parameters<Sum>) -> String { String::new() }
    /// Say hello
    /// to all.
    #[tool(name = "hello")]
    async fn say(&self, _context: RequestContext<RoleServer>) { reqwest::get("https://api.hello.rs/x").await; }
    fn no_tool(&self) { std::env::var("HELLO_SECRET").ok(); }
}
"##,
        ),
    ]);
    assert_eq!(
        (analysis.language.as_str(), analysis.framework.as_str()),
        ("rust", "rmcp")
    );
    assert_eq!(analysis.dependencies["rmcp"], "0.8");
    let names: Vec<_> = analysis
        .tools_found
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(names, ["sum", "hello"]);
    assert_eq!(
        parameters(&tool(&analysis, "sum")),
        ["a: i32 The left hand side", "b?: Option<i32> The right one"]
    );
    assert_eq!(tool(&analysis, "hello").description, "Say hello\nto all.");
    assert_eq!(analysis.apis_called, ["api.hello.rs"]);
    assert_eq!(analysis.secrets_needed, ["HELLO_SECRET"]);
}

#[test]
fn other_languages_are_unknown() {
    let analysis = analysed(&[
        ("main.hs", "main = pure ()"),
        ("package.json", "{\"dependencies\":{\"a\":\"1\"}}"),
    ]);
    assert_eq!(
        (analysis.language.as_str(), analysis.framework.as_str()),
        ("unknown", "unknown")
    );
    assert_eq!(analysis.dependencies["a"], "1");
    assert_eq!(analysis.tools_found, []);
    assert_eq!(analysed(&[]).language, "unknown");
}

#[test]
fn hostile_sources_are_read_to_an_end() {
    let deep_brackets = "[".repeat(200_000);
    let deep_calls = format!("x = {}1{}", "f(".repeat(20_000), ")".repeat(20_000));
    let circle =
        "const a = b; const b = a; server.tool(a, a, a, f); const c = c; server.tool(c, f);";
    let sum = format!("server.tool(\"x\", {}\"a\", f)", "\"a\" + ".repeat(5000));
    let broken = "@tool\ndef (((: '''";
    let large = "x".repeat(PARSED_FILE_MAX as usize + 1);
    let analysis = analysed(&[
        ("a.ts", &deep_brackets),
        ("b.py", &deep_calls),
        ("c.js", circle),
        ("d.js", &sum),
        ("e.py", broken),
        ("f.js", &large),
        ("g.js", "server.tool(\"kept\", {}, f)"),
    ]);
    assert!(analysis.tools_found.iter().any(|it| it.name == "kept"));
    assert_eq!(analysis.notes.len(), 1, "{:?}", analysis.notes);
    assert!(
        analysis.notes[0].starts_with("1 source files were not analysed"),
        "{:?}",
        analysis.notes
    );
}

#[test]
fn a_long_list_of_files_keeps_sources_and_documents() {
    let paths: Vec<String> = (0..FILES_SHOWN + 5)
        .map(|it| format!("a/data{it}.bin"))
        .collect();
    let mut files: Vec<(&str, &str)> = paths.iter().map(|it| (it.as_str(), "")).collect();
    files.extend([("z/README.md", ""), ("z/main.py", "")]);
    let analysis = analysed(&files);
    assert_eq!(analysis.files.len(), FILES_SHOWN);
    for kept in ["z/README.md", "z/main.py"] {
        assert!(analysis.files.contains(&kept.to_owned()));
    }
    assert!(
        analysis.notes[0].contains("1007 files"),
        "{:?}",
        analysis.notes
    );
}
