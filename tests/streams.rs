//! Event streams of Streamable HTTP (2025-03-26 … 2025-11-25): what opens, what comes on them, how they end, and how a
//! client that lost one gets the rest.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::session::{Session, call};
use crate::support::sse::{Answering, End};
use crate::support::{DEADLINE, Gateway, TOKEN, eventually, sha256, tools};

const LATEST: &str = "2025-11-25";

async fn talking() -> Gateway {
    talking_with(json!({})).await
}

async fn talking_with(config: Value) -> Gateway {
    Gateway::with_tools([
        ("talk", "talking.py", tools::TALKING),
        ("talk", "offering.py", tools::OFFERING),
    ])
    .config(config)
    .start()
    .await
}

/// A signal a waiting tool looks for.
struct Gate(PathBuf);

impl Gate {
    fn new(gateway: &Gateway, name: &str) -> Self {
        Self(gateway.scratch().join(name))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn open(&self) {
        std::fs::write(&self.0, "go").unwrap();
    }

    fn was_cancelled(&self) -> bool {
        PathBuf::from(format!("{}.cancelled", self.path())).exists()
    }
}

/// The sum of a metric over its labels.
async fn total(gateway: &Gateway, metric: &str) -> u64 {
    gateway
        .metrics_text()
        .await
        .lines()
        .filter(|line| {
            line.strip_prefix(metric)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum::<f64>() as u64
}

/// A call that says more than the kernel's buffers hold, no faster than the gateway can pass it on.
fn flood() -> Value {
    let arguments = json!({"count": 12_000, "size": 1000, "pause": 0.002});
    call(1, "flood", arguments)
}

/// Whether a connection's server side is still open, as the kernel sees it.
fn is_established(server: SocketAddr, client: SocketAddr) -> bool {
    const ESTABLISHED: &str = "01";
    let ports = [server, client].map(|address| format!(":{:04X}", address.port()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[1].ends_with(&ports[0]) && fields[2].ends_with(&ports[1]) && fields[3] == ESTABLISHED
    })
}

fn progress(message: &Value) -> Option<u64> {
    (message["method"] == "notifications/progress")
        .then(|| message["params"]["progress"].as_f64().unwrap() as u64)
}

#[tokio::test]
async fn a_get_stream_begins_with_its_head_and_from_2025_11_25_on_with_a_priming_event() {
    let gateway = talking_with(json!({"sessions": {"keepalive": "200ms"}})).await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut stream = session.get(None).await;
    assert_eq!(stream.status, 200);
    assert!(stream.is_events());
    assert_eq!(stream.header("x-accel-buffering"), Some("no"));
    let caching = stream.header("cache-control").unwrap_or_default();
    assert!(
        caching.contains("no-cache") || caching.contains("no-store"),
        "{caching}"
    );
    assert!(caching.contains("no-transform"), "{caching}");
    let priming = stream.next().await.unwrap();
    assert!(
        priming.id.is_some() && priming.retry.is_some(),
        "{priming:?}"
    );
    assert_eq!(priming.data, "");
    for _ in 0..2 {
        assert!(stream.next().await.unwrap().comment, "a keepalive");
    }
    for version in ["2025-06-18", "2025-03-26"] {
        let old = Session::start(&gateway, "talk", version).await;
        let first = old.get(None).await.next().await.unwrap();
        assert!(first.comment, "no priming event in {version}: {first:?}");
    }
}

#[tokio::test]
async fn a_keepalive_comes_to_every_idle_stream_in_time() {
    let gateway = talking_with(json!({"sessions": {"keepalive": "400ms"}})).await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut stream = session.listen().await;
    let begun = Instant::now();
    for _ in 0..3 {
        assert!(stream.next().await.unwrap().comment);
    }
    assert!(
        begun.elapsed() < Duration::from_secs(40),
        "three default intervals are 45 s"
    );
}

#[tokio::test]
async fn what_a_get_must_say_and_be() {
    let other = "other-token-0123456789abcdef";
    let gateway = talking_with(json!({"admission": {"tokens": [
        {"name": "other", "sha256": sha256(other), "namespaces": ["*"]}]}}))
    .await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut foreign = session.clone();
    foreign.token = other.to_owned();
    let mut unknown = session.clone();
    unknown.id = "no-such-session".to_owned();
    let bare = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: talk\r\n"
    );
    let events = "Accept: text/event-stream\r\n";
    let cases = [
        (
            "JSON alone",
            session.head("GET", "Accept: application/json\r\n\r\n"),
            406,
        ),
        ("no session", format!("{bare}{events}\r\n"), 400),
        (
            "an unknown session",
            unknown.head("GET", &format!("{events}\r\n")),
            404,
        ),
        (
            "another principal's session",
            foreign.head("GET", &format!("{events}\r\n")),
            404,
        ),
        (
            "the modern version",
            format!("{bare}{events}MCP-Protocol-Version: 2026-07-28\r\n\r\n"),
            405,
        ),
        (
            "an unknown namespace",
            format!("{bare}{events}\r\n").replace("X-Namespace: talk", "X-Namespace: nope"),
            404,
        ),
        (
            "no credentials",
            format!("{bare}{events}\r\n").replace(TOKEN, "wrong"),
            401,
        ),
    ];
    for (fault, request, status) in cases {
        let mut answer = Answering::open(gateway.address, &request).await;
        assert_eq!(answer.status, status, "{fault}");
        if status == 405 {
            let allow = answer.header("allow").unwrap_or_default().to_owned();
            assert!(allow.contains("POST"), "{allow}");
        }
        let body = answer.json().await;
        assert!(body["error"]["code"].is_i64(), "{fault}: {body}");
    }
}

#[tokio::test]
async fn an_unusable_last_event_id_is_refused() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let neighbour = Session::start(&gateway, "talk", LATEST).await;
    let mut stream = session.get(None).await;
    let mine = stream.next().await.unwrap().id.unwrap();
    let theirs = neighbour.get(None).await.next().await.unwrap().id.unwrap();
    let (number, sequence) = mine.split_once('-').expect("names its stream");
    let ahead = format!("{number}-{}", sequence.parse::<u64>().unwrap() + 1_000_000);
    let long = "7".repeat(5_000);
    for (fault, id) in [
        ("no number", "abc"),
        ("half an id", "1-"),
        ("no sequence", "1"),
        ("signs", "-1-1"),
        ("a plus", "+1-1"),
        ("spaces inside", "1 - 1"),
        ("beyond every integer", "99999999999999999999999-1"),
        ("very long", long.as_str()),
        ("a stream this session never had", "4000000000-1"),
        ("an event that has not happened", ahead.as_str()),
    ] {
        let mut answer = session.get(Some(id)).await;
        assert_eq!(answer.status, 400, "{fault}");
        let body = answer.json().await;
        assert!(body["error"]["code"].is_i64(), "{fault}: {body}");
    }
    // The numbers of two sessions' streams may be equal; the events of one are never seen by the other.
    let answer = session.get(Some(&theirs)).await;
    assert!(
        answer.status == 400 || theirs.split_once('-').unwrap().0 == number,
        "another session's event"
    );
    drop(stream);
    assert_eq!(session.get(Some(&mine)).await.status, 200, "its own event");
}

#[tokio::test]
async fn a_talking_call_streams_a_quiet_one_stays_json_and_the_connection_lives_on() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let gate = Gate::new(&gateway, "gate");
    gate.open();
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let talk = session.post_text(&call(1, "talk", json!({"gate": gate.path()})));
    let mut answer = Answering::on(stream, &talk).await;
    assert_eq!(answer.status, 200);
    assert!(answer.is_events());
    assert_ne!(answer.header("connection"), Some("close"));
    let priming = answer.next().await.unwrap();
    assert!(
        priming.id.is_some() && priming.data.is_empty(),
        "{priming:?}"
    );
    let messages = answer.messages().await;
    let steps: Vec<_> = messages.iter().filter_map(progress).collect();
    assert_eq!(steps, [0, 1, 2, 3]);
    for message in &messages[..4] {
        assert_eq!(message["params"]["progressToken"], "token-1");
        assert_eq!(message["params"]["total"].as_f64(), Some(4.0));
    }
    assert_eq!(messages[4]["id"], 1);
    assert_eq!(messages[4]["result"]["content"][0]["text"], "done");
    assert_eq!(answer.end().await, End::Whole);
    // The connection serves the next request: a stream ended by its last chunk, not by closing.
    let quiet = session.post_text(&call(2, "quiet", json!({})));
    let mut answer = Answering::on(answer.into_connection(), &quiet).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.json().await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn each_event_of_a_call_is_flushed_as_it_happens() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let gate = Gate::new(&gateway, "gate");
    let mut answer = session.call(1, "talk", json!({"gate": gate.path()})).await;
    // The tool waits; its messages so far are here.
    assert_eq!(progress(&answer.message().await), Some(0));
    assert_eq!(progress(&answer.message().await), Some(1));
    gate.open();
    assert_eq!(answer.messages().await.len(), 3);
}

#[tokio::test]
async fn progress_comes_only_with_a_token_and_logs_from_the_level_on() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let gate = Gate::new(&gateway, "gate");
    gate.open();
    let mut bare = call(1, "talk", json!({"gate": gate.path()}));
    bare["params"].as_object_mut().unwrap().remove("_meta");
    let mut answer = session.post(&bare).await;
    assert!(!answer.is_events(), "nothing to say, so no stream");
    assert_eq!(answer.json().await["result"]["content"][0]["text"], "done");
    let heard = async |id: u64| {
        let mut answer = session.call(id, "logs", json!({})).await;
        if !answer.is_events() {
            return Vec::new();
        }
        let messages = answer.messages().await;
        messages
            .iter()
            .filter(|message| message["method"] == "notifications/message")
            .map(|message| message["params"]["level"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(heard(2).await, ["info", "error"], "by default from info on");
    for (id, level, expected) in [
        (10, "debug", vec!["debug", "info", "error"]),
        (20, "warning", vec!["error"]),
        (30, "emergency", vec![]),
    ] {
        let set = session
            .request(id, "logging/setLevel", json!({"level": level}))
            .await;
        assert_eq!(set["result"], json!({}));
        assert_eq!(heard(id + 1).await, expected, "{level}");
    }
    let wrong = session
        .request(40, "logging/setLevel", json!({"level": "loud"}))
        .await;
    assert_eq!(wrong["error"]["code"], -32602);
}

#[tokio::test]
async fn a_lost_stream_is_resumed_with_nothing_lost_or_doubled() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let gate = Gate::new(&gateway, "gate");
    let arguments = json!({"gate": gate.path(), "before": 3, "after": 3});
    let mut answer = session.call(1, "talk", arguments).await;
    let mut seen = Vec::new();
    let mut last = String::new();
    for _ in 0..2 {
        let event = answer.event().await.unwrap();
        last = event.id.clone().expect("events have ids");
        seen.push(event.json());
    }
    drop(answer);
    gate.open();
    let mut rest = session.get(Some(&last)).await;
    assert_eq!(rest.status, 200);
    let messages = rest.messages().await;
    assert_eq!(rest.end().await, End::Whole, "it ends with the answer");
    seen.extend(messages);
    let steps: Vec<_> = seen.iter().filter_map(progress).collect();
    assert_eq!(steps, [0, 1, 2, 3, 4, 5]);
    assert_eq!(seen.last().unwrap()["result"]["content"][0]["text"], "done");
    assert!(!gate.was_cancelled(), "losing a stream cancels nothing");
    // A second resumption from the same event gives the same rest.
    let again = session.get(Some(&last)).await.messages().await;
    assert_eq!(again, seen[2..]);
}

#[tokio::test]
async fn a_stream_resumed_while_the_call_runs_goes_over_into_live_events() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let gate = Gate::new(&gateway, "gate");
    let arguments = json!({"gate": gate.path(), "before": 4, "after": 4});
    let mut answer = session.call(1, "talk", arguments).await;
    let first = answer.event().await.unwrap();
    // The old stream is still open: the resumption takes it over.
    let mut resumed = session.get(first.id.as_deref()).await;
    let old = answer.messages().await;
    assert!(
        old.iter().all(|message| progress(message).is_some()),
        "{old:?}"
    );
    for expected in 1..4 {
        assert_eq!(progress(&resumed.message().await), Some(expected));
    }
    gate.open();
    let rest = resumed.messages().await;
    let steps: Vec<_> = rest.iter().filter_map(progress).collect();
    assert_eq!(steps, [4, 5, 6, 7]);
}

#[tokio::test]
async fn a_long_post_stream_is_closed_and_polled_where_configured() {
    let gateway =
        talking_with(json!({"sessions": {"poll_after": "300ms", "keepalive": "400ms"}})).await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let gate = Gate::new(&gateway, "gate");
    let mut answer = session.call(1, "talk", json!({"gate": gate.path()})).await;
    let mut last = None;
    let mut steps = Vec::new();
    while let Some(event) = answer.next().await {
        last = event.id.clone().or(last);
        if !event.data.is_empty() {
            steps.extend(progress(&event.json()));
        }
    }
    assert_eq!(answer.end().await, End::Whole);
    assert_eq!(steps, [0, 1], "closed before the answer");
    gate.open();
    let rest = session.get(last.as_deref()).await.messages().await;
    assert_eq!(rest.len(), 3, "{rest:?}");
    // Clients of older revisions do not know this and are not cut off.
    let old = Session::start(&gateway, "talk", "2025-06-18").await;
    let gate = Gate::new(&gateway, "second");
    let mut answer = old.call(1, "talk", json!({"gate": gate.path()})).await;
    assert_eq!(progress(&answer.message().await), Some(0));
    assert_eq!(progress(&answer.message().await), Some(1));
    for _ in 0..2 {
        let event = answer.next().await.expect("the stream goes on");
        assert!(event.comment, "longer than until the cut: {event:?}");
    }
    gate.open();
    assert_eq!(answer.messages().await.len(), 3);
}

#[tokio::test]
async fn cancelling_reaches_the_worker_and_a_finished_call_cannot_be_cancelled() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let gate = Gate::new(&gateway, "gate");
    let mut answer = session.call(1, "talk", json!({"gate": gate.path()})).await;
    answer.message().await;
    let cancel = |id: Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "enough"}});
    assert_eq!(session.post(&cancel(json!(1))).await.status, 202);
    eventually("the tool was cancelled", || async {
        gate.was_cancelled().then_some(())
    })
    .await;
    // The stream still ends with an answer: without one, clients would come back for it.
    let last = answer.messages().await.pop().unwrap();
    assert_eq!(
        last["result"]["_meta"]["tooldock/error"]["code"], "cancelled",
        "{last}"
    );
    for id in [json!(1), json!(77), json!("nobody")] {
        assert_eq!(session.post(&cancel(id)).await.status, 202);
    }
    let ping = session.request(2, "ping", json!({})).await;
    assert_eq!(ping["result"], json!({}));
}

#[tokio::test]
async fn a_question_is_answered_once() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut answer = session.call(1, "ask", json!({"question": "Who?"})).await;
    let question = answer.message().await;
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["message"], "Who?");
    let never_asked = json!({"jsonrpc": "2.0", "id": 424_242, "result": {"action": "cancel"}});
    let mut refused = session.post(&never_asked).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json().await["error"]["code"].is_i64());
    // Nor may another session answer it.
    let neighbour = Session::start(&gateway, "talk", LATEST).await;
    let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result":
        {"action": "accept", "content": {"value": "Ada"}}});
    assert_eq!(neighbour.post(&reply).await.status, 400);
    assert_eq!(session.post(&reply).await.status, 202);
    let done = answer.message().await;
    assert_eq!(done["result"]["content"][0]["text"], "accept Ada");
    let second = session.post(&reply).await.status;
    assert!(second == 202 || second == 400, "a second answer: {second}");
}

#[tokio::test]
async fn a_client_that_cannot_be_asked_is_not_asked() {
    let gateway = talking().await;
    let session = Session::start_as(&gateway, "talk", LATEST, TOKEN, json!({})).await;
    let mut answer = session.call(1, "ask", json!({})).await;
    assert!(!answer.is_events());
    let result = answer.json().await;
    assert!(
        result["result"]["isError"] == true || result["error"]["code"].is_i64(),
        "{result}"
    );
    // Neither is a caller without a session.
    let (status, answer) = gateway.mcp("talk", call(2, "ask", json!({}))).await;
    assert_eq!(status, 200);
    assert!(
        answer["result"]["isError"] == true || answer["error"]["code"].is_i64(),
        "{answer}"
    );
}

#[tokio::test]
async fn a_question_nobody_answers_ends_and_frees_its_place() {
    let gateway = talking_with(json!({"namespaces": {"overrides": {"talk": {
        "ask_timeout": "500ms", "max_concurrency": 1, "max_parked": 1}}}}))
    .await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut first = session.call(1, "ask", json!({})).await;
    first.message().await;
    // The permit is free while the question is open…
    let mut other = session.call(2, "quiet", json!({})).await;
    assert_eq!(other.json().await["result"]["content"][0]["text"], "done");
    // …and there is no second place for calls that ask.
    let mut second = session.call(3, "ask", json!({})).await;
    let refused = if second.is_events() {
        second.messages().await.pop().unwrap()
    } else {
        second.json().await
    };
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    let ended = first.messages().await.pop().unwrap();
    assert_eq!(ended["id"], 1);
    assert_eq!(ended["result"]["isError"], true, "{ended}");
}

#[tokio::test]
async fn a_change_comes_on_exactly_one_of_a_sessions_streams() {
    let gateway = talking_with(json!({"sessions": {"keepalive": "200ms"}})).await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut streams = [
        session.listen().await,
        session.listen().await,
        session.listen().await,
    ];
    session
        .request(
            1,
            "tools/call",
            json!({"name": "announce", "arguments": {}}),
        )
        .await;
    // Two keepalives later everything that was to come has come.
    let mut heard = 0;
    for stream in &mut streams {
        let mut comments = 0;
        while comments < 2 {
            let event = stream.next().await.unwrap();
            comments += usize::from(event.comment);
            if !event.data.is_empty() {
                assert_eq!(event.json()["method"], "notifications/tools/list_changed");
                heard += 1;
            }
        }
    }
    assert_eq!(heard, 1);
}

#[tokio::test]
async fn messages_between_two_get_streams_are_kept_for_the_next() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut stream = session.get(None).await;
    let last = stream.next().await.unwrap().id.unwrap();
    drop(stream);
    eventually("the stream was seen to go", || async {
        (total(&gateway, "tooldock_streams").await == 0).then_some(())
    })
    .await;
    session
        .request(
            1,
            "tools/call",
            json!({"name": "announce", "arguments": {}}),
        )
        .await;
    let mut resumed = session.get(Some(&last)).await;
    assert_eq!(
        resumed.message().await["method"],
        "notifications/tools/list_changed"
    );
}

#[tokio::test]
async fn a_reload_tells_the_sessions_of_what_changed_within_two_seconds_and_no_others() {
    let gateway = Gateway::with_tools([
        ("calc", "math_tools.py", tools::MATH),
        ("shared", "hello.py", tools::HELLO),
    ])
    .config(json!({"sessions": {"keepalive": "200ms"}}))
    .start()
    .await;
    let changed = Session::start(&gateway, "calc", LATEST).await;
    let old = Session::start(&gateway, "calc", "2025-03-26").await;
    let other = Session::start(&gateway, "shared", LATEST).await;
    let (mut changed, mut old, mut other) = (
        changed.listen().await,
        old.listen().await,
        other.listen().await,
    );
    gateway.drop_tool("calc", "more.py", tools::HELLO);
    gateway.reload().await;
    for stream in [&mut changed, &mut old] {
        assert_eq!(
            stream.message().await["method"],
            "notifications/tools/list_changed"
        );
    }
    for _ in 0..3 {
        let event = other.next().await.unwrap();
        assert!(event.comment, "another namespace's change: {event:?}");
    }
}

#[tokio::test]
async fn updates_of_a_resource_come_to_its_subscribers_alone() {
    let gateway = talking_with(json!({"sessions": {"keepalive": "200ms"}})).await;
    let subscriber = Session::start(&gateway, "talk", LATEST).await;
    let bystander = Session::start(&gateway, "talk", LATEST).await;
    let (mut wanted, mut unwanted) = (subscriber.listen().await, bystander.listen().await);
    let uri = "test://watched";
    let subscribed = subscriber
        .request(1, "resources/subscribe", json!({"uri": uri}))
        .await;
    assert_eq!(subscribed["result"], json!({}));
    let touch = json!({"name": "touch", "arguments": {"uri": uri}});
    bystander.request(2, "tools/call", touch.clone()).await;
    let update = wanted.message().await;
    assert_eq!(update["method"], "notifications/resources/updated");
    assert_eq!(update["params"]["uri"], uri);
    for _ in 0..2 {
        let event = unwanted.next().await.unwrap();
        assert!(event.comment, "not subscribed: {event:?}");
    }
    subscriber
        .request(3, "resources/unsubscribe", json!({"uri": uri}))
        .await;
    bystander.request(4, "tools/call", touch).await;
    for _ in 0..2 {
        let event = wanted.next().await.unwrap();
        assert!(event.comment, "no longer subscribed: {event:?}");
    }
}

#[tokio::test]
async fn subscriptions_of_one_session_are_bounded() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut connection = TcpStream::connect(gateway.address).await.unwrap();
    let mut refused = 0;
    for number in 0..1100 {
        let message = json!({"jsonrpc": "2.0", "id": number, "method": "resources/subscribe",
            "params": {"uri": format!("test://{number}")}});
        let mut answer = Answering::on(connection, &session.post_text(&message)).await;
        assert_eq!(answer.status, 200);
        refused += usize::from(answer.json().await.get("error").is_some());
        connection = answer.into_connection();
    }
    assert!(refused >= 100, "{refused} of 1100 were refused");
    assert_eq!(
        session.request(1, "ping", json!({})).await["result"],
        json!({})
    );
}

#[tokio::test]
async fn a_reader_that_falls_behind_loses_its_stream_and_keeps_its_log() {
    let gateway = talking_with(json!({
        "sessions": {"event_log": {"events": 64, "bytes": "64KiB"}},
        "admission": {"timeouts": {"write": "60s"}}}))
    .await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stuck = socket.connect(gateway.address).await.unwrap();
    let flood = session.post_text(&flood());
    let mut answer = Answering::on(stuck, &flood).await;
    let first = answer.next().await.unwrap();
    assert!(first.id.is_some(), "something to come back with: {first:?}");
    eventually("the reader was found too slow", || async {
        (total(&gateway, "tooldock_stream_slow_readers_total").await > 0).then_some(())
    })
    .await;
    // Others are served meanwhile, and the call itself goes on to its end.
    assert_eq!(
        session.request(2, "ping", json!({})).await["result"],
        json!({})
    );
    eventually("the call is over", || async {
        gateway
            .metrics_text()
            .await
            .contains("tooldock_worker_in_flight{namespace=\"talk\"} 0\n")
            .then_some(())
    })
    .await;
    let mut resumed = session.get(first.id.as_deref()).await;
    assert_eq!(resumed.status, 200);
    let rest = resumed.messages().await;
    // Events that the log still held, and those that the call had not passed on yet; the rest is gone, and none comes
    // twice.
    assert!(rest.len() < 12_000, "{} events are left", rest.len());
    let numbers: Vec<u64> = rest
        .iter()
        .filter_map(|message| message["params"]["data"].as_str())
        .filter_map(|text| text.split(' ').next()?.parse().ok())
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order, none twice");
    assert_eq!(rest.last().unwrap()["id"], 1, "the answer is the last");
    assert!(total(&gateway, "tooldock_stream_window_misses_total").await > 0);
}

#[tokio::test]
async fn a_burst_arrives_in_order_and_whole_up_to_what_a_call_may_hold_back() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    for (id, count) in [(1, 2000), (2, 20_000)] {
        let arguments = json!({"count": count, "size": 100});
        let messages = session.call(id, "flood", arguments).await.messages().await;
        let numbers: Vec<u64> = messages
            .iter()
            .filter_map(|message| message["params"]["data"].as_str())
            .filter_map(|text| text.split(' ').next()?.parse().ok())
            .collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "in order, none twice");
        assert_eq!(messages.last().unwrap()["id"], id, "the answer is the last");
        let lost = count - numbers.len() as u64;
        assert!(lost == 0 || count > 4096, "{lost} of {count} are missing");
        // Events that a tool sends faster than they can be passed on are dropped, and counted.
        let counted = total(&gateway, "tooldock_call_events_dropped_total").await;
        assert_eq!(counted, lost, "of {count}");
    }
}

#[tokio::test]
async fn a_reader_of_single_bytes_gets_everything_and_holds_up_nobody() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let gate = Gate::new(&gateway, "gate");
    gate.open();
    let arguments = json!({"gate": gate.path(), "before": 5, "after": 5});
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream
        .write_all(session.post_text(&call(1, "talk", arguments)).as_bytes())
        .await
        .unwrap();
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n0\r\n\r\n") {
        tokio::time::timeout(DEADLINE, stream.read_exact(&mut byte))
            .await
            .unwrap()
            .unwrap();
        text.push(byte[0]);
        if text.len() % 200 == 0 {
            // Answered while the reader takes nothing.
            session.request(2, "ping", json!({})).await;
        }
    }
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.matches("notifications/progress").count(), 10);
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off_by_the_write_timeout() {
    let gateway = talking_with(json!({
        "sessions": {"event_log": {"events": 100_000, "bytes": "64MiB"}},
        "admission": {"timeouts": {"write": "1s"}}}))
    .await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stuck = socket.connect(gateway.address).await.unwrap();
    let flood = session.post_text(&flood());
    stuck.write_all(flood.as_bytes()).await.unwrap();
    eventually("no stream is left", || async {
        let text = gateway.metrics_text().await;
        let idle = text.contains("tooldock_worker_in_flight{namespace=\"talk\"} 0\n");
        (idle && total(&gateway, "tooldock_streams").await == 0).then_some(())
    })
    .await;
    // Its connection is closed, too, however much the kernel still holds for it.
    let client = stuck.local_addr().unwrap();
    eventually("the connection is closed", || async {
        (!is_established(gateway.address, client)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_or_talks_into_its_get_stream_is_seen_at_once() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let stream = session.listen().await;
    assert_eq!(total(&gateway, "tooldock_streams").await, 1);
    drop(stream);
    let left = Instant::now();
    eventually("the stream is gone", || async {
        (total(&gateway, "tooldock_streams").await == 0).then_some(())
    })
    .await;
    assert!(
        left.elapsed() < Duration::from_secs(12),
        "keepalives are 15 s apart"
    );
    let mut stream = session.listen().await;
    stream
        .connection()
        .write_all(b"GET / HTTP/1.1\r\n")
        .await
        .unwrap();
    stream.end().await;
    eventually("the stream is gone", || async {
        (total(&gateway, "tooldock_streams").await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stop_ends_every_stream_whole_and_says_when_to_come_back() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut streams = vec![session.listen().await, session.listen().await];
    streams.push(
        Session::start(&gateway, "talk", "2025-03-26")
            .await
            .listen()
            .await,
    );
    gateway.signal(Signal::TERM);
    for mut stream in streams {
        let mut retry = None;
        while let Some(event) = stream.next().await {
            retry = event.retry.or(retry);
        }
        assert!(retry.is_some(), "no word on when to come back");
        assert_eq!(stream.end().await, End::Whole);
    }
    let ended = Instant::now();
    assert_eq!(gateway.ended().await.code(), Some(0));
    assert!(
        ended.elapsed() < Duration::from_secs(25),
        "the grace period is 30 s"
    );
}

#[tokio::test]
async fn the_streams_of_one_principal_are_bounded() {
    let other = "other-token-0123456789abcdef";
    let gateway = talking_with(json!({"admission": {
        "limits": {"streams_per_principal": 2},
        "tokens": [{"name": "other", "sha256": sha256(other), "namespaces": ["*"]}]}}))
    .await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let (first, _second) = (session.listen().await, session.listen().await);
    let mut third = session.get(None).await;
    assert_eq!(third.status, 429);
    assert!(third.header("retry-after").is_some());
    assert_eq!(third.json().await["error"]["code"], -32013);
    let neighbour = Session::start_as(&gateway, "talk", LATEST, other, json!({})).await;
    let _theirs = neighbour.listen().await;
    drop(first);
    eventually("there is room again", || async {
        (session.get(None).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_streams() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let mut stream = session.listen().await;
    let gate = Gate::new(&gateway, "gate");
    let mut running = session.call(1, "talk", json!({"gate": gate.path()})).await;
    running.message().await;
    assert!((200..300).contains(&session.delete().await));
    stream.end().await;
    running.end().await;
    assert_eq!(session.get(None).await.status, 404);
    eventually("nothing is left", || async {
        (total(&gateway, "tooldock_streams").await == 0).then_some(())
    })
    .await;
    gate.open();
}

#[tokio::test]
async fn a_client_without_event_streams_gets_json_and_no_events() {
    let gateway = talking().await;
    let gate = Gate::new(&gateway, "gate");
    gate.open();
    // No session and no version: the rules of 2025-03-26, where JSON alone is accepted.
    let response = gateway
        .request("POST", "/mcp")
        .header("X-Namespace", "talk")
        .header("Accept", "application/json")
        .json(&call(1, "talk", json!({"gate": gate.path()})))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_sessionless_call_is_cancelled_when_its_client_leaves() {
    let gateway = talking().await;
    let gate = Gate::new(&gateway, "gate");
    let body = call(1, "talk", json!({"gate": gate.path()})).to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: talk\r\n\
         Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = Answering::open(gateway.address, &request).await;
    assert_eq!(progress(&answer.message().await), Some(0));
    drop(answer);
    eventually("the tool was cancelled", || async {
        gate.was_cancelled().then_some(())
    })
    .await;
}
