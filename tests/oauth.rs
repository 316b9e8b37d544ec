//! Access tokens of OAuth issuers: who is let in by them, what clients are told, and what an issuer that misbehaves cannot do.

use std::time::{Duration, Instant};

use ring::hmac;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::manager::{Manager, with_manager};
use crate::support::{DEADLINE, Gateway, TOKEN, eventually, eventually_within, tools};

mod exchanged;
pub mod issuer;
mod passed_on;
mod places;
mod sdk;
mod web_login;

use issuer::{Issuer, Mood, seconds};

const PUBLIC: &str = "https://gw.example";
const METADATA: &str = "https://gw.example/.well-known/oauth-protected-resource";

fn entry(issuer: &Issuer) -> Value {
    json!({
        "issuer": issuer.url, "audience": "https://gw.example/mcp", "algorithms": ["EdDSA"],
        "scopes": { "mcp:all": "admin", "mcp:add": "adding" },
        "introspection": { "url": format!("{}/introspect", issuer.url), "client_id": "gw", "client_secret": "${IDP_SECRET}" },
    })
}

fn config(issuers: &[&Issuer]) -> Value {
    let entries: Vec<_> = issuers.iter().map(|it| entry(it)).collect();
    json!({
        "admission": { "public_url": PUBLIC, "oauth": entries },
        "relay": { "scopes": { "adding": ["add"] } },
        "namespaces": { "overrides": { "calc": { "aliases": ["/old/calc"] } } },
    })
}

async fn gateway(issuers: &[&Issuer]) -> Gateway {
    Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .env("IDP_SECRET", "hunter2")
        .env("LOG_LEVEL", "debug")
        .config(config(issuers))
        .start()
        .await
}

/// A gateway that answers each wrong token at once.
async fn unslowed(issuer: &Issuer) -> Gateway {
    let mut config = config(&[issuer]);
    config["admission"]["failures"] = json!("off");
    Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .env("IDP_SECRET", "hunter2")
        .config(config)
        .start()
        .await
}

/// Waits until the first keys of all issuers are there.
async fn has_keys(gateway: &Gateway, issuers: &[&Issuer]) {
    for issuer in issuers {
        let line = format!(
            "tooldock_oauth_key_fetches_total{{issuer=\"{}\",outcome=\"fetched\"}} ",
            issuer.url
        );
        eventually("the keys are fetched", || async {
            gateway.metrics_text().await.contains(&line).then_some(())
        })
        .await;
    }
}

/// The status and the challenge of a REST call of `add`.
async fn call(gateway: &Gateway, tool: &str, token: &str) -> (u16, String) {
    let sent = gateway
        .client
        .post(gateway.url(&format!("/tools/{tool}")))
        .header("X-Namespace", "calc")
        .bearer_auth(token)
        .json(&json!({ "a": 2, "b": 3 }))
        .send();
    let response = sent.await.expect("answered");
    (response.status().as_u16(), challenge(&response))
}

fn challenge(response: &reqwest::Response) -> String {
    let value = response.headers().get("www-authenticate");
    value.map_or_else(String::new, |it| it.to_str().unwrap().to_owned())
}

async fn status(gateway: &Gateway, token: &str) -> u16 {
    call(gateway, "add", token).await.0
}

#[tokio::test]
async fn keys_of_an_access_token_open_no_more_than_the_token_and_end_with_it() {
    let issuer = Issuer::start("one").await;
    let mut config = config(&[&issuer]);
    config["admission"]["oauth"][0]["namespaces"] = json!({"claim": "spaces"});
    let (builder, address) = with_manager(Gateway::with_tools([
        ("calc", "math_tools.py", tools::MATH),
        ("shared", "math_tools.py", tools::MATH),
    ]));
    let gateway = builder.env("IDP_SECRET", "hunter2").config(config.clone());
    let gateway = gateway.start().await;
    has_keys(&gateway, &[&issuer]).await;
    let ends = seconds() + 25;
    // The leeway of 60 seconds belongs to the token.
    let token = issuer.token(json!({"spaces": ["_system", "calc"], "exp": ends - 60}));
    let manager = Manager::open_as(address, &token).await;
    for wide in [json!(["*", "_system"]), json!(["shared"])] {
        let asked = json!({"name": "ci", "scopes": ["admin"], "namespaces": wide});
        let refused = manager.call("token_create", asked).await;
        assert!(
            refused.error().contains("_system, calc alone"),
            "{refused:?}"
        );
    }
    let asked = json!({"name": "ci", "scopes": ["admin"], "expires": "90d"});
    let made = manager.call("token_create", asked).await.value();
    let ada = format!("oauth:{}#ada", issuer.url);
    assert_eq!(made["principal"], format!("key:{ada}/ci"));
    assert_eq!(
        (&made["made_by"], &made["namespaces"]),
        (&json!(ada), &json!(["_system", "calc"]))
    );
    let key = made["token"].as_str().unwrap().to_owned();
    assert_eq!(status(&gateway, &key).await, 200);
    // Another audience: the entry stands behind the key no more.
    let mut changed = config.clone();
    changed["admission"]["oauth"][0]["audience"] = json!("https://other.example");
    for (config, expected) in [(changed, 401), (config, 200)] {
        gateway.reconfigure(config);
        gateway.signal(Signal::HUP);
        eventually("the key follows the entry", async || {
            (status(&gateway, &key).await == expected).then_some(())
        })
        .await;
    }
    eventually_within(
        Duration::from_secs(60),
        "the key ends with the token",
        async || (status(&gateway, &key).await == 401).then_some(()),
    )
    .await;
}

#[tokio::test]
async fn a_token_is_let_in_with_its_scopes_and_nothing_else() {
    let issuer = Issuer::start("one").await;
    let gateway = gateway(&[&issuer]).await;
    has_keys(&gateway, &[&issuer]).await;
    assert_eq!(status(&gateway, &issuer.token(json!({}))).await, 200);
    assert_eq!(
        status(&gateway, TOKEN).await,
        200,
        "configured tokens stay as they are"
    );

    let narrow = issuer.token(json!({ "scope": "mcp:add" }));
    assert_eq!(status(&gateway, &narrow).await, 200);
    let (refused, said) = call(&gateway, "multiply", &narrow).await;
    assert_eq!(refused, 403);
    assert!(said.contains("error=\"insufficient_scope\""), "{said}");
    assert!(
        said.contains(&format!("resource_metadata=\"{METADATA}\"")),
        "{said}"
    );
    let listed = gateway
        .client
        .get(gateway.url("/tools"))
        .header("X-Namespace", "calc")
        .bearer_auth(&narrow);
    let listed = listed.send().await.unwrap().text().await.unwrap();
    assert!(
        listed.contains("\"add\"") && !listed.contains("\"multiply\""),
        "{listed}"
    );

    let nothing = issuer.token(json!({ "scope": "openid" }));
    let (refused, said) = call(&gateway, "add", &nothing).await;
    assert_eq!(refused, 403);
    assert!(
        said.contains("insufficient_scope") && said.contains("scope=\"mcp:add mcp:all\""),
        "{said}"
    );

    for (changes, why) in [
        (
            json!({ "aud": "https://other.example" }),
            "another audience",
        ),
        (json!({ "iss": "https://evil.example" }), "another issuer"),
        (json!({ "exp": seconds() - 120 }), "expired"),
        (json!({ "nbf": seconds() + 120 }), "from the future"),
    ] {
        let (refused, said) = call(&gateway, "add", &issuer.token(changes)).await;
        assert_eq!(refused, 401, "{why}");
        assert!(said.contains("error=\"invalid_token\""), "{why}: {said}");
    }
    // Clocks that differ a little.
    for changes in [
        json!({ "exp": seconds() - 30 }),
        json!({ "nbf": seconds() + 30 }),
    ] {
        assert_eq!(status(&gateway, &issuer.token(changes)).await, 200);
    }
    let log = gateway.log();
    let signature = narrow.rsplit('.').next().unwrap();
    assert!(
        !log.contains(signature) && !log.contains("hunter2"),
        "a token or a password is in the log"
    );
}

#[tokio::test]
async fn tokens_that_would_get_around_the_keys_are_refused() {
    let (issuer, other) = (Issuer::start("one").await, Issuer::start("one").await);
    let gateway = gateway(&[&issuer, &other]).await;
    has_keys(&gateway, &[&issuer, &other]).await;
    let right = issuer.token(json!({}));
    let (signed, _) = right.rsplit_once('.').unwrap();
    let unsigned = issuer.token_with(&json!({ "alg": "none" }), json!({}));
    let unsigned = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
    let confused = {
        let header = json!({ "alg": "HS256", "kid": "one" });
        let token = issuer.token_with(&header, json!({}));
        let (signed, _) = token.rsplit_once('.').unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &issuer.public());
        let tag = hmac::sign(&key, signed.as_bytes());
        use base64::Engine as _;
        let tag = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(tag.as_ref());
        format!("{signed}.{tag}")
    };
    for (token, why) in [
        (unsigned, "alg none"),
        (confused, "the public key as a shared secret"),
        (format!("{signed}."), "no signature"),
        (
            other.token(json!({ "iss": issuer.url })),
            "the key of another issuer",
        ),
        (
            issuer.token_with(
                &json!({ "alg": "EdDSA", "kid": "one", "crit": ["x"] }),
                json!({}),
            ),
            "crit",
        ),
        ("a".repeat(20_000), "long"),
    ] {
        assert_eq!(status(&gateway, &token).await, 401, "{why}");
    }
    // Equal subjects at two issuers are two principals.
    let mut sessions = Vec::new();
    for issuer in [&issuer, &other] {
        let token = issuer.token(json!({}));
        assert_eq!(status(&gateway, &token).await, 200);
        sessions.push(token);
    }
    let opened = gateway
        .client
        .post(gateway.url("/mcp/calc"))
        .bearer_auth(&sessions[0])
        .header("Accept", "application/json, text/event-stream")
        .json(&initialize())
        .send()
        .await
        .unwrap();
    let session = opened.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let ended = |token: String| {
        gateway
            .client
            .delete(gateway.url("/mcp/calc"))
            .bearer_auth(token)
            .header("Mcp-Session-Id", session.clone())
            .send()
    };
    assert_eq!(ended(sessions[1].clone()).await.unwrap().status(), 404);
    assert!(
        ended(sessions[0].clone())
            .await
            .unwrap()
            .status()
            .is_success()
    );
}

/// A session of 2025-06-18 that is ready for requests.
async fn opened(gateway: &Gateway, namespace: &str, token: &str) -> String {
    let post = |message: Value| {
        gateway
            .client
            .post(gateway.url(&format!("/mcp/{namespace}")))
            .bearer_auth(token)
            .header("Accept", "application/json, text/event-stream")
            .json(&message)
    };
    let mut message = initialize();
    message["params"]["protocolVersion"] = json!("2025-06-18");
    let answer = post(message).send().await.unwrap();
    let session = answer.headers()["mcp-session-id"].to_str().unwrap();
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let ready = post(ready)
        .header("Mcp-Session-Id", session)
        .header("MCP-Protocol-Version", "2025-06-18");
    assert_eq!(ready.send().await.unwrap().status(), 202);
    session.to_owned()
}

fn initialize() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } })
}

#[tokio::test]
async fn a_rotated_key_counts_with_its_first_token_and_made_up_keys_cause_few_fetches() {
    let issuer = Issuer::start("one").await;
    let gateway = unslowed(&issuer).await;
    has_keys(&gateway, &[&issuer]).await;
    let old = issuer.token(json!({}));
    assert_eq!(status(&gateway, &old).await, 200);
    issuer.rotate("two");
    let new = issuer.token(json!({}));
    assert_eq!(status(&gateway, &new).await, 200);
    assert_eq!(status(&gateway, &old).await, 401, "its key is gone");

    let (before, begun) = (issuer.fetches(), Instant::now());
    for id in 0..1000 {
        let header = json!({ "alg": "EdDSA", "kid": format!("made-up-{id}") });
        let token = issuer.token_with(&header, json!({}));
        assert_eq!(status(&gateway, &token).await, 401);
    }
    let fetches = issuer.fetches() - before;
    let most = 2 + begun.elapsed().as_secs() as usize / 5;
    assert!(fetches <= most, "{fetches} fetches, not {most}");
    // In between, another new key counts as soon as keys may be fetched again.
    issuer.rotate("three");
    let newer = issuer.token(json!({}));
    eventually("the new key counts", || async {
        (status(&gateway, &newer).await == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_issuer_that_fails_stops_nobody_with_a_known_key_and_lets_nobody_in() {
    let issuer = Issuer::start("one").await;
    let elsewhere = Issuer::start("one").await;
    let gateway = gateway(&[&issuer]).await;
    has_keys(&gateway, &[&issuer]).await;
    let known = issuer.token(json!({}));
    for mood in [
        Mood::Huge,
        Mood::Elsewhere(elsewhere.url.clone()),
        Mood::Down,
        Mood::Hangs,
    ] {
        issuer.set(mood.clone());
        // The configuration is read again: the keys stay.
        gateway.signal(Signal::HUP);
        let header = json!({ "alg": "EdDSA", "kid": format!("{mood:?}") });
        let unknown = issuer.token_with(&header, json!({}));
        let begun = Instant::now();
        let (refused, said) = call(&gateway, "add", &unknown).await;
        assert_eq!((refused, &*said), (503, ""), "{mood:?}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{mood:?}");
        assert_eq!(status(&gateway, &known).await, 200, "{mood:?}");
    }
    assert_eq!(elsewhere.fetches(), 0, "a redirect is not followed");
}

#[tokio::test]
async fn an_issuer_that_was_never_there_lets_nobody_in() {
    let issuer = Issuer::start("one").await;
    issuer.set(Mood::Hangs);
    let gateway = gateway(&[&issuer]).await;
    let token = issuer.token(json!({}));
    assert_eq!(call(&gateway, "add", &token).await, (503, String::new()));
    assert_eq!(status(&gateway, TOKEN).await, 200);
    issuer.set(Mood::Right);
    eventually_within(Duration::from_secs(60), "the issuer is there", || async {
        (status(&gateway, &token).await == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_huge_set_of_keys_is_refused_and_the_old_one_stays() {
    let issuer = Issuer::start("one").await;
    let gateway = gateway(&[&issuer]).await;
    has_keys(&gateway, &[&issuer]).await;
    let known = issuer.token(json!({}));
    issuer.set(Mood::Huge);
    let header = json!({ "alg": "EdDSA", "kid": "new" });
    let unknown = issuer.token_with(&header, json!({}));
    assert_eq!(status(&gateway, &unknown).await, 503);
    eventually("the log says why", || async {
        gateway
            .log()
            .contains("larger than 1048576 bytes")
            .then_some(())
    })
    .await;
    assert_eq!(status(&gateway, &known).await, 200);
}

#[tokio::test]
async fn an_opaque_token_is_asked_about_once_and_ends_when_it_is_revoked() {
    let issuer = Issuer::start("one").await;
    let gateway = gateway(&[&issuer]).await;
    let answer = json!({ "active": true, "sub": "ada", "aud": "https://gw.example/mcp", "scope": "mcp:all" });
    issuer.state().opaque.insert("opaque-1".to_owned(), answer);
    let asked = || {
        issuer
            .state()
            .requests
            .get("/introspect")
            .copied()
            .unwrap_or(0)
    };
    for _ in 0..20 {
        assert_eq!(status(&gateway, "opaque-1").await, 200);
    }
    assert_eq!(asked(), 1);
    // `gw:hunter2`
    assert!(
        issuer
            .state()
            .asked
            .contains("Authorization: Basic Z3c6aHVudGVyMg==")
    );
    for _ in 0..20 {
        assert_eq!(status(&gateway, "opaque-2").await, 401);
    }
    assert_eq!(asked(), 2);
    for token in ["td_0123456789", "oub_0123456789", "not a token"] {
        assert_eq!(status(&gateway, token).await, 401, "{token}");
    }
    assert_eq!(asked(), 2, "nobody's API key is shown to an issuer");

    let opened = gateway
        .client
        .post(gateway.url("/mcp/calc"))
        .bearer_auth("opaque-1")
        .header("Accept", "application/json, text/event-stream")
        .json(&initialize())
        .send()
        .await
        .unwrap();
    let session = opened.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let mut stream = gateway
        .client
        .get(gateway.url("/mcp/calc"))
        .bearer_auth("opaque-1")
        .header("Accept", "text/event-stream")
        .header("Mcp-Session-Id", session)
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), 200);
    let revoked = Instant::now();
    issuer.state().opaque.clear();
    let ended = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(Duration::from_secs(65), ended)
        .await
        .expect("the stream ends");
    assert!(
        revoked.elapsed() > Duration::from_secs(30),
        "it was still known"
    );
    assert_eq!(status(&gateway, "opaque-1").await, 401);
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let issuer = Issuer::start("one").await;
    let mut config = config(&[&issuer]);
    config["admission"]["oauth"][0]["leeway"] = json!("0s");
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .env("IDP_SECRET", "hunter2")
        .config(config)
        .start()
        .await;
    has_keys(&gateway, &[&issuer]).await;
    let token = issuer.token(json!({ "exp": seconds() + 4 }));
    let stream = stream(&gateway, &token).await;
    ends(stream).await;
    assert_eq!(status(&gateway, &token).await, 401);
}

#[tokio::test]
async fn a_stream_ends_when_its_issuer_takes_back_the_key_of_its_token() {
    let issuer = Issuer::start("one").await;
    let gateway = gateway(&[&issuer]).await;
    has_keys(&gateway, &[&issuer]).await;
    let old = issuer.token(json!({}));
    let stream = stream(&gateway, &old).await;
    issuer.rotate("two");
    // Has the newer keys fetched.
    assert_eq!(status(&gateway, &issuer.token(json!({}))).await, 200);
    ends(stream).await;
    assert_eq!(status(&gateway, &old).await, 401);
}

/// A stream of a session that the holder of that token opens.
async fn stream(gateway: &Gateway, token: &str) -> reqwest::Response {
    let opened = gateway
        .client
        .post(gateway.url("/mcp/calc"))
        .bearer_auth(token)
        .header("Accept", "application/json, text/event-stream")
        .json(&initialize())
        .send()
        .await
        .unwrap();
    let session = opened.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let stream = gateway
        .client
        .get(gateway.url("/mcp/calc"))
        .bearer_auth(token)
        .header("Accept", "text/event-stream")
        .header("Mcp-Session-Id", session)
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), 200);
    stream
}

async fn ends(mut stream: reqwest::Response) {
    let ended = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(DEADLINE, ended)
        .await
        .expect("the stream ends");
}

#[tokio::test]
async fn every_path_has_its_metadata_and_its_challenge() {
    let issuer = Issuer::start("one").await;
    let mut settings = config(&[&issuer]);
    settings["admission"]["hosts"] = json!([]);
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .env("IDP_SECRET", "hunter2")
        .config(settings)
        .core(json!({ "path_prefix": "/front" }))
        .start()
        .await;
    let get = |path: &str| gateway.client.get(gateway.url(path)).send();
    for (path, resource) in [
        ("/mcp/calc", "https://gw.example/front/mcp/calc"),
        ("/front/mcp/calc", "https://gw.example/front/mcp/calc"),
        ("/mcp", "https://gw.example/front/mcp"),
        ("/old/calc", "https://gw.example/front/old/calc"),
        ("", "https://gw.example/front"),
    ] {
        let at = format!("/.well-known/oauth-protected-resource{path}");
        let answer = get(&at).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["content-type"], "application/json");
        let document: Value = answer.json().await.unwrap();
        assert_eq!(document["resource"], resource);
        assert_eq!(document["authorization_servers"], json!([issuer.url]));
        assert_eq!(document["scopes_supported"], json!(["mcp:add", "mcp:all"]));
    }
    for path in [
        "oauth-protected-resource/tools",
        "oauth-authorization-server",
        "x",
    ] {
        let answer = get(&format!("/.well-known/{path}")).await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
    }
    for (path, at) in [
        ("/mcp/calc", "/front/mcp/calc"),
        ("/mcp", "/front/mcp"),
        ("/old/calc", "/front/old/calc"),
        ("/old/calc/", "/front/old/calc"),
        ("/old/none", "/front/old/none"),
        ("/tools", "/front"),
    ] {
        let answer = gateway.client.get(gateway.url(path)).send().await.unwrap();
        assert_eq!(answer.status(), 401);
        let said = challenge(&answer);
        assert!(
            said.contains(&format!("resource_metadata=\"{METADATA}{at}\"")),
            "{said}"
        );
        assert!(!said.contains("error="), "{said}");
    }
    // A stranger is told the same of an alias and of an unknown path.
    for method in ["GET", "POST", "DELETE", "OPTIONS"] {
        let told = async |path: &str| {
            let request = gateway
                .client
                .request(method.parse().unwrap(), gateway.url(path));
            let request = request.header("Origin", "http://localhost:6274");
            let request = request.header("Access-Control-Request-Method", "POST");
            let answer = request.send().await.unwrap();
            let mut headers = answer.headers().clone();
            headers.remove("x-request-id");
            headers.remove("date");
            let head = format!("{} {headers:?}", answer.status());
            let body = answer.text().await.unwrap();
            format!("{head} {body}").replace("/old/none", "/old/calc")
        };
        let (alias, unknown) = (told("/old/calc").await, told("/old/none").await);
        assert_eq!(alias, unknown, "{method}");
    }
}

#[tokio::test]
async fn without_issuers_nothing_is_said_of_oauth() {
    let gateway = Gateway::empty().start().await;
    let unknown = gateway.url("/.well-known/oauth-protected-resource/mcp");
    assert_eq!(
        gateway.client.get(unknown).send().await.unwrap().status(),
        404
    );
    let refused = gateway
        .client
        .get(gateway.url("/tools"))
        .send()
        .await
        .unwrap();
    assert_eq!(challenge(&refused), "Bearer");
}

#[tokio::test]
async fn a_tool_outside_the_scopes_is_403_in_both_eras() {
    let issuer = Issuer::start("one").await;
    let files = [
        ("calc", "math_tools.py", tools::MATH),
        ("talk", "talking.py", tools::TALKING),
    ];
    let gateway = Gateway::with_tools(files)
        .env("IDP_SECRET", "hunter2")
        .config(config(&[&issuer]))
        .start()
        .await;
    has_keys(&gateway, &[&issuer]).await;
    let token = issuer.token(json!({ "scope": "mcp:add" }));
    let session = opened(&gateway, "talk", &token).await;
    let modern = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "multiply", "arguments": { "a": 1, "b": 2 },
        "_meta": { "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {} } } });
    let legacy = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "multiply", "arguments": { "a": 1, "b": 2 } } });
    // A tool that may talk before its answer, so that a stream could have begun.
    let talking = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "quiet", "arguments": {} } });
    for (namespace, message, headers) in [
        ("calc", legacy, vec![]),
        (
            "talk",
            talking,
            vec![("MCP-Protocol-Version", "2025-06-18")],
        ),
        (
            "calc",
            modern,
            vec![
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "tools/call"),
                ("Mcp-Name", "multiply"),
            ],
        ),
    ] {
        let mut request = gateway
            .client
            .post(gateway.url(&format!("/mcp/{namespace}")))
            .bearer_auth(&token)
            .header("Accept", "application/json, text/event-stream")
            .json(&message);
        if namespace == "talk" {
            request = request.header("Mcp-Session-Id", &session);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 403);
        let said = challenge(&answer);
        let scope = "error=\"insufficient_scope\", scope=\"mcp:add mcp:all\"";
        assert!(said.contains(scope), "{said}");
        assert!(
            said.contains(&format!("resource_metadata=\"{METADATA}/mcp/{namespace}\"")),
            "{said}"
        );
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["code"], -32011);
        assert_eq!(body["error"]["data"]["code"], "insufficient_scope");
        assert_eq!(body["id"], 7);
    }
}
