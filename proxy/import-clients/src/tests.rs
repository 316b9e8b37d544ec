//! Files as the clients publish them, read as a whole.

use std::path::Path;

use serde_json::{Value, json};
use tooldock_base::yaml;

use crate::{ClientFile, ClientServer, Import, Kind, Weight};

fn read_in(folder: &str, text: &str) -> Import {
    crate::read(&ClientFile {
        text,
        folder: Path::new(folder),
        home: Some(Path::new("/home/ada")),
    })
    .unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn read(text: &str) -> Import {
    read_in("/home/ada/app", text)
}

fn entry(server: &ClientServer) -> Value {
    serde_json::to_value(&server.entry).expect("JSON")
}

/// Label, kind and keys of each server.
fn servers(import: &Import) -> Vec<(&str, Kind, Value)> {
    let all = import.servers.iter();
    all.map(|it| (it.label.as_str(), it.kind, entry(it)))
        .collect()
}

fn lines(import: &Import) -> Vec<String> {
    import.findings.iter().map(|it| it.shown("f")).collect()
}

/// Every text that an import may write or print.
fn written(import: &Import) -> String {
    let entries = import.servers.iter();
    let entries: String = entries
        .map(|it| yaml::to_string(&it.entry).expect("YAML"))
        .collect();
    let wanted: String = import
        .servers
        .iter()
        .map(|it| format!("{:?}", it))
        .collect();
    format!("{entries}{wanted}{:?}", import.findings)
}

fn secret<'a>(import: &'a Import, name: &str) -> &'a str {
    let secrets = import.servers.iter().find_map(|it| it.secrets.get(name));
    secrets
        .unwrap_or_else(|| panic!("no secret {name}"))
        .expose()
}

const TOKEN: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

#[test]
fn claude_desktop_and_its_kin_are_read() {
    let import = read(&format!(
        r#"{{
  "mcpServers": {{
    "filesystem": {{
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/ada/Desktop"]
    }},
    "GitHub": {{
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-github"],
      "env": {{ "GITHUB_PERSONAL_ACCESS_TOKEN": "{TOKEN}", "LOG_LEVEL": "debug" }}
    }}
  }},
  "globalShortcut": "x"
}}"#
    ));
    assert_eq!(
        servers(&import),
        [
            (
                "filesystem",
                Kind::Stdio,
                json!({"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/ada/Desktop"]})
            ),
            (
                "GitHub",
                Kind::Stdio,
                json!({"command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"],
                    "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "${GITHUB_PERSONAL_ACCESS_TOKEN}", "LOG_LEVEL": "debug"}})
            ),
        ]
    );
    assert_eq!(import.servers[1].name.as_str(), "github");
    assert_eq!(import.servers[1].line, 7);
    assert_eq!(secret(&import, "GITHUB_PERSONAL_ACCESS_TOKEN"), TOKEN);
    assert!(!written(&import).contains(TOKEN));
    assert!(import.findings.is_empty(), "{:?}", import.findings);
}

#[test]
fn vs_code_is_read_with_comments_and_inputs() {
    let import = read_in(
        "/home/ada/app/.vscode",
        r#"{
  // asked for once
  "inputs": [
    { "type": "promptString", "id": "perplexity-key", "description": "Perplexity API Key", "password": true },
  ],
  "servers": {
    "perplexity": {
      "type": "stdio",
      "command": "node",
      "args": ["${workspaceFolder}/server.js", "./local.js"],
      "env": { "PERPLEXITY_API_KEY": "${input:perplexity-key}", "OTHER": "${env:OTHER}" },
      "envFile": "${workspaceFolder}/.env",
      "dev": { "watch": "*.js" }, /* not for us */
    },
    "fetch": { "type": "sse", "url": "https://mcp.example/sse" },
  },
}"#,
    );
    assert_eq!(
        servers(&import),
        [
            (
                "perplexity",
                Kind::Stdio,
                json!({"command": "node", "args": ["/home/ada/app/server.js", "./local.js"], "cwd": "/home/ada/app",
                    "env": {"PERPLEXITY_API_KEY": "${PERPLEXITY_KEY}", "OTHER": "${OTHER}"}})
            ),
            (
                "fetch",
                Kind::Remote,
                json!({"backends": ["https://mcp.example/sse"], "transport": "sse"})
            ),
        ]
    );
    let wanted = &import.servers[0].wanted;
    let names: Vec<_> = wanted.iter().map(|it| (&*it.name, &*it.spelled)).collect();
    assert_eq!(
        names,
        [
            ("PERPLEXITY_KEY", "${input:perplexity-key}"),
            ("OTHER", "${env:OTHER}")
        ]
    );
    assert_eq!(wanted[0].description.as_deref(), Some("Perplexity API Key"));
    let lines = lines(&import);
    assert!(
        lines[0].starts_with("f:12: perplexity.envFile: the gateway reads no file"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("f:13: perplexity.dev: "), "{lines:?}");
    let settings =
        read(r#"{"editor.tabSize": 2, "mcp": {"inputs": [], "servers": {"a": {"command": "x"}}}}"#);
    assert_eq!(settings.servers.len(), 1);
    let dotted = read(r#"{"mcp.servers": {"a": {"command": "x"}}}"#);
    assert_eq!(dotted.servers.len(), 1);
}

#[test]
fn codex_is_read_from_toml() {
    let import = read(
        r#"model = "gpt-5"

[mcp_servers.context7]
command = "npx"
args = ["-y", "@upstash/context7-mcp"]
env_vars = ["CONTEXT7_KEY"]
startup_timeout_sec = 20
tool_timeout_sec = 90
enabled = false

[mcp_servers.context7.env]
MY_ENV_VAR = "MY_ENV_VALUE"

[mcp_servers.figma]
url = "https://mcp.figma.com/mcp"
bearer_token_env_var = "FIGMA_OAUTH_TOKEN"
http_headers = { "X-Figma-Region" = "us-east-1" }
enabled_tools = ["get_file"]
disabled_tools = ["drop[1]"]
"#,
    );
    assert_eq!(
        servers(&import),
        [
            (
                "context7",
                Kind::Stdio,
                json!({"command": "npx", "args": ["-y", "@upstash/context7-mcp"],
                    "env": {"MY_ENV_VAR": "MY_ENV_VALUE", "CONTEXT7_KEY": "${CONTEXT7_KEY}"},
                    "connect_timeout": "20s", "limits": {"timeout": "90s"}, "enabled": false})
            ),
            (
                "figma",
                Kind::Remote,
                json!({"backends": ["https://mcp.figma.com/mcp"], "credentials": "Bearer ${FIGMA_OAUTH_TOKEN}",
                    "headers": {"set": {"X-Figma-Region": "us-east-1"}},
                    "limits": {"tools_allow": ["get_file"], "tools_deny": ["drop[[]1[]]"]}})
            ),
        ]
    );
    assert_eq!(import.servers[0].line, 3);
    assert!(import.findings.is_empty(), "{:?}", import.findings);
}

#[test]
fn gemini_is_read_with_its_time_limits_and_tools() {
    let import = read_in(
        "/home/ada/.gemini",
        r#"{
  "mcpServers": {
    "py": { "command": "python", "args": ["-m", "my_server"], "cwd": "./mcp", "env": {"API_KEY": "$MY_API_TOKEN"}, "timeout": 15000,
            "trust": true, "includeTools": ["safe_tool"], "excludeTools": ["unsafe_tool"] },
    "http": { "httpUrl": "http://localhost:3000/mcp", "headers": { "Authorization": "Bearer sk-0123456789abcdef0123" } }
  }
}"#,
    );
    assert_eq!(
        servers(&import),
        [
            (
                "py",
                Kind::Stdio,
                json!({"command": "python", "args": ["-m", "my_server"], "cwd": "/home/ada/mcp",
                    "env": {"API_KEY": "${MY_API_TOKEN}"},
                    "limits": {"timeout": "15s", "tools_allow": ["safe_tool"], "tools_deny": ["unsafe_tool"]}})
            ),
            (
                "http",
                Kind::Remote,
                json!({"backends": ["http://localhost:3000/mcp"], "allow_private": true,
                    "credentials": "Bearer ${AUTHORIZATION_TOKEN}"})
            ),
        ]
    );
    assert_eq!(
        secret(&import, "AUTHORIZATION_TOKEN"),
        "sk-0123456789abcdef0123"
    );
    assert!(!written(&import).contains("0123456789abcdef"));
    let lines = lines(&import);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("f:4: py.trust: the client ran these tools"),
        "{lines:?}"
    );
}

#[test]
fn other_clients_are_read() {
    for (text, label, expected) in [
        (
            // Windsurf
            r#"{"mcpServers": {"a": {"serverUrl": "https://h.example/mcp", "disabled": true}}}"#,
            "a",
            json!({"backends": ["https://h.example/mcp"], "enabled": false}),
        ),
        (
            // Zed
            r#"{"context_servers": {"a": {"source": "custom", "command": {"path": "x", "args": ["y"], "env": {"A": "b"}}}}}"#,
            "a",
            json!({"command": "x", "args": ["y"], "env": {"A": "b"}}),
        ),
        (
            // OpenCode
            r#"{"mcp": {"a": {"type": "local", "command": ["bun", "x", "pkg"], "environment": {"A": "b"}, "enabled": true}}}"#,
            "a",
            json!({"command": "bun", "args": ["x", "pkg"], "env": {"A": "b"}}),
        ),
        (
            // Goose
            "extensions:\n  fetch:\n    type: stdio\n    enabled: true\n    cmd: uvx\n    args:\n      - mcp-server-fetch\n    envs: {}\n    env_keys: []\n    timeout: 300\n    bundled: null\n    available_tools: []\n",
            "fetch",
            json!({"command": "uvx", "args": ["mcp-server-fetch"], "limits": {"timeout": "300s"}}),
        ),
        (
            // Continue
            "name: Mine\nmcpServers:\n  - name: SQLite MCP\n    command: npx\n    args:\n      - \"-y\"\n      - mcp-sqlite\n    env:\n      DB_KEY: ${{ secrets.DB_KEY }}\n",
            "SQLite MCP",
            json!({"command": "npx", "args": ["-y", "mcp-sqlite"], "env": {"DB_KEY": "${DB_KEY}"}}),
        ),
        (
            // The page of a server: no key around it
            r#"{"time": {"command": "uvx mcp-server-time --local-timezone UTC"}}"#,
            "time",
            json!({"command": "uvx", "args": ["mcp-server-time", "--local-timezone", "UTC"]}),
        ),
        (
            // Windows
            r#"{"mcpServers": {"a": {"command": "cmd", "args": ["/c", "npx", "-y", "pkg"]}}}"#,
            "a",
            json!({"command": "npx", "args": ["-y", "pkg"]}),
        ),
    ] {
        let import = read(text);
        assert_eq!(import.servers.len(), 1, "{text}");
        assert_eq!(import.servers[0].label, label);
        assert_eq!(entry(&import.servers[0]), expected, "{text}");
        assert!(import.findings.is_empty(), "{text}: {:?}", import.findings);
    }
}

#[test]
fn projects_of_claude_code_are_read_with_their_folders() {
    let import = read_in(
        "/home/ada",
        r#"{
  "mcpServers": { "a": { "type": "stdio", "command": "./a", "args": [], "env": {} } },
  "projects": {
    "/work/app": { "mcpServers": { "a": { "command": "./a" }, "b": { "command": "b" } }, "disabledMcpServers": ["b"] },
    "/work/none": { "allowedTools": [] }
  }
}"#,
    );
    assert_eq!(
        servers(&import),
        [
            ("a", Kind::Stdio, json!({"command": "/home/ada/a"})),
            ("a", Kind::Stdio, json!({"command": "/work/app/a"})),
            ("b", Kind::Stdio, json!({"command": "b", "enabled": false})),
        ]
    );
}

#[test]
fn credentials_in_arguments_are_filled_in_by_a_shell() {
    let import = read(&format!(
        r#"{{"mcpServers": {{"a": {{"command": "npx", "args": ["-y", "it's", "--api-key={TOKEN}", "${{OTHER}}"]}}}}}}"#
    ));
    assert_eq!(
        entry(&import.servers[0]),
        json!({"command": "sh",
            "args": ["-c", "exec npx -y \"it's\" '--api-key='\"${API_KEY}\" \"${OTHER}\""],
            "env": {"API_KEY": "${API_KEY}", "OTHER": "${OTHER}"}, "connect_timeout": "5m"})
    );
    assert_eq!(secret(&import, "API_KEY"), TOKEN);
    assert!(!written(&import).contains(TOKEN));
    assert_eq!(import.servers[0].wanted.len(), 1);
}

#[test]
fn credentials_beside_variables_in_arguments_are_kept_as_well() {
    for argument in [
        format!("--api-key={TOKEN}${{env:S}}"),
        format!("Authorization: Bearer {TOKEN} ${{FOO}}"),
        format!("{TOKEN}${{env:E}}"),
    ] {
        let import = read(
            &json!({"mcpServers": {"a": {"command": "npx", "args": ["x", argument]}}}).to_string(),
        );
        assert!(
            !written(&import).contains(TOKEN),
            "{argument}: {}",
            written(&import)
        );
    }
    let import =
        read(r#"{"mcpServers": {"a": {"command": "npx", "args": ["x", "--token", "${env:MY}"]}}}"#);
    assert!(written(&import).contains("${MY}"), "{}", written(&import));
    assert!(import.servers[0].secrets.is_empty());
}

#[test]
fn mcp_remote_becomes_a_remote_server() {
    let import = read(
        r#"{"mcpServers": {"a": {"command": "npx", "args": ["-y", "mcp-remote@latest", "https://h.example/mcp", "--header", "Authorization:${AUTH}"],
            "env": {"AUTH": "Bearer k3y-0123456789abcdef"}}}}"#,
    );
    let server = &import.servers[0];
    assert_eq!(server.kind, Kind::Remote);
    assert_eq!(
        entry(server),
        json!({"backends": ["https://h.example/mcp"], "credentials": "${AUTH}"})
    );
    assert_eq!(secret(&import, "AUTH"), "Bearer k3y-0123456789abcdef");
}

#[test]
fn an_odd_entry_costs_none_of_the_others() {
    let import = read(
        r#"{"mcpServers": {
            "text": "x",
            "empty": {},
            "twice": {"command": "a"},
            "list": [1],
            "env": {"command": "x", "env": ["A=b"], "args": {"a": 1}},
            "socket": {"type": "ws", "url": "wss://h/mcp"},
            "keyed": {"url": "https://h.example/mcp?api_key=k3y"},
            "login": {"url": "https://u:pw@h.example/mcp"},
            "twice": {"command": "b"},
            "good": {"command": "x", "unknown": 1}
        }}"#,
    );
    let found: Vec<_> = import.servers.iter().map(|it| it.label.as_str()).collect();
    assert_eq!(found, ["twice", "env", "login", "good"]);
    assert_eq!(entry(&import.servers[0]), json!({"command": "b"}));
    assert_eq!(
        entry(&import.servers[2]),
        json!({"backends": ["https://h.example/mcp"], "credentials": "Basic ${BASIC_LOGIN}"})
    );
    let all = written(&import);
    assert!(!all.contains("k3y") && !all.contains("pw@"), "{all}");
    let lines = lines(&import);
    for beginning in [
        "f:2: text: is no server",
        "f:3: empty: is left out: it has neither a command nor a URL",
        "f:4: twice: stands again in line 10",
        "f:5: list: is no server",
        "f:6: env.env: must be a map",
        "f:6: env.args: must be a list",
        "f:7: socket.type: is left out",
        "f:8: keyed.url: is left out: its URL has a credential",
        "f:9: login.url: the login in the URL",
        "f:11: good.unknown: is not known here",
    ] {
        assert!(
            lines.iter().any(|it| it.starts_with(beginning)),
            "{beginning}: {lines:#?}"
        );
    }
}

#[test]
fn a_server_that_was_confined_is_switched_off() {
    let import = read(
        r#"{"servers": {
            "a": {"command": "x", "sandboxEnabled": true},
            "b": {"command": "x", "tools": {"a": {"approval_mode": "approve"}}, "sandbox": false},
            "c": {"command": "x", "enabled_tools": []}
        }}"#,
    );
    let off: Vec<_> = import
        .servers
        .iter()
        .map(|it| entry(it)["enabled"] == false)
        .collect();
    assert_eq!(off, [true, false, true]);
    let security = import
        .findings
        .iter()
        .filter(|it| it.weight == Weight::Security);
    assert_eq!(security.count(), 2);
    assert!(lines(&import)[0].starts_with("f:2: a.sandboxEnabled: security: "));
}

#[test]
fn a_file_that_cannot_be_read_is_named_by_its_line() {
    let error = |text: &str| {
        let file = ClientFile {
            text,
            folder: Path::new("/"),
            home: None,
        };
        crate::read(&file).expect_err(text).to_string()
    };
    assert!(error("{\n\"a\": }").starts_with("2: JSON: "));
    assert!(error("[mcp_servers]\na = \n").starts_with("2: TOML: "));
    assert!(error("{\"theme\": \"dark\"}").starts_with("1: no servers in it"));
    assert!(error("").starts_with("1: "));
    assert!(!error("{\n\"a\": hunter2 }").contains("hunter2"));
}
