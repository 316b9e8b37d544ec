//! The configurations of docs/clients.md, taken from the page as they stand there and given to the real programs. Only
//! the address is another: that of a gateway on a free port.
//!
//! Programs that no package index has (Cursor, VS Code) are not here. Of theirs it is checked that the URL and the
//! headers lead to the tools, once the placeholders of the program are filled in.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::support::programs::{claude, node, python, root, run};
use crate::support::{Gateway, TOKEN, pages, tools};

const PAGE: &str = "docs/clients.md";
/// The gateway of the page.
const ADDRESS: &str = "http://127.0.0.1:8000";
const VARIABLE: &str = "TOOLDOCK_TOKEN";
/// Starting a program takes seconds on a busy machine, LiteLLM's first import a minute.
const DEADLINE: Duration = Duration::from_secs(120);

/// A gateway with the namespace that the page speaks of, and a home for the programs.
struct Stage {
    gateway: Gateway,
    home: TempDir,
}

impl Stage {
    async fn new() -> Self {
        Self {
            gateway: Gateway::with_tools([("shared", "hello.py", tools::HELLO)])
                .start()
                .await,
            home: TempDir::new().expect("a temporary directory"),
        }
    }

    /// The text on the page, for this gateway.
    fn documented(&self, heading: &str, language: &str) -> String {
        let text = pages::block(PAGE, heading, language);
        assert!(text.contains(ADDRESS), "{heading}: {text}");
        text.replace(ADDRESS, &self.gateway.url(""))
    }

    /// A program as a user starts it, with nothing of the machine but its programs. `first` comes first on `PATH`.
    fn command(&self, program: impl AsRef<OsStr>, first: &Path) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env_clear()
            .env("PATH", format!("{}:{path}", first.display()))
            .env("HOME", self.home.path())
            .env(VARIABLE, TOKEN)
            .current_dir(self.home.path());
        command
    }

    /// Runs lines of a shell that has `claude`, with a token in the variable. Claude Code sends requests to the gateway
    /// alone.
    fn claude(&self) -> impl Fn(&str, &str) -> String {
        let bin = self.home.path().join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        symlink(claude(), bin.join("claude")).expect("a link");
        move |lines: &str, token: &str| {
            run(self
                .command("bash", &bin)
                .env(VARIABLE, token)
                .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
                .env("DISABLE_AUTOUPDATER", "1")
                .args(["-euc", lines]))
        }
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_connects_with_the_documented_command() {
    let stage = Stage::new().await;
    let shell = stage.claude();
    shell(&stage.documented("Claude Code", "bash"), TOKEN);

    let listed = shell("claude mcp list", TOKEN);
    assert!(listed.contains("tooldock: "), "{listed}");
    assert!(listed.contains("✔ Connected"), "{listed}");
    let refused = shell("claude mcp list", "wrong-token-0123456789");
    assert!(!refused.contains("✔ Connected"), "{refused}");

    let kept = fs::read_to_string(stage.home.path().join(".claude.json")).unwrap();
    assert!(kept.contains("Bearer ${TOOLDOCK_TOKEN}"), "{kept}");
    assert!(!kept.contains(TOKEN), "the token is in ~/.claude.json");
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_connects_with_the_documented_file_of_a_project() {
    let stage = Stage::new().await;
    let shell = stage.claude();
    let home = stage.home.path();
    fs::write(
        home.join(".mcp.json"),
        stage.documented("Claude Code", "json"),
    )
    .unwrap();
    let listed = shell("claude mcp list", TOKEN);
    assert!(listed.contains("Pending approval"), "{listed}");

    // The setting that approving it writes.
    let approved = json!({"enableAllProjectMcpServers": true});
    fs::create_dir_all(home.join(".claude")).unwrap();
    fs::write(home.join(".claude/settings.json"), approved.to_string()).unwrap();
    let listed = shell("claude mcp list", TOKEN);
    assert!(listed.contains("✔ Connected"), "{listed}");
}

/// A server that is spoken to over its standard input and output, as Claude Desktop does.
struct Stdio {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Stdio {
    fn start(command: Command) -> Self {
        let mut command = tokio::process::Command::from(command);
        let mut process = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        Self {
            input: process.stdin.take().expect("piped"),
            output: BufReader::new(process.stdout.take().expect("piped")).lines(),
            process,
        }
    }

    async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        self.input.write_all(line.as_bytes()).await.expect("read");
    }

    /// The result of a request.
    async fn ask(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        loop {
            let line = tokio::time::timeout(DEADLINE, self.output.next_line());
            let line = line.await.expect("an answer in time").expect("text");
            let answer = parsed(&line.expect("the server goes on"));
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{answer}");
                return answer["result"].clone();
            }
        }
    }
}

#[tokio::test]
async fn claude_desktop_reaches_the_gateway_through_mcp_remote() {
    let stage = Stage::new().await;
    let (node, packages) = node();
    let bin = Path::new(node.get_program()).parent().unwrap();
    // The file with the token comes from the page, too.
    run(stage
        .command("bash", bin)
        .args(["-euc", &pages::block(PAGE, "Claude Desktop", "bash")]));
    let header_file = stage.home.path().join(".tooldock-headers");
    let mode = fs::metadata(header_file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others can read the token");

    let configuration = parsed(&stage.documented("Claude Desktop", "json"));
    let server = &configuration["mcpServers"]["tooldock"];
    let mut command = stage.command(server["command"].as_str().unwrap(), bin);
    let arguments = server["args"].as_array().unwrap();
    command
        .args(arguments.iter().map(|argument| argument.as_str().unwrap()))
        // Claude Desktop hands on no variable of the user's.
        .env_remove(VARIABLE)
        // `npx` finds the package here, in the version that the page names, or nowhere.
        .current_dir(packages)
        .env("npm_config_offline", "true");
    let mut server = Stdio::start(command);
    let client = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "claude-ai", "version": "1"}});
    let opened = server.ask(1, "initialize", client).await;
    assert_eq!(opened["serverInfo"]["name"], "tooldock/shared");
    server
        .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    let listed = server.ask(2, "tools/list", json!({})).await;
    assert_eq!(listed["tools"][0]["name"], "say_hello");
    let call = json!({"name": "say_hello", "arguments": {"name": "Ada"}});
    let result = server.ask(3, "tools/call", call).await;
    assert_eq!(result["content"][0]["text"], "Hello, Ada!");
    // The end of its input ends it.
    drop(server.input);
    let ended = tokio::time::timeout(DEADLINE, server.process.wait()).await;
    ended.expect("it ends").expect("own child");
}

#[tokio::test(flavor = "multi_thread")]
async fn litellm_loads_the_documented_servers_and_calls_a_tool() {
    let stage = Stage::new().await;
    let file = stage.home.path().join("config.yaml");
    fs::write(&file, stage.documented("LiteLLM", "yaml")).unwrap();
    let printed = run(stage
        .command(
            python("clients-litellm").get_program(),
            Path::new("/usr/bin"),
        )
        // Its list of prices comes from the network otherwise.
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .arg(root().join("tests/clients/litellm_tools.py"))
        .arg(file)
        .args(["say_hello", r#"{"name": "Ada"}"#]));
    let seen = parsed(printed.lines().last().unwrap_or_default());
    let of =
        |server: &str| json!({"tools": [format!("{server}-say_hello")], "said": "Hello, Ada!"});
    let names = ["tooldock_shared", "tooldock_by_header"];
    let expected: Value = names
        .map(|name| (name.to_owned(), of(name)))
        .into_iter()
        .collect();
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_python_lists_and_calls() {
    let stage = Stage::new().await;
    let printed = run(stage
        .command(python("clients-mcp2").get_program(), Path::new("/usr/bin"))
        .args(["-c", &stage.documented("Python", "python")]));
    assert_eq!(printed, "['say_hello']\nHello, Ada!\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_typescript_lists_and_calls() {
    let stage = Stage::new().await;
    let (node, packages) = node();
    let printed = run(stage
        .command(node.get_program().to_str().unwrap(), Path::new("/usr/bin"))
        .current_dir(packages)
        .args(["--input-type=module", "--eval"])
        .arg(stage.documented("TypeScript", "typescript")));
    assert_eq!(printed, "[ 'say_hello' ]\nHello, Ada!\n");
}

/// The names of the tools that a client with this entry sees.
async fn tools_of(stage: &Stage, entry: &Value) -> Value {
    let mut request = stage.gateway.client.post(entry["url"].as_str().unwrap());
    for (name, value) in entry["headers"].as_object().unwrap() {
        request = request.header(name, value.as_str().unwrap());
    }
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let answer = request.json(&list).send().await.expect("answered");
    let answer: Value = answer.json().await.expect("JSON");
    answer["result"]["tools"][0]["name"].clone()
}

#[tokio::test]
async fn the_documented_entry_for_cursor_leads_to_the_tools() {
    let stage = Stage::new().await;
    let text = stage.documented("Cursor", "json");
    let filled = text.replace("${env:TOOLDOCK_TOKEN}", TOKEN);
    let entry = &parsed(&filled)["mcpServers"]["tooldock"];
    assert_eq!(tools_of(&stage, entry).await, "say_hello");
}

#[tokio::test]
async fn the_documented_entry_for_vs_code_leads_to_the_tools() {
    let stage = Stage::new().await;
    let text = stage.documented("VS Code", "json");
    let input = &parsed(&text)["inputs"][0];
    assert_eq!(
        input["password"], true,
        "it would be shown and kept in clear"
    );
    let filled = text.replace(
        &format!("${{input:{}}}", input["id"].as_str().unwrap()),
        TOKEN,
    );
    let entry = &parsed(&filled)["servers"]["tooldock"];
    assert_eq!(entry["type"], "http");
    assert_eq!(tools_of(&stage, entry).await, "say_hello");
}

#[test]
fn the_page_names_the_versions_that_the_tests_start() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let packages = fs::read_to_string(root().join("tests/node/package.json")).unwrap();
    let packages = &parsed(&packages)["dependencies"];
    let python = |list: &str, name: &str| {
        let list = root().join("tests/clients").join(list);
        let text = fs::read_to_string(list).unwrap();
        let pinned = text.lines().find_map(|line| line.strip_prefix(name));
        pinned.expect("pinned").trim_start_matches("==").to_owned()
    };
    let node = |name: &str| packages[name].as_str().expect("pinned").to_owned();
    for named in [
        format!("Claude Code {}", node("@anthropic-ai/claude-code")),
        format!("`mcp-remote` {}", node("mcp-remote")),
        format!(
            "`@modelcontextprotocol/client` {}",
            node("@modelcontextprotocol/client")
        ),
        format!(
            "LiteLLM {}",
            python("requirements-litellm.txt", "litellm==")
        ),
        format!("`mcp` {}", python("requirements-mcp2.txt", "mcp==")),
    ] {
        assert!(page.contains(&named), "{PAGE} does not name {named}");
    }
}
