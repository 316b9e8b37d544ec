//! Reading a JWT: its header, its signature, and the claims, once the signature is verified.
//!
//! Nothing in a token is trusted before its signature is verified, except the issuer's name and the key's id, by which the key
//! is found. A key, a certificate or an address in the header is ignored.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::keys::KeySet;
use super::signature;
use crate::algorithm::Algorithm;

/// Maximum length of a token, in bytes. Longer ones are refused without being parsed.
pub(super) const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// The three parts of a token, unchanged.
#[derive(Clone, Copy)]
pub(super) struct Jwt<'a> {
    /// Header and claims with the dot between them, which the signature is over.
    signed: &'a str,
    header: &'a str,
    claims: &'a str,
    signature: &'a str,
}

/// The members of a header that the gateway reads.
#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that a recipient has to understand. The gateway understands none.
    #[serde(default)]
    crit: Option<Value>,
    /// Claims that are not encoded, by RFC 7797.
    #[serde(default)]
    b64: Option<Value>,
    #[serde(default)]
    typ: Option<String>,
}

/// The claims of a token.
pub(super) type Claims = Map<String, Value>;

/// The verdict on a token's signature.
#[derive(Debug, PartialEq)]
pub(super) enum SignatureVerdict {
    /// The signature is right; the claims of the token.
    By(Claims),
    /// The signature is by a key that is not in the set. A newer set may have it.
    ByUnknownKey,
    /// The signature is wrong for the key that the token names. Another key may have been published with the same id.
    Wrong,
    /// The signature is wrong, or tokens of this kind are not accepted; the cause is for the log.
    Not(&'static str),
}

impl<'a> Jwt<'a> {
    /// Splits a token into its parts; `None` for a text that does not look like a signed JWT.
    pub(super) fn of(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let encoded = |part: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !part.is_empty() && part.bytes().all(fits)
        };
        // A JWT without a signature is still a JWT, and is refused as one.
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

    /// The issuer that the token names, unchecked: for finding the keys.
    pub(super) fn issuer(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct IssuerClaim {
            iss: String,
        }
        let claims = URL_SAFE_NO_PAD.decode(self.claims).ok()?;
        let named: IssuerClaim = serde_json::from_slice(&claims).ok()?;
        Some(named.iss)
    }

    /// Checks the signature by the keys of the issuer; `None`: no keys were fetched yet.
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
            // A newer key of the issuer may have made the signature.
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

/// Returns true if the header gives the token another purpose: ending a login or a session, or proving a key. Many issuers give
/// access tokens no type, or `JWT`.
fn is_no_access_token(typ: &str) -> bool {
    let typ = typ.to_ascii_lowercase();
    let typ = typ.strip_prefix("application/").unwrap_or(&typ);
    !matches!(typ, "jwt" | "at+jwt")
}
