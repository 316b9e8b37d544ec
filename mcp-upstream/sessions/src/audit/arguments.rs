//! The arguments of a call in the form in which the audit log stores them until they are written: nothing, a digest, or a copy.

use bytes::Bytes;

use super::AuditArguments;

/// Maximum size of arguments that are copied, in bytes. Longer arguments are logged as a digest.
const FULL_MAX: usize = 16 * 1024;

/// The arguments of a call in their recorded form.
#[derive(Debug, Clone)]
pub enum KeptArguments {
    /// Arguments are not recorded.
    None,
    /// The digest and the size of the arguments.
    Digest {
        /// The BLAKE3 digest: SHA-256 takes two to three times as long.
        digest: blake3::Hash,
        /// The size of the arguments, in bytes.
        bytes: usize,
    },
    /// A copy of the arguments. The log's writer masks the secrets in them before it writes.
    Full(Bytes),
}

impl KeptArguments {
    /// Converts arguments to the form `wanted`; long arguments become a digest. The result does not borrow from the request's
    /// body: `arguments` are a view of the body, and a small view would keep all of a large body in memory until the log's
    /// writer has written it. The request computes the digest, not the writer, while the arguments are in the processor's
    /// cache.
    pub(super) fn of(arguments: &Bytes, wanted: AuditArguments) -> Self {
        match wanted {
            AuditArguments::None => Self::None,
            AuditArguments::Full if arguments.len() <= FULL_MAX => {
                Self::Full(Bytes::copy_from_slice(arguments))
            }
            AuditArguments::Full | AuditArguments::Digest => Self::Digest {
                digest: blake3::hash(arguments),
                bytes: arguments.len(),
            },
        }
    }

    /// Memory of the arguments in the record until it is written, in bytes.
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
    fn only_arguments_that_may_be_written_in_full_are_kept_and_never_the_body() {
        let body = Bytes::from(vec![b'x'; FULL_MAX + 1]);
        let fitting = body.slice(..FULL_MAX);
        let kept = KeptArguments::of(&fitting, AuditArguments::Full);
        drop(fitting);
        assert!(
            body.is_unique(),
            "{} bytes hold the body",
            kept.held_bytes()
        );
        let fitting = body.slice(..FULL_MAX);
        let held = |arguments, wanted| KeptArguments::of(arguments, wanted).held_bytes();
        assert_eq!(held(&body, AuditArguments::Full), 0);
        assert_eq!(held(&fitting, AuditArguments::Full), FULL_MAX);
        assert_eq!(held(&fitting, AuditArguments::Digest), 0);
        assert_eq!(held(&fitting, AuditArguments::None), 0);
    }
}
