//! Findings: report lines about keys of a client's file that are not imported, or are imported with a change.
//!
//! A finding holds the line, the key and a fixed text: never a value, which may be a secret.

use tooldock_base::mask;

/// The consequence of a finding about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The key is imported; the finding explains how.
    Note,
    /// The key is not imported. Clients get no access that the file denied to them.
    Lost,
    /// The key restricted the server in the client and is not imported. The server is written as disabled.
    Security,
}

/// A report line about a key of a client's file that is not imported, or is imported with a change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Line of the key in the file, from 1.
    pub line: usize,
    /// The key, as `SERVER.KEY`.
    pub key: String,
    /// The consequence of the finding.
    pub weight: Weight,
    /// The reason for the finding, and a remedy if there is one.
    pub why: String,
}

impl Finding {
    /// The finding as a report line: `FILE:LINE: KEY: why`.
    pub fn shown(&self, file: &str) -> String {
        let weight = match self.weight {
            Weight::Security => "security: ",
            Weight::Note | Weight::Lost => "",
        };
        format!("{file}:{}: {}: {weight}{}", self.line, self.key, self.why)
    }
}

/// A name from a file, for a report. It is shortened, and masked if it looks like a credential that was pasted in place of a
/// name.
pub(crate) fn shown(name: &str) -> String {
    /// Maximum number of characters of a name; longer names are cut.
    const CHARS_MAX: usize = 80;
    match mask::looks_like_a_value(name) || mask::text(name) != name {
        true => mask::MASK.to_owned(),
        false => name.chars().take(CHARS_MAX).collect(),
    }
}
