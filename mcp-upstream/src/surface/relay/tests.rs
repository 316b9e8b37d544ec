use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf,
    WriteHalf,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tooldock_base::failures::FailureLimits;
use tooldock_base::scope::ScopeTable;
use tooldock_credentials::keys::{KeyKind, KeyStore, MadeKey, NewKey};
use tooldock_sessions::caller::RelayPeer;
use tooldock_sessions::testing::{broken, namespace};

use super::{FrameLimits, Relay};
use crate::testing::{Harness, Wanted};

/// The time limit for anything that must come.
const SOON: Duration = Duration::from_secs(20);
/// The longest frame.
const FRAME_MAX: usize = 64 * 1024;

/// A client that is connected to the relay of a namespace.
struct Client {
    harness: Harness,
    keys: Arc<KeyStore>,
    _folder: tempfile::TempDir,
    input: Option<WriteHalf<DuplexStream>>,
    output: BufReader<ReadHalf<DuplexStream>>,
    gone: Arc<Notify>,
    stop: Arc<Notify>,
    serving: JoinHandle<()>,
}

/// Wrong keys of a user before delays begin.
const FREE_FAILURES: u32 = 20;

impl Client {
    fn of(name: &str) -> Self {
        let harness = Wanted {
            namespaces: vec![namespace("shared"), broken("broken")],
            ..Wanted::default()
        }
        .build();
        let folder = tempfile::tempdir().expect("a folder");
        let hello = ("hello".to_owned(), vec!["say_*".to_owned()]);
        let scopes = ScopeTable::new(&BTreeMap::from([hello])).expect("scopes");
        let keys = KeyStore::open(folder.path().join("keys.json"), scopes).expect("no keys yet");
        let keys = Arc::new(keys);
        let ids = Arc::new(|| Arc::from("r-1"));
        let name = name.parse().expect("a name");
        let frames = FrameLimits {
            each: FRAME_MAX,
            total: 4 * FRAME_MAX,
        };
        let relay = Relay::new(name, Arc::clone(&keys), frames, ids);
        let relay = Arc::new(relay.slowing_failures(Some(FailureLimits {
            free: FREE_FAILURES,
            window: Duration::from_secs(3600),
            max_delay: Duration::from_secs(3600),
        })));
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (output, input) = tokio::io::split(ours);
        let socket = tokio::io::split(theirs);
        let (gone, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (left, stopped) = (Arc::clone(&gone), Arc::clone(&stop));
        let peer = RelayPeer {
            uid: 1000,
            gid: 1000,
            pid: Some(7),
            project: None,
        };
        let service = harness.service.clone();
        let serving = tokio::spawn(async move {
            let (gone, stop) = (left.notified(), stopped.notified());
            let guest = relay.enter(peer.uid).expect("a place");
            let client = (guest, peer);
            service.serve_relay(relay, client, socket, gone, stop).await;
        });
        Self {
            harness,
            keys,
            _folder: folder,
            input: Some(input),
            output: BufReader::new(output),
            gone,
            stop,
            serving,
        }
    }

    /// A key with these scopes for these namespaces.
    fn key(&self, scopes: &[&str], namespaces: &[&str]) -> MadeKey {
        let texts = |texts: &[&str]| texts.iter().map(|&it| it.to_owned()).collect();
        let wanted = NewKey {
            name: "droid".into(),
            made_by: None,
            scopes: texts(scopes),
            namespaces: texts(namespaces),
            networks: Vec::new(),
            limits: Vec::new(),
            lifetime: None,
            kind: KeyKind::Relay,
        };
        self.keys.create(wanted).expect("a key")
    }

    async fn write(&mut self, text: &str) {
        let input = self.input.as_mut().expect("open");
        let written = timeout(SOON, input.write_all(text.as_bytes())).await;
        written.expect("soon").expect("read");
    }

    async fn send(&mut self, frame: Value) {
        self.write(&format!("{frame}\n")).await;
    }

    async fn call(&mut self, id: Value, key: &MadeKey, tool: &str, arguments: Value) {
        let key = key.text.expose();
        let params = json!({"api_key": key, "tool": tool, "arguments": arguments, "_meta": {"progressToken": "p"}});
        let frame =
            json!({"jsonrpc": "2.0", "id": id, "method": "oubliette_call_tool", "params": params});
        self.send(frame).await;
    }

    async fn tools(&mut self, key: &str) -> Value {
        let params = json!({"api_key": key});
        let frame =
            json!({"jsonrpc": "2.0", "id": 1, "method": "oubliette_tools", "params": params});
        self.send(frame).await;
        self.next().await
    }

    async fn next(&mut self) -> Value {
        let mut line = String::new();
        let read = timeout(SOON, self.output.read_line(&mut line)).await;
        assert!(read.expect("soon").expect("a line") > 0, "closed");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Waits until this many calls have started, were dropped and have finished.
    async fn counted(&self, expected: (usize, usize, usize)) {
        let counted = async {
            while self.harness.backend.counts() != expected {
                tokio::task::yield_now().await;
            }
        };
        timeout(SOON, counted).await.expect("soon");
    }
}

fn invalid_key(id: i32) -> Value {
    let error = json!({"code": -32001, "message": "invalid or expired API key"});
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

#[tokio::test]
async fn a_key_sees_and_calls_the_tools_of_its_scopes_alone() {
    let mut client = Client::of("shared");
    let hello = client.key(&["hello"], &["shared"]);
    let tools = client.tools(hello.text.expose()).await;
    let listed = tools["result"]["tools"].as_array().expect("tools");
    assert_eq!(listed.len(), 1);
    let names: Vec<&String> = listed[0].as_object().expect("a tool").keys().collect();
    assert_eq!(listed[0]["name"], "say_hello");
    assert_eq!(names.len(), 3, "{names:?}");

    client
        .call(json!("a"), &hello, "say_hello", json!({}))
        .await;
    let answer = client.next().await;
    assert_eq!(answer["id"], "a");
    assert_eq!(answer["result"]["isError"], false);
    assert_eq!(
        answer["result"].as_object().map(serde_json::Map::len),
        Some(2)
    );

    // Refused before the tool is looked up.
    for tool in ["echo", "no_such_tool"] {
        client.call(json!(2), &hello, tool, json!({})).await;
        let error = json!({"code": -32002, "message": "tool not allowed for this token scope"});
        assert_eq!(
            client.next().await,
            json!({"jsonrpc": "2.0", "id": 2, "error": error})
        );
    }
    let admin = client.key(&["admin"], &["shared"]);
    client
        .call(json!(3), &admin, "no_such_tool", json!({}))
        .await;
    assert_eq!(client.next().await["error"]["code"], -32000);
}

#[tokio::test]
async fn keys_are_made_by_keys_that_open_every_tool_and_for_no_more_than_their_own() {
    let mut client = Client::of("shared");
    let hello = client.key(&["hello"], &["shared"]);
    for tool in ["token_create", "token_list", "token_revoke"] {
        client.call(json!(1), &hello, tool, json!({})).await;
        assert_eq!(client.next().await["error"]["code"], -32002, "{tool}");
    }
    let admin = client.key(&["admin"], &["shared"]);
    let listed = client.tools(admin.text.expose()).await.to_string();
    assert!(listed.contains("token_create") && listed.contains("token_revoke"));
    let wanted = json!({"name": "new", "scopes": ["read"]});
    client.call(json!(2), &admin, "token_create", wanted).await;
    let made = client.next().await;
    let made = made["result"]["content"][0]["text"]
        .as_str()
        .expect("a key");
    let made: Value = serde_json::from_str(made).expect("JSON");
    assert_eq!(made["namespaces"], json!(["shared"]));
    let text = made["token"].as_str().expect("a key").to_owned();
    assert!(client.tools(&text).await["result"]["tools"].is_array());

    let wide = json!({"name": "new", "scopes": ["read"], "namespaces": ["*"]});
    client.call(json!(3), &admin, "token_create", wide).await;
    let refused = client.next().await;
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    let other = client.key(&["read"], &["*"]);
    client.call(json!(4), &admin, "token_list", json!({})).await;
    let seen = client.next().await["result"].to_string();
    assert!(seen.contains(made["id"].as_str().expect("an id")), "{seen}");
    assert!(!seen.contains(other.record.id.as_str()), "{seen}");
    let id = json!({"id": other.record.id.as_str()});
    client.call(json!(5), &admin, "token_revoke", id).await;
    assert_eq!(client.next().await["result"]["isError"], true);
    let id = json!({"id": made["id"]});
    client.call(json!(6), &admin, "token_revoke", id).await;
    assert_eq!(client.next().await["result"]["isError"], false);
    assert_eq!(client.tools(&text).await, invalid_key(1));
}

#[tokio::test]
async fn a_revoked_key_and_a_key_for_other_namespaces_are_invalid() {
    let mut client = Client::of("shared");
    let key = client.key(&["admin"], &["shared"]);
    client.call(json!(1), &key, "say_hello", json!({})).await;
    assert_eq!(client.next().await["result"]["isError"], false);
    client.keys.revoke(key.record.id).expect("revoked");
    client.call(json!(1), &key, "say_hello", json!({})).await;
    assert_eq!(client.next().await, invalid_key(1));
    let other = client.key(&["admin"], &["other"]);
    for text in [other.text.expose(), key.text.expose(), "", "oub_", "oub_x"] {
        assert_eq!(client.tools(text).await, invalid_key(1));
    }
}

#[tokio::test]
async fn wrong_keys_of_a_user_are_slowed_and_right_and_revoked_ones_never() {
    let mut client = Client::of("shared");
    let right = client.key(&["admin"], &["shared"]);
    let revoked = client.key(&["admin"], &["shared"]);
    client.keys.revoke(revoked.record.id).expect("revoked");
    for _ in 0..FREE_FAILURES {
        assert_eq!(client.tools("oub_wrong").await, invalid_key(1));
    }
    // Within the first delay of a second at least one key comes, and each further delay doubles.
    let mut slowed = 0;
    while slowed < 3 {
        let answer = client.tools("oub_wrong").await;
        if answer != invalid_key(1) {
            let message = answer["error"]["message"].as_str().expect("a message");
            assert!(message.starts_with("Too many wrong API keys"), "{answer}");
            slowed += 1;
        }
    }
    assert_eq!(client.tools(revoked.text.expose()).await, invalid_key(1));
    let tools = client.tools(right.text.expose()).await;
    assert!(tools["result"]["tools"].is_array(), "{tools}");
}

#[tokio::test]
async fn failures_of_tools_are_results_and_those_of_the_dispatch_are_errors() {
    let mut client = Client::of("shared");
    let key = client.key(&["admin"], &["*"]);
    client
        .call(json!(1), &key, "internal_error", json!({}))
        .await;
    assert_eq!(client.next().await["result"]["isError"], true);
    client
        .call(json!(1), &key, "worker_unavailable", json!({}))
        .await;
    let answer = client.next().await;
    assert_eq!(answer["error"]["code"], -32000, "{answer}");
    assert_eq!(answer["error"]["data"]["code"], "worker_unavailable");

    let mut broken = Client::of("broken");
    let key = broken.key(&["admin"], &["*"]);
    let tools = broken.tools(key.text.expose()).await;
    assert_eq!(tools["error"]["code"], -32000);
    assert_eq!(tools["error"]["message"], "no such package");
    let mut absent = Client::of("absent");
    let key = absent.key(&["admin"], &["*"]);
    assert_eq!(
        absent.tools(key.text.expose()).await["error"]["code"],
        -32000
    );
}

#[tokio::test]
async fn several_calls_run_at_once_and_one_can_be_cancelled() {
    let mut client = Client::of("shared");
    let key = client.key(&["admin"], &["shared"]);
    for id in 1..=3 {
        client.call(json!(id), &key, "hang", json!({})).await;
    }
    client.counted((3, 0, 0)).await;
    let params = json!({"requestId": 2});
    client
        .send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
        .await;
    client.counted((3, 1, 0)).await;
    client.harness.backend.release.add_permits(2);
    let mut answered = [client.next().await, client.next().await].map(|it| it["id"].clone());
    answered.sort_by_key(Value::as_i64);
    assert_eq!(answered, [json!(1), json!(3)]);
}

#[tokio::test]
async fn a_client_that_only_stops_writing_is_answered_and_one_that_is_gone_is_not_worked_for() {
    let mut client = Client::of("shared");
    let key = client.key(&["admin"], &["shared"]);
    client.call(json!(1), &key, "hang", json!({})).await;
    client.counted((1, 0, 0)).await;
    client
        .input
        .take()
        .expect("open")
        .shutdown()
        .await
        .expect("half");
    client.harness.backend.release.add_permits(1);
    assert_eq!(client.next().await["id"], 1);
    timeout(SOON, client.serving)
        .await
        .expect("soon")
        .expect("no panic");

    let mut client = Client::of("shared");
    let key = client.key(&["admin"], &["shared"]);
    client.call(json!(1), &key, "hang", json!({})).await;
    client.counted((1, 0, 0)).await;
    client.gone.notify_one();
    client
        .input
        .take()
        .expect("open")
        .shutdown()
        .await
        .expect("half");
    client.counted((1, 1, 0)).await;
}

#[tokio::test]
async fn a_relay_that_stops_answers_what_runs_and_reads_nothing_more() {
    let mut client = Client::of("shared");
    let key = client.key(&["admin"], &["shared"]);
    client.call(json!(1), &key, "hang", json!({})).await;
    client.counted((1, 0, 0)).await;
    client.stop.notify_one();
    client.harness.backend.release.add_permits(1);
    assert_eq!(client.next().await["id"], 1);
    let mut rest = Vec::new();
    let end = timeout(SOON, client.output.read_to_end(&mut rest)).await;
    assert_eq!(end.expect("soon").expect("an end"), 0);
}

#[tokio::test]
async fn progress_is_told_under_the_clients_token_and_questions_fail() {
    let mut client = Client::of("shared");
    let key = client.key(&["admin"], &["shared"]);
    let asked = json!([{"key": "k", "method": "elicitation/create", "params": {}}]);
    let script = json!({"steps": [{"log": "warning"}, {"progress": 3}, {"ask": asked}]});
    client.call(json!(1), &key, "talk", script).await;
    for number in 1..=3 {
        let progress = client.next().await;
        assert_eq!(progress["method"], "notifications/progress", "{progress}");
        assert_eq!(progress["params"]["progressToken"], "p");
        assert_eq!(progress["params"]["progress"], number);
    }
    let answer = client.next().await;
    let text = answer["result"]["content"][0]["text"].as_str();
    assert!(text.is_some_and(|it| it.contains("failed")), "{answer}");
}

#[tokio::test]
async fn what_is_no_frame_is_refused_and_the_connection_goes_on() {
    let mut client = Client::of("shared");
    let key = client.key(&["hello"], &["shared"]);
    client.write("OUBLIETTE-DOWNSTREAM proj_1\n").await;
    client.write("not JSON\n").await;
    let error = json!({"code": -32700, "message": "parse error"});
    assert_eq!(
        client.next().await,
        json!({"jsonrpc": "2.0", "id": null, "error": error})
    );
    // Only the first line may be a greeting.
    client.write("OUBLIETTE-DOWNSTREAM proj_1\n").await;
    assert_eq!(client.next().await["error"]["code"], -32700);
    let long = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"{}\"}}\n",
        "x".repeat(FRAME_MAX)
    );
    client.write(&long).await;
    let refused = client.next().await;
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(9), &json!(-32600))
    );
    client
        .send(json!({"jsonrpc": "2.0", "id": 4, "method": "foo"}))
        .await;
    assert_eq!(client.next().await["error"]["code"], -32601);
    let listed = client.tools(key.text.expose()).await;
    assert!(listed["result"]["tools"].is_array());
    // An incomplete frame is reported, too.
    client.write("{\"jsonrpc\"").await;
    client
        .input
        .take()
        .expect("open")
        .shutdown()
        .await
        .expect("half");
    assert_eq!(client.next().await["error"]["code"], -32700);
}

#[tokio::test]
async fn calls_at_once_are_bounded_on_a_connection() {
    let mut client = Client::of("shared");
    let key = client.key(&["admin"], &["shared"]);
    for id in 0..64 {
        client.call(json!(id), &key, "hang", json!({})).await;
    }
    client.call(json!("more"), &key, "hang", json!({})).await;
    let refused = client.next().await;
    assert_eq!(refused["id"], "more");
    assert_eq!(refused["error"]["data"]["code"], "overloaded");
}
