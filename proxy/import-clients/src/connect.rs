//! Writes an entry for the gateway into the configuration file of an MCP client. The rest of the file is unchanged, including
//! comments.

use std::path::{Path, PathBuf};

use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::{Value, json};
use toml_edit::{DocumentMut, Item, Table, value};

/// An MCP client whose file format is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpClient {
    /// Claude Code.
    ClaudeCode,
    /// Claude Desktop, whose file can contain commands but no URLs.
    ClaudeDesktop,
    /// Codex.
    Codex,
    /// Cursor.
    Cursor,
    /// Gemini CLI.
    Gemini,
    /// LM Studio.
    LmStudio,
    /// OpenCode.
    OpenCode,
    /// Visual Studio Code.
    VsCode,
    /// Windsurf.
    Windsurf,
    /// Zed.
    Zed,
}

/// The gateway's endpoint and key for an entry in a client's file. Not printable, since the key is a secret.
#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    /// Name of the gateway's entry in the client's file.
    pub name: &'a str,
    /// URL of the gateway's MCP endpoint.
    pub url: &'a str,
    /// API key for the gateway.
    pub key: &'a str,
}

/// Folders of a user.
#[derive(Debug, Clone, Copy)]
pub struct UserFolders<'a> {
    /// Home folder of the user.
    pub home: &'a Path,
    /// Folder with the configurations of the user's programs: `~/.config`, or `~/Library/Application Support`.
    pub config: &'a Path,
}

/// Reason why an entry was not added to a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotMerged {
    /// The file has a syntax error.
    #[error("line {line}: {reason}")]
    Unreadable {
        /// Line of the error in the file, from 1.
        line: usize,
        /// Description of the error. It quotes nothing of the file, which may contain secrets.
        reason: String,
    },
    /// The value of the key that should contain the servers is no map. Contains the key.
    #[error("{0}: is no map, so that no server can be added to it")]
    NoMap(String),
    /// The file already has an entry with this name.
    #[error("{0}: there is such an entry already")]
    Exists(String),
}

impl McpClient {
    /// Path of the user's configuration file of this client.
    pub fn file(self, folders: UserFolders<'_>) -> PathBuf {
        let UserFolders { home, config } = folders;
        match self {
            Self::ClaudeCode => home.join(".claude.json"),
            Self::ClaudeDesktop => config.join("Claude/claude_desktop_config.json"),
            Self::Codex => home.join(".codex/config.toml"),
            Self::Cursor => home.join(".cursor/mcp.json"),
            Self::Gemini => home.join(".gemini/settings.json"),
            Self::LmStudio => home.join(".lmstudio/mcp.json"),
            Self::OpenCode => home.join(".config/opencode/opencode.json"),
            Self::VsCode => config.join("Code/User/mcp.json"),
            Self::Windsurf => home.join(".codeium/windsurf/mcp_config.json"),
            Self::Zed => home.join(".config/zed/settings.json"),
        }
    }

    /// The key of the client's file that contains its servers.
    pub fn servers_key(self) -> &'static str {
        match self {
            Self::Codex => "mcp_servers",
            Self::OpenCode => "mcp",
            Self::VsCode => "servers",
            Self::Zed => "context_servers",
            _ => "mcpServers",
        }
    }

    /// The entry for the gateway, with the keys of the client's format.
    pub fn entry(self, endpoint: &Endpoint<'_>) -> Value {
        let url = endpoint.url;
        let bearer = format!("Bearer {}", endpoint.key);
        let headers = json!({"Authorization": bearer});
        match self {
            // The key is passed in an environment variable, since every user of the machine can read the arguments of a process.
            Self::ClaudeDesktop => {
                let mut args = vec!["-y", "mcp-remote", url, "--transport", "http-only"];
                args.extend(["--header", "Authorization:${TOOLDOCK_AUTHORIZATION}"]);
                if url.starts_with("http://") {
                    args.push("--allow-http");
                }
                json!({"command": "npx", "args": args, "env": {"TOOLDOCK_AUTHORIZATION": bearer}})
            }
            Self::ClaudeCode | Self::VsCode => {
                json!({"type": "http", "url": url, "headers": headers})
            }
            Self::Codex => json!({"url": url, "http_headers": headers}),
            Self::Gemini => json!({"httpUrl": url, "headers": headers}),
            Self::OpenCode => {
                json!({"type": "remote", "url": url, "headers": headers, "enabled": true})
            }
            Self::Windsurf => json!({"serverUrl": url, "headers": headers}),
            Self::Cursor | Self::LmStudio | Self::Zed => json!({"url": url, "headers": headers}),
        }
    }

    /// Adds the entry of a gateway to the text of the client's file. An empty text is treated as a new file.
    ///
    /// # Errors
    ///
    /// When the text cannot be parsed, or has an entry with the same name and `replace` is false.
    pub fn merged(
        self,
        text: &str,
        endpoint: &Endpoint<'_>,
        replace: bool,
    ) -> Result<String, NotMerged> {
        let entry = self.entry(endpoint);
        match self {
            Self::Codex => self.merged_toml(text, endpoint.name, &entry, replace),
            _ => self.merged_json(text, endpoint.name, entry, replace),
        }
    }

    fn exists(self, name: &str) -> NotMerged {
        NotMerged::Exists(format!("{}.{name}", self.servers_key()))
    }

    fn merged_json(
        self,
        text: &str,
        name: &str,
        entry: Value,
        replace: bool,
    ) -> Result<String, NotMerged> {
        let key = self.servers_key();
        if text.trim().is_empty() {
            let text = serde_json::to_string_pretty(&json!({key: {name: entry}}));
            return Ok(text.unwrap_or_default() + "\n");
        }
        let unreadable = |error: jsonc_parser::errors::ParseError| NotMerged::Unreadable {
            line: error.line_display(),
            reason: error.kind().to_string(),
        };
        let root = CstRootNode::parse(text, &Default::default()).map_err(unreadable)?;
        let no_map = |key: &str| NotMerged::NoMap(key.to_owned());
        let top = root
            .object_value_or_create()
            .ok_or_else(|| no_map("the file"))?;
        let servers: CstObject = top.object_value_or_create(key).ok_or_else(|| no_map(key))?;
        match servers.get(name) {
            Some(_) if !replace => return Err(self.exists(name)),
            Some(held) => held.set_value(input(entry)),
            None => {
                servers.append(name, input(entry));
            }
        }
        Ok(root.to_string())
    }

    fn merged_toml(
        self,
        text: &str,
        name: &str,
        entry: &Value,
        replace: bool,
    ) -> Result<String, NotMerged> {
        let key = self.servers_key();
        let mut file: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            let before = error
                .span()
                .map_or("", |it| &text[..it.start.min(text.len())]);
            NotMerged::Unreadable {
                line: before.matches('\n').count() + 1,
                reason: error.message().to_owned(),
            }
        })?;
        let servers = file.as_table_mut().entry(key).or_insert_with(|| {
            let mut servers = Table::new();
            servers.set_implicit(true);
            Item::Table(servers)
        });
        let servers = servers
            .as_table_like_mut()
            .ok_or_else(|| NotMerged::NoMap(key.to_owned()))?;
        if servers.contains_key(name) && !replace {
            return Err(self.exists(name));
        }
        let mut table = Table::new();
        for (key, said) in entry.as_object().into_iter().flatten() {
            let said = match said {
                Value::Object(pairs) => {
                    let pairs = pairs
                        .iter()
                        .map(|(key, it)| (key.as_str(), it.as_str().unwrap_or_default()));
                    value(toml_edit::InlineTable::from_iter(pairs))
                }
                said => value(said.as_str().unwrap_or_default()),
            };
            table.insert(key, said);
        }
        servers.insert(name, Item::Table(table));
        Ok(file.to_string())
    }
}

/// Converts a JSON value to the type that the JSON editor inserts.
fn input(entry: Value) -> CstInputValue {
    match entry {
        Value::Null => CstInputValue::Null,
        Value::Bool(said) => CstInputValue::Bool(said),
        Value::Number(said) => CstInputValue::Number(said.to_string()),
        Value::String(said) => CstInputValue::String(said),
        Value::Array(all) => CstInputValue::Array(all.into_iter().map(input).collect()),
        Value::Object(keys) => {
            CstInputValue::Object(keys.into_iter().map(|(key, it)| (key, input(it))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: Endpoint<'static> = Endpoint {
        name: "tooldock",
        url: "http://127.0.0.1:8000/mcp/shared",
        key: "td_key",
    };

    #[test]
    fn the_rest_of_a_file_stays_with_its_comments() {
        let text = "{\n  // mine\n  \"theme\": \"dark\", /* here */\n  \"context_servers\": {\n    \"other\": { \"command\": \"x\" }, // last\n  },\n}\n";
        let merged = McpClient::Zed
            .merged(text, &ENDPOINT, false)
            .expect("merged");
        for kept in [
            "// mine",
            "/* here */",
            "// last",
            "\"theme\": \"dark\"",
            "\"other\": { \"command\": \"x\" }",
        ] {
            assert!(merged.contains(kept), "{kept}: {merged}");
        }
        let read = crate::syntax::read(&merged).expect("JSON");
        let servers = read.get("context_servers").expect("servers");
        let url = servers.get("tooldock").and_then(|it| it.get("url")?.text());
        assert_eq!(url, Some(ENDPOINT.url));
    }

    #[test]
    fn an_entry_of_the_name_stays_unless_it_is_to_be_replaced() {
        let text = "{\"mcpServers\": {\"tooldock\": {\"url\": \"old\"}}}";
        let refused = McpClient::Cursor.merged(text, &ENDPOINT, false);
        assert_eq!(
            refused,
            Err(NotMerged::Exists("mcpServers.tooldock".into()))
        );
        let merged = McpClient::Cursor
            .merged(text, &ENDPOINT, true)
            .expect("merged");
        let read: Value = serde_json::from_str(&merged).expect("JSON");
        assert_eq!(read["mcpServers"]["tooldock"]["url"], ENDPOINT.url);
    }

    #[test]
    fn toml_keeps_its_comments_and_tables() {
        let text = "# mine\nmodel = \"x\" # this one\n\n[mcp_servers.other]\ncommand = \"y\"\n\n[tui]\na = 1\n";
        let merged = McpClient::Codex
            .merged(text, &ENDPOINT, false)
            .expect("merged");
        for kept in [
            "# mine\n",
            "# this one",
            "[mcp_servers.other]\ncommand = \"y\"\n",
            "[tui]\na = 1\n",
        ] {
            assert!(merged.contains(kept), "{kept}: {merged}");
        }
        assert!(merged.contains("[mcp_servers.tooldock]"), "{merged}");
        let again = McpClient::Codex.merged(&merged, &ENDPOINT, false);
        assert_eq!(again, Err(NotMerged::Exists("mcp_servers.tooldock".into())));
        assert!(McpClient::Codex.merged("", &ENDPOINT, false).is_ok());
    }

    #[test]
    fn a_broken_file_is_named_by_its_line_and_left_alone() {
        let broken = McpClient::Cursor.merged("{\n\"a\": }", &ENDPOINT, false);
        assert!(
            matches!(broken, Err(NotMerged::Unreadable { line: 2, .. })),
            "{broken:?}"
        );
        let list = McpClient::Cursor.merged("{\"mcpServers\": []}", &ENDPOINT, false);
        assert_eq!(list, Err(NotMerged::NoMap("mcpServers".into())));
    }
}
