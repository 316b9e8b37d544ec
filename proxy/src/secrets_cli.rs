//! `tooldock secrets`: the only command by which operators write values to the secrets store.
//!
//! A value is read from a prompt without echo, or from standard input if that is no terminal. It is never read from an argument,
//! because all users of the machine can read the arguments of processes. No value is printed, except into the editor of `edit`.

mod authorize;
mod edit;
mod input;

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tooldock_base::precedence::Claim;
use tooldock_base::secret::Secret;
use tooldock_credentials::secrets::{
    AuthorizationStore, Scope, SecretEntry, SecretNames, SecretStore, SecretsError, SecretsKey,
    Status, check_new_key,
};
use tooldock_workers::recipients::Recipients;
use tooldock_workers::scan;
use tooldock_workers::servers;

use crate::cli::{SecretsArgs, SecretsCommand};
use crate::config::{self, Effective, SecretsSettings};
use crate::{print, refuse};

/// Text that tells the operator when a change takes effect.
const TAKES_EFFECT: &str = "It takes effect at the next reload: `reload_core` of the management server, POST /reload, or SIGHUP.";

/// The reason why a `tooldock secrets` command failed.
enum CommandFailure {
    /// The arguments, the configuration or the input are wrong. Contains the reason.
    Usage(String),
    /// The command failed for any other reason. Contains the reason.
    Other(String),
}

impl From<SecretsError> for CommandFailure {
    fn from(error: SecretsError) -> Self {
        let message = error.to_string();
        match error {
            SecretsError::KeyMissing(_)
            | SecretsError::NoProtection
            | SecretsError::NotEncrypted(_)
            | SecretsError::InsecureNotAllowed(_)
            | SecretsError::InvalidKey(_)
            | SecretsError::ValueAsKey
            | SecretsError::InvalidValue { .. }
            | SecretsError::InvalidDocument(_) => Self::Usage(message),
            _ => Self::Other(message),
        }
    }
}

/// Runs a subcommand of `tooldock secrets`.
pub(crate) fn run(arguments: SecretsArgs) -> ExitCode {
    let effective = match load(&arguments) {
        Ok(effective) => effective,
        Err(reason) => return refuse(reason),
    };
    match command(&arguments.command, &effective) {
        Ok(text) => print(&text),
        Err(CommandFailure::Usage(reason)) => refuse(reason),
        Err(CommandFailure::Other(reason)) => {
            eprintln!("tooldock: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Prompts for the value of a secret in the same way as `tooldock secrets set`.
///
/// # Errors
///
/// The reason why no value could be read.
pub(crate) fn ask(prompt: &str) -> Result<Secret, String> {
    input::secret(prompt).map_err(|failure| match failure {
        CommandFailure::Usage(reason) | CommandFailure::Other(reason) => reason,
    })
}

/// Loads the configuration, which determines the data directory and the keys of the store.
fn load(arguments: &SecretsArgs) -> Result<Effective, String> {
    config::load_for_command(arguments.config.as_deref(), arguments.data_dir.as_deref())
}

fn command(command: &SecretsCommand, effective: &Effective) -> Result<String, CommandFailure> {
    let (settings, data) = (&effective.secrets, &effective.data_dir);
    let store = SecretStore::new(data, settings.protection());
    match command {
        SecretsCommand::Authorize(arguments) => authorize::run(arguments, store, effective),
        SecretsCommand::Set { key, scope } => set(&store, data, key, scope),
        SecretsCommand::Edit => {
            store.can_write()?;
            make(data)?;
            edit::edit(&store, data)
        }
        SecretsCommand::List { scope } => {
            let store = Arc::new(store);
            let names = SecretNames::of(Arc::clone(&store));
            let config = &effective.config;
            let recipients = Recipients::read(data, &config.namespaces, &config.upstreams);
            let recipients = recipients.with_owners(data, &*store, claims(effective));
            let mut text = table(&names.list(scope.as_ref())?, &recipients);
            if scope.is_none() {
                text.push_str(&authorize::list(&store)?);
            }
            Ok(text)
        }
        SecretsCommand::Remove { key, scope } => {
            store.remove(key, scope)?;
            Ok(format!("{key} ({scope}) is removed. {TAKES_EFFECT}\n"))
        }
        SecretsCommand::Rekey => rekey(store, settings, data),
        SecretsCommand::Export { output, .. } => export(&store, output.as_deref()),
    }
}

fn set(
    store: &SecretStore,
    data: &Path,
    key: &str,
    scope: &Scope,
) -> Result<String, CommandFailure> {
    // The key's name is checked first, so that the operator does not type a value in vain.
    check_new_key(key)?;
    store.can_write()?;
    make(data)?;
    let value = input::secret(&format!("Value for {key} ({scope}): "))?;
    store.set(key, scope, value)?;
    Ok(format!("{key} ({scope}) is set. {TAKES_EFFECT}\n"))
}

fn rekey(
    store: SecretStore,
    settings: &SecretsSettings,
    data: &Path,
) -> Result<String, CommandFailure> {
    let store = Arc::new(store);
    let authorizations = AuthorizationStore::new(Arc::clone(&store), Arc::default());
    authorizations.refresh()?;
    if !store.has_values() && authorizations.list().is_empty() {
        let file = store.values_file();
        let message = format!("{}: there are no secrets to encrypt anew", file.display());
        return Err(CommandFailure::Other(message));
    }
    let key = match &settings.new_key {
        Some(key) => key.clone(),
        None => new_key()?,
    };
    if key.expose().trim().is_empty() {
        return Err(CommandFailure::Usage(
            "the new SECRETS_KEY is empty".to_owned(),
        ));
    }
    store.rekey(SecretsKey::new(key))?;
    authorizations.rewrite()?;
    Ok(format!(
        "The secrets of {} are encrypted with the new key. Set SECRETS_KEY, or the file that SECRETS_KEY_FILE names, to the \
         new key and restart what uses the secrets; with SECRETS_KEY_FILE, SIGHUP is enough. Until then the gateway goes on \
         with the secrets it has.\n",
        data.display()
    ))
}

/// Prompts for the new key twice, because with a mistyped key the store could not be opened any more.
fn new_key() -> Result<Secret, CommandFailure> {
    let key = input::secret("New SECRETS_KEY: ")?;
    if input::is_terminal() && input::secret("The same again: ")? != key {
        return Err(CommandFailure::Usage(
            "the two are not the same; nothing is changed".to_owned(),
        ));
    }
    Ok(key)
}

fn export(store: &SecretStore, output: Option<&Path>) -> Result<String, CommandFailure> {
    let text = store.export_fernet()?;
    let Some(path) = output else {
        return Ok(text);
    };
    let told = |error| CommandFailure::Other(format!("{}: {error}", path.display()));
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.map_err(told)?
        .write_all(text.as_bytes())
        .map_err(told)?;
    Ok(format!(
        "{} is written, in the format of version 1.\n",
        path.display()
    ))
}

/// Creates the data directory if it does not exist: a secret may be set before the gateway's first start.
fn make(data: &Path) -> Result<(), CommandFailure> {
    fs::create_dir_all(data)
        .map_err(|error| CommandFailure::Other(format!("{}: {error}", data.display())))
}

/// The names of namespaces that the configuration, the folders and Tool Vault define. A name may be defined several times.
fn claims(effective: &Effective) -> Vec<Claim> {
    let (config, tools) = (&effective.config, effective.data_dir.join("tools"));
    let mut claims = servers::configured(&config.upstreams, &config.toolman);
    claims.extend(scan::claims(&tools));
    let vault = effective
        .serves_vault()
        .then(|| config.vault.folder(&tools));
    if let Some(Ok(vault)) = vault
        && vault.dir.is_some()
    {
        claims.push(Claim::vault(&vault.name));
    }
    claims
}

/// A table with one line for each secret: key, scope, status and recipients.
fn table(entries: &[SecretEntry], recipients: &Recipients) -> String {
    let width = |of: fn(&SecretEntry) -> usize| entries.iter().map(of).max().unwrap_or(0);
    let keys = width(|it| it.key.len()).max("KEY".len());
    let scopes = width(|it| it.scope.len()).max("SCOPE".len());
    let statuses = "placeholder".len();
    let mut text = format!(
        "{:keys$}  {:scopes$}  {:statuses$}  RECEIVED BY\n",
        "KEY", "SCOPE", "STATUS"
    );
    for entry in entries {
        let status = match entry.status {
            Status::Set => "set",
            Status::Placeholder => "placeholder",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:keys$}  {:scopes$}  {status:statuses$}  {}",
            entry.key,
            entry.scope,
            recipients.of(&entry.key, &entry.scope)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_a_table() {
        let entry = |key: &str, scope: &str, status| SecretEntry {
            key: key.to_owned(),
            scope: scope.to_owned(),
            status,
        };
        let entries = [
            entry("GITHUB_TOKEN", "global", Status::Set),
            entry("A", "dev", Status::Placeholder),
        ];
        let data = tempfile::tempdir().expect("a temporary directory");
        let recipients = Recipients::read(data.path(), &Default::default(), &Default::default());
        let expected = "KEY           SCOPE   STATUS       RECEIVED BY\n\
                        GITHUB_TOKEN  global  set          all namespaces\n\
                        A             dev     placeholder  dev\n";
        assert_eq!(table(&entries, &recipients), expected);
        let nothing = "KEY  SCOPE  STATUS       RECEIVED BY\n";
        assert_eq!(table(&[], &recipients), nothing);
    }
}
