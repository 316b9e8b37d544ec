//! API keys for models and for the relay: `token_create`, `token_list`, `token_revoke`.
//!
//! [`KeyTools`] implements all three and needs no management server: the relay offers the same tools on its socket.
//! `token_create` makes keys with all scopes of its caller, so of the built-in scopes only `admin` has these tools. The store
//! limits each key to the rights of its maker ([`KeyMaker`]).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use humantime_serde::re::humantime::{format_rfc3339_seconds, parse_duration};
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;
use tooldock_base::key_maker::{KeyId, KeyMaker};
use tooldock_base::network::Cidr;
use tooldock_base::tool::Tool;
use tooldock_credentials::keys::{
    KeyKind, KeyLimit, KeyRecord, KeyState, KeyStore, KeysError, NewKey,
};

use super::super::Management;
use super::super::parameters::Nothing;
use super::super::tool::{
    Hints, ManagementTool, ManagementToolEntry, Progress, invalid, read, refused, written,
};

/// Maximum number of keys in one list.
const LISTED_MAX: usize = 500;

/// The implementation of the three tools, over a store of keys.
#[derive(Debug, Clone)]
pub struct KeyTools {
    store: Arc<KeyStore>,
    /// Kind of the keys that `token_create` makes. It determines the keys' prefix.
    kind: KeyKind,
}

impl KeyTools {
    /// The tools for the relay, whose keys begin with `oub_`.
    pub fn of_relay(store: Arc<KeyStore>) -> Self {
        let kind = KeyKind::Relay;
        Self { store, kind }
    }

    /// The tools for the management server.
    pub(in super::super) fn of_management(store: Arc<KeyStore>) -> Self {
        let kind = KeyKind::Gateway;
        Self { store, kind }
    }

    /// The declarations of the three tools, for lists.
    pub fn declarations() -> [Arc<Tool>; 3] {
        [
            ManagementToolEntry::of::<TokenCreate>().declaration,
            ManagementToolEntry::of::<TokenList>().declaration,
            ManagementToolEntry::of::<TokenRevoke>().declaration,
        ]
    }

    /// Calls one of the three tools for a client that has authenticated with the key `caller`, and returns the tool's JSON
    /// result. Returns `None` if `tool` is not the name of one of them.
    ///
    /// # Errors
    ///
    /// The fault and its remedy. The tool has changed nothing then.
    pub async fn call(
        &self,
        tool: &str,
        arguments: &[u8],
        caller: &KeyRecord,
    ) -> Option<Result<Bytes, CallError>> {
        Some(match tool {
            TokenCreate::NAME => match read(arguments) {
                Ok(wanted) => {
                    let made = self.create(wanted, &KeyMaker::Key(caller.id)).await;
                    made.and_then(|it| written(&it))
                }
                Err(error) => Err(error),
            },
            TokenList::NAME => match read::<Nothing>(arguments) {
                Ok(_) => self.list().await.and_then(|it| written(&it)),
                Err(error) => Err(error),
            },
            TokenRevoke::NAME => match read(arguments) {
                Ok(RevokeParameters { id }) => self.revoke(id.0).await.and_then(|it| written(&it)),
                Err(error) => Err(error),
            },
            _ => return None,
        })
    }

    /// Makes a key within the rights of its maker. If no namespaces are given, the key gets the maker's namespaces.
    async fn create(
        &self,
        mut wanted: WantedToken,
        maker: &KeyMaker,
    ) -> Result<MadeToken, CallError> {
        if wanted.namespaces.is_none() {
            wanted.namespaces = match maker {
                KeyMaker::Key(id) => {
                    let table = self.store.tables().snapshot();
                    table.get(*id).map(|key| key.record().namespaces.clone())
                }
                KeyMaker::Credential(credential) => Some(credential.namespaces.to_vec()),
                KeyMaker::Operator | KeyMaker::Barred(_) => None,
            };
        }
        let wanted = wanted.key(self.kind)?;
        let maker = maker.clone();
        let made = self.with_store(move |store| store.create_for(&maker, wanted));
        let made = made.await?;
        Ok(MadeToken {
            token: made.text.expose().to_owned(),
            record: KeySummary::of(&made.record),
            notes: Vec::new(),
        })
    }

    async fn list(&self) -> Result<KeyList, CallError> {
        let mut records = self.with_store(KeyStore::list).await?;
        records.reverse();
        let left_out = records.len().saturating_sub(LISTED_MAX);
        records.truncate(LISTED_MAX);
        Ok(KeyList {
            tokens: records.iter().map(KeySummary::of).collect(),
            left_out,
        })
    }

    async fn revoke(&self, id: KeyId) -> Result<KeySummary, CallError> {
        let record = self.with_store(move |store| store.revoke(id)).await?;
        Ok(KeySummary::of(&record))
    }

    /// Runs `ask` on the store of keys, on a thread for blocking work. A change that has begun is finished even if the caller
    /// disconnects.
    async fn with_store<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&KeyStore) -> Result<T, KeysError> + Send + 'static,
    ) -> Result<T, CallError> {
        let store = Arc::clone(&self.store);
        let asked = tokio::task::spawn_blocking(move || ask(&store)).await;
        let asked = asked.map_err(|_| refused("The key store was interrupted; call token_list"))?;
        asked.map_err(|error| match error {
            KeysError::Invalid(message) => invalid(message),
            KeysError::NoSuchKey(id) => refused(format!(
                "There is no key with the id {id}; token_list shows those there are"
            )),
            error => refused(error.to_string()),
        })
    }
}

/// Parameters of `token_create`: the name and rights of a new key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct WantedToken {
    /// Holder, such as ci or alice-laptop: letters, digits, '-', '_', '.' and '@'. Logs say key:NAME.
    name: String,
    /// admin (every tool), write, read, or names that the operator configured.
    scopes: Vec<String>,
    /// Names, and patterns such as dev-*; without it, those of the credential that calls. Only the name _system opens the
    /// management tools.
    #[serde(default)]
    namespaces: Option<Vec<String>>,
    /// Such as 10.0.0.0/8. Leave it out for all.
    #[serde(default)]
    networks: Vec<String>,
    /// Such as 90d or 12h. Leave it out for no end.
    #[serde(default)]
    expires: Option<String>,
    /// Per second: RATE/BURST for requests, RATE/BURST:tool_call for calls.
    #[serde(default)]
    limits: Vec<String>,
}

impl WantedToken {
    fn key(self, kind: KeyKind) -> Result<NewKey, CallError> {
        let networks = self.networks.iter().map(|it| it.parse::<Cidr>());
        let networks: Result<Vec<_>, _> = networks.collect();
        let limits: Result<Vec<_>, _> = self
            .limits
            .iter()
            .map(|it| it.parse::<KeyLimit>())
            .collect();
        let lifetime: Option<Duration> = match self.expires.as_deref().map(parse_duration) {
            None => None,
            Some(Ok(lifetime)) => Some(lifetime),
            Some(Err(error)) => return Err(invalid(format!("expires: {error}; write it as 90d"))),
        };
        Ok(NewKey {
            name: self.name,
            made_by: None,
            scopes: self.scopes,
            namespaces: self.namespaces.unwrap_or_else(|| vec!["*".to_owned()]),
            networks: networks.map_err(|error| invalid(format!("networks: {error}")))?,
            limits: limits.map_err(|error| invalid(format!("limits: {error}")))?,
            lifetime,
            kind,
        })
    }
}

/// An API key as lists show it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeySummary {
    /// The key's public id.
    id: String,
    name: String,
    /// The name under which the key's owner appears in logs, limits and the access lists of namespaces.
    principal: String,
    /// The credential that made this key: the id of a key, or a principal. If that credential ends, this key ends as well.
    made_by: Option<String>,
    state: KeyState,
    scopes: Vec<String>,
    namespaces: Vec<String>,
    networks: Vec<String>,
    limits: Vec<String>,
    created: String,
    expires: Option<String>,
    /// Time of the key's last use, accurate to about an hour.
    last_used: Option<String>,
    revoked: Option<String>,
}

impl KeySummary {
    /// Converts the stored record of a key to the form shown in lists.
    pub fn of(record: &KeyRecord) -> Self {
        let time = |at: SystemTime| format_rfc3339_seconds(at).to_string();
        Self {
            id: record.id.to_string(),
            name: record.name.clone(),
            principal: record.principal(),
            made_by: record.shown_maker(),
            state: record.state(SystemTime::now()),
            scopes: record.scopes.clone(),
            namespaces: record.namespaces.clone(),
            networks: record.networks.iter().map(Cidr::to_string).collect(),
            limits: record.limits.iter().map(KeyLimit::to_string).collect(),
            created: time(record.created),
            expires: record.expires.map(time),
            last_used: record.last_used.map(time),
            revoked: record.revoked.map(time),
        }
    }
}

/// A key that was just made. It does not implement `Debug`, so that the key is never printed.
#[derive(Serialize, JsonSchema)]
pub(in super::super) struct MadeToken {
    /// The key itself. It is shown only in this response.
    token: String,
    #[serde(flatten)]
    record: KeySummary,
    /// The reason why the key opens no tool, and a change that would open some; empty if it opens a tool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// The list of keys.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct KeyList {
    /// The keys, newest first.
    tokens: Vec<KeySummary>,
    /// Number of older keys that are not part of the list.
    left_out: usize,
}

/// A key's id, checked.
#[derive(Debug, JsonSchema)]
struct Id(#[schemars(with = "String")] KeyId);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error does not repeat the text, since a caller may have sent the key itself instead of its id.
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Parameters of `token_revoke`: the key to revoke.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct RevokeParameters {
    /// The key's id, as token_list shows it. Never the key itself.
    id: Id,
}

/// The tool `token_create`, which creates an API key.
pub(in super::super) struct TokenCreate;

impl ManagementTool for TokenCreate {
    const NAME: &'static str = "token_create";
    const DESCRIPTION: &'static str = "Make an API key for the tools of its scopes, in its namespaces. `token` is the key, shown this once: \
        give it to the user at once and do not repeat it. Ask for as little as the user needs. Unless the \
        operator's token calls, the key opens no more than the credential that calls, and ends with it. With \
        notes in the result the key opens no tool: tell the user, and do what it says. After calling: \
        token_list shows its id, token_revoke takes it back.";
    const HINTS: Hints = Hints::ADDS.not_idempotent();
    const EFFECTS: &'static [Effect] = &[Effect::HandlesKeys];
    type Parameters = WantedToken;
    type Outcome = MadeToken;

    async fn run(
        management: Arc<Management>,
        wanted: WantedToken,
        progress: Progress,
    ) -> Result<MadeToken, CallError> {
        let maker = progress.maker();
        let mut made = management.key_tools().create(wanted, maker).await?;
        let reach = management.reach_of(made.record.id.clone()).await;
        // The key remains valid even if the core does not report which tools it opens.
        made.notes = reach.map(|reach| reach.notes).unwrap_or_default();
        Ok(made)
    }
}

/// The tool `token_list`, which lists the API keys.
pub(in super::super) struct TokenList;

impl ManagementTool for TokenList {
    const NAME: &'static str = "token_list";
    const DESCRIPTION: &'static str = "List the API keys, newest first: what each opens, whether it counts, when it was used last; never \
        the keys themselves. After calling: token_revoke(id) takes a key back.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::HandlesKeys];
    type Parameters = Nothing;
    type Outcome = KeyList;

    async fn run(
        management: Arc<Management>,
        _: Nothing,
        _: Progress,
    ) -> Result<KeyList, CallError> {
        management.key_tools().list().await
    }
}

/// The tool `token_revoke`, which revokes an API key.
pub(in super::super) struct TokenRevoke;

impl ManagementTool for TokenRevoke {
    const NAME: &'static str = "token_revoke";
    const DESCRIPTION: &'static str = "Revoke an API key with all keys that it made: they are refused from now on, their streams end. \
        Cannot be undone: ask the user first. After calling: token_list shows it as revoked.";
    const HINTS: Hints = Hints::REPLACES;
    const EFFECTS: &'static [Effect] = &[Effect::HandlesKeys];
    type Parameters = RevokeParameters;
    type Outcome = KeySummary;

    async fn run(
        management: Arc<Management>,
        RevokeParameters { id }: RevokeParameters,
        _: Progress,
    ) -> Result<KeySummary, CallError> {
        management.key_tools().revoke(id.0).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tooldock_base::scope::ScopeTable;

    use super::*;

    #[tokio::test]
    async fn keys_are_made_listed_and_revoked_by_the_tools() {
        let folder = tempfile::tempdir().unwrap();
        let store = KeyStore::open(folder.path().join("keys.json"), ScopeTable::default());
        let store = Arc::new(store.unwrap());
        let caller = NewKey {
            name: "droid".into(),
            made_by: None,
            scopes: vec!["admin".into()],
            namespaces: vec!["*".into()],
            networks: Vec::new(),
            limits: Vec::new(),
            lifetime: None,
            kind: KeyKind::Relay,
        };
        let caller = store.create(caller).unwrap().record;
        let tools = KeyTools::of_relay(store);
        let call = async |tool: &str, arguments: Value| {
            let arguments = arguments.to_string();
            let answer = tools.call(tool, arguments.as_bytes(), &caller).await;
            answer
                .expect("one of the tools")
                .map(|answer| serde_json::from_slice::<Value>(&answer).unwrap())
                .map_err(|error| error.message.to_string())
        };
        let made = call(
            "token_create",
            json!({ "name": "ci", "scopes": ["read"], "expires": "90d" }),
        );
        let made = made.await.unwrap();
        assert!(
            made["token"].as_str().unwrap().starts_with("oub_"),
            "{made}"
        );
        assert_eq!(
            (&made["namespaces"], &made["state"]),
            (&json!(["*"]), &json!("active"))
        );
        assert_eq!(made["principal"], "key:droid/ci");
        assert_eq!(made["made_by"], caller.id.to_string());
        let listed = call("token_list", json!({})).await.unwrap();
        let listed = listed["tokens"].as_array().unwrap();
        let found = listed.iter().find(|token| token["id"] == made["id"]);
        assert!(found.unwrap().get("token").is_none());
        let revoked = call("token_revoke", json!({ "id": made["id"] }))
            .await
            .unwrap();
        assert_eq!(revoked["state"], "revoked");

        let token = made["token"].as_str().unwrap();
        for (tool, arguments, told) in [
            (
                "token_revoke",
                json!({ "id": token }),
                "not the id of a key",
            ),
            (
                "token_revoke",
                json!({ "id": "aaaaaaaaaaaa" }),
                "token_list",
            ),
            (
                "token_create",
                json!({ "name": "ci", "scopes": ["rad"] }),
                "admin, read, write",
            ),
            (
                "token_create",
                json!({ "name": "ci", "scopes": [] }),
                "scopes: ",
            ),
            (
                "token_create",
                json!({ "name": "ci", "scopes": ["read"], "expires": "soon" }),
                "expires: ",
            ),
            (
                "token_create",
                json!({ "name": "ci", "scopes": ["read"], "networks": ["x"] }),
                "networks: ",
            ),
            (
                "token_create",
                json!({ "name": "ci", "scopes": ["read"], "limits": ["x"] }),
                "limits: ",
            ),
        ] {
            let error = call(tool, arguments).await.unwrap_err();
            assert!(
                error.contains(told) && !error.contains(token),
                "{tool}: {error}"
            );
        }
        assert!(tools.call("other", b"{}", &caller).await.is_none());
    }
}
