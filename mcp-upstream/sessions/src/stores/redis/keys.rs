//! Names of keys in Redis. All keys of a session share a hash tag, so that a cluster keeps them on one node.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `PREFIX version` | string | the format of all other keys |
//! | `PREFIX replicas` | hash | the directory of replicas, see `beat.lua` |
//! | `PREFIX budget:{budgets}:DIGEST` | string | a budget of a limit, see `budgets.lua` |
//! | `PREFIX task:{tasks}:ID` and others | | tasks, see [`tasks`](super::tasks) |
//! | `PREFIX session:{DIGEST}` | hash | the record of a session, see [`record`](super::record) |
//! | `PREFIX streams:{DIGEST}` | hash | the session's streams, see [`events`](super::events) |
//! | `PREFIX events:{DIGEST}:NUMBER` | list | messages of one stream |

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::stream::StoreError;

/// Length of a digest in hexadecimal characters: 128 bits, so that no two sessions have the same digest.
const DIGEST_CHARACTERS: usize = 32;

/// Names of all keys that begin with one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: Arc<str>,
}

/// Names of the keys of one session.
pub(super) struct SessionKeys<'a> {
    prefix: &'a str,
    digest: String,
}

impl Keys {
    /// Creates the key names for a prefix. Fails if [`Keys::check`] refuses the prefix.
    pub(super) fn new(prefix: &str) -> Result<Self, StoreError> {
        let checked = Self::check(prefix);
        checked.map_err(|why| StoreError(format!("sessions.store_prefix {why}")))?;
        let prefix = prefix.into();
        Ok(Self { prefix })
    }

    /// Checks a prefix. The error is worded to follow the name of the configuration key. The prefix must not be empty, because
    /// other programs could use the same key names, and must not contain braces, which determine the node of a key in a
    /// cluster.
    pub(super) fn check(prefix: &str) -> Result<(), String> {
        if prefix.is_empty() {
            return Err(
                "is empty: keys of other programs in this Redis could have the same names; write a prefix such as tooldock:"
                    .to_owned(),
            );
        }
        if prefix.contains(['{', '}']) {
            return Err(format!(
                "{prefix:?} has braces, which place keys in a cluster: write a prefix without them, such as tooldock:"
            ));
        }
        Ok(())
    }

    pub(super) fn version(&self) -> String {
        format!("{}version", self.prefix)
    }

    pub(super) fn replicas(&self) -> String {
        format!("{}replicas", self.prefix)
    }

    /// Returns the key of a limit's budget; `name` is a digest that identifies the budget. All budgets share a hash tag, since
    /// one script changes many of them.
    pub(super) fn budget(&self, name: &[u8]) -> String {
        format!("{}budget:{{budgets}}:{}", self.prefix, hex::encode(name))
    }

    /// Returns the key of a task.
    pub(super) fn task(&self, id: &str) -> String {
        format!("{}task:{{tasks}}:{id}", self.prefix)
    }

    /// Returns the key of an index of tasks: of all tasks, or of those of a principal.
    pub(super) fn tasks_of(&self, index: &str, principal: &str) -> String {
        format!("{}tasks:{{tasks}}:{index}{principal}", self.prefix)
    }

    /// Returns the keys of a session. They contain a digest instead of the session's id: the id is a credential, and everyone who
    /// monitors Redis can see key names.
    pub(super) fn of(&self, session: &str) -> SessionKeys<'_> {
        let mut digest = hex::encode(Sha256::digest(session));
        digest.truncate(DIGEST_CHARACTERS);
        SessionKeys {
            prefix: &self.prefix,
            digest,
        }
    }
}

impl SessionKeys<'_> {
    pub(super) fn record(&self) -> String {
        format!("{}session:{{{}}}", self.prefix, self.digest)
    }

    pub(super) fn streams(&self) -> String {
        format!("{}streams:{{{}}}", self.prefix, self.digest)
    }

    pub(super) fn events(&self, number: u32) -> String {
        format!("{}events:{{{}}}:{number}", self.prefix, self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_hash_tag_and_no_id() {
        let keys = Keys::new("tooldock:").expect("a prefix");
        let of = keys.of("secret id");
        let digest = of.digest.clone();
        assert_eq!(digest.len(), 32);
        assert_eq!(of.record(), format!("tooldock:session:{{{digest}}}"));
        assert_eq!(of.streams(), format!("tooldock:streams:{{{digest}}}"));
        assert_eq!(of.events(7), format!("tooldock:events:{{{digest}}}:7"));
        assert_eq!(keys.version(), "tooldock:version");
        assert_eq!(keys.budget(&[10; 2]), "tooldock:budget:{budgets}:0a0a");
        for wrong in ["{tooldock}:", ""] {
            assert!(Keys::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
