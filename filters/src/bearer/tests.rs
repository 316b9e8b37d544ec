//! Principals of credentials, and the texts of refusals.

use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};

use tooldock_base::names::NamespaceName;
use tooldock_base::scope::ScopeTable;
use tooldock_credentials::keys::{KeyStore, NewKey};

use super::*;
use crate::rejection::Reason;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn tokens() -> BearerTokens {
    let token = |name: &str, text: &str, namespaces: &[&str]| TokenConfig {
        name: name.into(),
        sha256: TokenDigest::of(text.as_bytes()),
        namespaces: namespaces.iter().map(|&name| name.into()).collect(),
    };
    BearerTokens::new(
        &[
            token("ci", "ci-old", &["github", "dev-*"]),
            token("ci", "ci-new", &["github", "dev-*"]),
            token("ops", "change_me_ops", &["*"]),
        ],
        Some(&SecretToken::new("change_me").unwrap()),
    )
    .unwrap()
}

fn headers(values: &[&[u8]]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
    }
    headers
}

/// The refusal of unknown credentials.
fn refused(tokens: &BearerTokens, headers: &HeaderMap) -> Rejection {
    match tokens.authenticate(&Fields::of(headers), HERE) {
        Err(Unknown::Refused(rejection) | Unknown::Wrong(rejection)) => rejection,
        other => panic!("{other:?}"),
    }
}

fn who(value: &str) -> Option<String> {
    let tokens = tokens();
    let principal = tokens
        .authenticate(&Fields::of(&headers(&[value.as_bytes()])), HERE)
        .ok()?;
    Some(principal.name.to_string())
}

#[test]
fn only_the_unrestricted_token_opens_the_management_tools_without_a_word_about_them() {
    let tokens = tokens();
    let opens = |value: &str| {
        let headers = headers(&[value.as_bytes()]);
        let principal = tokens.authenticate(&Fields::of(&headers), HERE).unwrap();
        principal.opens(&NamespaceName::system())
    };
    assert!(opens("Bearer change_me"));
    assert!(!opens("Bearer change_me_ops") && !opens("Bearer ci-old"));
    assert!(!tokens.anonymous().opens(&NamespaceName::system()));
}

#[test]
fn tokens_stand_for_their_principals() {
    for (value, principal) in [
        ("Bearer change_me", BEARER),
        ("bearer change_me", BEARER),
        ("BEARER   change_me  ", BEARER),
        ("Bearer ci-old", "ci"),
        ("Bearer ci-new", "ci"),
        ("Bearer change_me_ops", "ops"),
    ] {
        assert_eq!(who(value).as_deref(), Some(principal), "{value}");
    }
}

#[test]
fn everything_else_is_401_with_a_challenge() {
    let tokens = tokens();
    for (value, challenge) in [
        (&b"Bearer change_me2"[..], "Bearer"),
        (b"Bearer change_m", "Bearer"),
        (b"Bearer change_me change_me", "Bearer"),
        (b"Bearer \xff\xfe", "Bearer"),
        (b"Bearer", "Bearer"),
        (b"Bearer ", "Bearer"),
        (b"Bearerchange_me", "Bearer"),
        (b"Basic Y2hhbmdlX21l", "Bearer"),
        (b"change_me", "Bearer"),
        (b"", "Bearer"),
    ] {
        let refused = refused(&tokens, &headers(&[value]));
        assert_eq!(refused.reason, Reason::Unauthorized);
        let expected = (WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        assert_eq!(refused.headers, [expected], "{value:?}");
    }
    let none = refused(&tokens, &HeaderMap::new());
    assert_eq!(none.headers[0].1, "Bearer");
}

#[test]
fn two_authorization_headers_are_refused_even_when_both_are_right() {
    let both = headers(&[b"Bearer change_me", b"Bearer change_me"]);
    let refused = refused(&tokens(), &both);
    assert_eq!(refused.reason, Reason::Unauthorized);
}

#[test]
fn a_refusal_never_repeats_the_token() {
    let refused = refused(&tokens(), &headers(&[b"Bearer canary-4711"]));
    assert!(!format!("{refused:?}").contains("canary"));
}

#[test]
fn a_token_opens_its_namespaces_only() {
    let tokens = tokens();
    let principal = tokens
        .authenticate(&Fields::of(&headers(&[b"Bearer ci-new"])), HERE)
        .unwrap();
    for (namespace, open) in [
        ("github", true),
        ("dev-2", true),
        ("github2", false),
        ("dev", false),
    ] {
        assert_eq!(
            principal.namespaces.contains(namespace),
            open,
            "{namespace}"
        );
    }
}

#[test]
fn the_unrestricted_token_stays_unrestricted_when_it_is_listed_too() {
    let listed = TokenConfig {
        name: "ci".into(),
        sha256: TokenDigest::of(b"change_me"),
        namespaces: vec!["github".into()],
    };
    let bearer = SecretToken::new("change_me").unwrap();
    let tokens = BearerTokens::new(&[listed], Some(&bearer)).unwrap();
    let principal = tokens
        .authenticate(&Fields::of(&headers(&[b"Bearer change_me"])), HERE)
        .unwrap();
    assert!(principal.namespaces.contains("anything"));
}

fn new_key(networks: &[&str]) -> NewKey {
    NewKey {
        name: "ci".into(),
        made_by: None,
        scopes: vec!["read".into()],
        namespaces: vec!["dev-*".into()],
        networks: networks.iter().map(|it| it.parse().unwrap()).collect(),
        limits: vec!["5/10".parse().unwrap()],
        lifetime: Some(std::time::Duration::from_secs(60)),
        kind: keys::KeyKind::Relay,
    }
}

#[test]
fn an_api_key_stands_for_a_principal_of_its_own_with_its_rights() {
    let folder = tempfile::tempdir().unwrap();
    let store = KeyStore::open(folder.path().join("keys.json"), ScopeTable::default());
    let store = store.unwrap();
    let mut tokens = tokens();
    tokens.set_keys(store.tables());
    let sent = |key: &keys::MadeKey| headers(&[format!("Bearer {}", key.text.expose()).as_bytes()]);
    let key = store.create(new_key(&[])).unwrap();
    let sends = sent(&key);
    let principal = tokens.authenticate(&Fields::of(&sends), HERE).unwrap();
    // There is a token `ci`, too: another principal.
    assert_eq!(&**principal.name(), "key:ci");
    assert!(principal.opens(&"dev-1".parse().unwrap()));
    assert!(!principal.opens(&"github".parse().unwrap()));
    assert!(!principal.opens(&NamespaceName::system()));
    assert!(principal.grant().unwrap().tools.allows("project_list"));
    assert!(principal.ends().is_some() && principal.limits().len() == 1);
    assert_eq!(who("Bearer ci-old").as_deref(), Some("ci"));

    let elsewhere = store.create(new_key(&["10.0.0.0/8"])).unwrap();
    store.revoke(key.record.id).unwrap();
    let mut causes = std::collections::HashSet::new();
    for (sends, cause) in [
        (sends, "revoked"),
        (sent(&elsewhere), "network"),
        (headers(&[b"Bearer td_typo"]), "checksum"),
    ] {
        let refused = refused(&tokens, &sends);
        assert_eq!(refused.message, "invalid or expired API key");
        assert_eq!(refused.reason, Reason::Unauthorized);
        assert!(
            refused.cause.unwrap().contains(cause),
            "{:?}",
            refused.cause
        );
        causes.insert(refused.headers);
    }
    assert_eq!(causes.len(), 1, "all of them are told the same");
}

#[test]
fn only_the_unrestricted_token_makes_keys_without_a_maker() {
    let tokens = tokens();
    let maker = |value: &str| {
        let headers = headers(&[value.as_bytes()]);
        let principal = tokens.authenticate(&Fields::of(&headers), HERE).unwrap();
        principal.maker().clone()
    };
    assert!(matches!(maker("Bearer change_me"), KeyMaker::Operator));
    assert!(matches!(tokens.anonymous().maker(), KeyMaker::Barred(_)));
    let (KeyMaker::Credential(old), KeyMaker::Credential(new)) =
        (maker("Bearer ci-old"), maker("Bearer ci-new"))
    else {
        panic!("entries make keys of their own");
    };
    assert_eq!((&*old.principal, old.ends), ("ci", None));
    assert_eq!(*old.namespaces, ["github".to_owned(), "dev-*".to_owned()]);
    assert_ne!(old.fingerprint, new.fingerprint, "of another token");
}
