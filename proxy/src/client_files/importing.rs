//! `tooldock import`: makes the servers in the files of MCP clients servers of the gateway.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use tooldock_base::mask;
use tooldock_base::names::NamespaceName;
use tooldock_base::regular_file;
use tooldock_credentials::secrets::SecretStore;
use tooldock_import_clients::{ClientFile, ClientServer, Import, Kind, Weight, name, read};

use super::placed::{PlacedServer, ServerPlan, TakenNames, check, own_place};
use super::{Gateway, home, print_line};
use crate::cli::ImportArgs;
use crate::operator::output::printable_lines;
use crate::{EXIT_USAGE, print, refuse};

/// Maximum size of an MCP client's file, in bytes. `~/.claude.json` grows with the number of its user's projects.
const FILE_MAX: u64 = 64 * 1024 * 1024;

/// Runs `tooldock import`.
pub(crate) fn import(arguments: &ImportArgs) -> ExitCode {
    let gateway = match Gateway::load(&arguments.places) {
        Ok(gateway) => gateway,
        Err(reason) => return refuse(reason),
    };
    if let Some(output) = arguments.output.as_deref().filter(|it| it.exists()) {
        return refuse(format_args!("{}: is there already", output.display()));
    }
    let mut chosen = ServerSelection::new(&gateway, arguments.replace);
    let mut is_incomplete = false;
    for file in &arguments.files {
        let shown = match file.as_os_str() == "-" {
            true => "standard input".to_owned(),
            false => file.display().to_string(),
        };
        match of_file(file) {
            Ok(import) => {
                for finding in &import.findings {
                    print_line(&finding.shown(&shown));
                    is_incomplete |= finding.weight == Weight::Security;
                }
                for server in import.servers {
                    chosen.choose(&shown, server);
                }
            }
            Err(reason) => {
                print_line(&format!("{shown}:{reason}"));
                is_incomplete = true;
            }
        }
    }
    let placed = chosen.placed;
    let written = written(&gateway, &placed, arguments);
    match written {
        Ok(text) => {
            let printed = print(&text);
            match (printed == ExitCode::SUCCESS, is_incomplete) {
                (true, true) => ExitCode::from(EXIT_USAGE),
                _ => printed,
            }
        }
        Err(failed) => failed,
    }
}

/// Reads the servers of an MCP client's file. An error message begins with a line number.
fn of_file(file: &Path) -> Result<Import, String> {
    let told = |error: io::Error| format!("1: {error}");
    let (bytes, folder) = match file.as_os_str() == "-" {
        true => {
            let mut bytes = Vec::new();
            let input = io::stdin().lock().take(FILE_MAX);
            let mut input = input;
            input.read_to_end(&mut bytes).map_err(told)?;
            (bytes, std::env::current_dir().map_err(told)?)
        }
        false => {
            let bytes = regular_file::read_following(file, FILE_MAX).map_err(told)?;
            let path = file.canonicalize().map_err(told)?;
            let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
            (bytes.to_vec(), folder)
        }
    };
    let text = String::from_utf8(bytes).map_err(|_| "1: no UTF-8 text".to_owned())?;
    let home = home();
    let file = ClientFile {
        text: &text,
        folder: &folder,
        home: home.as_deref(),
    };
    read(&file).map_err(|error| error.to_string())
}

/// The servers chosen for import so far, with the names that already exist in the gateway, and the option `--replace`.
struct ServerSelection {
    taken: TakenNames,
    replace: bool,
    placed: ServerPlan,
    /// Servers found so far by their names, including those that are not imported.
    seen: BTreeMap<NamespaceName, ClientServer>,
}

impl ServerSelection {
    fn new(gateway: &Gateway, replace: bool) -> Self {
        Self {
            taken: TakenNames::of(gateway),
            replace,
            placed: ServerPlan::default(),
            seen: BTreeMap::new(),
        }
    }

    /// Chooses a name for a server and adds the server to the import, unless its name is in use.
    fn choose(&mut self, file: &str, server: ClientServer) {
        let place = format!("{file}:{}: {}", server.line, server.name);
        if let Err(reason) = check(&server) {
            return print_line(&format!("{place}: is left out: {reason}"));
        }
        let mut free = server.name.clone();
        let mut number = 2;
        while let Some(before) = self.seen.get(&free) {
            let is_same = (before.kind, &before.entry, &before.secrets)
                == (server.kind, &server.entry, &server.secrets);
            if is_same {
                return print_line(&format!(
                    "{place}: is the same as {free}, and is imported once"
                ));
            }
            free = name::numbered(&server.name, number);
            number += 1;
        }
        self.seen.insert(free.clone(), server.clone());
        if free.as_str() != server.label {
            let label = mask::text(&server.label);
            print_line(&format!(
                "{file}:{}: {label}: gets the name {free}",
                server.line
            ));
        }
        if let Some(taken) = self.taken.place(&free) {
            if !self.replace {
                return print_line(&format!(
                    "{place}: is left as it is: {taken} has the name {free}; --replace writes over it"
                ));
            }
            if taken != own_place(server.kind, &free) {
                return print_line(&format!(
                    "{place}: is left out: {taken} has the name {free}, and is not what an import replaces"
                ));
            }
        }
        for wanted in &server.wanted {
            let description = wanted.description.as_deref();
            let description = description.map(|it| format!(" ({it})")).unwrap_or_default();
            print_line(&format!(
                "{file}:{}: {}: {} becomes ${{{}}}: give it a value{description}: tooldock secrets set --key {} --scope {free}",
                wanted.line, wanted.key, wanted.spelled, wanted.name, wanted.name
            ));
        }
        self.placed.push(PlacedServer {
            name: free,
            server,
            comment: String::new(),
        });
    }
}

/// Writes the servers into their files, and returns the report for standard output.
fn written(
    gateway: &Gateway,
    placed: &ServerPlan,
    arguments: &ImportArgs,
) -> Result<String, ExitCode> {
    let failed = |reason: String| {
        print_line(&format!("tooldock: {reason}"));
        ExitCode::FAILURE
    };
    let mut report = String::new();
    if arguments.dry_run {
        return previewed(gateway, placed, arguments.output.as_deref()).map_err(failed);
    }
    if arguments.no_secrets {
        for (scope, key) in placed.secret_names() {
            report.push_str(&format!(
                "tooldock secrets set --key {key} --scope {scope}\n"
            ));
        }
    } else {
        keep_secrets(gateway, placed)?;
        for (scope, key) in placed.secret_names() {
            report.push_str(&format!("secret: {key} ({scope})\n"));
        }
    }
    if let Some(output) = &arguments.output {
        let text = placed.as_config().map_err(failed)?;
        write_new(output, &text)
            .map_err(|error| failed(format!("{}: {error}", output.display())))?;
        report.push_str(&named(&output.display().to_string(), placed.iter()));
        return Ok(report);
    }
    let mut failure = None;
    let has = |kind| placed.has(kind);
    if has(Kind::Stdio) {
        match placed.write_data_file(gateway) {
            Ok(()) => {
                let file = gateway.data().join("external/config.yaml");
                report.push_str(&named(&file.display().to_string(), placed.of(Kind::Stdio)));
            }
            Err(reason) => failure = Some(reason),
        }
    }
    if has(Kind::Remote) {
        match placed.write_config_file(gateway) {
            Ok(()) => {
                let file = format!("{}: upstreams.remote", gateway.config_file.display());
                report.push_str(&named(&file, placed.of(Kind::Remote)));
            }
            Err(reason) => failure = Some(reason),
        }
    }
    match failure {
        Some(reason) => {
            print(&report);
            // The line breaks of this message are kept, since it may end in several lines of configuration.
            eprintln!("tooldock: {}", reason.trim_end());
            Err(ExitCode::FAILURE)
        }
        None if placed.iter().next().is_none() => Ok("nothing to import\n".to_owned()),
        None => {
            report.push_str(&gateway.next_step(has(Kind::Stdio), has(Kind::Remote)));
            Ok(report)
        }
    }
}

/// Stores the credentials of the servers. Returns an error that tells what to do if the store has no key.
pub(super) fn keep_secrets(gateway: &Gateway, placed: &ServerPlan) -> Result<(), ExitCode> {
    if placed.secrets() == 0 {
        return Ok(());
    }
    let store = SecretStore::new(gateway.data(), gateway.effective.secrets.protection());
    if let Err(error) = store.can_write() {
        return Err(refuse(format_args!(
            "{error}. Nothing is written: set SECRETS_KEY, start `tooldock serve --dev` once, which makes a key, or say --no-secrets"
        )));
    }
    placed.store_secrets(gateway).map_err(|reason| {
        print_line(&format!("tooldock: {reason}"));
        ExitCode::FAILURE
    })
}

/// Returns the content that the files would get, each below the file's name.
pub(super) fn previewed(
    gateway: &Gateway,
    placed: &ServerPlan,
    output: Option<&Path>,
) -> Result<String, String> {
    let mut text = String::new();
    if let Some(output) = output {
        text.push_str(&format!("# {}\n{}", output.display(), placed.as_config()?));
    } else {
        for (kind, file) in [
            (Kind::Stdio, gateway.data().join("external/config.yaml")),
            (Kind::Remote, gateway.config_file.clone()),
        ] {
            if placed.has(kind) {
                text.push_str(&format!("# {}\n{}", file.display(), placed.preview(kind)?));
            }
        }
    }
    for (scope, key) in placed.secret_names() {
        text.push_str(&format!("# secret: {key} ({scope})\n"));
    }
    // Control characters are replaced: the values come from other programs' files and could control the terminal.
    Ok(printable_lines(&text))
}

/// Returns a line of the report: a file, and the names of the servers in it.
fn named<'a>(place: &str, servers: impl Iterator<Item = &'a PlacedServer>) -> String {
    let names: Vec<_> = servers.map(|it| it.name.as_str()).collect();
    format!("{place}: {}\n", names.join(", "))
}

fn write_new(output: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(output)?;
    file.write_all(text.as_bytes())
}
