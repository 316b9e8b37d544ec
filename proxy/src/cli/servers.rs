//! Options of the commands about servers and clients: `import`, `add`, `remove` and `connect`.

use std::path::PathBuf;

use clap::ValueEnum;
use tooldock_base::names::NamespaceName;

/// The files that commands about servers change.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerFiles {
    /// Configuration file. Servers with a URL are written into it [default: conf/tooldock.yaml, which is created if it is
    /// missing]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory. Servers with a command are written into its external/config.yaml, and secrets into its secrets store
    /// [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Options of `tooldock import`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = IMPORT_HELP)]
pub(crate) struct ImportArgs {
    /// Files of MCP clients: mcp.json, claude_desktop_config.json, settings.json, config.toml, … - means standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) places: ServerFiles,
    /// Write all servers into this new file, as the section upstreams: of a configuration, and change no other file
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Store no credentials, and list the commands that store them
    #[arg(long)]
    pub(crate) no_secrets: bool,
    /// Overwrite servers of the same name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Text at the end of `tooldock import --help`.
const IMPORT_HELP: &str = "\
FILE is told by its content: Claude Code, Claude Desktop, Codex, Continue, Cursor, Gemini CLI, Goose, LM Studio, OpenCode,
VS Code, Windsurf, Zed, and others with mcpServers. Credentials go into the secrets store and stand as ${NAME} in every file.
Keys that are not carried over are listed on standard error as FILE:LINE: KEY: why, and what to do instead. A line with
`security` is about a key that made less possible; its server is written with enabled: false. See docs/importing.md.

Exit status:
  0  everything is imported, or what is not is listed and opens nothing
  2  a line has `security`, or a FILE cannot be read; the other servers are written
  1  anything else

Example:
  tooldock import ~/.cursor/mcp.json --dry-run";

/// Transports for a server with a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UrlTransport {
    /// Streamable HTTP
    Http,
    /// HTTP+SSE of 2024-11-05
    Sse,
}

/// Options of `tooldock add`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = ADD_HELP)]
pub(crate) struct AddArgs {
    /// Name of the namespace
    pub(crate) name: NamespaceName,
    /// URL of a server that is reached over HTTP
    #[arg(conflicts_with = "command", required_unless_present = "command")]
    pub(crate) url: Option<String>,
    /// Command of the server, after --
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Environment variable of the server. A value that is a credential is stored in the secrets store
    #[arg(short = 'e', long, value_name = "NAME=VALUE", conflicts_with = "url")]
    pub(crate) env: Vec<String>,
    /// Header of requests to the URL. A value that is a credential is stored in the secrets store
    #[arg(
        short = 'H',
        long,
        value_name = "NAME: VALUE",
        conflicts_with = "command"
    )]
    pub(crate) header: Vec<String>,
    /// Variable whose value is typed without echo, or read from standard input, a line each. For a URL the value is the bearer
    /// token, unless a header refers to it as ${NAME}
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Vec<String>,
    /// Transport of the URL [default: the one that the server supports]
    #[arg(long, value_enum, conflicts_with = "command")]
    pub(crate) transport: Option<UrlTransport>,
    /// Description, which is written as a comment into the file
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) description: String,
    #[command(flatten)]
    pub(crate) places: ServerFiles,
    /// Overwrite a server of the same name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Text at the end of `tooldock add --help`.
const ADD_HELP: &str = "\
Examples:
  tooldock add time -- uvx mcp-server-time
  tooldock add github --secret GITHUB_TOKEN -- npx -y @modelcontextprotocol/server-github
  tooldock add search https://mcp.example/mcp --secret SEARCH_TOKEN";

/// Options of `tooldock remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Name of the namespace
    pub(crate) name: NamespaceName,
    #[command(flatten)]
    pub(crate) places: ServerFiles,
    /// Remove the secrets of the namespace, too
    #[arg(long)]
    pub(crate) secrets: bool,
}

/// MCP clients that `tooldock connect` supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConnectClient {
    /// Claude Code
    ClaudeCode,
    /// Claude Desktop, through mcp-remote
    ClaudeDesktop,
    /// Codex
    Codex,
    /// Cursor
    Cursor,
    /// Gemini CLI
    Gemini,
    /// LM Studio
    LmStudio,
    /// OpenCode
    Opencode,
    /// Visual Studio Code
    Vscode,
    /// Windsurf
    Windsurf,
    /// Zed
    Zed,
}

/// Options of `tooldock connect`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = CONNECT_HELP)]
pub(crate) struct ConnectArgs {
    /// The MCP client
    #[arg(value_enum)]
    pub(crate) client: ConnectClient,
    /// Namespace to connect [default: all namespaces, on a listener with namespace: global]
    #[arg(value_name = "NAMESPACE")]
    pub(crate) namespace: Option<NamespaceName>,
    /// Name of the entry in the client's file [default: tooldock-NAMESPACE, or tooldock]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Address at which the client reaches the gateway [default: admission.public_url, or the core's listener]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Scopes of the key: admin (all tools), write, read, or names of relay.scopes
    #[arg(
        long,
        value_name = "SCOPE,…",
        value_delimiter = ',',
        default_value = "admin"
    )]
    pub(crate) scope: Vec<String>,
    /// Use the API key in this file instead of creating one
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Print the entry and write no file of the client. No API key is created; the entry contains YOUR-KEY
    #[arg(long)]
    pub(crate) print: bool,
    /// Create an API key for --print, and print it in the entry
    #[arg(long, requires = "print", conflicts_with = "key_file")]
    pub(crate) make_key: bool,
    /// The client's file [default: the client's file for the current user]
    #[arg(long, value_name = "FILE", conflicts_with = "print")]
    pub(crate) file: Option<PathBuf>,
    /// Overwrite an entry of the same name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Text at the end of `tooldock connect --help`.
const CONNECT_HELP: &str = "\
The file keeps its other content, and its previous content stays beside it with the ending .bak. The key stands in the file in
clear: mode 0600 is set. `tooldock keys list` shows the key, and `tooldock keys revoke` ends it.

Examples:
  tooldock connect cursor github
  tooldock connect codex github --print --make-key";
