//! Signature algorithms of tokens. Only asymmetric algorithms have a variant: `none` and algorithms with a shared secret have
//! none, so neither a configuration nor a token can select them.

use jsonwebtoken as jwt;
use serde::{Deserialize, Serialize};

/// A signature algorithm, as RFC 7518 and RFC 8037 name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Algorithm {
    /// RSA PKCS#1 1.5 with SHA-256.
    Rs256,
    /// RSA PKCS#1 1.5 with SHA-384.
    Rs384,
    /// RSA PKCS#1 1.5 with SHA-512.
    Rs512,
    /// RSA PSS with SHA-256.
    Ps256,
    /// RSA PSS with SHA-384.
    Ps384,
    /// RSA PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// EdDSA with Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// The kind of key that a signature algorithm needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl Algorithm {
    /// Parses the algorithm's name from a token's header; `None` if the name is not supported.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }

    /// The kind of key that this signature algorithm needs.
    pub(crate) fn key_kind(self) -> KeyKind {
        match self {
            Self::Rs256 | Self::Rs384 | Self::Rs512 | Self::Ps256 | Self::Ps384 | Self::Ps512 => {
                KeyKind::Rsa
            }
            Self::Es256 => KeyKind::P256,
            Self::Es384 => KeyKind::P384,
            Self::EdDsa => KeyKind::Ed25519,
        }
    }

    /// Converts the algorithm to the type of the JWT library.
    pub(crate) fn of_library(self) -> jwt::Algorithm {
        match self {
            Self::Rs256 => jwt::Algorithm::RS256,
            Self::Rs384 => jwt::Algorithm::RS384,
            Self::Rs512 => jwt::Algorithm::RS512,
            Self::Ps256 => jwt::Algorithm::PS256,
            Self::Ps384 => jwt::Algorithm::PS384,
            Self::Ps512 => jwt::Algorithm::PS512,
            Self::Es256 => jwt::Algorithm::ES256,
            Self::Es384 => jwt::Algorithm::ES384,
            Self::EdDsa => jwt::Algorithm::EdDSA,
        }
    }
}
