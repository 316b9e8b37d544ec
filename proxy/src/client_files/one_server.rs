//! `tooldock add` and `tooldock remove`: adds or removes a single server.

use std::path::Path;
use std::process::ExitCode;

use tooldock_base::secret::Secret;
use tooldock_credentials::secrets::{Scope, SecretStore, check_new_key};
use tooldock_import_clients::{ClientFile, Kind, ServerOptions, given};

use super::importing::{keep_secrets, previewed};
use super::placed::{self, PlacedServer, ServerPlan, TakenNames, check, own_place};
use super::{Gateway, home, print_line};
use crate::cli::{AddArgs, RemoveArgs, UrlTransport};
use crate::{print, refuse, secrets_cli};

/// Runs `tooldock add`.
pub(crate) fn add(arguments: AddArgs) -> ExitCode {
    match added(arguments) {
        Ok(text) => print(&text),
        Err(code) => code,
    }
}

fn added(arguments: AddArgs) -> Result<String, ExitCode> {
    let name = arguments.name.clone();
    let gateway = Gateway::load(&arguments.places).map_err(refuse)?;
    let wanted = wanted(&arguments).map_err(refuse)?;
    let folder = std::env::current_dir().map_err(refuse)?;
    let home = home();
    let file = ClientFile {
        text: "",
        folder: &folder,
        home: home.as_deref(),
    };
    let import = given(name.as_str(), &wanted, &file);
    for finding in &import.findings {
        print_line(&format!("tooldock: {}: {}", finding.key, finding.why));
    }
    let Some(mut server) = import.servers.into_iter().next() else {
        return Err(refuse("nothing is written"));
    };
    check(&server).map_err(refuse)?;
    if let Some(place) = TakenNames::of(&gateway).place(&name) {
        let is_own = place == own_place(server.kind, &name);
        match (is_own, arguments.replace) {
            (true, true) => {}
            (true, false) => {
                return Err(refuse(format_args!(
                    "{place} has a server {name} already; --replace writes over it"
                )));
            }
            (false, _) => {
                return Err(refuse(format_args!(
                    "the name {name} is taken by {place}; choose another one"
                )));
            }
        }
    }
    if !arguments.dry_run {
        for key in &arguments.secret {
            let value = secrets_cli::ask(&format!("Value for {key} ({name}): "));
            let value = value.map_err(refuse)?;
            if value.expose().is_empty() {
                return Err(refuse(format_args!("{key}: the value is empty")));
            }
            server.secrets.insert(key.clone(), value);
        }
    }
    for it in &server.wanted {
        if !arguments.secret.contains(&it.name) {
            print_line(&format!(
                "tooldock: {} has no value yet: tooldock secrets set --key {} --scope {name}",
                it.spelled, it.name
            ));
        }
    }
    if arguments.dry_run {
        // A dry run shows only the names of secrets, so that no values are read.
        for key in &arguments.secret {
            server.secrets.insert(key.clone(), Secret::new(""));
        }
    }
    let kind = server.kind;
    let mut placed = ServerPlan::default();
    placed.push(PlacedServer {
        name: name.clone(),
        server,
        comment: arguments.description,
    });
    let failed = |reason: String| {
        // The line breaks of this message are kept, since it may end in several lines of configuration.
        eprintln!("tooldock: {}", reason.trim_end());
        ExitCode::FAILURE
    };
    if arguments.dry_run {
        return previewed(&gateway, &placed, None).map_err(failed);
    }
    keep_secrets(&gateway, &placed)?;
    let (is_stdio, is_remote) = (kind == Kind::Stdio, kind == Kind::Remote);
    let file = match kind {
        Kind::Stdio => {
            placed.write_data_file(&gateway).map_err(failed)?;
            gateway.data().join("external/config.yaml")
        }
        Kind::Remote => {
            placed.write_config_file(&gateway).map_err(failed)?;
            gateway.config_file.clone()
        }
    };
    Ok(format!(
        "{name} is added to {}.\n{}",
        file.display(),
        gateway.next_step(is_stdio, is_remote)
    ))
}

/// Returns the server that the options of the command line describe.
fn wanted(arguments: &AddArgs) -> Result<ServerOptions, String> {
    for key in &arguments.secret {
        check_new_key(key).map_err(|error| format!("--secret: {error}"))?;
    }
    // Error messages do not repeat the argument, since it may contain a secret value.
    let pairs = |texts: &[String], mark: char, option: &str, form: &str| {
        let pairs = texts.iter().map(|text| {
            let (name, value) = text
                .split_once(mark)
                .filter(|(name, _)| !name.trim().is_empty())
                .ok_or_else(|| format!("{option}: write {form}"))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        });
        pairs.collect::<Result<Vec<_>, String>>()
    };
    let mut env = pairs(&arguments.env, '=', "--env", "NAME=VALUE")?;
    let mut headers = pairs(&arguments.header, ':', "--header", "'NAME: VALUE'")?;
    for key in &arguments.secret {
        let reference = format!("${{{key}}}");
        let is_used = |all: &[(String, String)]| all.iter().any(|it| it.1.contains(&reference));
        if arguments.url.is_none() {
            if !is_used(&env) {
                env.push((key.clone(), reference));
            }
            continue;
        }
        let has_token = headers
            .iter()
            .any(|it| it.0.eq_ignore_ascii_case("authorization"));
        match (is_used(&headers), has_token) {
            (true, _) => {}
            (false, false) => {
                headers.push(("Authorization".to_owned(), format!("Bearer {reference}")))
            }
            (false, true) => {
                return Err(format!(
                    "--secret {key}: no header refers to it; write --header 'NAME: {reference}'"
                ));
            }
        }
    }
    let transport = arguments.transport.map(|it| match it {
        UrlTransport::Http => "http".to_owned(),
        UrlTransport::Sse => "sse".to_owned(),
    });
    Ok(ServerOptions {
        command: arguments.command.clone(),
        url: arguments.url.clone(),
        env,
        headers,
        transport,
    })
}

/// Runs `tooldock remove`.
pub(crate) fn remove(arguments: &RemoveArgs) -> ExitCode {
    match removed(arguments) {
        Ok(text) => print(&text),
        Err(code) => code,
    }
}

fn removed(arguments: &RemoveArgs) -> Result<String, ExitCode> {
    let name = &arguments.name;
    let gateway = Gateway::load(&arguments.places).map_err(refuse)?;
    let failed = |reason: String| {
        print_line(&format!("tooldock: {reason}"));
        ExitCode::FAILURE
    };
    let Some(place) = placed::remove(&gateway, name).map_err(failed)? else {
        let at = TakenNames::of(&gateway)
            .place(name)
            .map(|it| format!("; {it} has the name"));
        return Err(refuse(format_args!(
            "there is no server {name} in external/config.yaml or in {}{}",
            gateway.config_file.display(),
            at.unwrap_or_default()
        )));
    };
    let is_data_file = place == "external/config.yaml";
    let mut text = format!("{name} is removed from {place}.\n");
    text.push_str(&forgotten(&gateway, gateway.data(), arguments).map_err(failed)?);
    text.push_str(&gateway.next_step(is_data_file, !is_data_file));
    Ok(text)
}

/// Removes the secrets of the namespace if the option `--secrets` is given. Otherwise returns a text that lists them.
fn forgotten(gateway: &Gateway, data: &Path, arguments: &RemoveArgs) -> Result<String, String> {
    use std::sync::Arc;
    use tooldock_credentials::secrets::SecretNames;
    let store = Arc::new(SecretStore::new(
        data,
        gateway.effective.secrets.protection(),
    ));
    let scope = Scope::Namespace(arguments.name.clone());
    let names = SecretNames::of(Arc::clone(&store));
    let listed = names
        .list(Some(&scope))
        .map_err(|error| error.to_string())?;
    let mut text = String::new();
    for entry in listed.iter().filter(|it| it.scope == scope.to_string()) {
        let key = &entry.key;
        match arguments.secrets {
            true => {
                store
                    .remove(key, &scope)
                    .map_err(|error| error.to_string())?;
                text.push_str(&format!("{key} ({scope}) is removed.\n"));
            }
            false => text.push_str(&format!(
                "{key} ({scope}) stays: tooldock secrets remove --key {key} --scope {scope}\n"
            )),
        }
    }
    Ok(text)
}
