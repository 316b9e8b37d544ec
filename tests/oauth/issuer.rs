//! A scripted authorization server: its keys, its metadata, its answers about opaque tokens, and its failures.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How requests are answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Mood {
    /// As the specifications say.
    #[default]
    Right,
    /// Not at all; connections stay open.
    Hangs,
    /// Leaves introspections of unknown tokens without an answer.
    HangsAtUnknown,
    /// With 500.
    Down,
    /// With a set of keys of 10 MB.
    Huge,
    /// With a redirect to this address.
    Elsewhere(String),
}

#[derive(Default)]
pub struct State {
    pub mood: Mood,
    keys: Vec<(String, Ed25519KeyPair)>,
    /// The answers about opaque tokens.
    pub opaque: HashMap<String, Value>,
    /// Requests by path.
    pub requests: HashMap<String, usize>,
    /// The answer of the token endpoint.
    pub exchanged: Option<Value>,
    /// The last request for an introspection or for a token: its head and its form.
    pub asked: String,
}

/// The server. Dropping it closes the socket.
pub struct Issuer {
    pub url: String,
    pub state: Arc<Mutex<State>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Issuer {
    /// An issuer with one key of that id.
    pub async fn start(key: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, key)
    }

    fn on(listener: TcpListener, key: &str) -> Self {
        let address: SocketAddr = listener.local_addr().unwrap();
        let url = format!("http://{address}");
        let state = Arc::new(Mutex::new(State::default()));
        let (served, own) = (Arc::clone(&state), url.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, url) = (Arc::clone(&served), own.clone());
                tokio::spawn(async move {
                    let _ = answer(stream, &state, &url).await;
                });
            }
        });
        let issuer = Self { url, state, task };
        issuer.rotate(key);
        issuer
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// From now on a new key of that id signs, and it is the only one.
    pub fn rotate(&self, id: &str) {
        let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap();
        self.state().keys = vec![(id.to_owned(), pair)];
    }

    pub fn set(&self, mood: Mood) {
        self.state().mood = mood;
    }

    pub fn fetches(&self) -> usize {
        self.state().requests.get("/jwks").copied().unwrap_or(0)
    }

    /// A token of the newest key with these claims, on top of right ones.
    pub fn token(&self, changes: Value) -> String {
        let state = self.state();
        let (id, _) = state.keys.last().unwrap();
        let header = json!({ "alg": "EdDSA", "kid": id, "typ": "at+jwt" });
        drop(state);
        self.token_with(&header, changes)
    }

    pub fn token_with(&self, header: &Value, changes: Value) -> String {
        let mut claims = json!({
            "iss": self.url, "sub": "ada", "aud": "https://gw.example/mcp",
            "exp": seconds() + 300, "scope": "mcp:all",
        });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(&claims));
        let state = self.state();
        let signature = state.keys.last().unwrap().1.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    /// The bytes of the newest public key.
    pub fn public(&self) -> Vec<u8> {
        let state = self.state();
        state.keys.last().unwrap().1.public_key().as_ref().to_vec()
    }
}

pub fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

async fn answer(mut stream: TcpStream, state: &Mutex<State>, url: &str) -> std::io::Result<()> {
    let mut request = String::new();
    let mut buffer = [0; 4096];
    let whole = |request: &str| {
        let (head, body) = request.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse::<usize>().ok())?
        });
        (body.len() >= length.unwrap_or(0)).then_some(())
    };
    while whole(&request).is_none() {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        request.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mood, body) = {
        let mut state = state.lock().unwrap();
        *state.requests.entry(path.clone()).or_default() += 1;
        let body = match path.as_str() {
            "/.well-known/oauth-authorization-server" => Some(json!({
                "issuer": url, "jwks_uri": format!("{url}/jwks"),
                "authorization_endpoint": format!("{url}/authorize"), "token_endpoint": format!("{url}/token"),
            })),
            "/jwks" => {
                let keys = state.keys.iter().map(|(id, pair)| {
                    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
                    json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "use": "sig", "x": x })
                });
                Some(json!({ "keys": keys.collect::<Vec<_>>() }))
            }
            "/token" => {
                state.asked = request.clone();
                state.exchanged.clone()
            }
            "/introspect" => {
                let token = request.split("token=").nth(1).unwrap_or_default();
                let token = token.split('&').next().unwrap_or_default();
                let said = state.opaque.get(token).cloned();
                state.asked = request.clone();
                let unknown = || {
                    let silent = state.mood == Mood::HangsAtUnknown;
                    (!silent).then(|| json!({ "active": false }))
                };
                said.or_else(unknown)
            }
            _ => None,
        };
        (state.mood.clone(), body)
    };
    let (status, body) = match (mood, body) {
        (Mood::Hangs, _) | (Mood::HangsAtUnknown, None) => {
            let _ = stream.read(&mut buffer).await;
            return Ok(());
        }
        (Mood::Down, _) => ("500 Internal Server Error".to_owned(), "{}".to_owned()),
        (Mood::Huge, Some(_)) if path == "/jwks" => {
            let filler = "x".repeat(10_000_000);
            (
                "200 OK".to_owned(),
                format!("{{\"keys\":[],\"filler\":\"{filler}\"}}"),
            )
        }
        (Mood::Elsewhere(url), _) => (format!("302 Found\r\nLocation: {url}{path}"), String::new()),
        (_, Some(body)) => ("200 OK".to_owned(), body.to_string()),
        (_, None) => ("404 Not Found".to_owned(), "{}".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
