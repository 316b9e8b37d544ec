//! The arguments of a call between the call and the writing of its audit record: nothing, a digest, or a copy.

use bytes::Bytes;

use super::AuditArguments;

/// Maximum size of arguments that are logged in full, in bytes. Longer arguments are logged as a digest.
const FULL_MAX: usize = 16 * 1024;

/// The arguments of a call in the form in which the audit log will contain them.
#[derive(Debug, Clone)]
pub enum KeptArguments {
    /// The audit record contains no arguments.
    None,
    /// The audit record contains the digest and the size of the arguments.
    Digest {
        /// BLAKE3 digest of the arguments. BLAKE3 is used since SHA-256 takes two to three times as long.
        digest: blake3::Hash,
        /// The size of the arguments, in bytes.
        bytes: usize,
    },
    /// The audit record contains a copy of the arguments. Secrets in them are masked before the record is written.
    Full(Bytes),
}

impl KeptArguments {
    /// Converts arguments to the form `wanted`; long arguments become a digest. `arguments` is a slice of the request's body,
    /// which would keep the complete body in memory until the record is written, so the result contains a copy. The digest is
    /// computed here and not by the writer, since here the arguments are still in the processor's cache.
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

    /// Memory that the arguments occupy until the record is written, in bytes.
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
