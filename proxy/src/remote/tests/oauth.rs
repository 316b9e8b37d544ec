//! Tokens for backends: fetched once, renewed in time, and shown nowhere.

use http::StatusCode;
use tooldock_credentials::secrets::{Authorization, Authorizer, Protection, SecretStore};
use tooldock_upstream::http_client::SendErrorKind;

use super::*;

const REFUSED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";

/// An answer of a token endpoint with that token and lifetime in seconds.
pub(super) fn token(value: &str, lifetime: u32) -> Answer {
    let body =
        format!(r#"{{"access_token":"{value}","token_type":"bearer","expires_in":{lifetime}}}"#);
    let length = body.len();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json";
    let text = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    // An `Answer` holds text that lives for ever. A test process makes few of them and ends soon.
    Answer::Say(Box::leak(text.into_boxed_str()))
}

/// A server that wants tokens of that endpoint, and the client that gets them.
fn wants(
    backend: &ScriptedBackend,
    endpoint: &str,
    more: &str,
) -> (Arc<RemoteServer>, Arc<RemoteClient>) {
    let oauth = format!(
        "oauth: {{ client_id: gateway, client_secret: '${{TOKEN}}', token_url: '{endpoint}', scopes: [read, write] }}"
    );
    let keys = format!("{oauth}, {more} health: {{ active: {{ every: 1h }} }}");
    (server(&[backend.url()], &keys), client_with(SystemNames))
}

pub(super) fn authorization(request: &str) -> Option<&str> {
    let mut lines = request.lines();
    lines.find_map(|line| line.strip_prefix("authorization: "))
}

#[tokio::test]
async fn one_token_is_fetched_for_many_requests_at_once() {
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let endpoint = ScriptedBackend::start(&[token("t1", 3600)]).await;
    let (server, client) = wants(&backend, &endpoint.url(), "");
    let pool = client.backends(&server);
    let chosen = pool.pick(&[], 0).expect("a backend");
    let sends = (0..20).map(|_| send(&chosen));
    for sent in futures_util::future::join_all(sends).await {
        assert_eq!(sent.expect("a response").status, StatusCode::OK);
    }
    let asked = endpoint.requests();
    assert_eq!(asked.len(), 1, "{asked:?}");
    for part in [
        "grant_type=client_credentials",
        "client_id=gateway",
        "client_secret=hunter2",
        "scope=read+write",
        "resource=http",
    ] {
        assert!(asked[0].contains(part), "{part}: {}", asked[0]);
    }
    assert_eq!(backend.requests().len(), 20);
    for request in backend.requests() {
        assert_eq!(authorization(&request), Some("bearer t1"), "{request}");
    }
}

#[tokio::test]
async fn an_expired_token_is_replaced_before_a_request_and_an_old_one_meanwhile() {
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let endpoint =
        ScriptedBackend::start(&[token("t1", 0), token("t2", 1), token("t3", 3600)]).await;
    let (server, client) = wants(&backend, &endpoint.url(), "");
    let pool = client.backends(&server);
    let chosen = pool.pick(&[], 0).expect("a backend");
    let shown = || {
        let last = backend.requests().pop().expect("a request");
        authorization(&last).expect("a token").to_owned()
    };
    send(&chosen).await.expect("a response");
    assert_eq!(shown(), "bearer t1");
    send(&chosen).await.expect("a response");
    assert_eq!(shown(), "bearer t2");
    // Until four fifths of its second are over.
    let renewed = async {
        while shown() != "bearer t3" {
            send(&chosen).await.expect("a response");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(renewed).await;
    assert_eq!(endpoint.requests().len(), 3);
}

#[tokio::test]
async fn a_refused_token_is_fetched_anew_once_and_the_request_repeated_once() {
    let backend =
        ScriptedBackend::start(&[Answer::Say(REFUSED), Answer::Say(OK), Answer::Say(REFUSED)])
            .await;
    let endpoint =
        ScriptedBackend::start(&[token("t1", 3600), token("t2", 3600), token("t3", 3600)]).await;
    let (server, client) = wants(&backend, &endpoint.url(), "");
    let pool = client.backends(&server);
    let chosen = pool.pick(&[], 0).expect("a backend");
    assert_eq!(
        send(&chosen).await.expect("a response").status,
        StatusCode::OK
    );
    let shown: Vec<_> = backend
        .requests()
        .iter()
        .map(|it| authorization(it).map(str::to_owned))
        .collect();
    assert_eq!(
        shown,
        [Some("bearer t1".to_owned()), Some("bearer t2".to_owned())]
    );
    // A backend that refuses every token is believed.
    assert_eq!(
        send(&chosen).await.expect("a response").status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(endpoint.requests().len(), 3);
    assert_eq!(backend.requests().len(), 4);
}

#[tokio::test]
async fn without_a_token_nothing_is_sent_and_no_secret_is_told() {
    const NO: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 68\r\n\r\n{\"error\":\"invalid_client\",\"error_description\":\"no client for hunter2\"}";
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    for answers in [
        &[Answer::Say(NO)][..],
        &[Answer::Silence],
        &[Answer::Last("")],
        &[Answer::Say(OK)],
    ] {
        let endpoint = ScriptedBackend::start(answers).await;
        let limits = "timeouts: { connect: 500ms, head: 500ms },";
        let (server, client) = wants(&backend, &endpoint.url(), limits);
        let pool = client.backends(&server);
        let chosen = pool.pick(&[], 0).expect("a backend");
        let sends = (0..5).map(|_| send(&chosen));
        for sent in futures_util::future::join_all(sends).await {
            let error = sent.expect_err("no token");
            assert_eq!(error.kind, SendErrorKind::Authorization, "{error}");
            assert!(error.unsent && error.message.contains("token"), "{error}");
            assert!(!error.message.contains("hunter2"), "{error}");
        }
        let forms = endpoint.requests();
        let in_body = |it: &&String| it.contains("client_secret=");
        // The secret is sent at most once in each form.
        assert_eq!(forms.iter().filter(in_body).count(), 1, "{forms:?}");
        assert!(forms.len() <= 2, "nobody asks again at once");
        assert!(chosen.is_healthy(), "the backend is not to blame");
    }
    assert!(backend.requests().is_empty());
}

#[tokio::test]
async fn the_rules_on_private_addresses_hold_for_the_token_endpoint() {
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let endpoint = ScriptedBackend::start(&[token("t1", 3600)]).await;
    let port = endpoint.address.port();
    let by_name = format!("http://localhost:{port}/token");
    let (server, client) = wants(&backend, &by_name, "");
    let pool = client.backends(&server);
    let error = send(&pool.pick(&[], 0).expect("a backend")).await;
    let error = error.expect_err("private").message;
    assert!(error.contains("token"), "{error}");
    for address in ["localhost", "127.0.0.1", "::1", &port.to_string()] {
        assert!(!error.contains(address), "{error}");
    }
    assert!(endpoint.requests().is_empty());
    let (server, client) = wants(&backend, &by_name, "allow_private: true,");
    let pool = client.backends(&server);
    send(&pool.pick(&[], 0).expect("a backend"))
        .await
        .expect("a response");
}

/// An authorization server that says of itself where tokens are, and the paths it was asked for. `elsewhere` is where it says
/// they are, if not there.
async fn issuer(elsewhere: Option<String>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (own, asked) = (url.clone(), Arc::<Mutex<Vec<String>>>::default());
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let (own, seen) = (own.clone(), Arc::clone(&seen));
            let token = elsewhere.clone().unwrap_or_else(|| format!("{own}/token"));
            tokio::spawn(async move {
                while let Some(request) = read_request(&mut connection).await {
                    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                    let (status, body) = match &*path {
                        "/.well-known/oauth-authorization-server" => {
                            let metadata = format!(
                                r#"{{"issuer":"{own}","authorization_endpoint":"{own}/authorize","token_endpoint":"{token}"}}"#
                            );
                            (200, metadata)
                        }
                        "/token" => (
                            200,
                            r#"{"access_token":"t1","token_type":"bearer"}"#.to_owned(),
                        ),
                        _ => (404, "{}".to_owned()),
                    };
                    lock(&seen).push(path);
                    let text = format!(
                        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if connection.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, asked)
}

#[tokio::test]
async fn the_token_endpoint_is_discovered_from_the_issuer() {
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let (url, asked) = issuer(None).await;
    let oauth =
        format!("oauth: {{ client_id: gateway, client_secret: '${{TOKEN}}', issuer: '{url}' }}");
    let keys = format!("{oauth}, health: {{ active: {{ every: 1h }} }}");
    let server = server(&[backend.url()], &keys);
    let client = client_with(SystemNames);
    let pool = client.backends(&server);
    let chosen = pool.pick(&[], 0).expect("a backend");
    send(&chosen).await.expect("a response");
    let request = backend.requests().pop().expect("a request");
    assert_eq!(authorization(&request), Some("bearer t1"));
    let asked = lock(&asked).clone();
    assert_eq!(
        asked.iter().filter(|it| *it == "/token").count(),
        1,
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_discovered_address_that_is_private_or_not_encrypted_gets_no_secret() {
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let endpoint = ScriptedBackend::start(&[token("t1", 3600)]).await;
    for elsewhere in [endpoint.url(), "http://tokens.example/token".to_owned()] {
        let (url, _) = issuer(Some(elsewhere)).await;
        let oauth = format!(
            "oauth: {{ client_id: gateway, client_secret: '${{TOKEN}}', issuer: '{url}' }}"
        );
        let keys = format!("{oauth}, health: {{ active: {{ every: 1h }} }}");
        let server = server(&[backend.url()], &keys);
        let client = client_with(SystemNames);
        let pool = client.backends(&server);
        let error = send(&pool.pick(&[], 0).expect("a backend")).await;
        let error = error.expect_err("refused").message;
        assert!(error.contains("is discovered and not"), "{error}");
        for address in ["127.0.0.1", "tokens.example"] {
            assert!(!error.contains(address), "{error}");
        }
    }
    assert!(endpoint.requests().is_empty());
    assert!(backend.requests().is_empty());
}

#[test]
fn a_token_shows_nowhere_in_debug() {
    let oauth =
        "oauth: { client_id: gateway, client_secret: '${TOKEN}', token_url: 'https://a/token' }";
    let text = format!("{:?}", server(&["https://a/mcp".to_owned()], oauth));
    assert!(
        text.contains("gateway") && !text.contains("hunter2"),
        "{text}"
    );
}

/// The secret of a client that registered by itself.
const REGISTERED: &str = "canary-registered-0123456789";

/// The authorization for the namespace of [`server`], in a store of its own.
struct GivenHouse {
    _folder: tempfile::TempDir,
    store: Arc<AuthorizationStore>,
    authorizer: Authorizer,
}

impl GivenHouse {
    /// With an access token `t0` that was received so many seconds ago and lives for so many.
    fn new(age: u64, lifetime: u64) -> Self {
        let response = serde_json::json!({
            "access_token": "t0", "refresh_token": "r0", "token_type": "bearer", "expires_in": lifetime,
        });
        Self::with(age, &response)
    }

    /// With the tokens of that answer, which was received so many seconds ago.
    fn with(age: u64, response: &serde_json::Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let secrets = Arc::new(SecretStore::new(folder.path(), Protection::Insecure));
        let store = Arc::new(AuthorizationStore::new(secrets, Arc::default()));
        let authorizer = Authorizer {
            namespace: "ns".parse().expect("a name"),
            principal: None,
        };
        let now = std::time::UNIX_EPOCH
            .elapsed()
            .expect("after 1970")
            .as_secs();
        let tokens = serde_json::json!({"client_id": "gw", "client_secret": REGISTERED, "credentials": {
            "client_id": "gw", "granted_scopes": ["read"], "token_received_at": now - age,
            "token_response": response,
        }});
        let given = Authorization::new(Secret::new(tokens.to_string()));
        store.set(authorizer.clone(), given).expect("kept");
        Self {
            _folder: folder,
            store,
            authorizer,
        }
    }

    fn wants(
        &self,
        backend: &ScriptedBackend,
        endpoint: &str,
    ) -> (Arc<RemoteServer>, Arc<RemoteClient>) {
        let keys = format!(
            "oauth: {{ grant: authorization_code, client_id: gw, authorization_url: '{endpoint}', token_url: '{endpoint}' }}, \
             health: {{ active: {{ every: 1h }} }}"
        );
        let store = Some(Arc::clone(&self.store));
        let server = server(&[backend.url()], &keys);
        (server, client_with_authorizations(SystemNames, store))
    }

    fn kept(&self) -> Option<String> {
        let given = self.store.get(&self.authorizer)?;
        Some(given.tokens.expose().to_owned())
    }
}

/// An answer with a new refresh token, too.
fn rotated(access: &str, refresh: &str) -> Answer {
    let body = format!(
        r#"{{"access_token":"{access}","refresh_token":"{refresh}","token_type":"bearer","expires_in":3600}}"#
    );
    let length = body.len();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json";
    let text = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    // As above.
    Answer::Say(Box::leak(text.into_boxed_str()))
}

const OVER: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 25\r\n\r\n{\"error\":\"invalid_grant\"}";

#[tokio::test]
async fn what_somebody_gave_is_used_while_it_lives_and_renewed_once_for_all_who_wait() {
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let endpoint = ScriptedBackend::start(&[rotated("t1", "r1")]).await;
    let house = GivenHouse::new(10, 3600);
    let (server, client) = house.wants(&backend, &endpoint.url());
    let pool = client.backends(&server);
    send(&pool.pick(&[], 0).expect("a backend"))
        .await
        .expect("a response");
    assert_eq!(authorization(&backend.requests()[0]), Some("bearer t0"));
    assert!(endpoint.requests().is_empty());

    let house = GivenHouse::new(100, 10);
    let (server, client) = house.wants(&backend, &endpoint.url());
    let pool = client.backends(&server);
    let chosen = pool.pick(&[], 0).expect("a backend");
    let sends = (0..20).map(|_| send(&chosen));
    for sent in futures_util::future::join_all(sends).await {
        assert_eq!(sent.expect("a response").status, StatusCode::OK);
    }
    let asked = endpoint.requests();
    assert_eq!(asked.len(), 1, "{asked:?}");
    for part in ["grant_type=refresh_token", "refresh_token=r0", "resource="] {
        assert!(asked[0].contains(part), "{part}: {}", asked[0]);
    }
    for request in &backend.requests()[1..] {
        assert_eq!(authorization(request), Some("bearer t1"), "{request}");
    }
    let kept = house.kept().expect("kept");
    assert!(kept.contains("t1") && kept.contains("r1"), "{kept}");
}

#[tokio::test]
async fn a_given_token_that_the_server_refuses_is_renewed_once() {
    let backend = ScriptedBackend::start(&[Answer::Say(REFUSED), Answer::Say(OK)]).await;
    let endpoint = ScriptedBackend::start(&[rotated("t1", "r1")]).await;
    let house = GivenHouse::new(10, 3600);
    let (server, client) = house.wants(&backend, &endpoint.url());
    let pool = client.backends(&server);
    let sent = send(&pool.pick(&[], 0).expect("a backend")).await;
    assert_eq!(sent.expect("a response").status, StatusCode::OK);
    let shown: Vec<_> = backend.requests();
    assert_eq!(authorization(&shown[0]), Some("bearer t0"));
    assert_eq!(authorization(&shown[1]), Some("bearer t1"));
}

#[tokio::test]
async fn what_is_not_renewed_is_used_to_its_end_and_what_never_will_be_is_forgotten() {
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    // Old, and not over yet.
    let house = GivenHouse::new(3000, 3600);
    let endpoint = ScriptedBackend::start(&[Answer::Last("")]).await;
    let (server, client) = house.wants(&backend, &endpoint.url());
    let pool = client.backends(&server);
    send(&pool.pick(&[], 0).expect("a backend"))
        .await
        .expect("a response");
    assert_eq!(authorization(&backend.requests()[0]), Some("bearer t0"));
    assert!(house.kept().is_some());

    let house = GivenHouse::new(4000, 3600);
    let endpoint = ScriptedBackend::start(&[Answer::Say(OVER)]).await;
    let (server, client) = house.wants(&backend, &endpoint.url());
    let pool = client.backends(&server);
    let chosen = pool.pick(&[], 0).expect("a backend");
    for _ in 0..3 {
        let error = send(&chosen).await.expect_err("no token");
        assert_eq!(error.kind, SendErrorKind::Authorization);
        let command = "tooldock secrets authorize --namespace ns";
        assert!(error.message.contains(command), "{error}");
    }
    assert_eq!(endpoint.requests().len(), 1, "it is not asked again");
    assert_eq!(house.kept(), None);
    assert_eq!(backend.requests().len(), 1);
}

fn says(head: &'static str, body: &str) -> Answer {
    let text = format!(
        "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // Leaked, since answers are static texts.
    Answer::Say(Box::leak(text.into_boxed_str()))
}

#[tokio::test]
async fn tokens_are_taken_as_endpoints_write_them() {
    let json = "200 OK\r\ncontent-type: application/json";
    for (head, body) in [
        (
            json,
            r#"{"access_token":"good","token_type":"Bearer","expires_in":"3600"}"#,
        ),
        (
            json,
            r#"{"access_token":"good","token_type":"Bearer","expires_in":3600.5}"#,
        ),
        (
            json,
            r#"{"access_token":"good","token_type":"Bearer","scope":["read","write"]}"#,
        ),
        (json, r#"{"access_token":"good","expires_in":3600}"#),
        (
            json,
            "\u{feff}{\"access_token\":\"good\",\"token_type\":\"Bearer\"}",
        ),
        (
            "200 OK\r\ncontent-type: text/html",
            "access_token=good&token_type=bearer",
        ),
        (
            "201 Created\r\ncontent-type: text/json",
            r#"{"access_token":"good"}"#,
        ),
    ] {
        let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
        let endpoint = ScriptedBackend::start(&[says(head, body)]).await;
        let (server, client) = wants(&backend, &endpoint.url(), "");
        let pool = client.backends(&server);
        let chosen = pool.pick(&[], 0).expect("a backend");
        for _ in 0..2 {
            send(&chosen).await.expect(body);
        }
        let request = backend.requests().pop().expect("a request");
        assert_eq!(authorization(&request), Some("bearer good"), "{body}");
        assert_eq!(endpoint.requests().len(), 1, "{body}");
    }
}

#[tokio::test]
async fn what_is_no_token_is_told_as_the_authorization_servers_answer() {
    for (head, body, words) in [
        (
            "200 OK\r\ncontent-type: text/html",
            "<html>log in, hunter2</html>",
            "the authorization server answered with HTTP 200 (text/html), which is no token",
        ),
        (
            "200 OK\r\ncontent-type: application/json",
            r#"{"error":"invalid_scope","error_description":"no such scope"}"#,
            "invalid_scope: no such scope",
        ),
        (
            "503 Busy\r\ncontent-type: text/plain",
            "later",
            "the authorization server answered with HTTP 503",
        ),
    ] {
        let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
        let endpoint = ScriptedBackend::start(&[says(head, body)]).await;
        let (server, client) = wants(&backend, &endpoint.url(), "");
        let pool = client.backends(&server);
        let error = send(&pool.pick(&[], 0).expect("a backend")).await;
        let error = error.expect_err(body);
        assert_eq!(
            (error.kind, error.unsent),
            (SendErrorKind::Authorization, true)
        );
        assert!(error.message.contains(words), "{error}");
        assert!(!error.message.contains("hunter2"), "{error}");
        assert!(backend.requests().is_empty());
    }
}

#[tokio::test]
async fn words_of_a_token_endpoint_are_told_without_tokens_secrets_and_private_addresses() {
    let (access, refresh) = ("canary-access-0123456789", "canary-refresh/0123456789");
    let tokens = serde_json::json!({
        "access_token": access, "refresh_token": refresh, "token_type": "bearer", "expires_in": 10,
    });
    let x = "x".repeat(205);
    for words in [
        format!("no new token for {refresh} of {REGISTERED}, {access}"),
        "no new token for canary-refresh%2F0123456789".to_owned(),
        format!("no new token at {x} {refresh}"),
        format!("no new token at {x}xxxxxxxxxxxxxx{access}"),
        "no new token for canary-refre... (cut)".to_owned(),
        "no new token for canary-acc".to_owned(),
        "no new token: dial tcp 10.1.2.3:5432 (http://canary:8080/x, canary.internal)".to_owned(),
    ] {
        for name in ["error_description", "message"] {
            let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
            let body = serde_json::json!({"error": "temporarily_unavailable", name: words});
            let head = "400 No\r\ncontent-type: application/json";
            let endpoint = ScriptedBackend::start(&[says(head, &body.to_string())]).await;
            let house = GivenHouse::with(100, &tokens);
            let (server, client) = house.wants(&backend, &endpoint.url());
            let pool = client.backends(&server);
            let error = send(&pool.pick(&[], 0).expect("a backend")).await;
            let error = error.expect_err(&words).message;
            for part in ["temporarily_unavailable", "no new token"] {
                assert!(error.contains(part), "{error}");
            }
            for part in ["cana", "10.1.2.3"] {
                assert!(!error.contains(part), "{words}: {error}");
            }
            assert!(backend.requests().is_empty() && house.kept().is_some());
        }
    }
    // The configured secret as it was shown, and tokens that come beside an error.
    for body in [
        r#"{"error":"invalid_scope","error_description":"no Basic Z2F0ZXdheTpodW50ZXIy"}"#,
        r#"{"error":"invalid_scope","error_description":"no cana-new-token","refresh_token":"cana-new-token"}"#,
    ] {
        let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
        let head = "200 OK\r\ncontent-type: application/json";
        let endpoint = ScriptedBackend::start(&[says(head, body)]).await;
        let (server, client) = wants(&backend, &endpoint.url(), "");
        let pool = client.backends(&server);
        let error = send(&pool.pick(&[], 0).expect("a backend")).await;
        let error = error.expect_err(body).message;
        assert!(error.contains("invalid_scope: no "), "{error}");
        for part in ["Z2F0", "cana"] {
            assert!(!error.contains(part), "{error}");
        }
    }
}

#[tokio::test]
async fn lifetimes_beyond_all_clocks_lose_no_token() {
    let claims = r#"{"exp":18446744073709551615}"#;
    let jwt = base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, claims);
    let jwt = format!("e30.{jwt}.c2ln");
    for (access, lifetime) in [
        ("good", r#","expires_in":"1e19""#),
        ("good", r#","expires_in":1e19"#),
        ("good", r#","expires_in":1.5e300"#),
        ("good", r#","expires_in":18446744073709551615"#),
        ("good", r#","expires_in":99999999999999999999999999"#),
        ("good", r#","expires_in":1e400"#),
        (&*jwt, ""),
    ] {
        let body = format!(r#"{{"access_token":"{access}","refresh_token":"rotated"{lifetime}}}"#);
        let head = "200 OK\r\ncontent-type: application/json";
        let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
        let endpoint = ScriptedBackend::start(&[says(head, &body)]).await;
        let (server, client) = wants(&backend, &endpoint.url(), "");
        let pool = client.backends(&server);
        let chosen = pool.pick(&[], 0).expect("a backend");
        for _ in 0..2 {
            send(&chosen).await.expect(&body);
        }
        assert_eq!(endpoint.requests().len(), 1, "{body}");

        let endpoint = ScriptedBackend::start(&[says(head, &body)]).await;
        let house = GivenHouse::new(100, 10);
        let (server, client) = house.wants(&backend, &endpoint.url());
        let pool = client.backends(&server);
        send(&pool.pick(&[], 0).expect("a backend"))
            .await
            .expect(&body);
        let kept = house.kept().expect("kept");
        assert!(kept.contains("rotated"), "{kept}");
    }
}

#[tokio::test]
async fn a_kept_token_of_a_lifetime_beyond_all_clocks_is_used() {
    let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let endpoint = ScriptedBackend::start(&[Answer::Last("")]).await;
    for lifetime in [u64::MAX, 10_000_000_000_000_000_000] {
        let house = GivenHouse::new(10, lifetime);
        let (server, client) = house.wants(&backend, &endpoint.url());
        let pool = client.backends(&server);
        send(&pool.pick(&[], 0).expect("a backend"))
            .await
            .expect("a response");
        let request = backend.requests().pop().expect("a request");
        assert_eq!(authorization(&request), Some("bearer t0"));
    }
    assert!(endpoint.requests().is_empty());
}

#[tokio::test]
async fn a_redirect_of_a_server_with_tokens_is_told_by_its_origin_alone() {
    for (location, told) in [
        (
            "https://login.example/canary/x?y=canary",
            Some("https://login.example"),
        ),
        ("/canary/login", None),
    ] {
        let head = format!("302 Found\r\nlocation: {location}");
        let answer = says(Box::leak(head.into_boxed_str()), "");
        let backend = ScriptedBackend::start(&[answer]).await;
        let endpoint = ScriptedBackend::start(&[token("t1", 3600)]).await;
        let (server, client) = wants(&backend, &endpoint.url(), "");
        let pool = client.backends(&server);
        let response = send(&pool.pick(&[], 0).expect("a backend")).await;
        let response = response.expect("a response");
        assert_eq!(response.status, StatusCode::FOUND);
        let shown = response.headers.get("location");
        let shown = shown.map(|it| it.to_str().expect("text"));
        assert_eq!(shown, told);
    }
}

#[tokio::test]
async fn a_redirect_of_a_token_endpoint_is_not_followed_to_the_slash_either() {
    for status in [307, 308] {
        let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
        let head = format!("{status} Moved\r\nlocation: /mcp/");
        let moved = says(Box::leak(head.into_boxed_str()), "");
        let endpoint = ScriptedBackend::start(&[moved, token("t1", 3600)]).await;
        let (server, client) = wants(&backend, &endpoint.url(), "");
        let pool = client.backends(&server);
        let error = send(&pool.pick(&[], 0).expect("a backend")).await;
        let error = error.expect_err("a redirect").message;
        assert!(error.contains(&format!("HTTP {status}")), "{error}");
        assert_eq!(endpoint.requests().len(), 1);
        assert!(backend.requests().is_empty());
    }
}

/// A token endpoint that takes secrets in the header alone, or in the body alone.
async fn picky(in_header: bool, refusal: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let url = format!(
        "http://{}/token",
        listener.local_addr().expect("an address")
    );
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                while let Some(request) = read_request(&mut connection).await {
                    // `gateway:hunter2` in Base64; the request was read in lower case.
                    let by_header = authorization(&request).is_some_and(|it| {
                        it == format!("basic {}", "Z2F0ZXdheTpodW50ZXIy".to_lowercase())
                    });
                    let by_body = request.contains("client_secret=hunter2");
                    lock(&seen).push(request);
                    let takes = if in_header {
                        by_header && !by_body
                    } else {
                        by_body && !by_header
                    };
                    let (status, body) = match takes {
                        true => (
                            "200 OK",
                            r#"{"access_token":"good","token_type":"bearer","expires_in":0}"#,
                        ),
                        false => refusal.split_once('|').expect("a status and a body"),
                    };
                    let text = format!(
                        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if connection.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, asked)
}

const NO_CLIENT: &str = "401 No\r\nwww-authenticate: Basic|{\"error\":\"invalid_client\"}";

#[tokio::test]
async fn refusals_of_a_request_without_a_client_are_answered_with_the_other_form() {
    for (refusal, requests) in [
        (
            r#"400 No|{"error":"invalid_request","error_description":"client_id is missing"}"#,
            2,
        ),
        (r#"400 No|{"error":"unauthorized_client"}"#, 2),
        (r#"401 No|{"error":"access_denied"}"#, 2),
        ("401 No|Unauthorized", 2),
        (r#"400 No|{"error":"invalid_scope"}"#, 1),
        (r#"401 No|{"error":"invalid_grant"}"#, 1),
    ] {
        let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
        let (url, asked) = picky(true, refusal).await;
        let keys = format!(
            "oauth: {{ client_id: gateway, client_secret: '${{TOKEN}}', token_url: '{url}' }}, health: {{ active: {{ every: 1h }} }}"
        );
        let server = server(&[backend.url()], &keys);
        let client = client_with(SystemNames);
        let pool = client.backends(&server);
        let sent = send(&pool.pick(&[], 0).expect("a backend")).await;
        assert_eq!(
            (sent.is_ok(), lock(&asked).len()),
            (requests == 2, requests),
            "{refusal}"
        );
    }
}

#[tokio::test]
async fn the_other_form_of_showing_the_secret_is_tried_once_and_remembered_unless_one_is_forced() {
    for (in_header, key, expected) in [
        (true, "", Some(3)),
        (false, "", Some(2)),
        (true, ", client_auth: basic", Some(2)),
        (false, ", client_auth: post", Some(2)),
        (true, ", client_auth: post", None),
        (false, ", client_auth: basic", None),
    ] {
        let backend = ScriptedBackend::start(&[Answer::Say(OK)]).await;
        let (url, asked) = picky(in_header, NO_CLIENT).await;
        let oauth = format!(
            "oauth: {{ client_id: gateway, client_secret: '${{TOKEN}}', token_url: '{url}'{key} }}"
        );
        let keys = format!("{oauth}, health: {{ active: {{ every: 1h }} }}");
        let server = server(&[backend.url()], &keys);
        let client = client_with(SystemNames);
        let pool = client.backends(&server);
        let chosen = pool.pick(&[], 0).expect("a backend");
        // The token expires at once, so that each request fetches a new token.
        let sent = send(&chosen).await;
        let Some(expected) = expected else {
            let error = sent.expect_err(key);
            assert!(error.message.contains("invalid_client"), "{error}");
            assert_eq!(lock(&asked).len(), 1, "{key}");
            continue;
        };
        sent.expect(key);
        send(&chosen).await.expect(key);
        assert_eq!(lock(&asked).len(), expected, "{in_header} {key}");
    }
}
