//! Options of the commands about servers and clients: `import`, `add`, `remove` and `connect`.

use std::path::PathBuf;

use clap::ValueEnum;
use tooldock_base::names::NamespaceName;

/// Files that commands about servers change.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerFiles {
    /// Configuration file. Servers with a URL are written into it [default: conf/tooldock.yaml, which is made if it is missing]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory. Servers with a command are written into its external/config.yaml, and secrets into its store
    /// [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// `tooldock import`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = IMPORT_HELP)]
pub(crate) struct ImportArgs {
    /// Files of clients: mcp.json, claude_desktop_config.json, settings.json, config.toml, … - is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) places: ServerFiles,
    /// Write all servers as an upstreams: part of a configuration into this new file, and into no other
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Store no credential; list the commands that do
    #[arg(long)]
    pub(crate) no_secrets: bool,
    /// Write over servers of the same name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The end of `tooldock import --help`.
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

/// Transports of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UrlTransport {
    /// Streamable HTTP
    Http,
    /// HTTP+SSE of 2024-11-05
    Sse,
}

/// `tooldock add`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = ADD_HELP)]
pub(crate) struct AddArgs {
    /// Name of the namespace
    pub(crate) name: NamespaceName,
    /// URL of a server that is reached over HTTP
    #[arg(conflicts_with = "command", required_unless_present = "command")]
    pub(crate) url: Option<String>,
    /// Command of the server, behind --
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Variable of the server. A value that is a credential goes into the secrets store
    #[arg(short = 'e', long, value_name = "NAME=VALUE", conflicts_with = "url")]
    pub(crate) env: Vec<String>,
    /// Header of requests to the URL. A value that is a credential goes into the secrets store
    #[arg(
        short = 'H',
        long,
        value_name = "NAME: VALUE",
        conflicts_with = "command"
    )]
    pub(crate) header: Vec<String>,
    /// Variable whose value is asked for without echo, or read from standard input, a line each. For a URL it is the bearer
    /// token, unless a header refers to it as ${NAME}
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Vec<String>,
    /// Transport of the URL [default: whichever the server has]
    #[arg(long, value_enum, conflicts_with = "command")]
    pub(crate) transport: Option<UrlTransport>,
    /// Comment in the file
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) description: String,
    #[command(flatten)]
    pub(crate) places: ServerFiles,
    /// Write over a server of the same name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The end of `tooldock add --help`.
const ADD_HELP: &str = "\
Examples:
  tooldock add time -- uvx mcp-server-time
  tooldock add github --secret GITHUB_TOKEN -- npx -y @modelcontextprotocol/server-github
  tooldock add search https://mcp.example/mcp --secret SEARCH_TOKEN";

/// `tooldock remove`.
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

/// Clients that `tooldock connect` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConnectClient {
    /// Claude Code
    ClaudeCode,
    /// Claude Desktop, by mcp-remote
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

/// `tooldock connect`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = CONNECT_HELP)]
pub(crate) struct ConnectArgs {
    /// The client
    #[arg(value_enum)]
    pub(crate) client: ConnectClient,
    /// Namespace [default: all namespaces, on a listener with namespace: global]
    #[arg(value_name = "NAMESPACE")]
    pub(crate) namespace: Option<NamespaceName>,
    /// Name of the entry in the client's file [default: tooldock-NAMESPACE, or tooldock]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Address of the gateway as the client reaches it [default: admission.public_url, or the core's listener]
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
    /// Use the API key in this file instead of making one
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Print the entry and write no file of the client. No API key is made: YOUR-KEY stands in its place
    #[arg(long)]
    pub(crate) print: bool,
    /// Make a key for --print, and print it
    #[arg(long, requires = "print", conflicts_with = "key_file")]
    pub(crate) make_key: bool,
    /// The client's file [default: the one that the client reads for its user]
    #[arg(long, value_name = "FILE", conflicts_with = "print")]
    pub(crate) file: Option<PathBuf>,
    /// Write over an entry of the same name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// The end of `tooldock connect --help`.
const CONNECT_HELP: &str = "\
The file keeps its other content, and its previous content stays beside it with the ending .bak. The key stands in the file in
clear: mode 0600 is set. `tooldock keys list` shows the key, and `tooldock keys revoke` ends it.

Examples:
  tooldock connect cursor github
  tooldock connect codex github --print --make-key";
