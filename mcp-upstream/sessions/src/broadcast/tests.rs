use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use tooldock_protocol::version::ProtocolVersion;
use tooldock_workers::registry::{Registry, Snapshot};

use super::*;
use crate::session::{Binding, SessionId, SessionPatch, SessionTransport};
use crate::stream::{EventLog, KeepAlive, StreamKind, Subscription};
use crate::testing;

struct Fixture {
    keep_alive: Arc<KeepAlive>,
    log: Arc<EventLog>,
    audience: Arc<Audience>,
}

fn fixture() -> Fixture {
    let (keep_alive, log, audience) = testing::audience();
    Fixture {
        keep_alive,
        log,
        audience,
    }
}

fn name(name: &str) -> NamespaceName {
    name.parse().expect("a name")
}

impl Fixture {
    fn session(&self, namespace: &str) -> Arc<Session> {
        let binding = Binding {
            namespace: name(namespace),
            principal: None,
            version: ProtocolVersion::V2025_11_25,
            transport: SessionTransport::Streamable,
        };
        Arc::new(Session::new(SessionId::random(), binding, Instant::now()))
    }

    async fn read(&self, session: &Arc<Session>, kind: StreamKind) -> Subscription {
        self.audience.join(session);
        let opened = self.log.open(session, kind, false).await;
        opened.expect("memory").read()
    }

    fn listen(&self, namespace: &str, filter: Filter, id: &str) -> (Subscription, ListenGuard) {
        let stream = Stream::detached(&self.keep_alive);
        let events = stream.read();
        let guard = self.audience.listen(&name(namespace), filter, id, &stream);
        (events, guard)
    }

    async fn announce(&self, namespace: &str, change: Change) {
        self.audience.announce(&name(namespace), change);
        self.delivered().await;
    }

    /// Runs the delivery, which runs on this thread, to its end.
    async fn delivered(&self) {
        while self.audience.noted().running {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
    }
}

fn message(frame: &Bytes) -> Value {
    let text = std::str::from_utf8(frame).expect("UTF-8");
    let data = text.lines().find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(data.expect("an event")).expect("JSON")
}

/// The messages that can be read without waiting.
fn read(events: &mut Subscription) -> Vec<Value> {
    let mut read = Vec::new();
    while let Some(Some(frame)) = events.next().now_or_never() {
        read.push(message(&frame));
    }
    read
}

fn methods(events: &mut Subscription) -> Vec<String> {
    let read = read(events).into_iter();
    read.map(|message| {
        message["method"]
            .as_str()
            .expect("a notification")
            .to_owned()
    })
    .collect()
}

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const UPDATED: &str = "notifications/resources/updated";

#[tokio::test]
async fn a_change_stays_in_its_namespace() {
    let fixture = fixture();
    let (shared, other) = (fixture.session("shared"), fixture.session("other"));
    let mut in_shared = fixture.read(&shared, StreamKind::General).await;
    let mut in_other = fixture.read(&other, StreamKind::General).await;
    fixture.announce("shared", Change::Tools).await;
    fixture.announce("nobody", Change::Tools).await;
    assert_eq!(
        read(&mut in_shared),
        [json!({ "jsonrpc": "2.0", "method": TOOLS })]
    );
    assert_eq!(read(&mut in_other), [] as [Value; 0]);
}

#[tokio::test]
async fn each_session_hears_on_exactly_one_of_its_streams() {
    let fixture = fixture();
    let session = fixture.session("shared");
    let mut first = fixture.read(&session, StreamKind::General).await;
    let mut second = fixture.read(&session, StreamKind::General).await;
    let sse = fixture.session("shared");
    let mut over_sse = fixture.read(&sse, StreamKind::Sse).await;
    fixture.announce("shared", Change::Prompts).await;
    assert!(methods(&mut first).is_empty());
    assert_eq!(methods(&mut second), [PROMPTS]);
    assert_eq!(methods(&mut over_sse), [PROMPTS]);
}

#[tokio::test]
async fn only_subscribers_hear_of_an_update() {
    let fixture = fixture();
    let (one, two) = (fixture.session("shared"), fixture.session("shared"));
    let mut subscribed = fixture.read(&one, StreamKind::General).await;
    let mut not = fixture.read(&two, StreamKind::General).await;
    one.change(SessionPatch::Subscribe("test://a".into()));
    fixture
        .announce("shared", Change::Updated("test://a".into()))
        .await;
    fixture
        .announce("shared", Change::Updated("test://b".into()))
        .await;
    assert_eq!(
        read(&mut subscribed),
        [json!({ "jsonrpc": "2.0", "method": UPDATED, "params": { "uri": "test://a" } })]
    );
    assert!(read(&mut not).is_empty());
    one.change(SessionPatch::Unsubscribe("test://a".into()));
    fixture
        .announce("shared", Change::Updated("test://a".into()))
        .await;
    assert!(read(&mut subscribed).is_empty());
}

#[tokio::test]
async fn listeners_hear_what_they_asked_for_under_their_own_id() {
    let fixture = fixture();
    let tools = Filter {
        tools: true,
        updates: vec!["test://a".into()],
        ..Filter::default()
    };
    let prompts = Filter {
        prompts: true,
        ..Filter::default()
    };
    let (mut one, _one) = fixture.listen("shared", tools.clone(), "7");
    let (mut two, _two) = fixture.listen("shared", prompts, "\"l-1\"");
    let (mut other, _other) = fixture.listen("other", tools, "7");
    for change in [Change::Tools, Change::Prompts, Change::Resources] {
        fixture.announce("shared", change).await;
    }
    fixture
        .announce("shared", Change::Updated("test://a".into()))
        .await;
    fixture
        .announce("shared", Change::Updated("test://b".into()))
        .await;
    let meta = |id: Value| json!({ "io.modelcontextprotocol/subscriptionId": id });
    assert_eq!(
        read(&mut one),
        [
            json!({ "jsonrpc": "2.0", "method": TOOLS, "params": { "_meta": meta(json!(7)) } }),
            json!({ "jsonrpc": "2.0", "method": UPDATED,
                "params": { "uri": "test://a", "_meta": meta(json!(7)) } }),
        ]
    );
    let heard =
        json!({ "jsonrpc": "2.0", "method": PROMPTS, "params": { "_meta": meta(json!("l-1")) } });
    assert_eq!(read(&mut two), [heard]);
    assert!(read(&mut other).is_empty());
}

#[tokio::test]
async fn a_listener_is_in_the_audience_as_long_as_its_guard() {
    let fixture = fixture();
    let filter = Filter {
        tools: true,
        ..Filter::default()
    };
    let stream = Stream::detached(&fixture.keep_alive);
    let mut events = stream.read();
    let guard = fixture
        .audience
        .listen(&name("shared"), filter, "1", &stream);
    assert_eq!(
        Arc::strong_count(&stream),
        4,
        "ours, the reader's, the keep-alive timer's, the listener's"
    );
    drop(guard);
    fixture.announce("shared", Change::Tools).await;
    assert!(read(&mut events).is_empty());
    drop(events);
    assert_eq!(Arc::strong_count(&stream), 1);
}

#[tokio::test]
async fn listeners_with_the_same_id_share_a_frame() {
    let fixture = fixture();
    let filter = Filter {
        tools: true,
        ..Filter::default()
    };
    let mut all: Vec<_> = (0..600)
        .map(|_| fixture.listen("shared", filter.clone(), "1"))
        .collect();
    fixture.announce("shared", Change::Tools).await;
    let mut frames = Vec::new();
    for (events, _) in &mut all {
        frames.push(events.next().await.expect("the event"));
    }
    assert!(
        frames
            .iter()
            .all(|it| std::ptr::eq(it.as_ptr(), frames[0].as_ptr()))
    );
}

#[tokio::test]
async fn when_everything_ends_a_listener_gets_the_result_of_its_request() {
    let fixture = fixture();
    let (mut events, _guard) = fixture.listen("shared", Filter::default(), "\"l\"");
    fixture.keep_alive.end_all();
    let result = json!({
        "resultType": "complete",
        "_meta": { "io.modelcontextprotocol/subscriptionId": "l" },
    });
    assert_eq!(
        read(&mut events),
        [json!({ "jsonrpc": "2.0", "id": "l", "result": result })]
    );
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn what_is_announced_while_a_client_is_away_waits_for_it() {
    let fixture = fixture();
    let session = fixture.session("shared");
    let mut events = fixture.read(&session, StreamKind::General).await;
    fixture.announce("shared", Change::Tools).await;
    let frame = events.next().await.expect("the event");
    let text = std::str::from_utf8(&frame).expect("UTF-8");
    let id = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("id: "));
    drop(events);
    fixture.announce("shared", Change::Prompts).await;
    let resumed = fixture.log.resume(&session, id.expect("an id")).await;
    assert_eq!(methods(&mut resumed.expect("its own")), [PROMPTS]);
}

#[tokio::test]
async fn changes_that_come_faster_than_they_are_told_are_one() {
    let fixture = fixture();
    let session = fixture.session("shared");
    let mut events = fixture.read(&session, StreamKind::General).await;
    for _ in 0..1000 {
        fixture.audience.announce(&name("shared"), Change::Tools);
        fixture.audience.announce(&name("shared"), Change::Prompts);
    }
    for number in 0..UPDATES_MAX + 100 {
        let uri = format!("test://{number}");
        fixture
            .audience
            .announce(&name("shared"), Change::Updated(uri.into()));
    }
    let waiting = fixture.audience.noted().changes[&name("shared")]
        .updated
        .len();
    assert_eq!(waiting, UPDATES_MAX);
    fixture.delivered().await;
    assert_eq!(methods(&mut events), [TOOLS, PROMPTS]);
}

#[test]
fn updates_that_wait_are_bounded_in_bytes_too() {
    let mut changes = Changes::default();
    let uri = |number: usize| format!("{number:04}{}", "x".repeat(URI_BYTES_MAX - 4));
    let fit = UPDATE_BYTES_MAX / URI_BYTES_MAX;
    for number in 0..fit + 10 {
        changes.note(Change::Updated(uri(number).into()));
        changes.note(Change::Updated(uri(0).into()));
    }
    assert_eq!(changes.updated.len(), fit);
    assert_eq!(changes.updated_bytes, UPDATE_BYTES_MAX);
}

#[tokio::test]
async fn a_namespace_that_never_rests_takes_no_turn_of_the_others() {
    let fixture = fixture();
    let names: Vec<_> = (0..16).map(|number| format!("n{number}")).collect();
    let sessions: Vec<_> = names.iter().map(|name| fixture.session(name)).collect();
    let mut readers = Vec::new();
    for session in &sessions {
        readers.push(fixture.read(session, StreamKind::General).await);
    }
    // Delivered changes are noted again before the delivery continues.
    for _ in 0..names.len() * 4 {
        for namespace in &names {
            fixture.audience.announce(&name(namespace), Change::Tools);
        }
        tokio::task::yield_now().await;
    }
    for (namespace, reader) in names.iter().zip(&mut readers) {
        assert!(!methods(reader).is_empty(), "{namespace} heard nothing");
    }
}

#[tokio::test]
async fn sessions_that_end_leave_the_audience() {
    let fixture = fixture();
    let session = fixture.session("shared");
    let members = fixture.audience.members(&name("shared"));
    let mut events = fixture.read(&session, StreamKind::General).await;
    fixture.audience.join(&session);
    assert_eq!(members.sessions.count(), 1, "joining twice is once");
    session.close();
    assert_eq!(members.sessions.count(), 0);
    assert_eq!(events.next().await, None);
    fixture.audience.join(&session);
    assert_eq!(
        members.sessions.count(),
        0,
        "a closed session takes no place"
    );

    let dropped = fixture.session("shared");
    fixture.audience.join(&dropped);
    let weak = Arc::downgrade(&dropped);
    fixture.announce("shared", Change::Tools).await;
    drop(dropped);
    assert!(
        weak.upgrade().is_none(),
        "the audience keeps no session alive"
    );
    assert_eq!(members.sessions.count(), 0);
}

#[tokio::test]
async fn a_swap_of_the_registry_is_announced_where_it_changed_something() {
    let fixture = fixture();
    let kept = Arc::new(testing::namespace("other"));
    let snapshot = |generation: u8| {
        let mut shared = testing::namespace("shared");
        shared.content_hash = [generation; 32];
        let all = [Arc::new(shared), Arc::clone(&kept)];
        Snapshot {
            generation: generation.into(),
            namespaces: all.into_iter().map(|it| (it.name.clone(), it)).collect(),
        }
    };
    let registry = Arc::new(Registry::default());
    registry.swap(snapshot(1));
    let (shared, other) = (fixture.session("shared"), fixture.session("other"));
    let mut in_shared = fixture.read(&shared, StreamKind::General).await;
    let mut in_other = fixture.read(&other, StreamKind::General).await;
    let following = tokio::spawn(follow(Arc::clone(&fixture.audience), Arc::clone(&registry)));
    tokio::task::yield_now().await;
    registry.swap(snapshot(2));
    assert_eq!(
        message(&in_shared.next().await.expect("the event"))["method"],
        TOOLS
    );
    fixture.delivered().await;
    assert!(read(&mut in_shared).is_empty());
    assert!(read(&mut in_other).is_empty());
    drop(registry);
    let ended = tokio::time::timeout(Duration::from_secs(60), following).await;
    ended.expect("ends with the registry").expect("no panic");
}

#[test]
fn a_filter_has_the_bounds_of_a_session() {
    let of = |updates: Vec<String>| Filter {
        updates,
        ..Filter::default()
    };
    assert_eq!(of(vec!["x".into(); URIS_MAX]).check(), Ok(()));
    assert_eq!(
        of(vec!["x".into(); URIS_MAX + 1]).check(),
        Err(TooManyUpdates)
    );
    assert_eq!(
        of(vec!["x".repeat(URI_BYTES_MAX + 1)]).check(),
        Err(TooManyUpdates)
    );
}
