//! Remote servers for which the gateway exchanges the access tokens of clients. The servers get only exchanged tokens, and no
//! other credential of a client.

use super::*;
use crate::support::backend::{Backend, header};
use crate::support::session::Session;
use crate::support::sha256;

const KEY: &str = "a-token-of-the-configuration-0123456789";

#[tokio::test]
async fn each_callers_token_is_exchanged_once_and_only_the_result_goes_to_the_server() {
    for mode in ["client", "pass_through"] {
        let far = Backend::start("far").await;
        let (issuer, server) = (Issuer::start("one").await, Issuer::start("two").await);
        let mut config = config(&[&issuer]);
        config["admission"]["tokens"] =
            json!([{"name": "ada", "sha256": sha256(KEY), "namespaces": ["*"]}]);
        config["upstreams"] = json!({"remote": {"far": {
            "backends": [far.url()], "mode": mode, "health": {"active": {"every": "1h"}},
            "oauth": {
                "grant": "token_exchange", "client_id": "gw", "client_secret": "${IDP_SECRET}",
                "token_url": format!("{}/token", server.url), "scopes": ["far.use"], "resource": "https://far.example",
            },
        }}});
        let gateway = Gateway::empty()
            .env("IDP_SECRET", "hunter2")
            .config(config)
            .start()
            .await;
        has_keys(&gateway, &[&issuer]).await;
        let call = async |credential: &str| {
            let silent = json!({});
            let session =
                Session::try_start_as(&gateway, "far", "2025-11-25", credential, silent).await?;
            let called = json!({"name": "x", "arguments": {}});
            let answer = session.request(2, "tools/call", called).await;
            match answer.get("error").is_none() && answer["result"]["isError"] != json!(true) {
                true => Ok(answer),
                false => Err(answer.to_string()),
            }
        };
        let exchanges = || server.state().requests.get("/token").copied().unwrap_or(0);
        for (number, subject) in ["ada", "bob"].into_iter().enumerate() {
            let given = format!("canary-exchanged-for-{subject}");
            server.state().exchanged =
                Some(json!({"access_token": given, "token_type": "Bearer", "expires_in": 600}));
            let token = issuer.token(json!({"sub": subject}));
            for _ in 0..2 {
                call(&token)
                    .await
                    .unwrap_or_else(|error| panic!("{mode}: {error}"));
                let (head, _) = far.requests("tools/call").pop().expect("a call");
                let expected = format!("Bearer {given}");
                assert_eq!(header(&head, "authorization"), Some(expected), "{mode}");
            }
            assert_eq!(
                exchanges(),
                number + 1,
                "{mode}: one exchange for {subject}"
            );
            let asked = server.state().asked.clone();
            for part in [
                "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange",
                &format!("subject_token={token}"),
                "resource=https%3A%2F%2Ffar.example",
                "scope=far.use",
                "client_secret=hunter2",
            ] {
                assert!(asked.contains(part), "{mode}: {part}: {asked}");
            }
        }
        // An API key cannot be exchanged, so nothing is sent to the server.
        let before = far.all().len();
        let error = call(KEY).await.expect_err("no access token");
        assert!(!error.contains("canary"), "{mode}: {error}");
        assert_eq!(far.all().len(), before, "{mode}: {error}");
        // The authorization server refuses a new caller. Nothing is sent, and the error has the refusal's text without the token.
        server.state().exchanged = None;
        let token = issuer.token(json!({"sub": "carol"}));
        let error = call(&token).await.expect_err("no exchange");
        assert!(!error.contains(&token), "{mode}: {error}");
        assert_eq!(far.all().len(), before, "{mode}: {error}");
        let log = gateway.log();
        for (head, body) in far.all() {
            assert!(!head.contains(&token) && !body.contains(&token) && !head.contains(KEY));
        }
        for hidden in [&*token, "canary-exchanged", "hunter2"] {
            assert!(!log.contains(hidden), "{mode}: {log}");
        }
    }
}

#[tokio::test]
async fn an_identity_provider_vouches_for_the_caller_at_the_servers_authorization_server() {
    let far = Backend::start("far").await;
    let [callers, provider, server] = [
        Issuer::start("one").await,
        Issuer::start("two").await,
        Issuer::start("three").await,
    ];
    let mut config = config(&[&callers]);
    config["upstreams"] = json!({"remote": {"far": {
        "backends": [far.url()], "mode": "client", "health": {"active": {"every": "1h"}},
        "oauth": {
            "grant": "id_jag", "issuer": server.url, "client_id": "gw", "client_secret": "${SERVER_SECRET}",
            "scopes": ["far.use"], "resource": "https://far.example",
            "identity": {
                "token_url": format!("{}/token", provider.url), "client_id": "gw-at-idp", "client_secret": "${IDP_SECRET}",
            },
        },
    }}});
    let gateway = Gateway::empty()
        .env("IDP_SECRET", "hunter2")
        .env("SERVER_SECRET", "swordfish")
        .config(config)
        .start()
        .await;
    has_keys(&gateway, &[&callers]).await;
    provider.state().exchanged = Some(json!({
        "access_token": "canary-assertion", "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "token_type": "N_A", "expires_in": 60,
    }));
    let granted =
        json!({"access_token": "canary-granted", "token_type": "Bearer", "expires_in": 600});
    server.state().exchanged = Some(granted);
    let token = callers.token(json!({"sub": "ada"}));
    let session = Session::try_start_as(&gateway, "far", "2025-11-25", &token, json!({})).await;
    let session = session.expect("a session");
    let called = json!({"name": "x", "arguments": {}});
    let answer = session.request(2, "tools/call", called.clone()).await;
    assert_eq!(answer["result"]["who"], "far", "{answer}");
    let (head, _) = far.requests("tools/call").pop().expect("a call");
    let expected = Some("Bearer canary-granted".to_owned());
    assert_eq!(header(&head, "authorization"), expected);

    let asked = provider.state().asked.clone();
    let audience = server.url.replace(':', "%3A").replace('/', "%2F");
    for part in [
        "requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aid-jag",
        &format!("audience={audience}"),
        &format!("subject_token={token}"),
        "client_id=gw-at-idp",
        "client_secret=hunter2",
        "scope=far.use",
    ] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    let asked = server.state().asked.clone();
    for part in [
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer",
        "assertion=canary-assertion",
        "client_secret=swordfish",
        "resource=https%3A%2F%2Ffar.example",
    ] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    assert!(
        !asked.contains(&token) && !asked.contains("hunter2"),
        "{asked}"
    );

    // The identity provider refuses an assertion about another caller. Neither the server nor its authorization server gets a
    // request.
    provider.state().exchanged = None;
    let (before, requests) = (far.all().len(), server.state().requests["/token"]);
    let other = callers.token(json!({"sub": "bob"}));
    let refused = Session::try_start_as(&gateway, "far", "2025-11-25", &other, json!({})).await;
    let refused = match refused {
        Ok(session) => session.request(2, "tools/call", called).await.to_string(),
        Err(error) => error,
    };
    assert!(
        refused.contains("its token could not be fetched"),
        "{refused}"
    );
    assert_eq!(
        (far.all().len(), server.state().requests["/token"]),
        (before, requests)
    );
    let log = gateway.log();
    for hidden in [&*token, &*other, "canary", "hunter2", "swordfish"] {
        assert!(!log.contains(hidden) && !refused.contains(hidden), "{log}");
    }
}
