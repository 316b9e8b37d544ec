//! A gateway that authenticates at an authorization server with a private key in place of a secret (`private_key_jwt`).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};

use super::authorized::shown;
use super::connected::{Visitor, asked, asking_session};
use super::issuers::remote_with;
use super::*;
use crate::support::oidc::Provider;
use crate::support::ports::free_address;

/// Starts an authorization server with a client `gw` that has only the public part of `key`, named `k1`.
fn provider(key: &KeyPair, redirect: &str) -> Provider {
    let point = key.der_bytes();
    let part = |range| BASE64_URL_SAFE_NO_PAD.encode(&point[range]);
    Provider::start_with(
        3600,
        &json!([{
            "client_id": "gw", "token_endpoint_auth_method": "private_key_jwt",
            "token_endpoint_auth_signing_alg": "ES256", "redirect_uris": [redirect],
            "grant_types": ["client_credentials", "authorization_code", "refresh_token"],
            "jwks": {"keys": [{"kty": "EC", "crv": "P-256", "kid": "k1", "use": "sig", "x": part(1..33), "y": part(33..65)}]},
        }]),
    )
}

fn new_key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

#[tokio::test]
async fn a_client_with_a_private_key_gets_tokens_and_the_key_is_shown_nowhere() {
    let key = new_key();
    let provider = provider(&key, "http://127.0.0.1/callback");
    let far = Backend::start("far").await;
    let oauth = json!({
        "client_id": "gw", "client_key": "${TOKEN}", "client_key_id": "k1",
        "issuer": provider.issuer, "scopes": ["mcp:all"],
    });
    for (pem, works) in [
        (key.serialize_pem(), true),
        (new_key().serialize_pem(), false),
    ] {
        let token = json!({"name": "ada", "sha256": sha256(ADA), "namespaces": ["*"]});
        let gateway = Gateway::empty()
            .config(
                json!({"admission": {"tokens": [token]}, "upstreams": remote_with(&far, &oauth)}),
            )
            .env("SECRETS_KEY", KEY)
            .start_with(|data| set(data, "global", &pem))
            .await;
        let (status, answer) = call(&gateway, ADA, "x").await;
        assert_eq!(status == 200, works, "{answer}");
        if works {
            let token = shown(&far).expect("a call");
            assert!(token.starts_with("Bearer ey"), "{token}");
        } else {
            assert!(answer.to_string().contains("invalid_client"), "{answer}");
        }
        let log = gateway.log();
        let secret = pem.lines().nth(1).unwrap();
        for hidden in [secret, "client_assertion=", "eyJhbGciOiJFUzI1NiIsImtpZCI6"] {
            assert!(
                !log.contains(hidden) && !answer.to_string().contains(hidden),
                "{log}"
            );
        }
    }
}

#[tokio::test]
async fn an_authorization_code_is_redeemed_with_an_assertion() {
    let key = new_key();
    let [core, metrics] = [(); 2].map(|()| free_address());
    let origin = format!("http://{core}");
    let provider = provider(&key, &format!("{origin}/connect/callback"));
    let far = Backend::start("far").await;
    let oauth = json!({
        "grant": "authorization_code", "personal": true, "client_id": "gw", "client_key": "${CLIENT_KEY}",
        "issuer": provider.issuer, "scopes": ["mcp:all"],
    });
    let token = json!({"name": "ada", "sha256": sha256(ADA), "namespaces": ["*"]});
    let gateway = Gateway::empty()
        .listening(core, metrics)
        .config(json!({
            "admission": {"public_url": origin, "tokens": [token]}, "upstreams": remote_with(&far, &oauth),
        }))
        .env("SECRETS_KEY", KEY)
        .env("CLIENT_KEY", &key.serialize_pem())
        .start()
        .await;
    let session = asking_session(&gateway, ADA).await;
    let mut call = session.call(1, "x", json!({})).await;
    let question = asked(&session, &mut call, "accept").await;
    let link = question["url"].as_str().unwrap();
    Visitor::new().connect(link, ADA, &provider.issuer).await;
    assert_eq!(
        call.message().await["method"],
        "notifications/elicitation/complete"
    );
    let answer = call.message().await;
    assert_eq!(answer["result"]["who"], "far", "{answer}");
}
