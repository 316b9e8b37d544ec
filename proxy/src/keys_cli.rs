//! `tooldock keys`: creates, lists and revokes API keys. A key is printed once, when it is created; only its hash is stored.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::SystemTime;

use humantime_serde::re::humantime::format_rfc3339_seconds;
use serde::Serialize;
use tooldock_base::key_maker::{InvalidKeyId, KeyId};
use tooldock_credentials::keys::{
    KeyKind, KeyRecord, KeyState, KeyStore, KeysError, MadeKey, NewKey,
};
use tooldock_process::child::output::printable_text;
use tooldock_workers::explain::Reach;

use crate::cli::{KeysArgs, KeysCommand, NewKeyArgs};
use crate::config::{self, Effective};
use crate::operator::gateway::core_at;
use crate::{explain_cli, print, refuse};

/// Runs a subcommand of `tooldock keys`.
pub(crate) fn run(arguments: KeysArgs) -> ExitCode {
    let effective = match load(&arguments) {
        Ok(effective) => effective,
        Err(reason) => return refuse(reason),
    };
    match command(arguments, &effective) {
        Ok(text) => print(&text),
        Err(error @ (KeysError::Invalid(_) | KeysError::NoSuchKey(_))) => refuse(error),
        Err(error) => {
            eprintln!("tooldock: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Loads the configuration that `serve` would use, which names the file of keys and defines the scopes.
fn load(arguments: &KeysArgs) -> Result<Effective, String> {
    config::load_for_command(arguments.config.as_deref(), arguments.data_dir.as_deref())
}

fn command(arguments: KeysArgs, effective: &Effective) -> Result<String, KeysError> {
    let store = KeyStore::open(effective.keys_file(), effective.scopes())?;
    store.set_makers(effective.config.admission.key_makers());
    match arguments.command {
        KeysCommand::Create(new) => {
            // The gateway's address is determined before the key is created, so that no key is created if an option is wrong.
            let gateway = core_at(effective, None, &new.trust).map(|(at, _)| at);
            if let (true, Err(reason)) = (new.trust.is_given(), &gateway) {
                return Err(KeysError::Invalid(reason.clone()));
            }
            let made = store.create(wanted(new))?;
            tell_of_gateways_behind(&store);
            // The request is only sent if a gateway is running, since another program at its address would get the token.
            if store.has_running_gateway() {
                let (config, data) = (arguments.config.as_deref(), arguments.data_dir.as_deref());
                let id = made.record.id.to_string();
                tell_of_reach(gateway.and_then(|at| explain_cli::reach(config, data, at, &id)));
            }
            match arguments.json {
                true => Ok(json(&CreatedKey::of(&made))),
                false => Ok(created_key_text(&made)),
            }
        }
        KeysCommand::List => {
            let now = SystemTime::now();
            let records = store.list()?;
            let listed: Vec<_> = records.iter().map(|it| KeyRow::of(it, now)).collect();
            match arguments.json {
                true => Ok(json(&listed)),
                false => Ok(table(&listed)),
            }
        }
        KeysCommand::Revoke { id } => {
            // The id is parsed here and not by clap, whose error would show the text: it may be the key itself, typed in place of
            // its id.
            let id: KeyId = id
                .parse()
                .map_err(|error: InvalidKeyId| KeysError::Invalid(error.to_string()))?;
            let record = store.revoke(id)?;
            tell_of_gateways_behind(&store);
            let listed = KeyRow::of(&record, SystemTime::now());
            match arguments.json {
                true => Ok(json(&listed)),
                false => Ok(format!(
                    "{id} ({}) is revoked; running gateways refuse the key.\n",
                    record.name
                )),
            }
        }
    }
}

/// Prints a warning if running gateways have not confirmed that they apply a change.
fn tell_of_gateways_behind(store: &KeyStore) {
    let behind = store.gateways_behind();
    if behind > 0 {
        eprintln!(
            "tooldock: {behind} of the running gateways did not say that they go by the change; they do within a second if they still run"
        );
    }
}

/// Prints notes about the tools that a new key opens, such as that it opens none, or the reason why they are not known.
fn tell_of_reach(reach: Result<Reach, String>) {
    let tell = |line: &str| eprintln!("tooldock: {}", printable_text(line));
    match reach {
        Ok(reach) => {
            for note in reach.notes {
                tell(&format!("{note}."));
            }
        }
        Err(reason) => tell(&format!(
            "the key is made, and the tools that it opens are not known: {reason}"
        )),
    }
}

fn wanted(arguments: NewKeyArgs) -> NewKey {
    NewKey {
        name: arguments.name,
        made_by: None,
        scopes: arguments.scope,
        namespaces: arguments.namespaces,
        networks: arguments.networks,
        limits: arguments.rate,
        lifetime: arguments.expires.map(Into::into),
        kind: match arguments.relay {
            true => KeyKind::Relay,
            false => KeyKind::Gateway,
        },
    }
}

/// Formats a new key as text. The key is at the end of its line, so that it can easily be copied.
fn created_key_text(made: &MadeKey) -> String {
    format!(
        "id:  {}\nkey: {}\nKeep the key now: it is not stored and not shown again. Send it as `Authorization: Bearer KEY`.\n",
        made.record.id,
        made.text.expose()
    )
}

/// A new key, as it is written as JSON.
#[derive(Serialize)]
struct CreatedKey<'a> {
    key: &'a str,
    #[serde(flatten)]
    listed: KeyRow<'a>,
}

impl<'a> CreatedKey<'a> {
    fn of(made: &'a MadeKey) -> Self {
        Self {
            key: made.text.expose(),
            listed: KeyRow::of(&made.record, SystemTime::now()),
        }
    }
}

/// A key's record, as it is written as JSON or as a row of the table.
#[derive(Serialize)]
struct KeyRow<'a> {
    id: String,
    name: &'a str,
    principal: String,
    made_by: Option<String>,
    state: KeyState,
    scopes: &'a [String],
    namespaces: &'a [String],
    networks: Vec<String>,
    limits: Vec<String>,
    created: String,
    expires: Option<String>,
    last_used: Option<String>,
    revoked: Option<String>,
}

impl<'a> KeyRow<'a> {
    fn of(record: &'a KeyRecord, now: SystemTime) -> Self {
        let time = |at: SystemTime| format_rfc3339_seconds(at).to_string();
        Self {
            id: record.id.to_string(),
            name: &record.name,
            principal: record.principal(),
            made_by: record.shown_maker(),
            state: record.state(now),
            scopes: &record.scopes,
            namespaces: &record.namespaces,
            networks: record.networks.iter().map(ToString::to_string).collect(),
            limits: record.limits.iter().map(ToString::to_string).collect(),
            created: time(record.created),
            expires: record.expires.map(time),
            last_used: record.last_used.map(time),
            revoked: record.revoked.map(time),
        }
    }
}

fn json(value: &impl Serialize) -> String {
    // Serialization cannot fail: the value contains only texts and lists of texts.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn table(keys: &[KeyRow<'_>]) -> String {
    const HEAD: [&str; 9] = [
        "ID",
        "PRINCIPAL",
        "STATE",
        "SCOPES",
        "NAMESPACES",
        "NETWORKS",
        "EXPIRES",
        "LAST USED",
        "MADE BY",
    ];
    let row = |key: &KeyRow<'_>| {
        let day = |time: &Option<String>| time.clone().unwrap_or_else(|| "-".into());
        let networks = match key.networks.is_empty() {
            true => "-".to_owned(),
            false => key.networks.join(","),
        };
        [
            key.id.clone(),
            key.principal.clone(),
            key.state.as_str().to_owned(),
            key.scopes.join(","),
            key.namespaces.join(","),
            networks,
            day(&key.expires),
            day(&key.last_used),
            key.made_by.clone().unwrap_or_else(|| "-".into()),
        ]
    };
    let rows: Vec<_> = keys.iter().map(row).collect();
    let widths: Vec<_> = (0..HEAD.len())
        .map(|at| {
            let cells = rows.iter().map(|row| row[at].chars().count());
            cells.chain([HEAD[at].len()]).max().unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    let head = HEAD.map(str::to_owned);
    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_list_is_a_table_and_shows_no_hash() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.json");
        let store = KeyStore::open(file, Default::default()).unwrap();
        let made = store
            .create(NewKey {
                name: "ci".into(),
                made_by: None,
                scopes: vec!["read".into(), "write".into()],
                namespaces: vec!["*".into()],
                networks: vec!["10.0.0.0/8".parse().unwrap()],
                limits: Vec::new(),
                lifetime: None,
                kind: KeyKind::Gateway,
            })
            .unwrap();
        let mut record = made.record.clone();
        record.expires = Some(UNIX_EPOCH + Duration::from_secs(1));
        let id = record.id;
        let shown = table(&[KeyRow::of(&record, SystemTime::now())]);
        assert_eq!(
            shown,
            format!(
                "ID            PRINCIPAL  STATE    SCOPES      NAMESPACES  NETWORKS    EXPIRES               LAST USED  MADE BY\n\
                 {id}  key:ci     expired  read,write  *           10.0.0.0/8  1970-01-01T00:00:01Z  -          -\n"
            )
        );
        let shown = json(&CreatedKey::of(&made));
        assert!(
            shown.contains(made.text.expose()) && !shown.contains("hash"),
            "{shown}"
        );
        assert!(created_key_text(&made).contains(&format!("\nkey: {}\n", made.text.expose())));
    }
}
