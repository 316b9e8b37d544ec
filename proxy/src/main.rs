//! The binary `tooldock`, with its subcommands and exit codes. This is the only crate that depends on Pingora.
//!
//! Exit codes: 0 for success; 2 for wrong usage or an invalid configuration, with one line on standard error; 3 if a command
//! cannot reach the running gateway; 1 for any other failure.
//!
//! Other crates contain admission (`tooldock-filters`), the service that reads messages (`tooldock-upstream`), sessions and their
//! stores (`tooldock-sessions`), and namespaces (`tooldock-workers`). This crate does not read the messages of requests. Start
//! reading at `serve.rs`, which builds all objects, then `gateway.rs`, the phases of a request.
//!
//! # Requests
//!
//! | module | content |
//! |---|---|
//! | `sockets`, `sockets/passed.rs` | listening sockets, including those received from a service manager or a predecessor |
//! | `edge`, `edge/head.rs`, `connection` | accepting, deadlines, PROXY protocol, buffered heads; open connections |
//! | `connection/gathered.rs`, `scratch` | writes buffered until a flush; a read buffer per thread |
//! | `tls`, `certificates` | TLS of listeners; a check of every configured certificate |
//! | `gateway`, `gateway/admit.rs`, `gateway/hand_over.rs` | Pingora's phases; admission; the call of the service |
//! | `gateway/credential_validity.rs` | the time for which a credential admits a long stream |
//! | `body`, `header_edits`, `request_id` | bodies, headers that a listener sets and removes, ids of requests |
//! | `respond`, `stream`, `unread` | replies; long streams, which leave Pingora after their head; writes that wait for clients |
//! | `rules`, `reconfigure` | the rules for requests; the settings that SIGHUP changes |
//! | `issuers` | keys of issuers (`issuers/keys.rs`, `issuers/schedule.rs`) and answers about opaque tokens |
//! | `web`, `web_session`, `web_login` | the embedded page of the web UI; its sessions; logins at issuers |
//! | `config_view` | the configuration in force, for the web UI |
//! | `connect_pages`, `gateway/connect.rs` | pages on which principals give their personal credentials for servers |
//! | `replicas`, `session_store` | requests for sessions of other replicas; the store, and the name of this replica |
//! | `remote` | the HTTP client of remote servers; `remote/oauth.rs`: access tokens for them |
//! | `relay` | the relay's socket, with the user and process ids of its clients |
//!
//! # The running process
//!
//! | module | content |
//! |---|---|
//! | `serve`, `serve/ports.rs`, `serve/shared_limits.rs` | building of all objects; functions for the service; shared limits |
//! | `control_loop` | the control loop: first scan, session expiry, end of the process |
//! | `hooks` | hooks of the configuration, put into force |
//! | `sandbox` | facts about the gateway that sandboxes of tools need |
//! | `signals`, `service_manager`, `watcher` | signals, messages to systemd, reloads after changes of files |
//! | `upgrade`, `upgrade/channel.rs` | listening sockets handed to a successor (`serve --upgrade`) |
//! | `config` | file, `$DATA/config.yaml`, environment (`config/environment.rs`), command line |
//! | `config/profile.rs`, `config/environment/mode.rs` | profiles of listeners; the profiles that `SERVER_MODE` opens |
//! | `config/validate.rs`, `config/faults.rs`, `config/positions.rs` | consistency; all faults of a file; lines of keys |
//! | `access_log`, `logging`, `metrics`, `telemetry` | records of requests and of the process; OTLP by the crate `proxy/otlp` |
//! | `dev`, `kept_file`, `session_key` | `--dev`; secrets that are generated once and stored; the key of session ids |
//! | `allocator`, `descriptors`, `timeout`, `nearest` | allocator (with `unsafe`), open files, time limits, misspelled names |
//! | `management` | configured values for the management tools and the web UI |
//!
//! # Commands
//!
//! | module | content |
//! |---|---|
//! | `cli`, `check`, `version`, `command_pages` | subcommands; `check`; the version; completions and manual pages |
//! | `new_namespace`, `test_namespace` | `new`: a folder with files to begin with; `test`: an author's tests |
//! | `operator` | `status`, `tools`, `call`, `logs`, `reload`, `sessions`: a file each, over `operator/client.rs` |
//! | `doctor` | `doctor`, a file per check; `doctor/front.rs` probes servers in front of the gateway |
//! | `secrets_cli`, `keys_cli`, `explain_cli` | secrets and authorizations, API keys, rights |
//! | `client_files/importing.rs`, `client_files/one_server.rs` | `import`; `add` and `remove` |
//! | `client_files/connect.rs`, `client_files/placed.rs` | `connect`; writing of servers into the gateway's files |
//! | `import_nginx` | `import-nginx`: checks and writes the result; `import_nginx/new_limits.rs`: limits that nginx lacked |
//! | `toolman` | an aggregate served on standard input and output, without listeners |
//!
//! The web interface is a page in TypeScript and Preact below `proxy/web/`: `src` is written by hand, and `make web` builds
//! `dist`, which is committed and embedded, so that a build needs no Node. In `src`, api.ts sends all requests (mcp.ts those of
//! MCP), `pages` contains a file per page, `ui` the shared components. All data of the server is shown as text, never as HTML.

mod access_log;
mod allocator;
mod body;
mod certificates;
mod check;
mod cli;
mod client_files;
mod command_pages;
mod config;
mod config_view;
mod connect_pages;
mod connection;
mod control_loop;
mod descriptors;
mod dev;
mod doctor;
mod edge;
mod explain_cli;
mod gateway;
mod header_edits;
mod hooks;
mod import_nginx;
mod issuers;
mod kept_file;
mod keys_cli;
mod logging;
mod management;
mod metrics;
mod nearest;
mod new_namespace;
mod operator;
mod reconfigure;
mod relay;
mod remote;
mod replicas;
mod request_id;
mod respond;
mod rules;
mod sandbox;
mod scratch;
mod secrets_cli;
mod serve;
mod service_manager;
mod session_key;
mod session_store;
mod signals;
mod sockets;
mod stream;
mod telemetry;
mod test_namespace;
mod timeout;
mod tls;
mod toolman;
mod unread;
mod upgrade;
mod version;
mod watcher;
mod web;
mod web_login;
mod web_session;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tooldock_credentials::keys::KeyStore;
use tooldock_process::child::output::printable_text;

use crate::check::Target;
use crate::cli::{CheckArgs, CheckFormat, Cli, Command, Role, ServeArgs};
use crate::config::{
    ConfigError, Effective, Environment, GeneratedTokens, IgnoredKeys, LoadOptions, Purpose,
};

/// Exit code for wrong usage or an invalid configuration.
pub(crate) const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    tooldock_process::child::hide_from_tools();
    // The arguments of a guard process are looked for first: a guard runs for every child process, and must use little memory.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == "__guard" => {
            return tooldock_process::child::guard::main(arguments);
        }
        Some(first) if first == "__builder" => return tooldock_builder::main(),
        _ => {}
    }
    if version::is_asked_as_json(std::env::args_os().skip(1)) {
        return print(&version::json());
    }
    match Cli::try_parse() {
        Ok(Cli {
            command: Command::Completions(arguments),
        }) => command_pages::completions(&arguments),
        Ok(Cli {
            command: Command::Man(arguments),
        }) => command_pages::man(&arguments),
        Ok(Cli {
            command: Command::Serve(arguments),
        }) => serve(arguments),
        Ok(Cli {
            command: Command::Check(arguments),
        }) => check(arguments),
        Ok(Cli {
            command: Command::New(arguments),
        }) => new_namespace::run(&arguments),
        Ok(Cli {
            command: Command::Test(arguments),
        }) => test_namespace::run(&arguments),
        Ok(Cli {
            command: Command::Secrets(arguments),
        }) => secrets_cli::run(arguments),
        Ok(Cli {
            command: Command::Explain(arguments),
        }) => explain_cli::run(arguments),
        Ok(Cli {
            command: Command::Doctor(arguments),
        }) => doctor::run(&arguments),
        Ok(Cli {
            command: Command::Operator(command),
        }) => operator::run(command),
        Ok(Cli {
            command: Command::Keys(arguments),
        }) => keys_cli::run(arguments),
        Ok(Cli {
            command: Command::Import(arguments),
        }) => client_files::import(&arguments),
        Ok(Cli {
            command: Command::Add(arguments),
        }) => client_files::add(arguments),
        Ok(Cli {
            command: Command::Remove(arguments),
        }) => client_files::remove(&arguments),
        Ok(Cli {
            command: Command::Connect(arguments),
        }) => client_files::connect(&arguments),
        Ok(Cli {
            command: Command::ImportNginx(arguments),
        }) => import_nginx::run(&arguments),
        Ok(Cli {
            command: Command::Toolman(arguments),
        }) => toolman::run(&arguments),
        Err(error) => explain(&error),
    }
}

fn serve(arguments: ServeArgs) -> ExitCode {
    if let Some(option) = arguments.unsupported() {
        return refuse(format_args!("{option}: not supported by this version"));
    }
    let options = LoadOptions {
        file: arguments.config,
        role: arguments.role,
        dev: arguments.dev,
        purpose: Purpose::Serve,
        environment: Environment::of_process(),
        generated: match GeneratedTokens::new() {
            Ok(generated) => generated,
            Err(error) => return refuse(error),
        },
        left_out: IgnoredKeys::default(),
    };
    let effective = match load(&options) {
        Ok(effective) => effective,
        Err(error) => return refuse(error.located(&options)),
    };
    match run(effective, arguments.upgrade) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tooldock: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(effective: Effective, upgrade: bool) -> anyhow::Result<()> {
    let logs = telemetry::log_queue(effective.config.observability.otlp.settings());
    logging::start(effective.config.observability.log, logs.as_ref())?;
    serve::run(effective, upgrade, logs)
}

fn check(arguments: CheckArgs) -> ExitCode {
    let target = match arguments.path.as_deref().map(Target::at).transpose() {
        Ok(target) => target,
        Err(reason) => return refuse(reason),
    };
    let environment = match &target {
        Some(Target::DataDir(data)) => Environment::of_process().with_data_dir(data),
        _ => Environment::of_process(),
    };
    let options = LoadOptions {
        file: arguments.config,
        role: Role::All,
        dev: false,
        purpose: Purpose::Check,
        environment,
        generated: match GeneratedTokens::new() {
            Ok(generated) => generated,
            Err(error) => return refuse(error),
        },
        left_out: IgnoredKeys::default(),
    };
    let effective = match config::load_or_all_faults(&options, load) {
        Ok(effective) => effective,
        Err(faults) => {
            if arguments.format == CheckFormat::Github {
                print(&check::fault_annotations(&faults));
            }
            return refuse_all(faults);
        }
    };
    let checked = match &target {
        Some(target) => check::part(&effective, target),
        None => check::whole(&effective),
    };
    let report = match (&target, &arguments.path) {
        _ if arguments.format == CheckFormat::Github => Ok(check::annotations(&checked)),
        (Some(Target::Servers(_) | Target::Namespace(_) | Target::Python(..)), Some(path)) => {
            Ok(check::report_on(path, &checked))
        }
        _ => check::report(&effective, &checked),
    };
    let printed = match report {
        Ok(report) => print(&report),
        Err(error) => {
            eprintln!("tooldock: cannot print the configuration: {error}");
            return ExitCode::FAILURE;
        }
    };
    let whole = matches!(target, None | Some(Target::DataDir(_)));
    let keys = whole.then(|| KeyStore::open(effective.keys_file(), effective.scopes()));
    let printed = match keys {
        Some(Err(error)) => refuse(error),
        _ => printed,
    };
    let printed = match check::warnings(&effective, &checked, whole) {
        count if arguments.strict && count > 0 => {
            refuse(format_args!("{count} warnings, which --strict refuses"))
        }
        _ => printed,
    };
    // The gateway would start in spite of these errors, so that all of them are reported.
    check::errors(&checked).fold(printed, |_, error| refuse(error))
}

/// Loads the configuration, and checks every certificate and log file that it names.
fn load(options: &LoadOptions) -> Result<Effective, ConfigError> {
    let effective = config::load(options)?;
    access_log::check(
        &effective.config.observability.access_log,
        &effective.data_dir,
    )?;
    certificates::check(&effective)?;
    telemetry::check(effective.config.observability.otlp.settings())?;
    Ok(effective)
}

/// Writes to standard output. It is no failure if the reader closes the pipe early, as in `tooldock check | head`.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn refuse_all(reasons: impl IntoIterator<Item = impl std::fmt::Display>) -> ExitCode {
    for reason in reasons {
        // Control characters are replaced, since an error may quote keys of a file.
        refuse(printable_text(&reason.to_string()));
    }
    ExitCode::from(EXIT_USAGE)
}

fn refuse(reason: impl std::fmt::Display) -> ExitCode {
    eprintln!("tooldock: {reason}");
    ExitCode::from(EXIT_USAGE)
}

/// Extracts the command from a usage error of clap, such as `tooldock keys create`.
fn command_of(text: &str) -> String {
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
    let words = usage.unwrap_or("tooldock").split(' ');
    let names = words.take_while(|word| word.starts_with(|first: char| first.is_ascii_lowercase()));
    names.collect::<Vec<_>>().join(" ")
}

/// Prints help or version as clap formats them; shortens a usage error to one line that names the command's `--help`.
fn explain(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => print(&error.to_string()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{error}");
            ExitCode::from(EXIT_USAGE)
        }
        _ => {
            let text = error.to_string();
            let paragraph = text
                .lines()
                .map(str::trim)
                .take_while(|line| !line.is_empty());
            let what = paragraph.collect::<Vec<_>>().join(" ");
            refuse(format_args!(
                "{} (see {} --help)",
                what.trim_start_matches("error: "),
                command_of(&text)
            ))
        }
    }
}
