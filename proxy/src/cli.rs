//! The command line: the subcommands and their options.
//!
//! Parsing only. The subcommands themselves stand in `main.rs`; subcommands of later versions are not listed until they work.

mod servers;

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
    /// Validate the configuration or one part of it; print the effective values, listeners and external servers
    Check(CheckArgs),
    /// Keep the secrets of namespaces: give them values, list, edit and remove them, change their key
    Secrets(SecretsArgs),
    /// Make, list and revoke API keys
    Keys(KeysArgs),
    /// Show the rights of a key or principal in a namespace, and the rule behind each, by asking the running gateway
    Explain(ExplainArgs),
    /// Take over the servers of an MCP client: its mcp.json, settings or config.toml
    Import(ImportArgs),
    /// Add one server: a command, or a URL
    Add(AddArgs),
    /// Remove a server that a file of servers or the configuration has
    Remove(RemoveArgs),
    /// Make an API key and write the gateway into the configuration of an MCP client
    Connect(ConnectArgs),
    /// Find what is wrong around the gateway: servers in front, names, clocks, limits, programs, permissions, ports, Redis
    Doctor(DoctorArgs),
    #[command(flatten)]
    Operator(OperatorCommand),
    /// Turn an nginx in front of MCP servers into a configuration of the gateway, and list what cannot be carried over
    ImportNginx(ImportNginxArgs),
    /// Serve many MCP servers as one, on standard input and output, from the tools.toml of a project
    Toolman(ToolmanArgs),
    /// Print completions for a shell, for its folder of completions
    Completions(CompletionsArgs),
    /// Write manual pages, for packages
    #[command(hide = true)]
    Man(ManArgs),
}

/// `tooldock completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: CompletedShell,
}

/// Shells that completions can be printed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletedShell {
    /// source <(tooldock completions bash)
    Bash,
    /// tooldock completions zsh > a file _tooldock of $fpath
    Zsh,
    /// tooldock completions fish > ~/.config/fish/completions/tooldock.fish
    Fish,
}

/// `tooldock man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder for the pages, a file for each command
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
}

/// The subcommands that ask the running gateway.
#[derive(Debug, Subcommand)]
pub(crate) enum OperatorCommand {
    /// Show the running gateway: namespaces with states and reasons, certificates, the last reload, replicas
    Status(StatusArgs),
    /// List the tools of the running gateway that the token opens
    Tools(ToolsArgs),
    /// Call a tool of the running gateway
    Call(CallArgs),
    /// Show what a namespace's processes printed, and the gateway's records of its calls
    Logs(LogsArgs),
    /// Have the running gateway and its replicas read their namespaces again
    Reload(ReloadArgs),
    /// List the sessions of the running gateway, or end one
    Sessions(SessionsArgs),
    /// Show recorded definitions of servers and their changes, approve or forget them
    Pins(PinsArgs),
}

/// The running gateway that a command asks, and the token for it. A token is never an argument.
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayArgs {
    /// Address of the gateway's listener of the profile core: http://HOST:PORT, https://HOST:PORT or unix:/PATH [default:
    /// CORE_URL, or the configuration's first such listener: one of plain HTTP, else of HTTPS, else of a Unix socket]
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) url: Option<String>,
    /// File with the token [default: TOOLDOCK_TOKEN, else BEARER_TOKEN, else the token that serve --dev keeps in the data
    /// directory]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: GatewayTrust,
    /// Data directory, for the token that serve --dev keeps [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file of the running gateway [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
}

/// The end of `tooldock doctor --help`.
const DOCTOR_HELP: &str = "\
Each finding that is not fine says what to type. The servers in front are probed through the public URL, with nonces that the
running gateway gives for the token; the token itself is not sent there. Without a running gateway the machine is checked alone.

Exit status:
  0  nothing is wrong    1  problems, or warnings with --strict    2  wrong usage or configuration

Example:
  tooldock doctor --public-url https://gw.example.com";

/// `tooldock doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// URL by which clients reach the gateway, through the servers in front of it [default: admission.public_url]
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// Also wait for a stream that is silent for so many seconds, at most 120 [without a number: 65]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "65",
        value_parser = clap::value_parser!(u8).range(1..=120))]
    pub(crate) slow: Option<u8>,
    /// Let warnings fail the command, too
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tooldock status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Show the state again every two seconds, until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
    /// Print JSON; with --watch a line each time
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tooldock tools`.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolsArgs {
    /// The namespace [default: all that the token opens]
    #[arg(value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print JSON, with the schemas
    #[arg(long)]
    pub(crate) json: bool,
}

/// The end of `tooldock call --help`.
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

/// `tooldock call`.
#[derive(Debug, clap::Args)]
#[command(after_help = CALL_HELP)]
pub(crate) struct CallArgs {
    /// The namespace
    #[arg(value_name = "NAMESPACE")]
    pub(crate) namespace: String,
    /// The tool
    #[arg(value_name = "TOOL")]
    pub(crate) tool: String,
    /// Arguments of the tool
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
    /// With an object, all arguments at once: '{…}', @FILE, or - for standard input. Without one, as --output json
    #[arg(long, value_name = "OBJECT", num_args = 0..=1, default_missing_value = "")]
    pub(crate) json: Option<String>,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = CallOutput::Text, value_name = "FORMAT")]
    pub(crate) output: CallOutput,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
}

/// The output of `tooldock call`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CallOutput {
    /// The text of the result.
    Text,
    /// The structured content; the whole result where it has none, and of a failure.
    Json,
}

/// `tooldock logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    /// The namespace; without one, the records of all namespaces are shown, and no output
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<NamespaceName>,
    /// Go on with what comes, until Ctrl-C
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Number of entries to begin with
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) lines: u16,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print a line of JSON for each entry
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tooldock reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tooldock sessions`.
#[derive(Debug, clap::Args)]
pub(crate) struct SessionsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SessionsCommand>,
    /// Only the sessions of this namespace
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<NamespaceName>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Subcommands for sessions.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// End a session with its streams
    End {
        /// The session's id, as `sessions` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// The end of `tooldock pins --help`.
const PINS_HELP: &str = "\
Exit status:
  0  done; for diff: every definition is approved    1  the gateway refuses; for diff: definitions wait for approval
  2  wrong usage    3  no gateway is reached

Example:
  tooldock pins diff github
  tooldock pins approve github create_issue";

/// `tooldock pins`.
#[derive(Debug, clap::Args)]
#[command(after_help = PINS_HELP)]
pub(crate) struct PinsArgs {
    #[command(subcommand)]
    pub(crate) command: PinsCommand,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Subcommands for recorded definitions.
#[derive(Debug, Subcommand)]
pub(crate) enum PinsCommand {
    /// List the recorded tools, prompts and resource templates with their states
    List {
        /// The namespace [default: all]
        #[arg(value_name = "NAMESPACE")]
        namespace: Option<String>,
    },
    /// Show the definitions that wait for approval, with their differences from the approved ones
    Diff {
        /// The namespace [default: all]
        #[arg(value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// Name of the tool or prompt, or the URI template [default: all]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Approve the definitions of a namespace that wait
    Approve {
        /// The namespace
        #[arg(value_name = "NAMESPACE")]
        namespace: String,
        /// Name of the tool or prompt, or the URI template [default: all]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Only the version with this digest, or its beginning, as diff shows it
        #[arg(long, value_name = "DIGEST")]
        digest: Option<String>,
    },
    /// Drop records: the definitions are recorded anew when they are next listed
    Forget {
        /// The namespace
        #[arg(value_name = "NAMESPACE")]
        namespace: String,
        /// Name of the tool or prompt, or the URI template [default: all, as if the server was never seen]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}

/// `tooldock serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Part of the gateway that this process runs
    #[arg(long, value_enum, default_value_t = Role::All)]
    pub(crate) role: Role,
    /// Try ToolDock out: listen on loopback only, make a token, place example tools, print lines to paste
    #[arg(long)]
    pub(crate) dev: bool,
    /// Take over from the gateway that runs on the data directory. That gateway serves until this process is ready, hands over
    /// its listening sockets, answers the requests it has, and ends
    #[arg(long)]
    pub(crate) upgrade: bool,
}

/// `tooldock check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check only this: a data directory with everything in it, an external/config.yaml, a namespace's tooldock.yaml, the
    /// folder of a namespace, or one of its Python files. Ceilings and limits come from the configuration. Python files are
    /// imported in the namespace's environment where a gateway has made one, and parsed elsewhere
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// How findings are printed: `github` prints annotations of GitHub Actions alone, a line each
    #[arg(long, value_enum, default_value_t = CheckFormat::Text, value_name = "FORMAT")]
    pub(crate) format: CheckFormat,
    /// Let warnings fail the check, too (status 2), as a pipeline wants it
    #[arg(long)]
    pub(crate) strict: bool,
}

/// The output of `tooldock check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// The report, and errors on standard error.
    Text,
    /// Annotations of GitHub Actions.
    Github,
}

/// `tooldock import-nginx`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = IMPORT_NGINX_HELP)]
pub(crate) struct ImportNginxArgs {
    /// nginx.conf, or a file with the content of its http block. `include` is followed, from the file's folder. - is standard
    /// input
    pub(crate) file: PathBuf,
    /// Write the configuration into this file [default: standard output]
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write over the file that --output names
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}

/// The end of `tooldock import-nginx --help`.
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

/// `tooldock toolman`. Its standard output is for the client alone; messages go to standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolmanArgs {
    /// The file that lists the servers and the tools that are active at the start. Its relative paths start at its own folder
    #[arg(long, value_name = "FILE", default_value = "tools.toml")]
    pub(crate) config: PathBuf,
    /// Export traces, metrics and logs by OTLP. FILE has the keys of `observability.otlp`, as YAML
    #[arg(long, value_name = "FILE")]
    pub(crate) otlp: Option<PathBuf>,
}

/// `tooldock secrets`. Values are never arguments: they are typed without echo, or come from standard input.
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

/// Subcommands for secrets.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Authorize the gateway at the authorization server of a remote server, in a browser
    Authorize(AuthorizeArgs),
    /// Give a secret a value. Asks without echo; where standard input is no terminal, takes its first line
    Set {
        /// Name of the environment variable that tools find the value in
        #[arg(long)]
        key: String,
        /// `global` for every namespace, the name of one, or `principal:NAME` for the personal value of one principal
        #[arg(long)]
        scope: Scope,
    },
    /// Open all secrets in $EDITOR; the store is locked for other writers meanwhile
    Edit,
    /// Show names, scopes and statuses. Values are never shown
    List {
        /// Only this scope
        #[arg(long)]
        scope: Option<Scope>,
    },
    /// Take a secret away, with its value
    Remove {
        /// The secret's name
        #[arg(long)]
        key: String,
        /// `global`, the name of a namespace, or `principal:NAME`
        #[arg(long)]
        scope: Scope,
    },
    /// Encrypt all secrets with a new key: SECRETS_KEY_NEW, or a key that is typed. SECRETS_KEY is the present one
    Rekey,
    /// Write all secrets, encrypted under SECRETS_KEY, in a format of other systems
    Export {
        /// `fernet`: the format of secrets.enc in the older Python system
        #[arg(long, value_enum, default_value_t = ExportFormat::Fernet)]
        format: ExportFormat,
        /// File to make [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// `tooldock secrets authorize`.
#[derive(Debug, clap::Args)]
pub(crate) struct AuthorizeArgs {
    /// The namespace of a remote server with `oauth: { grant: authorization_code }`
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: NamespaceName,
    /// `principal:NAME`, where each principal authorizes the gateway for itself
    #[arg(long)]
    pub(crate) scope: Option<Scope>,
    /// The port of this machine that the browser comes back to, where the authorization server knows one port only
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
    /// Take the authorization away
    #[arg(long)]
    pub(crate) remove: bool,
}

/// `tooldock explain`. It shows BEARER_TOKEN, where that is set, and MANAGER_INTERNAL_TOKEN to the gateway.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// The id of a key, or the name of a principal, as logs show it [default: list the principals]
    #[arg(long = "as", value_name = "KEY_ID|PRINCIPAL")]
    pub(crate) principal: Option<String>,
    /// The namespace; _system for the management tools [default: how many tools of each are open]
    #[arg(long, value_name = "NAME", value_parser = NamespaceName::parse_served, requires = "principal")]
    pub(crate) namespace: Option<NamespaceName>,
    /// A tool of the namespace [default: all of them]
    #[arg(long, value_name = "TOOL", requires = "namespace")]
    pub(crate) tool: Option<String>,
    /// Address of the core: http://HOST:PORT, https://HOST:PORT or unix:/PATH [default: CORE_URL, or the configuration's
    /// first listener of the profile core: one of plain HTTP, else of HTTPS, else of a Unix socket]
    #[arg(long, value_name = "URL")]
    pub(crate) core: Option<String>,
    #[command(flatten)]
    pub(crate) trust: GatewayTrust,
    /// Data directory, for the tokens that serve --dev keeps [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file of the running gateway [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Trust in the certificate of the running gateway that a command asks.
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayTrust {
    /// Certificates that vouch for the running gateway over https, in place of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure", global = true)]
    pub(crate) ca: Option<PathBuf>,
    /// Take any certificate from a gateway at an address of this machine
    #[arg(long, global = true)]
    pub(crate) insecure: bool,
}

impl GatewayTrust {
    /// True if one of the options is given.
    pub(crate) fn is_given(&self) -> bool {
        self.insecure || self.ca.is_some()
    }
}

/// `tooldock keys`. A change counts in the running gateways when the command returns.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
    /// Configuration file, for the file of keys and the scopes [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Subcommands for keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key and print it, once: only its hash is kept
    Create(NewKeyArgs),
    /// Show all keys: the tools and namespaces of each, its validity, and its last use
    List,
    /// Take a key back: it is refused from now on, and its streams end
    Revoke {
        /// The key's id, as `keys list` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// `tooldock keys create`.
#[derive(Debug, clap::Args)]
pub(crate) struct NewKeyArgs {
    /// The holder of the key. Logs and limits name its requests key:NAME
    #[arg(long)]
    pub(crate) name: String,
    /// Scopes whose tools the key may list and call: admin (all tools), write, read, or names of relay.scopes
    #[arg(long, value_name = "SCOPE,…", value_delimiter = ',', required = true)]
    pub(crate) scope: Vec<String>,
    /// Namespaces that the key opens: names and patterns. The management tools open for the name _system alone
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "*"
    )]
    pub(crate) namespaces: Vec<String>,
    /// Networks that the key counts from, as 10.0.0.0/8 [default: every network]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pub(crate) networks: Vec<Cidr>,
    /// Time for which the key is valid, as 90d [default: until it is revoked]
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<humantime::Duration>,
    /// Limits per second: RATE/BURST requests, or RATE/BURST:tool_call for calls of tools
    #[arg(long, value_name = "RATE/BURST", value_delimiter = ',')]
    pub(crate) rate: Vec<KeyLimit>,
    /// Let the key begin with oub_, as those of containers do; td_ else
    #[arg(long)]
    pub(crate) relay: bool,
    #[command(flatten)]
    pub(crate) trust: GatewayTrust,
}

/// Formats in which secrets are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Version 1 of the file
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
    /// The first option given that this version does not support.
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
