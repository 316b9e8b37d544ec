//! The record of a task, its owner and its outcome.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tooldock_base::names::NamespaceName;

use super::{TaskEvent, TaskStatus};
use crate::replicas::ReplicaId;

/// Number of random bytes in the id of a task: 192 bits.
const ID_BYTES: usize = 24;

/// The principal and the namespace that created a task. All others get the answer for an unknown task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskOwner {
    /// The principal of the request; `None` without authentication.
    pub principal: Option<Arc<str>>,
    /// The namespace of the request: for a tool of an aggregate's member, the aggregate.
    pub namespace: NamespaceName,
}

impl TaskOwner {
    /// Digest of the principal, by which stores count the tasks of one principal.
    pub fn principal_key(&self) -> String {
        principal_key(self.principal.as_deref())
    }
}

/// Digest of a principal; `None` for requests without authentication.
pub(crate) fn principal_key(principal: Option<&str>) -> String {
    let mut hash = Sha256::new();
    if let Some(principal) = principal {
        hash.update(b"principal ");
        hash.update(principal.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    hex::encode(&digest[..16])
}

/// The record of a task, without its outcome.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The task's id, by which its owner names it.
    pub id: Arc<str>,
    /// The owner of the task.
    pub owner: TaskOwner,
    /// The tool's name, as the owner's namespace publishes it.
    pub tool: Arc<str>,
    /// The replica whose process runs the call.
    pub runner: ReplicaId,
    /// Time of the task's creation, in milliseconds of Unix time.
    pub created: u64,
    /// Time of the last change of the state or the message, in milliseconds of Unix time.
    pub updated: u64,
    /// Time from the creation until the task is deleted, in milliseconds.
    pub ttl: u64,
    /// The state of the task.
    pub status: TaskStatus,
    /// Text about the state for people, such as the last progress report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl TaskRecord {
    /// Creates the record of a new task with a random id.
    ///
    /// # Errors
    ///
    /// When the machine has no randomness.
    pub fn new(
        owner: TaskOwner,
        tool: Arc<str>,
        runner: ReplicaId,
        ttl: u64,
    ) -> Result<Self, getrandom::Error> {
        let mut id = [0; ID_BYTES];
        getrandom::fill(&mut id)?;
        let now = unix_millis();
        Ok(Self {
            id: URL_SAFE_NO_PAD.encode(id).into(),
            owner,
            tool,
            runner,
            created: now,
            updated: now,
            ttl,
            status: TaskStatus::Working,
            message: None,
        })
    }

    /// Changes the state by an event. Returns false if the event changes nothing.
    pub fn apply(&mut self, event: TaskEvent) -> bool {
        let Some(next) = self.status.after(event) else {
            return false;
        };
        self.status = next;
        self.updated = self.updated.max(unix_millis());
        true
    }

    /// Time at which the task is deleted, in milliseconds of Unix time.
    pub fn expires(&self) -> u64 {
        self.created.saturating_add(self.ttl)
    }
}

impl fmt::Debug for TaskRecord {
    /// Omits the id, which a log must not contain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskRecord")
            .field("tool", &self.tool)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// The outcome of a task that has ended: raw JSON of its result or of its error.
#[derive(Clone, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The result object of the tool call, in the form of 2025-11-25.
    Result(Arc<str>),
    /// The error object of JSON-RPC.
    Error(Arc<str>),
}

/// First byte of the stored text of a result and of an error.
const RESULT: char = '+';
const ERROR: char = '-';

impl TaskOutcome {
    /// The outcome as a store keeps it: a character for its kind, then the JSON.
    pub fn written(&self) -> String {
        match self {
            Self::Result(json) => format!("{RESULT}{json}"),
            Self::Error(json) => format!("{ERROR}{json}"),
        }
    }

    /// Reads a stored outcome; `None` for another text.
    pub fn read(text: &str) -> Option<Self> {
        let result = text
            .strip_prefix(RESULT)
            .map(|json| Self::Result(json.into()));
        result.or_else(|| {
            text.strip_prefix(ERROR)
                .map(|json| Self::Error(json.into()))
        })
    }

    /// Size of the stored text, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Result(json) | Self::Error(json) => json.len() + 1,
        }
    }
}

impl fmt::Debug for TaskOutcome {
    /// Omits the content, which is the owner's data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Result(_) => "Result",
            Self::Error(_) => "Error",
        })
    }
}

/// A task as a store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTask {
    /// The record of the task.
    pub record: TaskRecord,
    /// The outcome of a task that has ended; `None` for a running or a cancelled task.
    pub outcome: Option<TaskOutcome>,
}

/// The current time, in milliseconds of Unix time.
pub fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::TaskEnd;

    fn owner(principal: Option<&str>) -> TaskOwner {
        TaskOwner {
            principal: principal.map(Into::into),
            namespace: "shared".parse().expect("a name"),
        }
    }

    #[test]
    fn ids_are_long_and_differ() {
        let id = || {
            let made = TaskRecord::new(owner(None), "t".into(), ReplicaId(0), 1);
            made.expect("randomness").id
        };
        let (one, two) = (id(), id());
        assert_ne!(one, two);
        assert_eq!(one.len(), 32);
    }

    #[test]
    fn a_request_without_credentials_is_no_principal_of_any_name() {
        let keys =
            [None, Some(""), Some("a"), Some("principal ")].map(|it| owner(it).principal_key());
        let all: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(all.len(), keys.len());
    }

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        for outcome in [
            TaskOutcome::Result(r#"{"n":1.50}"#.into()),
            TaskOutcome::Error("{}".into()),
        ] {
            let text = outcome.written();
            assert_eq!(text.len(), outcome.bytes());
            assert_eq!(TaskOutcome::read(&text), Some(outcome));
        }
        assert_eq!(TaskOutcome::read("{}"), None);
    }

    #[test]
    fn a_record_that_has_ended_keeps_its_state() {
        let made = TaskRecord::new(owner(None), "t".into(), ReplicaId(0), 1);
        let mut record = made.expect("randomness");
        assert!(record.apply(TaskEvent::Ended(TaskEnd::Cancelled)));
        let before = record.clone();
        assert!(!record.apply(TaskEvent::Ended(TaskEnd::Completed)));
        assert_eq!(record, before);
    }
}
