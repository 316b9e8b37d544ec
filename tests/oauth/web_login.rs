//! Logins at the web UI by an issuer: a real authorization server, its user, and those who would like to be that user.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::issuer::{Issuer, Mood};
use crate::support::oidc::{Provider, browse, script};
use crate::support::ports::free_address;
use crate::support::programs::{chromium, run};
use crate::support::{Gateway, TOKEN, eventually_within};

const AUDIENCE: &str = "https://gw.example/mcp";
const LOGIN: &str = "/api/login/oauth";
const CODE: &str = "/api/login/oauth/code";

/// A gateway with the web UI at that address.
async fn gateway(web: SocketAddr, issuers: Value) -> Gateway {
    let (core, metrics) = (free_address(), free_address());
    Gateway::empty()
        .listening(core, metrics)
        .env("UI_SECRET", "s3cret:of/the+ui")
        .env("LOG_LEVEL", "debug")
        .config(json!({
            "admission": {"public_url": "https://gw.example", "oauth": issuers},
            "listeners": [
                {"name": "core", "address": core.to_string(), "profile": "core"},
                {"name": "web", "address": web.to_string(), "profile": "v1-web"},
                {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
            ],
        }))
        .start()
        .await
}

fn entry(issuer: &str, client: &Value) -> Value {
    json!({
        "issuer": issuer, "audience": AUDIENCE, "leeway": "0s", "namespaces": ["*", "_system"],
        "scopes": {"mcp:all": "admin"}, "web": client,
    })
}

fn browser_client() -> Client {
    // A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

/// Registers a client for the web UI at that address, and returns the gateway's configuration of it.
async fn registered(provider: &Provider, web: SocketAddr, form: &str) -> Value {
    let client = json!({
        "redirect_uris": [format!("http://{web}/login")],
        "application_type": "native", "token_endpoint_auth_method": form,
        "grant_types": ["authorization_code"], "response_types": ["code"],
    });
    let endpoint = format!("{}/reg", provider.issuer);
    let sent = browser_client().post(endpoint).json(&client).send().await;
    let client: Value = sent.unwrap().json().await.unwrap();
    let id = client["client_id"].as_str().expect("registered");
    match client["client_secret"].as_str() {
        Some(secret) => json!({"client_id": id, "client_secret": secret}),
        None => json!({"client_id": id}),
    }
}

/// A browser with the login page of a gateway: its cookies and the storage of the page.
#[derive(Clone)]
struct Browser {
    web: SocketAddr,
    client: Client,
    cookie: String,
    proof: String,
}

impl Browser {
    fn at(web: SocketAddr) -> Self {
        Self {
            web,
            client: browser_client(),
            cookie: String::new(),
            proof: String::new(),
        }
    }

    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.client
            .post(format!("http://{}{path}", self.web))
            .header("Origin", format!("http://{}", self.web))
            .header("Sec-Fetch-Site", "same-origin")
            .header("X-ToolDock-Request", "1")
            .header("Cookie", &self.cookie)
            .json(body)
    }

    /// Begins a login, and returns the address at the issuer.
    async fn begin(&mut self, issuer: &str) -> String {
        let answer = self.post(LOGIN, &json!({"issuer": issuer})).send().await;
        let answer = answer.unwrap();
        let cookie = cookie(&answer, "tooldock-begun");
        let body: Value = answer.json().await.unwrap();
        for attribute in ["; HttpOnly", "; SameSite=Strict", "; Max-Age=600"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        self.cookie = cookie.split(';').next().unwrap().to_owned();
        self.proof = body["proof"].as_str().expect("a proof").to_owned();
        body["address"].as_str().unwrap().to_owned()
    }

    /// The body by which the page ends the login that the issuer has redirected to `back`.
    fn code(&self, back: &str) -> Value {
        let of = |name: &str| {
            let pairs = url(back);
            let found = pairs.into_iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value)
        };
        json!({"state": of("state"), "code": of("code"), "iss": of("iss"), "proof": self.proof})
    }

    async fn end(&self, back: &str) -> (u16, Value) {
        answered(self.post(CODE, &self.code(back))).await
    }
}

/// The pairs of an address's query.
fn url(address: &str) -> Vec<(String, String)> {
    let url = reqwest::Url::parse(address).expect("an address");
    url.query_pairs().into_owned().collect()
}

fn cookie(answer: &Response, name: &str) -> String {
    let cookies = answer.headers().get_all("set-cookie").iter();
    let mut cookies = cookies.map(|it| it.to_str().expect("text").to_owned());
    let begins = format!("{name}=");
    let found = cookies.find(|it| it.starts_with(&begins));
    found.unwrap_or_else(|| panic!("no {name}: {answer:?}"))
}

async fn answered(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.expect("answered");
    let status = answer.status().as_u16();
    let text = answer.text().await.expect("text");
    let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    (status, body)
}

/// Returns true if the refusal's message has that part.
fn says(body: &Value, part: &str) -> bool {
    body["error"]["message"]
        .as_str()
        .is_some_and(|it| it.contains(part))
}

#[tokio::test]
async fn a_user_of_an_issuer_logs_in_with_the_rights_and_until_the_end_of_the_token() {
    let provider = Provider::start(30);
    for form in ["none", "client_secret_basic", "client_secret_post"] {
        let web = free_address();
        let client = registered(&provider, web, form).await;
        let gateway = gateway(web, json!([entry(&provider.issuer, &client)])).await;
        let mut browser = Browser::at(web);
        let offered = browser.client.get(format!("http://{web}{LOGIN}"));
        let (_, offered) = answered(offered).await;
        let name = provider.issuer.trim_start_matches("http://");
        let expected = json!({"issuers": [{"issuer": provider.issuer, "name": name}]});
        assert_eq!(offered, expected);

        let address = browser.begin(&provider.issuer).await;
        let back = browse(&provider.issuer, &address).await;
        assert!(back.starts_with(&format!("http://{web}/login?")), "{back}");
        let code = browser.code(&back);
        let opened = browser.post(CODE, &code).send().await.unwrap();
        assert_eq!(opened.status(), 200, "{form}: {}", gateway.log());
        let session = cookie(&opened, "tooldock-session");
        for attribute in ["; HttpOnly", "; SameSite=Strict", "; Path=/;"] {
            assert!(session.contains(attribute), "{session}");
        }
        assert!(cookie(&opened, "tooldock-begun").contains("Max-Age=0"));
        let opened: Value = opened.json().await.unwrap();
        assert!(opened["seconds"].as_u64().unwrap() <= 30, "{opened}");

        let half = opened["login"].as_str().unwrap().to_owned();
        let session = session.split(';').next().unwrap().to_owned();
        let me = || {
            let request = browser.client.get(format!("http://{web}/api/me"));
            let request = request.header("X-ToolDock-Login", &half);
            answered(request.header("Cookie", &session))
        };
        let (status, seen) = me().await;
        assert_eq!(status, 200, "{seen}");
        let ada = format!("oauth:{}#ada", provider.issuer);
        assert_eq!(seen["principal"], json!(ada));
        if form == "none" {
            let ended = async || (me().await.0 == 401).then_some(());
            eventually_within(Duration::from_secs(90), "the login ends", ended).await;
        }
        let log = gateway.log();
        let secret = client["client_secret"].as_str().unwrap_or("no secret");
        for hidden in [code["code"].as_str().unwrap(), &browser.proof, secret] {
            assert!(!log.contains(hidden), "{form}: a secret is in the log");
        }
    }
}

#[tokio::test]
async fn a_login_that_another_browser_or_page_began_opens_nothing() {
    let provider = Provider::start(600);
    let web = free_address();
    let client = registered(&provider, web, "none").await;
    let gateway = gateway(web, json!([entry(&provider.issuer, &client)])).await;
    let issuer = &provider.issuer;
    let begun = "not begun in this browser";

    // Nothing was begun.
    let stranger = Browser::at(web);
    let forged = format!("http://{web}/login?code=x&state=y");
    let (status, body) = stranger.end(&forged).await;
    assert!(status == 400 && says(&body, begun), "{body}");

    // Another browser, and another page of the same browser, as a tool's server at another port could open.
    let mut ada = Browser::at(web);
    let address = ada.begin(issuer).await;
    let back = browse(issuer, &address).await;
    let mut mallory = Browser::at(web);
    let own = mallory.begin(issuer).await;
    for (cookie, proof) in [
        (&mallory.cookie, &mallory.proof),
        (&mallory.cookie, &ada.proof),
        (&ada.cookie, &mallory.proof),
        (&String::new(), &ada.proof),
    ] {
        let (cookie, proof) = (cookie.clone(), proof.clone());
        let thief = Browser {
            cookie,
            proof,
            ..ada.clone()
        };
        let (status, body) = thief.end(&back).await;
        assert!(status == 400 && says(&body, begun), "{body}");
    }

    // The code of one login does not end another one: its PKCE differs.
    let mut injected = mallory.code(&browse(issuer, &own).await);
    injected["code"] = ada.code(&back)["code"].clone();
    let (status, body) = answered(mallory.post(CODE, &injected)).await;
    assert!(status == 400 && says(&body, "invalid_grant"), "{body}");

    // A login counts once, and from its own issuer.
    let address = ada.begin(issuer).await;
    let back = browse(issuer, &address).await;
    assert_eq!(ada.end(&back).await.0, 200);
    let (status, body) = ada.end(&back).await;
    assert!(status == 400 && says(&body, begun), "{body}");
    for other in [json!("https://evil.example"), Value::Null] {
        let address = ada.begin(issuer).await;
        let mut code = ada.code(&browse(issuer, &address).await);
        code["iss"] = other;
        let (status, body) = answered(ada.post(CODE, &code)).await;
        assert!(status == 400 && says(&body, "another issuer"), "{body}");
    }

    // Requests that no page of the listener sends, and keys that a login does not have.
    let body = json!({"issuer": issuer});
    for (name, value) in [
        ("Origin", "https://evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
        ("X-ToolDock-Request", "0"),
    ] {
        let mut request = ada.post(LOGIN, &body).build().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
        let refused = ada.client.execute(request).await.unwrap();
        assert_eq!(refused.status(), 403, "{name}");
    }
    let bare = ada.client.post(format!("http://{web}{LOGIN}")).json(&body);
    assert_eq!(answered(bare.bearer_auth("x")).await.0, 403);
    let with_return = json!({"issuer": issuer, "return": "https://evil.example"});
    assert_eq!(answered(ada.post(LOGIN, &with_return)).await.0, 400);
    let unknown = json!({"issuer": "https://evil.example"});
    let (status, body) = answered(ada.post(LOGIN, &unknown)).await;
    assert!(
        status == 404 && says(&body, "No login is offered"),
        "{body}"
    );

    // The issuer's entry changes while its user logs in.
    let address = ada.begin(issuer).await;
    let back = browse(issuer, &address).await;
    let mut narrowed = entry(issuer, &client);
    narrowed["namespaces"] = json!(["*"]);
    gateway.reconfigure(json!({"admission": {"oauth": [narrowed]}}));
    gateway.signal(Signal::HUP);
    let reloaded = async || {
        let mut begun = ada.clone();
        let address = begun.begin(issuer).await;
        let (status, body) = begun.end(&browse(issuer, &address).await).await;
        (status == 403).then_some(body)
    };
    let body = eventually_within(Duration::from_secs(60), "the reload", reloaded).await;
    assert!(says(&body, "does not open the web UI"), "{body}");
    let (status, body) = ada.end(&back).await;
    assert!(status == 400 && says(&body, "has changed"), "{body}");
}

#[tokio::test]
async fn a_token_that_an_issuer_did_not_make_opens_no_login_by_it() {
    let (one, two) = (Issuer::start("one").await, Issuer::start("two").await);
    let web = free_address();
    let client = json!({"client_id": "ui", "client_secret": "${UI_SECRET}"});
    let issuers = [&one, &two].map(|it| {
        let mut entry = entry(&it.url, &client);
        entry["algorithms"] = json!(["EdDSA"]);
        entry
    });
    let gateway = gateway(web, json!(issuers)).await;
    let end = async || {
        let mut browser = Browser::at(web);
        let address = browser.begin(&one.url).await;
        let pairs = url(&address);
        let of = |name: &str| pairs.iter().find(|(key, _)| key == name).unwrap().1.clone();
        assert_eq!((&*of("client_id"), &*of("resource")), ("ui", AUDIENCE));
        assert_eq!(of("scope"), "mcp:all");
        let state = of("state");
        browser
            .end(&format!(
                "http://{web}/login?code=code-of-the-login&state={state}"
            ))
            .await
    };
    let bearer = |token: &str| json!({"access_token": token, "token_type": "Bearer"});
    let right = one.token(json!({}));
    for (token, status, part) in [
        (bearer(&right), 200, ""),
        (bearer(&two.token(json!({}))), 503, "not its own"),
        (bearer(TOKEN), 503, "not its own"),
        (bearer("made-up"), 401, "does not accept its access token"),
        (
            bearer(&one.token(json!({"aud": "x"}))),
            401,
            "does not accept its access token",
        ),
        (
            bearer(&one.token(json!({"scope": "openid"}))),
            403,
            "does not open the web UI",
        ),
        (json!({"id_token": right}), 503, "no bearer token"),
    ] {
        one.state().exchanged = Some(token);
        let (answered, body) = end().await;
        assert_eq!(answered, status, "{body}");
        assert!(status == 200 || says(&body, part), "{body}");
    }
    // The client shows its secret as RFC 6749 writes it, and the secret is nowhere else.
    let asked = one.state().asked.clone();
    assert!(
        asked.contains("grant_type=authorization_code&code=code-of-the-login"),
        "{asked}"
    );
    assert!(
        asked.contains("Basic dWk6czNjcmV0JTNBb2YlMkZ0aGUlMkJ1aQ=="),
        "{asked}"
    );
    one.set(Mood::Down);
    let (status, body) = end().await;
    assert!(status == 503 && says(&body, "500"), "{body}");
    let log = gateway.log();
    for hidden in ["s3cret", "code-of-the-login", &*right] {
        assert!(!log.contains(hidden), "a secret is in the log");
    }
}

#[tokio::test]
async fn a_person_logs_in_by_an_issuer_in_a_browser() {
    let Some(chromium) = chromium() else {
        eprintln!("skipped: chromium is not installed (apt-get install chromium)");
        return;
    };
    let provider = Provider::start(600);
    let web = free_address();
    let client = registered(&provider, web, "client_secret_basic").await;
    let gateway = gateway(web, json!([entry(&provider.issuer, &client)])).await;
    let issuer = provider.issuer.clone();
    let printed = tokio::task::spawn_blocking(move || {
        let mut node = script("web_login.mjs");
        node.args([&format!("http://{web}"), &issuer]);
        run(node.env("CHROMIUM", chromium))
    });
    let printed = printed.await.expect("not cancelled");
    let seen: Value = serde_json::from_str(&printed).expect(&printed);
    assert_eq!(seen["complaints"], json!([]), "{seen}");
    assert_eq!(seen["place"], json!(format!("http://{web}/#/keys")));
    let ada = format!("oauth:{}#ada", provider.issuer);
    assert_eq!(seen["principal"], json!(ada), "{}", gateway.log());
    assert_eq!(seen["kept"], json!([]), "a token or a code is kept");
    assert_eq!(seen["forged"], json!(true));
    assert_eq!(seen["denied"], json!(true));
}

#[tokio::test]
async fn why_an_issuer_cannot_be_asked_is_in_the_log_and_not_in_the_answer() {
    let web = free_address();
    let closed = format!("http://{}", free_address());
    let client = json!({"client_id": "ui"});
    let gateway = gateway(web, json!([entry(&closed, &client)])).await;
    let browser = Browser::at(web);
    let (status, body) = answered(browser.post(LOGIN, &json!({"issuer": closed}))).await;
    assert!(
        status == 503 && says(&body, "its log has the cause"),
        "{body}"
    );
    for cause in ["refused", "os error", "connect"] {
        assert!(!says(&body, cause), "{body}");
    }
    let log = gateway.log();
    let line = log
        .lines()
        .find(|line| line.contains("a login at the web UI"));
    assert!(line.is_some_and(|line| line.contains("refused")), "{log}");
}
