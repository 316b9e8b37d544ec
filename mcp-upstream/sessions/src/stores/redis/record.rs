//! The record of a session as fields of a hash. Each kind of patch has its own field, so a patch is one write without a read,
//! and patches of different kinds never overwrite each other.
//!
//! | field | holds |
//! |---|---|
//! | `record` | the record as it was inserted, without its subscriptions: JSON |
//! | `home` | the session's home, `REPLICA:EPOCH`; a claim compares it as text |
//! | `confirm`, `initialize`, `log_level`, `affinity`, `toolset` | the last patch of that kind: JSON |
//! | `general_streams`, `request_streams` | the highest number of a stream |
//! | `subscription:URI` | empty; the existence of the field means that the session subscribes to URI |

use std::collections::HashMap;

use crate::replicas::ReplicaId;
use crate::session::{Home, SessionPatch, SessionRecord};
use crate::stream::StoreError;

const RECORD: &str = "record";
const HOME: &str = "home";
const STREAMS: [&str; 2] = ["general_streams", "request_streams"];
const SUBSCRIPTION: &str = "subscription:";

/// Change of one field of a session's record in Redis. Each patch of a session is stored by one such change.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FieldChange {
    pub(super) kind: FieldChangeKind,
    pub(super) field: String,
    pub(super) value: String,
}

/// Kind of change of a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FieldChangeKind {
    Set,
    /// Sets a numeric field, unless its present number is higher.
    Raise,
    Delete,
}

impl FieldChangeKind {
    /// Name of the change, as an argument of `patch.lua`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Raise => "raise",
            Self::Delete => "delete",
        }
    }
}

/// Returns the hash fields of a new record, with their values.
pub(super) fn fields(record: &SessionRecord) -> Result<Vec<(String, String)>, StoreError> {
    let mut base = record.clone();
    let subscriptions = std::mem::take(&mut base.subscriptions);
    let mut fields = vec![
        (RECORD.to_owned(), json(&base)?),
        (HOME.to_owned(), home(record.home)),
    ];
    let subscribed = subscriptions
        .iter()
        .map(|uri| (subscription(uri), String::new()));
    fields.extend(subscribed);
    Ok(fields)
}

/// Returns the change of a field that stores this patch.
pub(super) fn change(patch: &SessionPatch) -> Result<FieldChange, StoreError> {
    let set = |field: &str| {
        Ok(FieldChange {
            kind: FieldChangeKind::Set,
            field: field.to_owned(),
            value: json(patch)?,
        })
    };
    match patch {
        SessionPatch::Confirm => set("confirm"),
        SessionPatch::Initialize { .. } => set("initialize"),
        SessionPatch::LogLevel(_) => set("log_level"),
        SessionPatch::Affinity(_) => set("affinity"),
        SessionPatch::Toolset(_) => set("toolset"),
        SessionPatch::Subscribe(uri) => Ok(FieldChange {
            kind: FieldChangeKind::Set,
            field: subscription(uri),
            value: String::new(),
        }),
        SessionPatch::Unsubscribe(uri) => Ok(FieldChange {
            kind: FieldChangeKind::Delete,
            field: subscription(uri),
            value: String::new(),
        }),
        // General streams have even numbers and request streams odd ones, and each kind is counted separately.
        SessionPatch::OpenStream(number) => Ok(FieldChange {
            kind: FieldChangeKind::Raise,
            field: STREAMS[usize::from(number % 2 == 1)].to_owned(),
            value: number.to_string(),
        }),
    }
}

/// Formats the home of a session (replica and epoch) as the text of the field `home`.
pub(super) fn home(home: Home) -> String {
    format!("{}:{}", home.replica.0, home.epoch)
}

/// Builds a record from its fields; `None` if there are no fields. Patches of different kinds do not overlap, so their order is
/// irrelevant.
pub(super) fn folded(
    mut fields: HashMap<String, String>,
) -> Result<Option<SessionRecord>, StoreError> {
    if fields.is_empty() {
        return Ok(None);
    }
    let base = fields.remove(RECORD).ok_or_else(damaged)?;
    let mut record: SessionRecord = parsed(&base)?;
    for (field, value) in fields {
        if let Some(uri) = field.strip_prefix(SUBSCRIPTION) {
            record.subscriptions.insert(uri.into());
        } else if field == HOME {
            record.home = parsed_home(&value).ok_or_else(damaged)?;
        } else if STREAMS.contains(&&*field) {
            let number = value.parse().map_err(|_| damaged())?;
            record.apply(&SessionPatch::OpenStream(number));
        } else {
            record.apply(&parsed(&value)?);
        }
    }
    Ok(Some(record))
}

fn subscription(uri: &str) -> String {
    format!("{SUBSCRIPTION}{uri}")
}

fn parsed_home(text: &str) -> Option<Home> {
    let (replica, epoch) = text.split_once(':')?;
    let (replica, epoch) = (replica.parse().ok()?, epoch.parse().ok()?);
    Some(Home {
        replica: ReplicaId(replica),
        epoch,
    })
}

fn json(value: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError(error.to_string()))
}

/// Parses JSON. The error omits the parser's text, which may quote the record.
fn parsed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| damaged())
}

fn damaged() -> StoreError {
    StoreError("a record in Redis cannot be read".into())
}
