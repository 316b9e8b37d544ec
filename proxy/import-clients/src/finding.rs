//! Findings: the lines about keys of a client's file that are not carried over, or not as they are.
//!
//! A finding holds the line, the key and a fixed text: never a value, which may be a secret.

use tooldock_base::mask;

/// The consequence of a key that is not carried over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Imported; the operator may want to know how.
    Note,
    /// Not imported, without opening access that was closed in the client.
    Lost,
    /// The key made less possible in the client. Its server is written switched off.
    Security,
}

/// A key that is not carried over, or not as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Line in the file, from 1.
    pub line: usize,
    /// The key, as `SERVER.KEY`.
    pub key: String,
    /// The consequence.
    pub weight: Weight,
    /// The reason, and what to do instead.
    pub why: String,
}

impl Finding {
    /// The line of a report: `FILE:LINE: KEY: why`.
    pub fn shown(&self, file: &str) -> String {
        let weight = match self.weight {
            Weight::Security => "security: ",
            Weight::Note | Weight::Lost => "",
        };
        format!("{file}:{}: {}: {weight}{}", self.line, self.key, self.why)
    }
}

/// A name of a file as a report may show it: people paste values in the place of names.
pub(crate) fn shown(name: &str) -> String {
    /// Longer names are cut.
    const CHARS_MAX: usize = 80;
    match mask::looks_like_a_value(name) || mask::text(name) != name {
        true => mask::MASK.to_owned(),
        false => name.chars().take(CHARS_MAX).collect(),
    }
}
