//! Tokens that real keys have signed, right and wrong.

use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};
use tooldock_base::yaml;

use super::*;

const NOW: u64 = 1_800_000_000;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

/// The key pairs of one issuer: ids `e` (Ed25519) and `p` (P-256).
struct Pair {
    ed: Ed25519KeyPair,
    p256: EcdsaKeyPair,
}

impl Pair {
    fn new() -> Self {
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let p256 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self {
            ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(),
            p256: EcdsaKeyPair::from_pkcs8(
                &ECDSA_P256_SHA256_FIXED_SIGNING,
                p256.as_ref(),
                &random,
            )
            .unwrap(),
        }
    }

    fn jwks(&self) -> String {
        let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let point = self.p256.public_key().as_ref();
        json!({ "keys": [
            { "kty": "OKP", "crv": "Ed25519", "kid": "e", "x": encoded(self.ed.public_key().as_ref()) },
            { "kty": "EC", "crv": "P-256", "kid": "p", "x": encoded(&point[1..33]), "y": encoded(&point[33..]) },
        ] })
        .to_string()
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = match header["alg"].as_str() {
            Some("ES256") => {
                let random = SystemRandom::new();
                let signature = self.p256.sign(&random, signed.as_bytes()).unwrap();
                signature.as_ref().to_vec()
            }
            _ => self.ed.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

static KEYS: LazyLock<Pair> = LazyLock::new(Pair::new);
static OTHERS: LazyLock<Pair> = LazyLock::new(Pair::new);

const CONFIG: &str = r#"
public_url: https://gw.example
oauth:
  - issuer: https://a.example
    audience: [https://gw.example/mcp, other]
    algorithms: [EdDSA, ES256]
    scopes: { r: read, all: admin }
    namespaces: { claim: spaces }
  - issuer: https://b.example/realms/x
    audience: https://gw.example/mcp
    algorithms: [EdDSA]
    scopes: { r: read }
    introspection: { url: "https://b.example/ask", client_id: gw, client_secret: s }
"#;

fn fresh(config: &str) -> Oauth {
    let config: AdmissionConfig = yaml::from_str(config).unwrap();
    config.validate().unwrap();
    Oauth::new(&config, &ScopeTable::default()).unwrap()
}

/// Both issuers have their keys: the first `KEYS`, the second `OTHERS`.
fn oauth() -> Oauth {
    let oauth = fresh(CONFIG);
    for (issuer, keys) in oauth.issuers().iter().zip([&*KEYS, &*OTHERS]) {
        let set = KeySet::parse(keys.jwks().as_bytes()).unwrap();
        assert_eq!(issuer.keys().replace(set), KeySetChange::SomeAreNew);
    }
    oauth
}

fn claims() -> Value {
    json!({
        "iss": "https://a.example", "sub": "ada", "aud": "https://gw.example/mcp",
        "exp": NOW + 300, "scope": "openid r", "spaces": ["calc", "dev-*"],
    })
}

fn header() -> Value {
    json!({ "alg": "EdDSA", "kid": "e", "typ": "at+jwt" })
}

/// The base with members replaced; null takes a member away.
fn with(base: Value, changes: &Value) -> Value {
    let mut base = base;
    let members = base.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(members.remove(name)),
            value => drop(members.insert(name.clone(), value.clone())),
        }
    }
    base
}

fn judged(token: &str) -> TokenVerdict {
    oauth().judge(token.as_bytes(), now())
}

fn name(verdict: &TokenVerdict) -> String {
    match verdict {
        TokenVerdict::Principal(principal) => principal.name().to_string(),
        TokenVerdict::Pending(Pending { counted: true, .. }) => "pending again".to_owned(),
        TokenVerdict::Pending(pending) => format!("pending {:?}", pending.needs),
        TokenVerdict::Refused(why) => format!("refused: {why}"),
        TokenVerdict::Over(why) => format!("over: {why}"),
        TokenVerdict::Unjudged => "unjudged".to_owned(),
    }
}

#[test]
fn a_right_token_stands_for_its_subject_with_the_rights_of_its_scopes() {
    let TokenVerdict::Principal(principal) = judged(&KEYS.sign(&header(), &claims())) else {
        panic!("refused");
    };
    assert_eq!(&**principal.name(), "oauth:https://a.example#ada");
    let opens = |name: &str| principal.opens(&name.parse().unwrap());
    assert!(opens("calc") && opens("dev-1") && !opens("github"));
    let grant = principal.grant().unwrap();
    assert!(grant.tools.allows("project_list") && !grant.tools.allows("project_create"));
    // With the leeway: so long the token is accepted.
    let ends = UNIX_EPOCH + Duration::from_secs(NOW + 360);
    assert_eq!(principal.ends, Some(ends));
    let es256 = json!({ "alg": "ES256", "kid": "p" });
    let token = KEYS.sign(&es256, &claims());
    assert_eq!(name(&judged(&token)), "oauth:https://a.example#ada");
}

#[test]
fn forms_that_issuers_use_are_read() {
    for changes in [
        json!({ "aud": ["x", "other"] }),
        json!({ "scope": null, "scp": ["r"] }),
        json!({ "scope": null, "scp": "r x" }),
        json!({ "exp": (NOW as f64) + 0.5 }),
        json!({ "exp": NOW - 59 }),
        json!({ "nbf": NOW + 59 }),
        json!({ "spaces": "calc" }),
    ] {
        let token = KEYS.sign(&header(), &with(claims(), &changes));
        let verdict = judged(&token);
        let TokenVerdict::Principal(principal) = &verdict else {
            panic!("{changes}: {}", name(&verdict));
        };
        assert!(principal.opens(&"calc".parse().unwrap()) || changes.get("spaces").is_none());
        assert!(
            principal.grant().unwrap().tools.allows("project_list"),
            "{changes}"
        );
    }
}

#[test]
fn claims_that_do_not_fit_are_refused() {
    for (changes, why) in [
        (
            json!({ "iss": "https://evil.example" }),
            "issuer is none of",
        ),
        (json!({ "iss": ["https://a.example"] }), "issuer is none of"),
        (json!({ "iss": "https://a.example/" }), "issuer is none of"),
        (json!({ "aud": null }), "aud names none"),
        (
            json!({ "aud": "https://gw.example/mcp/" }),
            "aud names none",
        ),
        (json!({ "aud": ["x"] }), "aud names none"),
        (json!({ "exp": null }), "no exp"),
        (json!({ "exp": NOW - 60 }), "expired"),
        (json!({ "exp": "soon" }), "no number"),
        (json!({ "exp": 1e300 }), "no number"),
        (json!({ "nbf": NOW + 61 }), "nbf"),
        (json!({ "sub": null }), "principal"),
        (json!({ "sub": 7 }), "principal"),
        (json!({ "sub": "a\nb" }), "principal"),
        (json!({ "sub": "a".repeat(256) }), "principal"),
        (json!({ "spaces": ["["] }), "namespaces"),
    ] {
        let token = KEYS.sign(&header(), &with(claims(), &changes));
        let said = name(&judged(&token));
        // A token that is signed by the issuer's own key is genuine.
        let made = !why.starts_with("issuer is none of");
        let began = if made { "over: " } else { "refused: " };
        assert!(
            said.starts_with(began) && said.contains(why),
            "{changes}: {said}"
        );
    }
}

#[test]
fn headers_that_would_get_around_the_keys_are_refused() {
    for (changes, why) in [
        (json!({ "alg": "none" }), "algorithm"),
        (json!({ "alg": "None" }), "algorithm"),
        (json!({ "alg": "HS256" }), "algorithm"),
        (json!({ "alg": "RS256" }), "algorithm"),
        (json!({ "alg": null }), "header cannot be read"),
        (json!({ "crit": ["exp"] }), "critical"),
        (json!({ "b64": false }), "critical"),
        (json!({ "typ": "dpop+jwt" }), "type"),
        // The P-256 key under a header that says Ed25519.
        (json!({ "kid": "p" }), "signature"),
    ] {
        let token = KEYS.sign(&with(header(), &changes), &claims());
        let said = name(&judged(&token));
        assert!(
            said.starts_with("refused: ") && said.contains(why),
            "{changes}: {said}"
        );
    }
    let token = KEYS.sign(&header(), &claims());
    let unsigned = format!("{}.", token.rsplit_once('.').unwrap().0);
    assert!(name(&judged(&unsigned)).contains("signature"));
}

#[test]
fn a_public_key_is_no_shared_secret() {
    use ring::hmac;
    let header = json!({ "alg": "HS256", "kid": "e" });
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&header), part(&claims()));
    let public = KEYS.ed.public_key().as_ref().to_vec();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &public);
    let tag = hmac::sign(&key, signed.as_bytes());
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()));
    assert!(name(&judged(&token)).contains("algorithm"));
}

#[test]
fn a_changed_token_and_one_of_other_keys_are_refused() {
    let token = KEYS.sign(&header(), &claims());
    let (head, rest) = token.split_once('.').unwrap();
    let (_, signature) = rest.split_once('.').unwrap();
    let better = with(claims(), &json!({ "scope": "all" }));
    let better = URL_SAFE_NO_PAD.encode(better.to_string());
    assert!(name(&judged(&format!("{head}.{better}.{signature}"))).contains("signature"));
    // The keys of one issuer sign nothing for another.
    let forged = OTHERS.sign(&header(), &claims());
    assert!(name(&judged(&forged)).contains("signature"));
    assert!(name(&judged(&format!("{token}{}", "A".repeat(20_000)))).contains("16 KiB"));
}

#[test]
fn the_same_subject_of_another_issuer_is_somebody_else() {
    let other = json!({ "iss": "https://b.example/realms/x", "spaces": null });
    let token = OTHERS.sign(&header(), &with(claims(), &other));
    assert_eq!(
        name(&judged(&token)),
        "oauth:https://b.example/realms/x#ada"
    );
}

#[test]
fn a_token_by_an_unknown_key_waits_for_newer_keys() {
    let oauth = oauth();
    let issuer = &oauth.issuers()[0];
    assert!(!issuer.keys().take_wanted());
    let header = json!({ "alg": "EdDSA", "kid": "new" });
    let token = KEYS.sign(&header, &claims());
    assert_eq!(name(&oauth.judge(token.as_bytes(), now())), "pending Keys");
    assert!(issuer.keys().take_wanted());
    let newer = KEYS.jwks().replace("\"kid\":\"e\"", "\"kid\":\"new\"");
    let newer = KeySet::parse(newer.as_bytes()).unwrap();
    assert_eq!(issuer.keys().replace(newer), KeySetChange::SomeAreGone);
    assert_eq!(
        name(&oauth.judge(token.as_bytes(), now())),
        "oauth:https://a.example#ada"
    );
}

#[test]
fn a_token_counts_no_longer_when_its_key_is_gone_or_its_time_is_over() {
    let oauth = oauth();
    let token = KEYS.sign(&header(), &claims());
    let at = |seconds: u64| {
        let then = now() + Duration::from_secs(seconds);
        name(&oauth.judge(token.as_bytes(), then))
    };
    assert!(at(0).starts_with("oauth:") && at(359).starts_with("oauth:"));
    assert!(at(360).contains("expired"));
    let set = KeySet::parse(OTHERS.jwks().as_bytes()).unwrap();
    let keys = oauth.issuers()[0].keys();
    assert!(!keys.take_wanted());
    assert_eq!(keys.replace(set), KeySetChange::SomeAreGone);
    assert!(at(0).contains("signature"));
    assert!(
        keys.take_wanted(),
        "another key may have been published under the same id"
    );
}

#[test]
fn keys_outlast_a_configuration_that_is_read_again() {
    let before = oauth();
    let mut after = fresh(CONFIG);
    let token = KEYS.sign(&header(), &claims());
    let judged = |oauth: &Oauth| name(&oauth.judge(token.as_bytes(), now()));
    assert_eq!(judged(&after), "pending Keys");
    after.take_over(&before);
    assert!(judged(&after).starts_with("oauth:"));
    let elsewhere = CONFIG.replacen(
        "audience: [",
        "jwks: https://a.example/k\n    audience: [",
        1,
    );
    let mut elsewhere = fresh(&elsewhere);
    elsewhere.take_over(&before);
    assert_eq!(judged(&elsewhere), "pending Keys");
}

#[test]
fn an_opaque_token_counts_as_long_as_the_issuers_answer() {
    let oauth = oauth();
    let at = |seconds: u64| {
        let then = now() + Duration::from_secs(seconds);
        name(&oauth.judge(b"opaque-1", then))
    };
    assert_eq!(at(0), "pending Answer");
    let issuer = &oauth.issuers()[1];
    let answer =
        json!({ "active": true, "sub": "ada", "aud": "https://gw.example/mcp", "scope": "r" });
    assert!(issuer.answered(
        TokenDigest::of(b"opaque-1"),
        answer.to_string().as_bytes(),
        now()
    ));
    assert_eq!(at(59), "oauth:https://b.example/realms/x#ada");
    assert_eq!(at(60), "pending again");
    let ends = with(answer, &json!({ "exp": NOW - 30 }));
    assert!(issuer.answered(
        TokenDigest::of(b"opaque-1"),
        ends.to_string().as_bytes(),
        now()
    ));
    assert!(at(29).starts_with("oauth:"));
    assert_eq!(at(30), "pending again");
}

/// Introspection response of the second issuer for an active token.
fn vouched() -> String {
    json!({ "active": true, "sub": "ada", "aud": "https://gw.example/mcp", "scope": "r" })
        .to_string()
}

#[test]
fn the_answer_about_a_token_in_use_is_asked_for_again_before_it_ends() {
    let oauth = oauth();
    let issuer = &oauth.issuers()[1];
    let digest = TokenDigest::of(b"opaque-1");
    let judge = |seconds: u64| oauth.judge(b"opaque-1", now() + Duration::from_secs(seconds));
    let renewals = || {
        let renewals = issuer.take_renewals();
        let texts = renewals.iter().map(|it| it.token.expose().to_owned());
        texts.collect::<Vec<_>>()
    };
    assert!(issuer.answered(digest, vouched().as_bytes(), now()));
    judge(39);
    assert_eq!(renewals(), [""; 0], "its answer is fresh");
    judge(40);
    judge(41);
    assert_eq!(renewals(), ["opaque-1"]);
    // It came to nothing: the answer that was there counts to its end, and is asked for again.
    issuer.not_answered(digest, now() + Duration::from_secs(45));
    assert!(name(&judge(45)).starts_with("oauth:"));
    judge(46);
    assert_eq!(renewals(), ["opaque-1"]);
    assert!(issuer.answered(
        digest,
        vouched().as_bytes(),
        now() + Duration::from_secs(50)
    ));
    assert!(name(&judge(89)).starts_with("oauth:"));
    assert_eq!(renewals(), [""; 0]);
    // A renewal that says no ends the token at once.
    assert!(issuer.answered(
        digest,
        br#"{"active":false}"#,
        now() + Duration::from_secs(90)
    ));
    assert!(name(&judge(91)).starts_with("over: "));
}

#[test]
fn a_token_is_unjudged_while_its_issuer_is_silent_and_keeps_its_place_among_tokens_that_counted() {
    let oauth = oauth();
    let issuer = &oauth.issuers()[1];
    let at = |token: &str, seconds: u64| {
        name(&oauth.judge(token.as_bytes(), now() + Duration::from_secs(seconds)))
    };
    issuer.not_answered(TokenDigest::of(b"new"), now());
    assert_eq!(at("new", 1), "unjudged");
    assert_eq!(at("new", 2), "pending Answer");
    let known = TokenDigest::of(b"known");
    assert!(issuer.answered(known, vouched().as_bytes(), now()));
    for number in 0..50_000 {
        let made_up = TokenDigest::of(format!("made-up-{number}").as_bytes());
        assert!(issuer.answered(made_up, br#"{"active":false}"#, now()));
    }
    assert!(at("known", 59).starts_with("oauth:"));
    assert_eq!(at("known", 3600), "pending again");
    issuer.not_answered(known, now() + Duration::from_secs(3600));
    assert_eq!(at("known", 3601), "unjudged");
}

#[test]
fn judged_tokens_outlast_a_configuration_that_is_read_again() {
    let before = oauth();
    let known = TokenDigest::of(b"known");
    let issuer = &before.issuers()[1];
    assert!(issuer.answered(known, vouched().as_bytes(), now()));
    let judged = |config: &str| {
        let mut after = fresh(config);
        after.take_over(&before);
        name(&after.judge(b"known", now()))
    };
    assert!(judged(CONFIG).starts_with("oauth:"));
    // By other rules it is judged again, among those that counted.
    let other = CONFIG.replacen("scopes: { r: read }", "scopes: { r: write }", 1);
    assert_eq!(judged(&other), "pending again");
    let elsewhere = CONFIG.replacen("b.example/ask", "b.example/other", 1);
    assert_eq!(judged(&elsewhere), "pending Answer");
}

#[test]
fn what_the_issuer_does_not_vouch_for_is_refused_for_a_while() {
    let right = json!({ "active": true, "sub": "ada", "aud": "https://gw.example/mcp" });
    for (changes, why) in [
        (json!({ "active": false }), "not active"),
        (json!({ "iss": "https://a.example" }), "another issuer"),
        (json!({ "aud": null }), "aud names none"),
        (json!({ "exp": NOW - 60 }), "expired"),
    ] {
        let oauth = oauth();
        let issuer = &oauth.issuers()[1];
        let answer = with(right.clone(), &changes).to_string();
        assert!(issuer.answered(TokenDigest::of(b"opaque"), answer.as_bytes(), now()));
        let said = name(&oauth.judge(b"opaque", now()));
        assert!(said.contains(why), "{changes}: {said}");
        let later = now() + Duration::from_secs(10);
        assert_eq!(name(&oauth.judge(b"opaque", later)), "pending Answer");
    }
    let oauth = oauth();
    let issuer = &oauth.issuers()[1];
    for answer in ["", "[]", "{}", r#"{"active":"true"}"#] {
        assert!(
            !issuer.answered(TokenDigest::of(b"opaque"), answer.as_bytes(), now()),
            "{answer}"
        );
    }
    assert_eq!(name(&oauth.judge(b"opaque", now())), "pending Answer");
}

#[test]
fn no_issuer_is_asked_about_what_cannot_be_its_token() {
    for token in ["td_abc", "oub_abc", "two words", "a\"b", "\u{e4}"] {
        let said = name(&judged(token));
        assert!(said.contains("no issuer's"), "{token}: {said}");
    }
    // A JWT goes only to the issuer that it names.
    let foreign = KEYS.sign(
        &header(),
        &with(claims(), &json!({ "iss": "https://c.example" })),
    );
    assert!(name(&judged(&foreign)).contains("none of admission.oauth"));
}

#[test]
fn a_token_without_a_known_scope_allows_nothing() {
    let token = KEYS.sign(
        &header(),
        &with(claims(), &json!({ "scope": "read admin" })),
    );
    let TokenVerdict::Principal(principal) = judged(&token) else {
        panic!("refused");
    };
    let grant = principal.grant().unwrap();
    assert!(!grant.tools.allows("project_list"));
    assert!(grant.token_scopes().unwrap().held.is_empty());
}
