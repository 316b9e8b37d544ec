//! Links to pages on which a principal gives its personal credential during a call. An HTTP client makes a browser's requests, an
//! authorization server runs in this process, and some visitors are not the principal for whom the link was made.

use std::net::SocketAddr;
use std::process::Command;

use reqwest::{Client, Response};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use super::authorized::shown;
use super::issuers::{Site, name_issuer, remote_with};
use super::*;
use crate::oauth::issuer::Issuer;
use crate::support::DEADLINE;
use crate::support::oidc::{Provider, browse, script};
use crate::support::ports::free_address;
use crate::support::sse::Answering;

const LINKS: &str = "tooldock_connect_links_total";

/// Starts a gateway whose public URL is its own address, with two principals. Returns the gateway and the URL.
pub(super) async fn reachable(upstreams: Value) -> (Gateway, String) {
    let [core, metrics] = [(); 2].map(|()| free_address());
    let origin = format!("http://{core}");
    let gateway = builder(core, metrics, upstreams).start().await;
    (gateway, origin)
}

fn builder(core: SocketAddr, metrics: SocketAddr, upstreams: Value) -> Builder {
    let token = |name: &str, token: &str| json!({"name": name, "sha256": sha256(token), "namespaces": ["*"]});
    Gateway::empty()
        .listening(core, metrics)
        .config(json!({
            "admission": {
                "public_url": format!("http://{core}"),
                // The gateway's own pages need not be listed in `origins`.
                "origins": ["https://other.example"],
                "tokens": [token("ada", ADA), token("bob", BOB)],
            },
            "upstreams": upstreams,
            "observability": {"log": {"level": "debug"}, "access_log": {"path": "stdout", "format": "json"}},
        }))
        .env("SECRETS_KEY", KEY)
}

fn remote(far: &Backend, issuer: &str) -> Value {
    json!({"remote": {"own": {
        "backends": [far.url()], "mode": "client",
        "oauth": {"grant": "authorization_code", "personal": true, "issuer": issuer, "scopes": ["mcp:all"]},
    }}})
}

/// Browser of a visitor: an HTTP client that keeps cookies and does not follow redirects.
pub(super) struct Visitor {
    client: Client,
    cookies: Vec<String>,
}

impl Visitor {
    pub(super) fn new() -> Self {
        let client = Client::builder().redirect(reqwest::redirect::Policy::none());
        Self {
            client: client.build().unwrap(),
            cookies: Vec::new(),
        }
    }

    async fn get(&mut self, address: &str) -> (u16, String) {
        let request = self.client.get(address);
        let answer = request.header("Cookie", self.cookies.join("; ")).send();
        self.keep(answer.await.unwrap()).await
    }

    async fn post(&mut self, address: &str, origin: &str, form: &[(&str, &str)]) -> (u16, String) {
        let form: Vec<_> = form
            .iter()
            .map(|(name, value)| format!("{name}={}", value.replace('+', "%2B")))
            .collect();
        let request = self.client.post(address).header("Origin", origin);
        let request = request.header("Content-Type", "application/x-www-form-urlencoded");
        let request = request.header("Cookie", self.cookies.join("; "));
        let answer = request.body(form.join("&")).send().await.unwrap();
        self.keep(answer).await
    }

    async fn keep(&mut self, answer: Response) -> (u16, String) {
        for cookie in answer.headers().get_all("set-cookie") {
            let cookie = cookie.to_str().unwrap();
            for attribute in ["; HttpOnly", "; SameSite=Lax", "; Path=/connect;"] {
                assert!(cookie.contains(attribute), "{cookie}");
            }
            let pair = cookie.split(';').next().unwrap().to_owned();
            let name = pair.split('=').next().unwrap().to_owned();
            self.cookies
                .retain(|it| it.split('=').next() != Some(&name));
            self.cookies.push(pair);
        }
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap())
    }

    /// Signs in with a key at the page of a link. Returns the status and the body of the response.
    async fn sign_in(&mut self, link: &str, key: &str) -> (u16, String) {
        let origin = link.split("/connect/").next().unwrap().to_owned();
        self.post(link, &origin, &[("key", key)]).await
    }

    /// Returns the URL at the authorization server to which the page of a link leads the signed-in visitor.
    async fn consent_address(&mut self, link: &str) -> String {
        let (status, page) = self.get(link).await;
        assert_eq!(status, 200, "{page}");
        href(&page)
    }

    /// Makes all steps of a connection: opens the link, signs in, consents at the issuer, and follows its redirect.
    pub(super) async fn connect(&mut self, link: &str, key: &str, issuer: &str) {
        let (status, page) = self.get(link).await;
        assert!(status == 200 && page.contains("Sign in"), "{page}");
        assert!(
            !page.contains("ada"),
            "a stranger learns no principal: {page}"
        );
        assert_eq!(self.sign_in(link, key).await.0, 303);
        let address = self.consent_address(link).await;
        let back = browse(issuer, &address).await;
        assert_eq!(self.get(&back).await.0, 303);
    }
}

/// Returns the URL of the first `href` in a page.
fn href(page: &str) -> String {
    let href = page.split("href=\"").nth(1).expect(page);
    href.split('"').next().unwrap().replace("&amp;", "&")
}

fn is_link(link: &str, origin: &str) -> bool {
    link.strip_prefix(&format!("{origin}/connect/"))
        .is_some_and(|it| it.len() > 64)
}

/// Returns the link that the error of a REST call contains.
async fn offered(gateway: &Gateway, token: &str) -> String {
    let (status, answer) = call(gateway, token, "x").await;
    assert_eq!(status, 403, "{answer}");
    let error = &answer["error"];
    assert_eq!(error["code"], "missing_credential", "{answer}");
    let link = error["details"]["url"].as_str().expect("a link").to_owned();
    assert!(
        error["message"].as_str().unwrap().ends_with(&link),
        "{answer}"
    );
    link
}

pub(super) async fn asking_session(gateway: &Gateway, token: &str) -> Session {
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    Session::start_as(gateway, "own", "2025-11-25", token, capabilities).await
}

/// Reads the question that the gateway asks during a call, and answers it with `action`. Returns the question's parameters.
pub(super) async fn asked(session: &Session, call: &mut Answering, action: &str) -> Value {
    let question = call.message().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": action}});
    assert_eq!(session.post(&answer).await.status, 202);
    question["params"].clone()
}

#[tokio::test]
async fn a_call_asks_its_client_to_open_a_link_and_goes_on_once_the_principal_has_consented() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let (gateway, origin) = reachable(remote(&far, &provider.issuer)).await;
    let session = asking_session(&gateway, ADA).await;
    let mut call = session.call(1, "x", json!({})).await;
    let question = asked(&session, &mut call, "accept").await;
    assert_eq!(question["mode"], "url", "{question}");
    let link = question["url"].as_str().unwrap().to_owned();
    assert!(is_link(&link, &origin), "{link}");

    Visitor::new().connect(&link, ADA, &provider.issuer).await;
    let completed = call.message().await;
    assert_eq!(completed["method"], "notifications/elicitation/complete");
    let id = &completed["params"]["elicitationId"];
    assert_eq!(*id, question["elicitationId"]);
    let answer = call.message().await;
    assert_eq!(answer["result"]["who"], "far", "{answer}");
    let token = shown(&far).expect("a call");
    assert!(token.starts_with("Bearer ey"), "{token}");

    // The log includes the access log, in which the link's token must not appear.
    let log = gateway.log();
    assert!(log.contains("\"/connect/"), "{log}");
    let sealed = link.rsplit('/').next().unwrap();
    for hidden in [sealed, ADA, token.trim_start_matches("Bearer ")] {
        assert!(!log.contains(hidden), "{log}");
    }
    let metrics = gateway.metrics_text().await;
    for result in ["offered", "connected"] {
        let line = format!("{LINKS}{{result=\"{result}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[tokio::test]
async fn a_call_whose_user_declines_or_that_is_cancelled_fails_and_stores_nothing() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let (gateway, _) = reachable(remote(&far, &provider.issuer)).await;
    let session = asking_session(&gateway, ADA).await;
    for action in ["decline", "cancel"] {
        let mut call = session.call(1, "x", json!({})).await;
        asked(&session, &mut call, action).await;
        let answer = call.message().await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        let error = &answer["result"]["_meta"]["tooldock/error"];
        assert_eq!(error["code"], "missing_credential", "{answer}");
    }
    assert!(!gateway.data_dir().join("authorizations.enc").exists());
    assert!(far.requests("tools/call").is_empty());
}

#[tokio::test]
async fn a_modern_client_is_asked_once_and_its_retry_waits_for_the_principal() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let (gateway, origin) = reachable(remote(&far, &provider.issuer)).await;
    let message = |more: Value| {
        let mut params = json!({"name": "x", "arguments": {}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}},
        }});
        for (name, value) in more.as_object().unwrap() {
            params[name] = value.clone();
        }
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    };
    let send = |message: Value| {
        let request = gateway.client.post(gateway.url("/mcp")).bearer_auth(ADA);
        let request = request.header("X-Namespace", "own").header("Mcp-Name", "x");
        let request = request.header("MCP-Protocol-Version", "2026-07-28");
        let request = request.header("Mcp-Method", "tools/call");
        request
            .header("Accept", "application/json, text/event-stream")
            .json(&message)
            .send()
    };
    let answer: Value = send(message(json!({})))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let result = &answer["result"];
    assert_eq!(result["resultType"], "input_required", "{answer}");
    let question = &result["inputRequests"]["link-1"];
    assert_eq!(question["params"]["mode"], "url", "{answer}");
    assert!(
        question["params"].get("elicitationId").is_none(),
        "{answer}"
    );
    let link = question["params"]["url"].as_str().unwrap().to_owned();
    assert!(is_link(&link, &origin), "{link}");
    let retry = json!({
        "requestState": result["requestState"],
        "inputResponses": {"link-1": {"action": "accept"}},
    });
    let waiting = tokio::spawn(send(message(retry)));
    Visitor::new().connect(&link, ADA, &provider.issuer).await;
    let answer: Value = waiting.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer["result"]["who"], "far", "{answer}");
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

#[tokio::test]
async fn a_link_serves_only_its_principal_and_only_once() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let (gateway, origin) = reachable(remote(&far, &provider.issuer)).await;
    // A REST client cannot be asked to open a link, so the error contains it. A second call gets the same link.
    let link = offered(&gateway, ADA).await;
    assert_eq!(offered(&gateway, ADA).await, link);
    let kept = gateway.data_dir().join("authorizations.enc");

    // Bob opens ada's link and signs in as himself: ada may have sent it to him, to have his account used for her calls.
    let mut bob = Visitor::new();
    let (status, page) = bob.sign_in(&link, BOB).await;
    assert_eq!(status, 403, "{page}");
    assert!(
        page.contains("another principal") && bob.cookies.is_empty(),
        "{page}"
    );
    let (status, page) = bob.sign_in(&link, "no-key-of-anybody").await;
    assert!(status == 401 && bob.cookies.is_empty(), "{status} {page}");
    let (status, page) = bob.get(&link).await;
    assert!(status == 200 && !page.contains("href="), "{page}");

    // A form that a page of another site sends, and a changed link, are refused.
    let (status, _) = bob
        .post(&link, "https://evil.example", &[("key", ADA)])
        .await;
    assert_eq!(status, 403);
    let changed = format!("{link}x");
    assert_eq!(bob.get(&changed).await.0, 404);

    // The redirect after ada's consent has no effect in the browser of another person.
    let mut ada = Visitor::new();
    assert_eq!(ada.sign_in(&link, ADA).await.0, 303);
    let address = ada.consent_address(&link).await;
    assert!(address.contains("code_challenge_method=S256"), "{address}");
    let back = browse(&provider.issuer, &address).await;
    assert!(
        back.starts_with(&format!("{origin}/connect/callback?")),
        "{back}"
    );
    assert_eq!(bob.get(&back).await.0, 400);
    assert_eq!(ada.get(&back.replace("state=", "state=x")).await.0, 400);
    assert!(!kept.exists(), "nothing is stored");

    assert_eq!(ada.get(&back).await.0, 303);
    assert!(kept.exists());
    assert_eq!(ada.get(&back).await.0, 400, "a code counts once");
    assert_eq!(ada.get(&link).await.0, 410, "a link counts once");
    assert_eq!(ada.sign_in(&link, ADA).await.0, 410);
    assert_eq!(call(&gateway, ADA, "x").await.0, 200);
    assert_eq!(call(&gateway, BOB, "x").await.0, 403);
    let line = format!("{LINKS}{{result=\"other_principal\"}} 1");
    assert!(gateway.metrics_text().await.contains(&line));
}

#[tokio::test]
async fn a_link_ends_with_the_session_of_its_call() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let (gateway, _) = reachable(remote(&far, &provider.issuer)).await;
    let silent = json!({});
    let session = Session::start_as(&gateway, "own", "2025-11-25", ADA, silent).await;
    let call = json!({"name": "x", "arguments": {}});
    let answer = session.request(1, "tools/call", call).await;
    let error = &answer["result"]["_meta"]["tooldock/error"];
    let link = error["details"]["url"].as_str().expect("a link").to_owned();
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains(&link), "{text}");
    assert_eq!(Visitor::new().get(&link).await.0, 200);
    assert_eq!(session.delete().await, 204);
    assert_eq!(Visitor::new().get(&link).await.0, 410);
}

// Needs two threads: the page's requests are answered by servers in this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_grant_and_an_issuer_that_changes_lead_to_a_new_link() {
    let far = Backend::start("far").await;
    let (first, second) = (Site::start("first").await, Site::start("second").await);
    name_issuer(&far, &first);
    let oauth = json!({"grant": "authorization_code", "personal": true});
    let (gateway, origin) = reachable(remote_with(&far, &oauth)).await;
    let connect = async |link: &str| {
        let mut ada = Visitor::new();
        assert_eq!(ada.sign_in(link, ADA).await.0, 303);
        let address = ada.consent_address(link).await;
        let state = address.split("state=").nth(1).unwrap();
        let state = state.split('&').next().unwrap();
        let back = format!("{origin}/connect/callback?code=c&state={state}");
        assert_eq!(ada.get(&back).await.0, 303);
        address
    };
    let address = connect(&offered(&gateway, ADA).await).await;
    // The client id is the URL of the gateway's client metadata document, so no client was registered.
    let document = format!("{origin}/connect/client");
    let id = document.replace(':', "%3A").replace('/', "%2F");
    assert!(address.contains(&format!("client_id={id}")), "{address}");
    let text = Visitor::new().get(&document).await.1;
    let described: Value = serde_json::from_str(&text).expect(&text);
    assert_eq!(described["client_id"], json!(document));
    assert_eq!(
        described["redirect_uris"],
        json!([format!("{origin}/connect/callback")])
    );
    let registers = |site: &Site| {
        site.all()
            .iter()
            .any(|(head, _)| head.starts_with("POST /register"))
    };
    assert!(!registers(&first));
    let (status, answer) = call(&gateway, ADA, "x").await;
    assert_eq!(status, 200, "{answer}");

    first.revoked.store(true, Ordering::SeqCst);
    eventually("the grant is over", || async {
        let (status, answer) = call(&gateway, ADA, "x").await;
        let link = answer["error"]["details"]["url"].as_str();
        (status == 403 && link.is_some()).then_some(())
    })
    .await;
    first.revoked.store(false, Ordering::SeqCst);
    connect(&offered(&gateway, ADA).await).await;
    assert_eq!(call(&gateway, ADA, "x").await.0, 200);

    // The server names another authorization server while the visitor is at the first one, whose redirect is then refused.
    name_issuer(&far, &second);
    eventually("the authorization is over", || async {
        let (status, answer) = call(&gateway, ADA, "x").await;
        let link = answer["error"]["details"]["url"].as_str();
        (status == 403 && link.is_some()).then_some(())
    })
    .await;
    let link = offered(&gateway, ADA).await;
    let mut ada = Visitor::new();
    assert_eq!(ada.sign_in(&link, ADA).await.0, 303);
    let address = ada.consent_address(&link).await;
    assert!(address.starts_with(&second.url), "{address}");
    let state = address.split("state=").nth(1).unwrap();
    let state = state.split('&').next().unwrap();
    let back = format!(
        "{origin}/connect/callback?code=c&state={state}&iss={}",
        first.url
    );
    let (status, page) = ada.get(&back).await;
    assert!(
        status == 400 && page.contains("was not connected"),
        "{page}"
    );
    assert_eq!(call(&gateway, ADA, "x").await.0, 403);
    assert!(!gateway.log().contains("canary"));
}

#[tokio::test]
async fn a_stdio_servers_call_goes_on_once_the_principal_has_typed_its_value() {
    let (gateway, origin) = reachable(stdio()).await;
    let session = asking_session(&gateway, ADA).await;
    let mut call = session.call(1, "look", json!({})).await;
    let question = asked(&session, &mut call, "accept").await;
    let link = question["url"].as_str().unwrap().to_owned();
    let mut ada = Visitor::new();
    // A value is refused before the visitor has signed in.
    let form = [("value.TOKEN", OF_ADA), ("value.OTHER", "x")];
    assert_eq!(ada.post(&link, &origin, &form).await.0, 403);
    assert_eq!(ada.sign_in(&link, ADA).await.0, 303);
    let (_, page) = ada.get(&link).await;
    assert!(page.contains("TOKEN") && page.contains("ada"), "{page}");
    let (_, page) = ada.post(&link, &origin, &[("value.TOKEN", "")]).await;
    assert!(page.contains("Each value is needed"), "{page}");
    assert_eq!(ada.post(&link, &origin, &form).await.0, 303);
    let completed = call.message().await;
    assert_eq!(completed["method"], "notifications/elicitation/complete");
    let answer = call.message().await;
    let text = answer["result"]["content"][0]["text"]
        .as_str()
        .expect("text");
    assert!(text.contains(OF_ADA), "{answer}");
    assert!(!gateway.log().contains(OF_ADA));
    let (_, listed) = tool_secrets(&gateway);
    assert!(
        listed.contains("TOKEN") && !listed.contains("OTHER"),
        "{listed}"
    );
}

#[tokio::test]
async fn a_person_signs_in_at_the_issuer_of_its_access_token_and_no_other_person_does() {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let issuer = Issuer::start("one").await;
    let [core, metrics] = [(); 2].map(|()| free_address());
    let origin = format!("http://{core}");
    let oauth = json!([{
        "issuer": issuer.url, "audience": "https://gw.example/mcp", "algorithms": ["EdDSA"],
        "scopes": {"mcp:all": "admin"}, "web": {"client_id": "ui"},
    }]);
    let gateway = builder(core, metrics, remote(&far, &provider.issuer))
        .config(json!({"admission": {"oauth": oauth}}))
        .start()
        .await;
    let token = issuer.token(json!({}));
    let link = offered(&gateway, &token).await;
    for (subject, expected) in [("mallory", 403), ("ada", 303)] {
        let access = issuer.token(json!({"sub": subject}));
        issuer.state().exchanged = Some(json!({"access_token": access, "token_type": "Bearer"}));
        let mut person = Visitor::new();
        let form = [("issuer", &*issuer.url)];
        let (status, page) = person.post(&link, &origin, &form).await;
        assert_eq!(status, 200, "{page}");
        let address = href(&page);
        assert!(
            address.starts_with(&format!("{}/authorize?", issuer.url)),
            "{address}"
        );
        let state = address.split("state=").nth(1).unwrap();
        let state = state.split('&').next().unwrap();
        let back = format!("{origin}/connect/signed-in?code=c&state={state}");
        assert_eq!(Visitor::new().get(&back).await.0, 400, "another browser");
        let (status, page) = person.get(&back).await;
        assert_eq!(status, expected, "{page}");
        let (_, page) = person.get(&link).await;
        assert_eq!(page.contains("Continue at"), subject == "ada", "{page}");
        if subject == "ada" {
            assert!(
                page.contains(&format!("oauth:{}#ada", issuer.url)),
                "{page}"
            );
            let back = browse(&provider.issuer, &href(&page)).await;
            assert_eq!(person.get(&back).await.0, 303);
        }
    }
    assert_eq!(call(&gateway, &token, "x").await.0, 200);
    let log = gateway.log();
    assert!(!log.contains(&token), "{log}");
}

/// Returns the exit status and the output of `tooldock secrets list`.
fn tool_secrets(gateway: &Gateway) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["secrets", "list"])
        .env("DATA_DIR", gateway.data_dir())
        .env("SECRETS_KEY", KEY)
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), listed)
}

/// Runs a client program of an SDK, which prints a link and then the result of its call. Makes the connection with the link.
async fn by_sdk(program: impl FnOnce(&str) -> Command) {
    let far = Backend::start("far").await;
    let provider = Provider::start(3600);
    let (gateway, origin) = reachable(remote(&far, &provider.issuer)).await;
    let mut client = tokio::process::Command::from(program(&format!("{origin}/mcp/own")));
    let mut client = client
        .arg(ADA)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut line = async || {
        let line = timeout(DEADLINE, lines.next_line()).await;
        line.expect("in time").unwrap().expect("a line")
    };
    let link = line().await;
    assert!(is_link(&link, &origin), "{link}\n{}", gateway.log());
    Visitor::new().connect(&link, ADA, &provider.issuer).await;
    let seen = line().await;
    let seen: Value = serde_json::from_str(&seen).expect(&seen);
    assert_eq!(seen["text"], "far", "{seen}");
}

#[tokio::test]
async fn the_typescript_sdk_opens_the_link_and_gets_its_answer() {
    by_sdk(|url| {
        let mut command = script("connect_typescript1.mjs");
        command.arg(url);
        command
    })
    .await;
}

#[tokio::test]
async fn the_python_sdk_opens_the_link_and_gets_its_answer() {
    by_sdk(|url| {
        let mut command = programs::python("clients-mcp1");
        command
            .arg(programs::root().join("tests/clients/connect_mcp1.py"))
            .arg(url);
        command
    })
    .await;
}
