//! Fuzzing of access tokens and of the keys that verify them. Compiled only for `make fuzz` and for tests.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;
use tooldock_base::scope::ScopeTable;

use super::claims::ClaimRules;
use super::jwt::{Claims, Jwt, SignatureVerdict};
use super::keys::KeySet;
use crate::algorithm::Algorithm;
use crate::config::OauthConfig;

/// Verifies a token and judges claims. The input has three lines: a key set, a token, and further claims.
pub fn access_token(input: &[u8]) {
    let mut lines = input.splitn(3, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (keys, token, claims) = (KeySet::parse(line()).ok(), line(), line());
    if let Some(keys) = &keys {
        assert!(!keys.is_empty() && !keys.lacks_some_of(keys) && keys.is_same(keys));
    }
    if let Some(jwt) = std::str::from_utf8(token).ok().and_then(Jwt::of) {
        assert_eq!(jwt.bytes(), token.len());
        let _ = jwt.issuer();
        let algorithms = [
            Algorithm::Rs256,
            Algorithm::Ps256,
            Algorithm::Es256,
            Algorithm::Es384,
            Algorithm::EdDsa,
        ];
        let verdict = jwt.signed(&algorithms, keys.as_ref());
        if let SignatureVerdict::By(claims) = verdict {
            assert!(keys.is_some(), "a token without a key is signed");
            judged(&claims);
            assert!(!matches!(
                jwt.signed(&[], keys.as_ref()),
                SignatureVerdict::By(_)
            ));
        }
    }
    if let Ok(claims) = serde_json::from_slice::<Claims>(claims) {
        judged(&claims);
    }
}

/// Judges claims at a fixed time. Accepted claims must name the configured issuer and must not have expired.
fn judged(claims: &Claims) {
    let config = json!({
        "issuer": "https://issuer.example",
        "audience": ["https://gateway.example/mcp"],
        "scopes": { "tools": "admin" },
        "namespaces": { "claim": "namespaces" },
    });
    let config: OauthConfig = serde_json::from_value(config).expect("a configuration");
    let rules = ClaimRules::new(&config, &ScopeTable::default()).expect("rules");
    let now = UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    let _ = rules.introspected(claims, now);
    if rules.principal(claims, now).is_ok() {
        assert_eq!(claims["iss"], "https://issuer.example");
        let end = claims["exp"]
            .as_f64()
            .expect("a token without an end is refused");
        assert!(
            end + config.leeway.as_secs_f64() > 1_900_000_000.0,
            "a token after its end"
        );
    }
}
