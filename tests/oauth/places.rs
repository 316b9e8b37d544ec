//! Tokens that cannot be judged now, and clients that make tokens up: no other client waits for them, is refused for them, or
//! loses a stream.

use super::*;

fn vouched() -> Value {
    json!({ "active": true, "sub": "ada", "aud": "https://gw.example/mcp", "scope": "mcp:all" })
}

/// A gateway that believes `X-Forwarded-For` of this machine.
async fn behind_a_proxy(issuer: &Issuer) -> Gateway {
    let mut config = config(&[issuer]);
    config["admission"]["trusted_proxies"] = json!(["127.0.0.1"]);
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .env("IDP_SECRET", "hunter2")
        .config(config)
        .start()
        .await;
    has_keys(&gateway, &[issuer]).await;
    gateway
}

async fn from(gateway: &Gateway, client: &str, path: &str, token: &str) -> reqwest::Response {
    let request = gateway
        .client
        .post(gateway.url(path))
        .header("X-Namespace", "calc")
        .header("X-Forwarded-For", client)
        .header("Accept", "application/json, text/event-stream")
        .bearer_auth(token);
    let body = match path {
        "/mcp/calc" => initialize(),
        _ => json!({ "a": 2, "b": 3 }),
    };
    request.json(&body).send().await.expect("answered")
}

fn retry_after(response: &reqwest::Response) -> Option<u64> {
    response
        .headers()
        .get("retry-after")?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

#[tokio::test]
async fn made_up_tokens_take_no_place_of_other_clients() {
    let issuer = Issuer::start("one").await;
    let gateway = behind_a_proxy(&issuer).await;
    for token in ["known", "new"] {
        issuer.state().opaque.insert(token.to_owned(), vouched());
    }
    let known = from(&gateway, "192.0.2.1", "/tools/add", "known").await;
    assert_eq!(known.status(), 200);
    issuer.set(Mood::HangsAtUnknown);
    let flood: Vec<_> = (0..600)
        .map(|number| {
            let token = format!("made-up-{number}");
            let path = if number % 2 == 0 {
                "/tools/add"
            } else {
                "/mcp/calc"
            };
            let request = gateway
                .client
                .post(gateway.url(path))
                .header("X-Namespace", "calc")
                .header(
                    "X-Forwarded-For",
                    format!("198.51.100.{}, 192.0.2.66", number % 250),
                )
                .header("Accept", "application/json, text/event-stream")
                .bearer_auth(token)
                .json(&initialize());
            tokio::spawn(request.send())
        })
        .collect();
    eventually("the flood is there", || async {
        let asked = issuer.state().requests.get("/introspect").copied();
        (asked.unwrap_or(0) > 8).then_some(())
    })
    .await;
    for client in ["192.0.2.1", "192.0.2.2"] {
        for token in ["known", "new"] {
            let answer = from(&gateway, client, "/tools/add", token).await;
            assert_eq!(answer.status(), 200, "{token} from {client}");
        }
    }
    for request in flood {
        let answer = request.await.unwrap().unwrap();
        assert_eq!(answer.status(), 503);
        assert_eq!(challenge(&answer), "");
        assert!(retry_after(&answer).is_some_and(|it| it > 0));
        let mcp = answer.url().path() == "/mcp/calc";
        let body: Value = answer.json().await.unwrap();
        match mcp {
            true => {
                assert_eq!(body["error"]["code"], -32014, "{body}");
                assert_eq!(
                    body["error"]["data"]["code"], "issuer_unavailable",
                    "{body}"
                );
            }
            false => assert_eq!(body["error"]["code"], "issuer_unavailable", "{body}"),
        }
    }
    let asked = issuer.state().requests.get("/introspect").copied();
    assert!(
        asked.unwrap_or(0) < 100,
        "{asked:?} questions for 600 made-up tokens"
    );
}

#[tokio::test]
async fn made_up_keys_hide_no_rotation_from_other_clients() {
    let issuer = Issuer::start("one").await;
    let gateway = behind_a_proxy(&issuer).await;
    let made_up = |number: usize| {
        let header = json!({ "alg": "EdDSA", "kid": format!("made-up-{number}") });
        issuer.token_with(&header, json!({}))
    };
    for number in 0..20 {
        let answer = from(&gateway, "192.0.2.66", "/tools/add", &made_up(number)).await;
        assert_eq!(answer.status(), 401);
    }
    issuer.rotate("two");
    let first = issuer.token(json!({}));
    let answer = from(&gateway, "192.0.2.1", "/tools/add", &first).await;
    assert_eq!(answer.status(), 200, "with its first token");
}

#[tokio::test]
async fn a_stream_and_a_token_in_use_outlive_a_silent_issuer_and_end_when_it_says_so() {
    let issuer = Issuer::start("one").await;
    let gateway = gateway(&[&issuer]).await;
    issuer.state().opaque.insert("known".to_owned(), vouched());
    let mut open = stream(&gateway, "known").await;
    let asked = || {
        issuer
            .state()
            .requests
            .get("/introspect")
            .copied()
            .unwrap_or(0)
    };
    let before = asked();
    issuer.set(Mood::Down);
    // Its answer is asked for again while it counts. The stream uses the token; no request does.
    eventually_within(
        Duration::from_secs(60),
        "it is asked about again",
        || async { (asked() > before).then_some(()) },
    )
    .await;
    assert_eq!(
        status(&gateway, "known").await,
        200,
        "the last answer counts"
    );
    eventually_within(
        Duration::from_secs(60),
        "the last answer has ended",
        || async {
            let (status, said) = call(&gateway, "add", "known").await;
            assert!(matches!(status, 200 | 503), "{status}");
            assert_eq!(said, "");
            (status == 503).then_some(())
        },
    )
    .await;
    let more = tokio::time::timeout(Duration::from_secs(10), async {
        while let Ok(Some(_)) = open.chunk().await {}
    });
    assert!(more.await.is_err(), "the stream goes on");
    issuer.state().opaque.clear();
    issuer.set(Mood::Right);
    ends(open).await;
    assert_eq!(status(&gateway, "known").await, 401);
}
