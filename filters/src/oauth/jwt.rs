//! Parses a JWT and verifies its signature. The claims are returned only if the signature is valid.
//!
//! Before that, only the issuer's name and the key's id are read, to find the key. A key, a certificate or a URL in the header
//! is ignored.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::keys::KeySet;
use super::signature;
use crate::algorithm::Algorithm;

/// Maximum length of a token, in bytes. Longer ones are refused without being parsed.
pub(super) const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// The three parts of a JWT, still encoded.
#[derive(Clone, Copy)]
pub(super) struct Jwt<'a> {
    /// Header and claims, with the dot between them: the text that the signature covers.
    signed: &'a str,
    header: &'a str,
    claims: &'a str,
    signature: &'a str,
}

/// The fields of a JWT's header that the gateway uses.
#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that a recipient must support. The gateway supports none, so a token with this field is refused.
    #[serde(default)]
    crit: Option<Value>,
    /// Set for unencoded claims (RFC 7797), which the gateway does not support: a token with this field is refused.
    #[serde(default)]
    b64: Option<Value>,
    #[serde(default)]
    typ: Option<String>,
}

/// The claims of a token, by name.
pub(super) type Claims = Map<String, Value>;

/// Result of verifying a token's signature.
#[derive(Debug, PartialEq)]
pub(super) enum SignatureVerdict {
    /// The signature is valid. Contains the claims of the token.
    By(Claims),
    /// The signing key is not in the known key set. The issuer may have published a newer set with it.
    ByUnknownKey,
    /// The signature is wrong for the key that the token names. The issuer may have published another key with the same id.
    Wrong,
    /// The token is malformed, or not of an accepted kind. Contains the cause for the log.
    Not(&'static str),
}

impl<'a> Jwt<'a> {
    /// Splits a token into its three parts. Returns `None` for a text that does not have the form of a JWT.
    pub(super) fn of(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let encoded = |part: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !part.is_empty() && part.bytes().all(fits)
        };
        // A JWT without a signature is accepted here, so that it is refused as a JWT and not sent to an introspection endpoint.
        let is_jwt =
            encoded(header) && encoded(claims) && (signature.is_empty() || encoded(signature));
        is_jwt.then_some(Self {
            signed,
            header,
            claims,
            signature,
        })
    }

    /// The length of the token, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.signed.len() + 1 + self.signature.len()
    }

    /// Reads the issuer from the token's claims, before the signature is verified. Only used to find the issuer's keys.
    pub(super) fn issuer(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct IssuerClaim {
            iss: String,
        }
        let claims = URL_SAFE_NO_PAD.decode(self.claims).ok()?;
        let named: IssuerClaim = serde_json::from_slice(&claims).ok()?;
        Some(named.iss)
    }

    /// Verifies the signature with the issuer's keys. `keys` is `None` if none were fetched yet.
    pub(super) fn signed(&self, allowed: &[Algorithm], keys: Option<&KeySet>) -> SignatureVerdict {
        let header = URL_SAFE_NO_PAD.decode(self.header).ok();
        let header = header.and_then(|it| serde_json::from_slice::<Header>(&it).ok());
        let Some(header) = header else {
            return SignatureVerdict::Not("the token's header cannot be read");
        };
        let Some(algorithm) = Algorithm::of_name(&header.alg).filter(|it| allowed.contains(it))
        else {
            return SignatureVerdict::Not(
                "the token's algorithm is not one of admission.oauth[].algorithms",
            );
        };
        if header.crit.is_some() || header.b64.is_some() {
            return SignatureVerdict::Not("the token's header has critical extensions");
        }
        if header.typ.is_some_and(|typ| is_no_access_token(&typ)) {
            return SignatureVerdict::Not("the token's type is not that of an access token");
        }
        let Some(keys) = keys else {
            return SignatureVerdict::ByUnknownKey;
        };
        let id = header.kid.as_deref();
        if id.is_some_and(|id| !keys.knows(id)) {
            return SignatureVerdict::ByUnknownKey;
        }
        let mut candidates = keys.candidates(id, algorithm);
        let right = candidates.any(|key| {
            signature::is_right(self.signature, self.signed, key, algorithm.of_library())
        });
        match (right, id) {
            (true, _) => self.claims(),
            (false, Some(_)) => SignatureVerdict::Wrong,
            // The token names no key, so it may be signed by a key that the issuer has added since the keys were fetched.
            (false, None) => SignatureVerdict::ByUnknownKey,
        }
    }

    fn claims(&self) -> SignatureVerdict {
        let claims = URL_SAFE_NO_PAD.decode(self.claims).ok();
        let claims = claims.and_then(|it| serde_json::from_slice(&it).ok());
        claims.map_or(
            SignatureVerdict::Not("the token's claims cannot be read"),
            SignatureVerdict::By,
        )
    }
}

/// Returns true if the type in the header is neither `JWT` nor that of an access token (`at+jwt`), for example that of a logout
/// token or of a key proof. Many issuers give access tokens the type `JWT`, or none.
fn is_no_access_token(typ: &str) -> bool {
    let typ = typ.to_ascii_lowercase();
    let typ = typ.strip_prefix("application/").unwrap_or(&typ);
    !matches!(typ, "jwt" | "at+jwt")
}
