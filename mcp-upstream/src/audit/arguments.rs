//! What a record keeps of a call's arguments.

use bytes::Bytes;

use super::AuditArguments;

/// Arguments larger than this, in bytes, are never kept in full.
const FULL_MAX: usize = 16 * 1024;

/// What the audit log keeps of a call's arguments.
#[derive(Debug, Clone)]
pub enum KeptArguments {
    /// Nothing.
    None,
    /// Their digest, and their size in bytes.
    Digest {
        /// By BLAKE3: SHA-256 takes two to three times as long.
        digest: blake3::Hash,
        /// The size.
        bytes: usize,
    },
    /// The arguments themselves, which are not written as they are: the writer masks secrets.
    Full(Bytes),
}

impl KeptArguments {
    /// The digest is made at once, not by the writer: arguments are a view of the request's body, which would wait for the
    /// writer in memory that the next request could use, and be out of the processor's cache when the writer comes to it.
    pub(super) fn of(arguments: &Bytes, wanted: AuditArguments) -> Self {
        match wanted {
            AuditArguments::None => Self::None,
            AuditArguments::Full if arguments.len() <= FULL_MAX => Self::Full(arguments.clone()),
            AuditArguments::Full | AuditArguments::Digest => Self::Digest {
                digest: blake3::hash(arguments),
                bytes: arguments.len(),
            },
        }
    }

    /// Bytes of the request's body that the record keeps in memory until it is written.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::None | Self::Digest { .. } => 0,
            Self::Full(arguments) => arguments.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_arguments_that_may_be_written_in_full_keep_the_body_in_memory() {
        let body = Bytes::from(vec![b'x'; FULL_MAX + 1]);
        let fitting = body.slice(..FULL_MAX);
        let held = |arguments, wanted| KeptArguments::of(arguments, wanted).held_bytes();
        assert_eq!(held(&body, AuditArguments::Full), 0);
        assert_eq!(held(&fitting, AuditArguments::Full), FULL_MAX);
        assert_eq!(held(&fitting, AuditArguments::Digest), 0);
        assert_eq!(held(&fitting, AuditArguments::None), 0);
    }
}
