//! Authorizations of remote servers that name another authorization server later, or whose configuration changes.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use rustix::process::Signal;

use super::authorized::{Asking, shown};
use super::*;

/// An authorization server on a socket that registers every client and takes every code. Its tokens are over at once.
pub(super) struct Site {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<(String, String)>>>,
    /// True once the issuer refuses to renew tokens; false while it renews them.
    pub(super) revoked: Arc<AtomicBool>,
}

impl Site {
    pub(super) async fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let site = Self {
            url: url.clone(),
            asked: Arc::default(),
            revoked: Arc::default(),
        };
        let (asked, revoked) = (Arc::clone(&site.asked), Arc::clone(&site.revoked));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (asked, url) = (Arc::clone(&asked), url.clone());
                let revoked = Arc::clone(&revoked);
                tokio::spawn(async move {
                    while let Some((head, body)) = backend::read(&mut stream).await {
                        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                        let answer = match &*path {
                            "/.well-known/oauth-authorization-server" => json!({
                                "issuer": url, "authorization_endpoint": format!("{url}/authorize"),
                                "token_endpoint": format!("{url}/token"), "registration_endpoint": format!("{url}/register"),
                                "code_challenge_methods_supported": ["S256"], "response_types_supported": ["code"],
                                "client_id_metadata_document_supported": true,
                            }),
                            "/register" => json!({
                                "client_id": format!("client-of-{name}"), "client_secret": format!("canary-secret-of-{name}"),
                                "redirect_uris": [],
                            }),
                            "/token"
                                if body.contains("grant_type=refresh_token")
                                    && revoked.load(Ordering::SeqCst) =>
                            {
                                json!({"error": "invalid_grant"})
                            }
                            "/token" => json!({
                                "access_token": format!("canary-access-of-{name}"), "token_type": "bearer", "expires_in": 0,
                                "refresh_token": format!("canary-refresh-of-{name}"),
                            }),
                            _ => Value::Null,
                        };
                        let status = match &answer {
                            Value::Null => 404,
                            answer if answer.get("error").is_some() => 400,
                            _ => 200,
                        };
                        asked.lock().unwrap().push((head, body));
                        let answer = backend::answered(status, "", &answer.to_string());
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        site
    }

    /// Heads and bodies of all requests.
    pub(super) fn all(&self) -> Vec<(String, String)> {
        self.asked.lock().unwrap().clone()
    }

    /// Heads and bodies of requests for tokens.
    fn exchanges(&self) -> Vec<(String, String)> {
        let mut all = self.asked.lock().unwrap().clone();
        all.retain(|(head, _)| head.starts_with("POST /token"));
        all
    }
}

pub(super) fn name_issuer(far: &Backend, site: &Site) {
    let document = json!({"resource": far.url(), "authorization_servers": [site.url]});
    far.publish("/.well-known/oauth-protected-resource/mcp", document);
}

pub(super) fn remote_with(far: &Backend, oauth: &Value) -> Value {
    json!({"remote": {"own": {
        "backends": [far.url()], "mode": "client", "allow_private": true, "oauth": oauth,
        "health": {"active": {"every": "1h"}},
    }}})
}

/// The address that a browser comes back to from an authorization page.
fn back(address: &str, more: &str) -> String {
    let part = |name: &str| {
        let found = address.split(&format!("{name}=")).nth(1).unwrap();
        found.split('&').next().unwrap().to_owned()
    };
    let redirect = part("redirect_uri").replace("%3A", ":").replace("%2F", "/");
    format!("{redirect}?code=c&state={}{more}", part("state"))
}

async fn authorized(gateway: &Gateway, more: &str) -> (bool, String) {
    let asking = Asking::start(gateway, &[]);
    reqwest::get(back(&asking.address, more)).await.unwrap();
    asking.end()
}

// The command is waited for by a thread, and asks servers of this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_authorization_server_that_the_remote_server_names_gets_nothing_and_ends_the_authorization()
 {
    let far = Backend::start("far").await;
    let (first, second) = (Site::start("first").await, Site::start("second").await);
    name_issuer(&far, &first);
    let oauth = json!({"grant": "authorization_code"});
    let gateway = three(remote_with(&far, &oauth)).await;

    let foreign = format!("&iss={}", second.url);
    let (succeeded, said) = authorized(&gateway, &foreign).await;
    assert!(!succeeded && said.contains(&second.url), "{said}");
    assert!(first.exchanges().is_empty(), "no code went anywhere");

    let own = format!("&iss={}", first.url);
    let (succeeded, said) = authorized(&gateway, &own).await;
    assert!(succeeded, "{said}");
    eventually("calls are served", || async {
        let (status, _) = call(&gateway, ADA, "x").await;
        (status == 200).then_some(())
    })
    .await;
    assert_eq!(
        shown(&far).as_deref(),
        Some("Bearer canary-access-of-first")
    );
    let renewed = |site: &Site| {
        let mut all = site.exchanges();
        all.retain(|(_, body)| body.contains("refresh_token=canary-refresh-of-first"));
        all.len()
    };
    assert!(renewed(&first) > 0);

    name_issuer(&far, &second);
    let before = far.requests("tools/call").len();
    eventually("the authorization is over", || async {
        let (status, answer) = call(&gateway, ADA, "x").await;
        (status == 403 && answer["error"]["code"] == "missing_credential").then_some(())
    })
    .await;
    assert_eq!(far.requests("tools/call").len(), before);
    assert!(second.exchanges().is_empty());
    let asked = second.asked.lock().unwrap().clone();
    let canaries = asked
        .iter()
        .filter(|(head, body)| head.contains("canary") || body.contains("canary"));
    assert_eq!(canaries.count(), 0, "{asked:?}");
    let log = gateway.log();
    let lines = log.lines().filter(|it| it.contains(&second.url));
    let lines: Vec<_> = lines
        .filter(|it| it.contains("no token for the server of namespace own"))
        .collect();
    assert_eq!(lines.len(), 1, "{log}");
    let command = "tooldock secrets authorize --namespace own";
    assert!(lines[0].contains(command), "{log}");
    assert!(!log.contains("canary"), "{log}");
    let metric =
        "tooldock_upstream_authorizations_ended_total{namespace=\"own\",reason=\"issuer\"} 1";
    let metrics = gateway.metrics_text().await;
    assert!(metrics.contains(metric), "{metrics}");
}

// The command is waited for by a thread, and asks servers of this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reload_tokens_go_to_no_server_issuer_client_or_scope_that_they_were_not_given_for()
{
    let (far, other) = (Backend::start("far").await, Backend::start("other").await);
    let (first, second) = (Site::start("first").await, Site::start("second").await);
    name_issuer(&far, &first);
    name_issuer(&other, &second);
    let oauth = json!({"grant": "authorization_code"});
    let before = remote_with(&far, &oauth);
    let gateway = three(before.clone()).await;
    let (succeeded, said) = authorized(&gateway, "").await;
    assert!(succeeded, "{said}");
    let served = || async {
        let (status, _) = call(&gateway, ADA, "x").await;
        (status == 200).then_some(())
    };
    eventually("calls are served", served).await;

    let explicit = json!({"grant": "authorization_code", "resource": far.url()});
    let issuer = json!({"grant": "authorization_code", "issuer": second.url});
    let client = json!({"grant": "authorization_code", "client_id": "another"});
    let scopes = json!({"grant": "authorization_code", "scopes": ["more"]});
    for changed in [
        remote_with(&other, &oauth),
        remote_with(&other, &explicit),
        remote_with(&far, &issuer),
        remote_with(&far, &client),
        remote_with(&far, &scopes),
    ] {
        gateway.reconfigure(json!({"upstreams": changed.clone()}));
        gateway.signal(Signal::HUP);
        eventually("calls are refused", || async {
            let (status, _) = call(&gateway, ADA, "x").await;
            (status != 200).then_some(())
        })
        .await;
        let sent = (first.exchanges().len(), far.requests("tools/call").len());
        let (status, answer) = call(&gateway, ADA, "x").await;
        assert_ne!(status, 200, "{changed}: {answer}");
        let now = (first.exchanges().len(), far.requests("tools/call").len());
        assert_eq!(now, sent, "{changed}");
        let shown = other.all().into_iter();
        let shown: Vec<_> = shown.filter(|(head, _)| head.contains("canary")).collect();
        assert!(shown.is_empty(), "{changed}: {shown:?}");
        assert!(second.exchanges().is_empty(), "{changed}");

        gateway.reconfigure(json!({"upstreams": before.clone()}));
        gateway.signal(Signal::HUP);
        eventually("calls are served as before", served).await;
    }
    assert!(!gateway.log().contains("canary"));
}
