//! Tokens, refresh tokens and client secrets go to the authorization server and the backends that they belong to.

use std::collections::HashMap;

use serde_json::{Value, json};
use tooldock_credentials::secrets::{Authorization, Authorizer, Protection, SecretStore};

use super::oauth::{authorization, token};
use super::*;

/// A site whose documents a test chooses, and all that it was asked. Other paths are 404, and `/mcp` is 200.
struct Site {
    url: String,
    documents: Arc<Mutex<HashMap<String, (u16, String)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

const METADATA: &str = "/.well-known/oauth-authorization-server";
const RESOURCE: &str = "/.well-known/oauth-protected-resource/mcp";

impl Site {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let site = Self {
            url: format!("http://{}", listener.local_addr().expect("an address")),
            documents: Arc::default(),
            asked: Arc::default(),
        };
        let (documents, asked) = (Arc::clone(&site.documents), Arc::clone(&site.asked));
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let (documents, asked) = (Arc::clone(&documents), Arc::clone(&asked));
                tokio::spawn(async move {
                    while let Some(request) = read_request(&mut connection).await {
                        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                        lock(&asked).push(request.clone());
                        let found = lock(&documents).get(&path).cloned();
                        let other = match request.starts_with("post /mcp") {
                            true => (200, "{}".to_owned()),
                            false => (404, "{}".to_owned()),
                        };
                        let (status, body) = found.unwrap_or(other);
                        let (location, body) = match status {
                            302 => (format!("location: {body}\r\n"), String::new()),
                            _ => (String::new(), body),
                        };
                        let text = format!(
                            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{location}content-length: {}\r\n\r\n{body}",
                            body.len()
                        );
                        if connection.write_all(text.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        site
    }

    /// A site that is an authorization server, whose tokens are over at once.
    async fn issuer() -> Self {
        let site = Self::start().await;
        site.says(METADATA, 200, &site.metadata(&site.url).to_string());
        let tokens = json!({"access_token": "t1", "refresh_token": "r1", "token_type": "bearer", "expires_in": 0});
        site.says("/token", 200, &tokens.to_string());
        site
    }

    fn metadata(&self, issuer: &str) -> Value {
        json!({
            "issuer": issuer, "authorization_endpoint": format!("{}/authorize", self.url),
            "token_endpoint": format!("{}/token", self.url),
        })
    }

    fn says(&self, path: &str, status: u16, text: &str) {
        lock(&self.documents).insert(path.to_owned(), (status, text.to_owned()));
    }

    /// Names that authorization server from now on (RFC 9728).
    fn names(&self, issuer: &str) {
        let document =
            json!({"resource": format!("{}/mcp", self.url), "authorization_servers": [issuer]});
        self.says(RESOURCE, 200, &document.to_string());
    }

    /// Requests that begin so. They are in lower case.
    fn asked(&self, beginning: &str) -> Vec<String> {
        let mut all = lock(&self.asked).clone();
        all.retain(|it| it.to_ascii_lowercase().starts_with(beginning));
        all
    }
}

/// An authorization whose access token is over, and a client that has it.
struct House {
    _folder: tempfile::TempDir,
    store: Arc<AuthorizationStore>,
    authorizer: Authorizer,
    registry: prometheus::Registry,
    client: Arc<RemoteClient>,
}

impl House {
    fn new(bound: Option<Value>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let secrets = Arc::new(SecretStore::new(folder.path(), Protection::Insecure));
        let store = Arc::new(AuthorizationStore::new(secrets, Arc::default()));
        let authorizer = Authorizer {
            namespace: "ns".parse().expect("a name"),
            principal: None,
        };
        let mut kept = json!({"client_id": "gw", "client_secret": "registered", "credentials": {
            "client_id": "gw", "granted_scopes": [], "token_received_at": 1,
            "token_response": {"access_token": "t0", "refresh_token": "r0", "token_type": "bearer", "expires_in": 1},
        }});
        if let Some(bound) = bound {
            kept["bound"] = bound;
        }
        let given = Authorization::new(Secret::new(kept.to_string()));
        store.set(authorizer.clone(), given).expect("kept");
        let registry = prometheus::Registry::new();
        let metrics = RemoteMetrics::new(&registry).expect("fresh");
        let client = RemoteClient::new(
            Arc::new(SystemNames),
            Arc::new(metrics),
            Handle::current(),
            Arc::default(),
            Some(Arc::clone(&store)),
        );
        Self {
            _folder: folder,
            store,
            authorizer,
            registry,
            client,
        }
    }

    async fn send(&self, server: &Arc<RemoteServer>) -> Result<(), String> {
        let pool = self.client.backends(server);
        let sent = send(&pool.pick(&[], 0).expect("a backend")).await;
        sent.map(drop).map_err(|error| error.message)
    }

    fn is_kept(&self) -> bool {
        self.store.get(&self.authorizer).is_some()
    }

    fn ends(&self, reason: &str) -> f64 {
        let families = self.registry.gather();
        let mut all = families
            .iter()
            .filter(|it| it.name() == "tooldock_upstream_authorizations_ended_total")
            .flat_map(|it| it.get_metric());
        let found = all.find(|it| it.get_label().iter().any(|label| label.value() == reason));
        found.map_or(0.0, |it| it.get_counter().value())
    }
}

/// As `secrets authorize` keeps it for a server at that site.
fn bound(server: &Site, issuer: &Site) -> Value {
    let resource = format!("{}/mcp", server.url);
    json!({
        "issuer": issuer.url, "token_endpoint": format!("{}/token", issuer.url), "registration": "dynamic",
        "client_auth": "post", "resource": resource, "asked_for": resource, "scopes": [], "origins": [server.url],
    })
}

fn server_at(site: &Site, oauth: &str) -> Arc<RemoteServer> {
    let keys = format!(
        "allow_private: true, oauth: {{ grant: authorization_code{oauth} }}, health: {{ active: {{ every: 1h }} }}"
    );
    server(&[format!("'{}/mcp'", site.url)], &keys)
}

#[tokio::test]
async fn a_refresh_token_goes_to_the_issuer_it_came_from_and_another_issuer_ends_it() {
    let (site, own, other) = (
        Site::start().await,
        Site::issuer().await,
        Site::issuer().await,
    );
    site.names(&own.url);
    let house = House::new(Some(bound(&site, &own)));
    let server = server_at(&site, "");
    assert_eq!(house.send(&server).await, Ok(()));
    let renewed = own.asked("post /token");
    assert_eq!(renewed.len(), 1);
    for part in ["refresh_token=r0", "client_secret=registered", "resource="] {
        assert!(renewed[0].contains(part), "{part}: {}", renewed[0]);
    }

    // Its metadata claim to be those of the issuer.
    other.says(METADATA, 200, &other.metadata(&own.url).to_string());
    site.names(&format!("{}/.well-known/forged", other.url));
    other.says(
        "/.well-known/forged",
        200,
        &other.metadata(&own.url).to_string(),
    );
    assert_eq!(house.send(&server).await, Ok(()));
    assert_eq!(own.asked("post /token").len(), 2);
    assert!(other.asked("post").is_empty());

    other.says(METADATA, 200, &other.metadata(&other.url).to_string());
    site.names(&other.url);
    let before = site.asked("post /mcp").len();
    for _ in 0..3 {
        let error = house.send(&server).await.expect_err("over");
        assert!(
            error.contains("tooldock secrets authorize --namespace ns"),
            "{error}"
        );
    }
    assert!(other.asked("post").is_empty());
    assert_eq!(site.asked("post /mcp").len(), before);
    assert!(!house.is_kept());
    assert_eq!(house.ends("issuer"), 1.0);
}

#[tokio::test]
async fn a_server_that_names_no_issuer_has_the_one_that_it_had() {
    let (site, own) = (Site::start().await, Site::issuer().await);
    let house = House::new(Some(bound(&site, &own)));
    assert_eq!(house.send(&server_at(&site, "")).await, Ok(()));
    // An issuer that does not answer ends the authorization as well, and is named.
    site.names("http://127.0.0.1:1");
    assert!(house.send(&server_at(&site, "")).await.is_err());
    assert_eq!(own.asked("post /token").len(), 1);
}

#[tokio::test]
async fn a_record_that_says_nothing_of_its_issuer_counts_where_the_configuration_names_it() {
    let (site, own) = (Site::start().await, Site::issuer().await);
    site.names(&own.url);
    let house = House::new(None);
    for _ in 0..3 {
        let error = house
            .send(&server_at(&site, ""))
            .await
            .expect_err("unbound");
        assert!(error.contains("oauth.issuer"), "{error}");
    }
    assert!(lock(&own.asked).is_empty() && lock(&site.asked).is_empty());
    assert!(house.is_kept());
    assert_eq!(house.ends("unbound"), 1.0);

    let named = server_at(&site, &format!(", issuer: '{}'", own.url));
    assert_eq!(house.send(&named).await, Ok(()));
    assert_eq!(own.asked("post /token").len(), 1);
    let kept = house.store.get(&house.authorizer).expect("kept");
    assert!(kept.tokens.expose().contains("\"bound\""));
    // Bound from now on.
    let elsewhere = Site::start().await;
    let moved = server_at(&elsewhere, &format!(", issuer: '{}'", own.url));
    assert!(house.send(&moved).await.is_err());
    assert!(lock(&elsewhere.asked).is_empty());
}

#[tokio::test]
async fn metadata_that_name_another_issuer_and_redirects_get_no_secret() {
    let site = Site::start().await;
    let (asked, other) = (Site::issuer().await, Site::issuer().await);
    let oauth = format!(
        "allow_private: true, oauth: {{ client_id: gw, client_secret: '${{TOKEN}}', issuer: '{}' }}, \
         health: {{ active: {{ every: 1h }} }}",
        asked.url
    );
    let server = server(&[format!("'{}/mcp'", site.url)], &oauth);
    let sent = async || {
        let client = client_with(SystemNames);
        let pool = client.backends(&server);
        send(&pool.pick(&[], 0).expect("a backend")).await
    };
    sent().await.expect("a response");
    asked.says(METADATA, 200, &other.metadata(&other.url).to_string());
    let error = sent().await.expect_err("another issuer");
    assert!(error.message.contains("another issuer"), "{error}");
    asked.says(METADATA, 302, &format!("{}{METADATA}", other.url));
    sent().await.expect_err("a redirect");
    // The issuer's own site has no say in who it is.
    asked.says(RESOURCE, 200, "{}");
    let document = json!({"resource": asked.url, "authorization_servers": [other.url]});
    asked.says(
        "/.well-known/oauth-protected-resource",
        200,
        &document.to_string(),
    );
    sent().await.expect_err("another issuer");
    asked.says(METADATA, 200, &asked.metadata(&asked.url).to_string());
    asked.says("/token", 302, &format!("{}/token", other.url));
    sent().await.expect_err("a redirect");
    assert!(lock(&other.asked).is_empty());
    assert_eq!(site.asked("post /mcp").len(), 1);
}

#[tokio::test]
async fn a_token_of_the_gateways_own_is_sent_to_no_backend_that_it_was_not_fetched_for() {
    let endpoint = ScriptedBackend::start(&[token("t1", 3600), token("t2", 3600)]).await;
    let (first, second) = (
        ScriptedBackend::start(&[Answer::Say(OK)]).await,
        ScriptedBackend::start(&[Answer::Say(OK)]).await,
    );
    let client = client_with(SystemNames);
    for (backend, expected) in [(&first, "bearer t1"), (&second, "bearer t2")] {
        let keys = format!(
            "oauth: {{ client_id: gw, client_secret: '${{TOKEN}}', token_url: '{}', resource: 'https://r.example' }}, \
             health: {{ active: {{ every: 1h }} }}",
            endpoint.url()
        );
        let server = server(&[backend.url()], &keys);
        let pool = client.backends(&server);
        send(&pool.pick(&[], 0).expect("a backend"))
            .await
            .expect("a response");
        assert_eq!(authorization(&backend.requests()[0]), Some(expected));
    }
}
