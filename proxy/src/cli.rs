//! The command line: the subcommands and their options.
//!
//! This module only parses. `main.rs` runs the subcommands.

mod servers;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use humantime_serde::re::humantime;
use tooldock_base::names::NamespaceName;
use tooldock_base::network::Cidr;
use tooldock_credentials::keys::KeyLimit;
use tooldock_credentials::secrets::Scope;

pub(crate) use servers::{
    AddArgs, ConnectArgs, ConnectClient, ImportArgs, RemoveArgs, ServerFiles, UrlTransport,
};

/// A gateway that serves folders of Python tools and stdio MCP servers over MCP and REST.
#[derive(Debug, Parser)]
#[command(
    name = "tooldock",
    version,
    arg_required_else_help = true,
    after_help = "tooldock --version --json prints version, commit, compiler, target and profile of this program."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway
    Serve(ServeArgs),
    /// Validate the configuration, or a single file or folder; print the effective values, listeners and external servers
    Check(CheckArgs),
    /// Create a folder for a new namespace, with files to begin with
    New(NewArgs),
    /// Run the tests in a namespace's folder with pytest, in the environment that a gateway made for the namespace
    Test(TestArgs),
    /// Manage the secrets of namespaces: set, list, edit and remove them, or change the key that encrypts them
    Secrets(SecretsArgs),
    /// Create, list and revoke API keys
    Keys(KeysArgs),
    /// Show the rights of a key or principal in a namespace, and the rule behind each, as the running gateway applies them
    Explain(ExplainArgs),
    /// Import the servers of an MCP client from its mcp.json, settings or config.toml
    Import(ImportArgs),
    /// Add a server: a command, or a URL
    Add(AddArgs),
    /// Remove a server from the file or configuration that contains it
    Remove(RemoveArgs),
    /// Create an API key and write the gateway into the configuration of an MCP client
    Connect(ConnectArgs),
    /// Check the gateway's surroundings: servers in front, names, clocks, limits, programs, permissions, ports, Redis
    Doctor(DoctorArgs),
    #[command(flatten)]
    Operator(OperatorCommand),
    /// Convert the configuration of an nginx in front of MCP servers, and list what cannot be imported
    ImportNginx(ImportNginxArgs),
    /// Serve many MCP servers as a single one, on standard input and output, from the tools.toml of a project
    Toolman(ToolmanArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands, for packages
    #[command(hide = true)]
    Man(ManArgs),
}

/// Options of `tooldock new`.
#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// Name of the namespace, which is the name of its folder
    #[arg(value_name = "NAME")]
    pub(crate) name: NamespaceName,
    /// Files to begin with
    #[arg(long, value_enum, default_value_t = Template::Tool)]
    pub(crate) template: Template,
    /// Data directory [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Options of `tooldock test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Name of the namespace
    #[arg(value_name = "NAME")]
    pub(crate) name: NamespaceName,
    /// Data directory [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Options and files for pytest [default: all tests of the folder]
    #[arg(last = true, value_name = "PYTEST")]
    pub(crate) options: Vec<OsString>,
}

/// Templates of `tooldock new`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Template {
    /// A Python file with a tool
    Tool,
    /// A Python file that makes an MCP server with the official SDK
    Server,
    /// A project in TypeScript that makes an MCP server with the official SDK
    Typescript,
}

/// Options of `tooldock completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to print completions for
    #[arg(value_enum)]
    pub(crate) shell: CompletedShell,
}

/// Shells for which completions can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletedShell {
    /// source <(tooldock completions bash)
    Bash,
    /// tooldock completions zsh > a file _tooldock of $fpath
    Zsh,
    /// tooldock completions fish > ~/.config/fish/completions/tooldock.fish
    Fish,
}

/// Options of `tooldock man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder for the manual pages; each command gets a file
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
}

/// The subcommands that send requests to the running gateway.
#[derive(Debug, Subcommand)]
pub(crate) enum OperatorCommand {
    /// Show the running gateway: namespaces with states and reasons, certificates, the last reload, replicas
    Status(StatusArgs),
    /// List the tools of the running gateway that the token opens
    Tools(ToolsArgs),
    /// Call a tool of the running gateway
    Call(CallArgs),
    /// Show the output of a namespace's processes, and the gateway's records of its calls
    Logs(LogsArgs),
    /// Make the running gateway and its replicas read their namespaces again
    Reload(ReloadArgs),
    /// List the sessions of the running gateway, or end one
    Sessions(SessionsArgs),
    /// Show recorded definitions of servers and their changes, approve or forget them
    Pins(PinsArgs),
}

/// The running gateway to which a command sends requests, and the token for it. A token is never an argument, since other users
/// could read it in the list of processes.
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayArgs {
    /// Address of the gateway's listener of the profile core: http://HOST:PORT, https://HOST:PORT or unix:/PATH [default:
    /// CORE_URL, or the configuration's first such listener: preferably with plain HTTP, then with HTTPS, then on a Unix socket]
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) url: Option<String>,
    /// File that contains the token [default: the variable TOOLDOCK_TOKEN, then BEARER_TOKEN, then the token that serve --dev
    /// stores in the data directory]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: GatewayTrust,
    /// Data directory, for the token that serve --dev stores [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file of the running gateway [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
}

/// Text at the end of `tooldock doctor --help`.
const DOCTOR_HELP: &str = "\
Each finding that is not fine says what to type. The servers in front are probed through the public URL, with nonces that the
running gateway gives for the token; the token itself is not sent there. Without a running gateway the machine is checked alone.

Exit status:
  0  nothing is wrong    1  problems, or warnings with --strict    2  wrong usage or configuration

Example:
  tooldock doctor --public-url https://gw.example.com";

/// Options of `tooldock doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// URL by which clients reach the gateway, through the servers in front of it [default: admission.public_url]
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// Also test whether a stream may be silent for this number of seconds, at most 120 [without a number: 65]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "65",
        value_parser = clap::value_parser!(u8).range(1..=120))]
    pub(crate) slow: Option<u8>,
    /// Exit with an error for warnings, too
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print the output as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `tooldock status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Show the state again every two seconds, until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
    /// Print the output as JSON; with --watch a line for each state
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `tooldock tools`.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolsArgs {
    /// The namespace whose tools are listed [default: all that the token opens]
    #[arg(value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print the output as JSON, with the schemas of the tools
    #[arg(long)]
    pub(crate) json: bool,
}

/// Text at the end of `tooldock call --help`.
const CALL_HELP: &str = "\
Arguments:
  key=value   a value of the type in the tool's input schema: a number, true or false, JSON for arrays and objects, else a text
  key=@FILE   the content of a file; key=@@text for a text that begins with @
  key=-       standard input
Progress, log messages and questions go to standard error. A question is asked where standard input and standard error are a
terminal, and declined elsewhere. Ctrl-C cancels the call.

Exit status:
  0  done    1  the tool or the gateway failed    2  wrong usage    3  no gateway is reached    130  Ctrl-C

Example:
  tooldock call calc add a=2 b=3";

/// Options of `tooldock call`.
#[derive(Debug, clap::Args)]
#[command(after_help = CALL_HELP)]
pub(crate) struct CallArgs {
    /// The namespace of the tool
    #[arg(value_name = "NAMESPACE")]
    pub(crate) namespace: String,
    /// The tool to call
    #[arg(value_name = "TOOL")]
    pub(crate) tool: String,
    /// Arguments of the tool
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
    /// All arguments of the tool as one JSON object: '{…}', @FILE, or - for standard input. Without an object, the option is the
    /// same as --output json
    #[arg(long, value_name = "OBJECT", num_args = 0..=1, default_missing_value = "")]
    pub(crate) json: Option<String>,
    /// Format in which the result is printed
    #[arg(long, value_enum, default_value_t = CallOutput::Text, value_name = "FORMAT")]
    pub(crate) output: CallOutput,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
}

/// Formats in which `tooldock call` prints a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CallOutput {
    /// The text of the tool's result.
    Text,
    /// The structured content of the result; the whole result if it has no structured content, or if the tool failed.
    Json,
}

/// Options of `tooldock logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    /// The namespace; without it, records of all namespaces are shown, and no output of processes
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<NamespaceName>,
    /// Keep printing new entries, until Ctrl-C
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Number of existing entries to print first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) lines: u16,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print each entry as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `tooldock reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print the output as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `tooldock sessions`.
#[derive(Debug, clap::Args)]
pub(crate) struct SessionsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SessionsCommand>,
    /// Only list the sessions of this namespace
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<NamespaceName>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print the output as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Subcommands of `tooldock sessions`.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// End a session and its streams
    End {
        /// The session's id, as `sessions` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Text at the end of `tooldock pins --help`.
const PINS_HELP: &str = "\
Exit status:
  0  done; for diff: every definition is approved    1  the gateway refuses; for diff: definitions wait for approval
  2  wrong usage    3  no gateway is reached

Example:
  tooldock pins diff github
  tooldock pins approve github create_issue";

/// Options of `tooldock pins`.
#[derive(Debug, clap::Args)]
#[command(after_help = PINS_HELP)]
pub(crate) struct PinsArgs {
    #[command(subcommand)]
    pub(crate) command: PinsCommand,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print the output as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Subcommands of `tooldock pins`, which manage the recorded definitions of servers.
#[derive(Debug, Subcommand)]
pub(crate) enum PinsCommand {
    /// List the recorded tools, prompts and resource templates with their states
    List {
        /// The namespace whose records are listed [default: all]
        #[arg(value_name = "NAMESPACE")]
        namespace: Option<String>,
    },
    /// Show the definitions that wait for approval, with their differences from the approved ones
    Diff {
        /// The namespace whose definitions are shown [default: all]
        #[arg(value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// Name of the tool or prompt, or the URI template [default: all]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Approve the definitions of a namespace that wait for approval
    Approve {
        /// The namespace whose definitions are approved
        #[arg(value_name = "NAMESPACE")]
        namespace: String,
        /// Name of the tool or prompt, or the URI template [default: all]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Only approve the version with this digest, or a digest that begins so, as diff shows it
        #[arg(long, value_name = "DIGEST")]
        digest: Option<String>,
    },
    /// Delete records, so that the definitions are recorded anew when the server next lists them
    Forget {
        /// The namespace whose records are deleted
        #[arg(value_name = "NAMESPACE")]
        namespace: String,
        /// Name of the tool or prompt, or the URI template [default: all, as if the server had never been seen]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}

/// Options of `tooldock serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Part of the gateway that this process runs
    #[arg(long, value_enum, default_value_t = Role::All)]
    pub(crate) role: Role,
    /// Try ToolDock out: listen on loopback only, create a token, place example tools, print lines to paste
    #[arg(long)]
    pub(crate) dev: bool,
    /// Replace the gateway that runs on the same data directory without an interruption. The old gateway serves until this
    /// process is ready, hands over its listening sockets, answers the requests it has, and exits
    #[arg(long)]
    pub(crate) upgrade: bool,
}

/// Options of `tooldock check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check only this path: a data directory with everything in it, an external/config.yaml, a namespace's tooldock.yaml, the
    /// folder of a namespace, or one of its Python files. Ceilings and limits come from the configuration. Python files are
    /// imported in the namespace's environment if a gateway has created one, and only parsed otherwise
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// Format of the findings: `github` prints only annotations of GitHub Actions, one per line
    #[arg(long, value_enum, default_value_t = CheckFormat::Text, value_name = "FORMAT")]
    pub(crate) format: CheckFormat,
    /// Fail with status 2 for warnings, too, for use in a pipeline
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Formats of the output of `tooldock check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// The report on standard output, and errors on standard error.
    Text,
    /// Annotations of GitHub Actions on standard output.
    Github,
}

/// Options of `tooldock import-nginx`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = IMPORT_NGINX_HELP)]
pub(crate) struct ImportNginxArgs {
    /// nginx.conf, or a file with the content of its http block. `include` directives are followed, from the file's folder. -
    /// means standard input
    pub(crate) file: PathBuf,
    /// Write the gateway's configuration into this file [default: standard output]
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite the file that --output names
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}

/// Text at the end of `tooldock import-nginx --help`.
const IMPORT_NGINX_HELP: &str = "\
The configuration names the line of nginx that each part comes from. What is not carried over is listed on standard error,
a line each, as FILE:LINE: DIRECTIVE: why, and what to do instead. A line with `security` is about a rule without which more
would be open than with nginx. Tokens become digests and credentials for servers become ${NAME}: no secret is written.
Defaults of nginx and rules in files around FILE are not seen: docs/from-nginx.md has the list.

Exit status:
  0  no line has `security`: as far as this command understands FILE, clients are asked for no less; other lines may be listed
  2  a line has `security`: the configuration goes to standard output to be completed, and is not written with --output; or the
     file cannot be read
  1  anything else

Example:
  tooldock import-nginx /etc/nginx/nginx.conf -o conf/tooldock.yaml
  tooldock check -c conf/tooldock.yaml";

/// Options of `tooldock toolman`. Its standard output contains only MCP messages for the client; all other output goes to
/// standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolmanArgs {
    /// The file that lists the servers and the tools that are active at the start. Relative paths in it start at the file's
    /// folder
    #[arg(long, value_name = "FILE", default_value = "tools.toml")]
    pub(crate) config: PathBuf,
    /// Export traces, metrics and logs by OTLP. FILE contains the keys of `observability.otlp`, as YAML
    #[arg(long, value_name = "FILE")]
    pub(crate) otlp: Option<PathBuf>,
}

/// Options of `tooldock secrets`. Values are never arguments: they are typed without echo, or read from standard input.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SecretsArgs {
    #[command(subcommand)]
    pub(crate) command: SecretsCommand,
    /// Configuration file, for the data directory [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Subcommands of `tooldock secrets`.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Authorize the gateway at the authorization server of a remote server, in a browser
    Authorize(AuthorizeArgs),
    /// Set the value of a secret. It is typed without echo; if standard input is no terminal, its first line is the value, or
    /// all of it if it is a PEM file
    Set {
        /// Name of the secret, and of the environment variable that contains the value in tools
        #[arg(long)]
        key: String,
        /// `global` for all namespaces, the name of one namespace, or `principal:NAME` for the personal value of a principal
        #[arg(long)]
        scope: Scope,
    },
    /// Edit all secrets in $EDITOR; other writers have to wait meanwhile
    Edit,
    /// List the names, scopes and statuses of secrets. Values are never shown
    List {
        /// Only list secrets of this scope
        #[arg(long)]
        scope: Option<Scope>,
    },
    /// Remove a secret and its value
    Remove {
        /// Name of the secret
        #[arg(long)]
        key: String,
        /// Scope of the secret: `global`, the name of a namespace, or `principal:NAME`
        #[arg(long)]
        scope: Scope,
    },
    /// Encrypt all secrets with a new key: SECRETS_KEY_NEW, or a key that is typed. SECRETS_KEY contains the present key
    Rekey,
    /// Write all secrets, encrypted with SECRETS_KEY, in a format of another system
    Export {
        /// `fernet`: the format of secrets.enc in the older Python system
        #[arg(long, value_enum, default_value_t = ExportFormat::Fernet)]
        format: ExportFormat,
        /// File to create [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Options of `tooldock secrets authorize`.
#[derive(Debug, clap::Args)]
pub(crate) struct AuthorizeArgs {
    /// The namespace of a remote server with `oauth: { grant: authorization_code }`
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: NamespaceName,
    /// `principal:NAME`, if each principal authorizes the gateway separately
    #[arg(long)]
    pub(crate) scope: Option<Scope>,
    /// The port of this machine to which the browser is redirected, if the authorization server accepts only a certain port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
    /// Remove the authorization
    #[arg(long)]
    pub(crate) remove: bool,
}

/// Options of `tooldock explain`. The command sends BEARER_TOKEN, if it is set, and MANAGER_INTERNAL_TOKEN to the gateway.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// The id of a key, or the name of a principal, as logs show it [default: list the principals]
    #[arg(long = "as", value_name = "KEY_ID|PRINCIPAL")]
    pub(crate) principal: Option<String>,
    /// The namespace; _system for the management tools [default: the number of open tools of each namespace]
    #[arg(long, value_name = "NAME", value_parser = NamespaceName::parse_served, requires = "principal")]
    pub(crate) namespace: Option<NamespaceName>,
    /// A tool of the namespace [default: all its tools]
    #[arg(long, value_name = "TOOL", requires = "namespace")]
    pub(crate) tool: Option<String>,
    /// Address of the core: http://HOST:PORT, https://HOST:PORT or unix:/PATH [default: CORE_URL, or the configuration's first
    /// listener of the profile core: preferably with plain HTTP, then with HTTPS, then on a Unix socket]
    #[arg(long, value_name = "URL")]
    pub(crate) core: Option<String>,
    #[command(flatten)]
    pub(crate) trust: GatewayTrust,
    /// Data directory, for the tokens that serve --dev stores [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file of the running gateway [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the output as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options that decide which certificate of the running gateway a command accepts.
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayTrust {
    /// Certificates of the authorities that may sign the gateway's certificate, in place of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure", global = true)]
    pub(crate) ca: Option<PathBuf>,
    /// Accept any certificate from a gateway at an address of this machine
    #[arg(long, global = true)]
    pub(crate) insecure: bool,
}

impl GatewayTrust {
    /// Returns true if one of these options is given.
    pub(crate) fn is_given(&self) -> bool {
        self.insecure || self.ca.is_some()
    }
}

/// Options of `tooldock keys`. When the command returns, the running gateways apply its change.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
    /// Configuration file, which names the file of keys and defines the scopes [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Print the output as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Subcommands of `tooldock keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key and print it. It cannot be shown again, since only its hash is stored
    Create(NewKeyArgs),
    /// Show all keys: the tools and namespaces of each, its validity, and its last use
    List,
    /// Revoke a key: it is refused from now on, and its streams end
    Revoke {
        /// The key's id, as `keys list` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Options of `tooldock keys create`.
#[derive(Debug, clap::Args)]
pub(crate) struct NewKeyArgs {
    /// The holder of the key. Logs and limits name its requests key:NAME
    #[arg(long)]
    pub(crate) name: String,
    /// Scopes whose tools the key may list and call: admin (all tools), write, read, or names of relay.scopes
    #[arg(long, value_name = "SCOPE,…", value_delimiter = ',', required = true)]
    pub(crate) scope: Vec<String>,
    /// Namespaces that the key opens: names and patterns. The management tools are opened by the name _system only
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "*"
    )]
    pub(crate) namespaces: Vec<String>,
    /// Networks from which the key is accepted, such as 10.0.0.0/8 [default: every network]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pub(crate) networks: Vec<Cidr>,
    /// Time for which the key is valid, such as 90d [default: until it is revoked]
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<humantime::Duration>,
    /// Limits per second: RATE/BURST for requests, or RATE/BURST:tool_call for calls of tools
    #[arg(long, value_name = "RATE/BURST", value_delimiter = ',')]
    pub(crate) rate: Vec<KeyLimit>,
    /// Begin the key with oub_, as keys of containers do [default: it begins with td_]
    #[arg(long)]
    pub(crate) relay: bool,
    #[command(flatten)]
    pub(crate) trust: GatewayTrust,
}

/// Formats in which secrets are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Version 1 of the file format
    Fernet,
}

/// The half of the gateway that a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// All parts of the gateway in one process
    All,
    /// Tools over MCP and REST
    Core,
    /// The management tools, beside a process that runs the core
    Manager,
}

impl ServeArgs {
    /// Returns an option of this command line that is not supported; `None` if all are.
    pub(crate) fn unsupported(&self) -> Option<&'static str> {
        if self.role == Role::Manager && self.dev {
            Some("--dev with --role manager")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(args: &[&str]) -> ServeArgs {
        match Cli::try_parse_from([&["tooldock", "serve"], args].concat())
            .expect("valid")
            .command
        {
            Command::Serve(serve) => serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn serve_runs_all_roles_unless_told() {
        let args = serve(&[]);
        assert_eq!(args.role, Role::All);
        assert!(!args.dev && args.config.is_none() && args.unsupported().is_none());
    }

    #[test]
    fn serve_takes_file_role_and_dev() {
        let args = serve(&["-c", "x.yaml", "--role", "core", "--dev"]);
        assert_eq!(args.config, Some(PathBuf::from("x.yaml")));
        assert_eq!(args.role, Role::Core);
        assert!(args.dev);
    }

    #[test]
    fn help_shows_what_is_supported() {
        let help = Cli::try_parse_from(["tooldock", "serve", "--help"]).expect_err("help");
        let help = help.to_string();
        assert!(help.contains("--dev") && help.contains("core"), "{help}");
        assert!(
            help.contains("--upgrade") && help.contains("- manager"),
            "{help}"
        );
    }

    #[test]
    fn trying_out_a_manager_alone_is_not_supported() {
        assert!(serve(&["--upgrade"]).upgrade);
        assert_eq!(
            serve(&["--role", "manager", "--dev"]).unsupported(),
            Some("--dev with --role manager")
        );
        assert_eq!(serve(&["--role", "manager"]).unsupported(), None);
    }

    #[test]
    fn toolman_reads_the_file_of_the_working_directory_unless_told() {
        for (args, file) in [
            (&[][..], "tools.toml"),
            (&["--config", "p/x.toml"], "p/x.toml"),
        ] {
            let command = Cli::try_parse_from([&["tooldock", "toolman"], args].concat());
            match command.expect("valid").command {
                Command::Toolman(toolman) => assert_eq!(toolman.config, PathBuf::from(file)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_gateway_of_a_command_can_be_named_before_and_after_its_subcommand() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["tooldock"], args].concat());
        for args in [
            &["sessions", "--url", "http://x:1", "end", "a"][..],
            &["sessions", "end", "a", "--url", "http://x:1", "--json"],
            &["status", "--watch", "--json", "--ca", "x.pem"],
            &["call", "calc", "add", "a=1", "--json"],
            &["call", "calc", "add", "a=1", "--json", "-c", "x.yaml"],
            &["call", "calc", "add", "--json", "-"],
            &["call", "calc", "add", "--json", "{\"a\": -1}", "b=2"],
            &["call", "calc", "add", "--json=-"],
            &["logs", "-f", "--lines", "500", "--namespace", "calc"],
            &["tools"],
        ] {
            assert!(parse(args).is_ok(), "{args:?}");
        }
        for args in [
            &["call", "calc"][..],
            &["logs", "--lines", "0"],
            &["logs", "--lines", "501"],
            &["status", "--token", "hush"],
            &["reload", "--ca", "x", "--insecure"],
            &["sessions", "end"],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn internal_subcommands_are_unknown() {
        assert!(Cli::try_parse_from(["tooldock", "__guard"]).is_err());
    }

    #[test]
    fn writing_over_a_file_needs_a_file() {
        let parse =
            |args: &[&str]| Cli::try_parse_from([&["tooldock", "import-nginx"], args].concat());
        for args in [
            &["nginx.conf"][..],
            &["-"],
            &["x", "-o", "y"],
            &["x", "--output", "y", "--force"],
        ] {
            assert!(parse(args).is_ok(), "{args:?}");
        }
        for args in [&[][..], &["x", "--force"], &["x", "y"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn keys_are_made_with_a_name_and_a_scope_at_least() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["tooldock", "keys"], args].concat());
        let create = ["create", "--name", "ci", "--scope", "read,write"];
        let made = |more: &[&str]| match parse(&[&create, more].concat()) {
            Ok(Cli {
                command:
                    Command::Keys(KeysArgs {
                        command: KeysCommand::Create(new),
                        ..
                    }),
            }) => new,
            other => panic!("{other:?}"),
        };
        let plain = made(&[]);
        assert_eq!(
            (plain.scope.len(), &*plain.namespaces),
            (2, &["*".to_owned()][..])
        );
        let new = made(&[
            "--networks",
            "10.0.0.0/8,::1",
            "--expires",
            "90d",
            "--rate",
            "10/20",
            "--rate",
            "5:tool_call",
            "--json",
        ]);
        assert_eq!((new.networks.len(), new.rate.len()), (2, 2));
        assert!(!new.trust.is_given());
        assert!(made(&["--ca", "x.pem"]).trust.is_given());
        assert!(made(&["--insecure"]).trust.is_given());
        assert_eq!(new.expires.map(|it| it.as_secs()), Some(90 * 24 * 3600));
        for wrong in [
            &["create", "--name", "ci"][..],
            &["create", "--scope", "read"],
            &[
                "create",
                "--name",
                "ci",
                "--scope",
                "read",
                "--networks",
                "10.0.0.0/33",
            ],
            &["create", "--name", "ci", "--scope", "read", "--rate", "0"],
            &[
                "create",
                "--name",
                "ci",
                "--scope",
                "read",
                "--ca",
                "x.pem",
                "--insecure",
            ],
            &["revoke"],
            &[],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn secrets_take_no_value_and_find_the_data_directory_as_check_does() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["tooldock", "secrets"], args].concat());
        let set = ["set", "--key", "K", "--scope", "global"];
        for more in [&["-c", "x.yaml"][..], &["--data-dir", "d"], &[]] {
            assert!(parse(&[&set, more].concat()).is_ok(), "{more:?}");
        }
        for wrong in [
            &["set", "--key", "K"][..],
            &["set", "--key", "K", "--scope", "global", "value"],
            &["set", "--key", "K", "--scope", "_system"],
            &["set", "--key", "K", "--scope", "principal:"],
            &["export", "--format", "plain"],
            &[],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
