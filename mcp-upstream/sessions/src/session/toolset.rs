//! Toolset of a client: the tools and resources of an aggregate that it has activated or deactivated, stored as differences from
//! the aggregate's start set.
//!
//! Entries are identified by digests of their published names. A set of hundreds therefore fits into a URL, and remains valid
//! when the servers of the aggregate change: removed entries are ignored, and new entries are active or not as in the start set.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Maximum number of differences in one toolset. A handle of that size still fits into the head of a request.
pub const DIFFERENCES_MAX: usize = 1_000;

const ID_BYTES: usize = 6;
const ENTRY_BYTES: usize = ID_BYTES + 1;

/// Identifies a tool or a resource by a digest of its published name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId([u8; ID_BYTES]);

/// Tools and resources that a client has turned on (true) or off (false), as differences from the aggregate's start set (the
/// entries that are active at first). Each difference is encoded in seven bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Toolset(BTreeMap<EntryId, bool>);

/// Error: the text or the bytes do not encode a toolset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no set of tools")]
pub struct NoToolset;

impl EntryId {
    /// Creates the id of a published name. `kind` distinguishes tools from resources of the same name.
    pub fn of(kind: u8, published: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update([kind]);
        hash.update(published);
        let hash: [u8; 32] = hash.finalize().into();
        Self(*hash.first_chunk().expect("6 of 32 bytes"))
    }
}

impl Toolset {
    /// Returns `Some(true)` for an activated tool or resource, `Some(false)` for a deactivated one, and `None` if it is as in the
    /// aggregate's start set.
    pub fn says(&self, entry: EntryId) -> Option<bool> {
        self.0.get(&entry).copied()
    }

    /// Turns a tool or resource on or off. Nothing is stored if it is then as in the aggregate's start set.
    pub fn set(&mut self, entry: EntryId, on: bool, at_start: bool) {
        if on == at_start {
            self.0.remove(&entry);
        } else {
            self.0.insert(entry, on);
        }
    }

    /// Removes the differences of the tools and resources for which `keeps` returns false.
    pub fn retain(&mut self, keeps: impl Fn(EntryId) -> bool) {
        self.0.retain(|entry, _| keeps(*entry));
    }

    /// The number of differences.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no differences from the start set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The approximate memory of the toolset, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.len() * 4 * ENTRY_BYTES
    }

    /// Encodes the toolset as bytes, which the caller then seals.
    pub fn to_bytes(&self) -> Vec<u8> {
        let entries = self.0.iter();
        let bytes = entries.flat_map(|(id, on)| id.0.into_iter().chain([u8::from(*on)]));
        bytes.collect()
    }

    /// Decodes the bytes that [`Self::to_bytes`] has returned.
    ///
    /// # Errors
    ///
    /// [`NoToolset`] for any other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NoToolset> {
        let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() || entries.len() > DIFFERENCES_MAX {
            return Err(NoToolset);
        }
        let read = entries.iter().map(|entry| {
            let (id, on) = entry.split_first_chunk().ok_or(NoToolset)?;
            match on {
                [0] => Ok((EntryId(*id), false)),
                [1] => Ok((EntryId(*id), true)),
                _ => Err(NoToolset),
            }
        });
        read.collect::<Result<_, _>>().map(Self)
    }
}

impl From<Toolset> for String {
    fn from(set: Toolset) -> Self {
        URL_SAFE_NO_PAD.encode(set.to_bytes())
    }
}

impl TryFrom<String> for Toolset {
    type Error = NoToolset;

    fn try_from(text: String) -> Result<Self, NoToolset> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| NoToolset)?;
        Self::from_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_only_what_differs_from_the_start() {
        let (a, b) = (EntryId::of(0, "a"), EntryId::of(1, "a"));
        assert_ne!(a, b);
        let mut set = Toolset::default();
        set.set(a, true, false);
        set.set(b, false, true);
        assert_eq!(
            (set.says(a), set.says(b), set.len()),
            (Some(true), Some(false), 2)
        );
        set.set(a, false, false);
        assert_eq!((set.says(a), set.len()), (None, 1));
        set.set(b, true, true);
        assert!(set.is_empty());
    }

    #[test]
    fn a_set_is_read_as_it_was_written_and_nothing_else_is() {
        let mut set = Toolset::default();
        for number in 0..50 {
            set.set(
                EntryId::of(0, &number.to_string()),
                number % 2 == 0,
                number % 2 != 0,
            );
        }
        assert_eq!(Toolset::from_bytes(&set.to_bytes()), Ok(set.clone()));
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(serde_json::from_str::<Toolset>(&text).unwrap(), set);
        assert_eq!(Toolset::from_bytes(&[0; 6]), Err(NoToolset));
        assert_eq!(Toolset::from_bytes(&[0, 0, 0, 0, 0, 0, 2]), Err(NoToolset));
        let too_many = vec![0; ENTRY_BYTES * (DIFFERENCES_MAX + 1)];
        assert_eq!(Toolset::from_bytes(&too_many), Err(NoToolset));
    }
}
