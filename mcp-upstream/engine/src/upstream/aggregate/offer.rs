//! A member's offer: its tools, resources, templates and prompts as the member wrote them, within limits.

use std::sync::Arc;

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tooldock_protocol::version::Era;
use tooldock_sessions::broadcast::Change;
use tooldock_sessions::catalogue::{ListKind, mend};
use tooldock_workers::aggregate::Pin;

/// Maximum size of the names and definitions that are kept of one member, of all its lists together: 8 MiB.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum size of an entry's name, in bytes. Entries with longer names are omitted.
pub(super) const NAME_MAX: usize = 256;
/// Maximum size of a resource's URI, in bytes. Entries with longer URIs are omitted.
pub(super) const URI_MAX: usize = 8 * 1024;
/// Maximum size of a URI template, in bytes. Entries with longer templates are omitted, since each URI that a client reads is
/// compared with all templates.
pub(super) const TEMPLATE_MAX: usize = 1024;
/// Maximum number of invalid definitions whose faults are reported for one reading.
const WRONG_MAX: usize = 10;

/// A member's lists at one moment.
#[derive(Debug, Default)]
pub(super) struct Offer {
    pub(super) tools: Vec<OfferEntry>,
    pub(super) resources: Vec<OfferEntry>,
    pub(super) templates: Vec<OfferEntry>,
    pub(super) prompts: Vec<OfferEntry>,
}

/// Remaining space for a member's entries during a reading, and the record of omitted entries.
#[derive(Debug)]
pub(super) struct OfferRoom {
    bytes: usize,
    pub(super) is_full: bool,
    /// Number of entries that were omitted because their names are too long.
    too_long: usize,
    /// Faults of the first invalid definitions, up to [`WRONG_MAX`]; further ones are only counted.
    wrong: Vec<String>,
    more_wrong: usize,
}

/// An entry of a member's list.
#[derive(Debug, Clone)]
pub(super) struct OfferEntry {
    /// The name or URI of the entry at the member.
    pub(super) own: Arc<str>,
    /// The definition as the member wrote it.
    pub(super) definition: Box<RawValue>,
}

impl Offer {
    /// The kinds of lists that clients must read again if `other` replaces this offer. The list of tools changes whenever
    /// resources change, since it contains the catalogue of resources.
    pub(super) fn changes(&self, other: &Self) -> Vec<Change> {
        let resources = self.resources != other.resources || self.templates != other.templates;
        let tools = resources || self.tools != other.tools;
        let prompts = self.prompts != other.prompts;
        let all = [
            (tools, Change::Tools),
            (resources, Change::Resources),
            (prompts, Change::Prompts),
        ];
        let changed = all.into_iter().filter(|(differs, _)| *differs);
        changed.map(|(_, change)| change).collect()
    }

    /// Digest of all names and definitions, for comparison with the member's configured `pin`.
    pub(super) fn digest(&self) -> Pin {
        let mut hash = Sha256::new();
        for list in [&self.tools, &self.resources, &self.templates, &self.prompts] {
            let mut lines: Vec<_> = list.iter().map(OfferEntry::canonical).collect();
            lines.sort();
            hash.update((lines.len() as u64).to_le_bytes());
            for line in lines {
                hash.update((line.len() as u64).to_le_bytes());
                hash.update(line);
            }
        }
        Pin(hash.finalize().into())
    }
}

impl Default for OfferRoom {
    fn default() -> Self {
        Self {
            bytes: BYTES_MAX,
            is_full: false,
            too_long: 0,
            wrong: Vec::new(),
            more_wrong: 0,
        }
    }
}

impl OfferRoom {
    /// Returns true if there is space for an entry. After the first entry without space, no more are accepted, so that the
    /// published set does not depend on the sizes of later entries.
    pub(super) fn takes(&mut self, own: &str, definition: &RawValue, longest: usize) -> bool {
        if own.len() > longest {
            self.too_long += 1;
            return false;
        }
        let left = self.bytes.checked_sub(own.len() + definition.get().len());
        self.is_full |= left.is_none();
        self.bytes = left.unwrap_or(self.bytes);
        !self.is_full
    }

    /// Mends a definition so that strict clients accept it; `None` if no client could use it.
    pub(super) fn mended(
        &mut self,
        method: &str,
        own: &str,
        definition: Box<RawValue>,
    ) -> Option<Box<RawValue>> {
        let Some(kind) = ListKind::of(method) else {
            return Some(definition);
        };
        let mended = mend::entry(kind, Era::Legacy, definition.get()).and_then(|mended| {
            let read = mended.map(|(text, wrong)| Ok((RawValue::from_string(text)?, wrong)));
            let read: Result<_, serde_json::Error> = read.transpose();
            read.map_err(|_| "its definition cannot be read".into())
        });
        let (mended, wrong) = match mended {
            Ok(None) => return Some(definition),
            Ok(Some((mended, wrong))) => (Some(mended), wrong),
            Err(wrong) => (None, wrong),
        };
        if self.wrong.len() < WRONG_MAX {
            let name = crate::engine::shortened(own);
            let done = match mended {
                Some(_) => "was mended",
                None => "is left out",
            };
            self.wrong.push(format!("{name:?} {done}: {wrong}"));
        } else {
            self.more_wrong += 1;
        }
        mended
    }

    pub(super) fn left_out(&self) -> Vec<String> {
        let mut left_out = Vec::new();
        if self.is_full {
            left_out.push(format!(
                "it lists more than {} MiB, and what comes after that is left out",
                BYTES_MAX >> 20
            ));
        }
        if self.too_long > 0 {
            left_out.push(format!(
                "{} of its entries are left out: a name may have {NAME_MAX} bytes, a URI {URI_MAX}, a template {TEMPLATE_MAX}",
                self.too_long
            ));
        }
        left_out.extend(self.wrong.iter().cloned());
        if self.more_wrong > 0 {
            left_out.push(format!("{} more definitions are wrong", self.more_wrong));
        }
        left_out
    }
}

impl PartialEq for OfferEntry {
    fn eq(&self, other: &Self) -> bool {
        self.own == other.own && self.definition.get() == other.definition.get()
    }
}

impl OfferEntry {
    /// An entry with this definition; `None` if the definition is no JSON.
    pub(super) fn new(own: &Arc<str>, definition: &str) -> Option<Self> {
        Some(Self {
            own: Arc::clone(own),
            definition: RawValue::from_string(definition.to_owned()).ok()?,
        })
    }

    /// The definition with its keys sorted, so that only its meaning is compared. If it cannot be parsed, for example because of
    /// a number out of range, the unchanged text is returned, so that each change of the text changes the digest.
    fn canonical(&self) -> String {
        let text = self.definition.get();
        match serde_json::from_str::<serde_json::Value>(text) {
            Ok(value) => value.to_string(),
            Err(_) => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(tools: &[&str]) -> Offer {
        let listed = |text: &&str| OfferEntry {
            own: "t".into(),
            definition: RawValue::from_string((*text).to_owned()).unwrap(),
        };
        Offer {
            tools: tools.iter().map(listed).collect(),
            ..Offer::default()
        }
    }

    #[test]
    fn what_a_member_lists_beyond_its_room_is_left_out() {
        let sized =
            |bytes: usize| RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
        let mut room = OfferRoom::default();
        assert!(room.takes("a", &sized(BYTES_MAX / 2), NAME_MAX));
        assert!(!room.takes(&"n".repeat(NAME_MAX + 1), &sized(2), NAME_MAX));
        assert!(room.takes(&"u".repeat(NAME_MAX + 1), &sized(2), URI_MAX));
        assert_eq!(room.left_out().len(), 1);
        assert!(!room.takes("b", &sized(BYTES_MAX / 2), NAME_MAX));
        // Nor any entry after it, however small.
        assert!(!room.takes("c", &sized(2), NAME_MAX));
        let said = room.left_out().join("; ");
        assert!(
            said.contains("8 MiB") && said.contains("1 of its entries"),
            "{said}"
        );
    }

    #[test]
    fn only_lists_that_differ_are_announced() {
        let one = offer(&[r#"{"name":"a"}"#]);
        assert_eq!(one.changes(&offer(&[r#"{"name":"a"}"#])), []);
        assert_eq!(one.changes(&offer(&[r#"{"name":"b"}"#])), [Change::Tools]);
        let listed = || offer(&["{}"]).tools;
        let resources = Offer {
            templates: listed(),
            ..Offer::default()
        };
        // The catalogue of resources is part of the list of tools.
        assert_eq!(
            resources.changes(&Offer::default()),
            [Change::Tools, Change::Resources]
        );
        let prompts = Offer {
            prompts: listed(),
            ..Offer::default()
        };
        assert_eq!(Offer::default().changes(&prompts), [Change::Prompts]);
    }

    #[test]
    fn a_digest_goes_by_what_definitions_say_not_by_how_they_are_written() {
        let one = offer(&[r#"{"name":"a","description":"x"}"#, r#"{"name":"b"}"#]).digest();
        let same = offer(&[r#"{ "name": "b" }"#, r#"{"description":"x","name":"a"}"#]).digest();
        assert_eq!(one, same);
        let other = offer(&[r#"{"name":"a","description":"y"}"#, r#"{"name":"b"}"#]).digest();
        assert_ne!(one, other);
        assert_ne!(offer(&[]).digest(), one);
    }

    #[test]
    fn a_digest_sees_what_changes_in_a_definition_that_cannot_be_read() {
        let number = |about| format!(r#"{{"name":"a","description":"{about}","n":1e999}}"#);
        let deep = |about| {
            let (open, close) = ("[".repeat(200), "]".repeat(200));
            format!(r#"{{"name":"a","description":"{about}","n":{open}{close}}}"#)
        };
        let digest = |definition: String| offer(&[&definition]).digest();
        assert_ne!(digest(number("x")), digest(number("y")));
        assert_ne!(digest(deep("x")), digest(deep("y")));
        assert_eq!(digest(deep("x")), digest(deep("x")));
    }
}
