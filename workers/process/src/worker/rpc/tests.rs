//! A connection with a worker whose lines the test writes.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixListener;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::*;
use crate::metrics::WorkerMetrics;
use crate::worker::{Ask, CallEvent, LogLevel, Notice, OPEN_QUESTIONS_MAX, Operation, WorkerSpec};

/// The time limit of every call.
const LIMIT: Duration = Duration::from_secs(3);

/// The other end of a connection.
struct Peer {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

struct House {
    connection: WorkerConnection,
    peer: Peer,
    registry: prometheus::Registry,
    _dir: tempfile::TempDir,
}

/// Keeps the events that it receives.
struct Heard(mpsc::Sender<CallEvent>);

impl CallSink for Heard {
    fn event(&self, event: CallEvent) {
        self.0.try_send(event).expect("a test hears little");
    }
}

/// Answers every question at once, which only works outside the connection's locks.
struct Obliging;

impl CallSink for Obliging {
    fn event(&self, event: CallEvent) {
        if let CallEvent::Ask(Ask { questions, replier }) = event {
            for question in questions {
                replier.answer(&question.key, Ok(&question.params));
            }
        }
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("in time")
}

impl Peer {
    /// The next line that is not a heartbeat.
    async fn line(&mut self) -> Value {
        loop {
            let line = within(self.lines.next_line()).await;
            let line = line.expect("readable").expect("a line");
            let value: Value = serde_json::from_str(&line).expect("JSON");
            if value["op"] != "ping" {
                return value;
            }
        }
    }

    async fn send(&mut self, frame: Value) {
        self.send_text(&frame.to_string()).await;
    }

    async fn send_text(&mut self, line: &str) {
        let line = format!("{line}\n");
        within(self.write.write_all(line.as_bytes()))
            .await
            .expect("written");
    }
}

impl House {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = WorkerSpec {
            socket: dir.path().join("demo.sock"),
            ..crate::worker::tests::spec()
        };
        let registry = prometheus::Registry::new();
        let metrics = WorkerMetrics::new(&registry).expect("fresh");
        let metrics = Arc::new(metrics.worker(&spec.namespace));
        let listener = UnixListener::bind(&spec.socket).expect("bound");
        let (announced, _) = mpsc::channel(1);
        let accepted = async {
            let (read, mut write) = listener
                .accept()
                .await
                .expect("a connection")
                .0
                .into_split();
            let greeting = b"{\"op\":\"ready\",\"namespace\":\"demo\",\"generation\":7}\n";
            write.write_all(greeting).await.expect("written");
            let lines = BufReader::new(read).lines();
            Peer { lines, write }
        };
        let connecting = connect(
            Handle::current(),
            Arc::new(spec),
            metrics,
            announced,
            watch::Sender::new(None),
        );
        let (connection, peer) = within(async { tokio::join!(connecting, accepted) }).await;
        Self {
            connection: connection.expect("connected"),
            peer,
            registry,
            _dir: dir,
        }
    }

    /// Begins a call; returns it with the id that the worker sees.
    async fn begin(&mut self, sink: Option<Arc<dyn CallSink>>) -> (SentCall, u64) {
        let call = WorkerCall {
            operation: Operation::CallTool {
                tool: "t".into(),
                arguments: Bytes::new(),
            },
            caller: None,
            maker: Default::default(),
            request: "r-1".into(),
            max_result: 1000,
            time_limit: Some(LIMIT),
            answers: None,
            trace: None,
        };
        let in_flight = self.connection.link.begin(&call, sink).expect("begun");
        let line = self.peer.line().await;
        assert_eq!(line["op"], "tools.call");
        (in_flight, line["id"].as_u64().expect("a number"))
    }

    /// Ends a call from the worker's side, and so waits until everything sent before was read.
    async fn end(&mut self, in_flight: SentCall, id: u64) {
        self.peer
            .send(json!({"id": id, "ok": true, "result": 1}))
            .await;
        within(in_flight.answer()).await.expect("a result");
    }

    fn protocol_errors(&self, kind: &str) -> f64 {
        self.registry
            .gather()
            .iter()
            .filter(|family| family.name() == "tooldock_worker_protocol_errors_total")
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .filter(|metric| metric.get_label().iter().any(|label| label.value() == kind))
            .map(|metric| metric.get_counter().value())
            .sum()
    }
}

fn heard() -> (Option<Arc<dyn CallSink>>, mpsc::Receiver<CallEvent>) {
    let (sender, events) = mpsc::channel(100);
    (Some(Arc::new(Heard(sender))), events)
}

async fn asked(events: &mut mpsc::Receiver<CallEvent>) -> Ask {
    match within(events.recv()).await {
        Some(CallEvent::Ask(ask)) => ask,
        other => panic!("{other:?}"),
    }
}

fn roots(key: &str) -> Value {
    json!({"key": key, "method": "roots/list", "params": {"of": key}})
}

#[tokio::test]
async fn events_reach_their_calls_sink_in_order_and_none_after_the_answer() {
    let mut house = House::new().await;
    let (sink, mut events) = heard();
    let (call, id) = house.begin(sink).await;
    for line in [
        format!(r#"{{"op":"progress","id":{id},"params": {{"progress": 1.0}}}}"#),
        format!(r#"{{"op":"log","id":{id},"params":{{"level":"error","data":[1]}}}}"#),
        format!(r#"{{"op":"notify","id":{id},"method":"notifications/tools/list_changed"}}"#),
        format!(r#"{{"id":{id},"ok":true,"result":1}}"#),
        format!(r#"{{"op":"progress","id":{id},"params":{{"progress":2}}}}"#),
        format!(r#"{{"op":"ask","id":{id},"questions":[{{"key":"a","method":"roots/list"}}]}}"#),
    ] {
        house.peer.send_text(&line).await;
    }
    within(call.answer()).await.expect("a result");
    // A round trip, so that the last lines were read.
    let (last, id) = house.begin(None).await;
    house.end(last, id).await;
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push(event);
    }
    assert!(
        matches!(
            &told[..],
            [
                CallEvent::Progress(progress),
                CallEvent::Log { level: LogLevel::Error, params },
                CallEvent::Notice(Notice::ToolsChanged),
            ] if progress == r#"{"progress": 1.0}"# && params == r#"{"level":"error","data":[1]}"#
        ),
        "{told:?}"
    );
    assert_eq!(house.protocol_errors("event"), 0.0);
}

#[tokio::test]
async fn events_that_make_no_sense_are_counted_and_harm_nobody() {
    let mut house = House::new().await;
    let (sink, mut events) = heard();
    let (call, id) = house.begin(sink).await;
    for frame in [
        json!({"op": "progress", "id": id}),
        json!({"op": "log", "id": id, "params": {"level": "loud", "data": 1}}),
        json!({"op": "notify", "id": id, "method": "notifications/resources/updated"}),
        json!({"op": "ask", "id": id, "questions": {}}),
    ] {
        house.peer.send(frame).await;
    }
    house.end(call, id).await;
    assert!(events.try_recv().is_err());
    assert_eq!(house.protocol_errors("event"), 4.0);
    assert_eq!(house.protocol_errors("garbage"), 0.0);
}

#[tokio::test]
async fn questions_of_one_frame_are_asked_together_and_each_is_answered_once() {
    let mut house = House::new().await;
    let (sink, mut events) = heard();
    let (call, id) = house.begin(sink).await;
    let elicit = json!({"key": "b", "method": "elicitation/create", "params": {"message": "?"}});
    let frame = json!({"op": "ask", "id": id, "questions": [roots("a"), elicit]});
    house.peer.send(frame).await;
    let ask = asked(&mut events).await;
    let methods: Vec<_> = ask.questions.iter().map(|it| it.method.as_str()).collect();
    assert_eq!(methods, ["roots/list", "elicitation/create"]);
    assert_eq!(ask.questions[1].params, r#"{"message":"?"}"#);

    let declined = CallError::new(CallErrorCode::AskFailed, "no");
    ask.replier.answer("b", Err(&declined));
    ask.replier.answer("c", Ok(b"{}"));
    ask.replier.answer("a", Ok(b"{\"roots\":[]}"));
    ask.replier.answer("a", Ok(b"{\"roots\":[1]}"));
    assert_eq!(
        house.peer.line().await,
        json!({"op": "answer", "target": id, "key": "b", "error": {"code": "ask_failed", "message": "no"}})
    );
    assert_eq!(
        house.peer.line().await,
        json!({"op": "answer", "target": id, "key": "a", "result": {"roots": []}})
    );
    // An answered key may be asked again; the next line proves that no other line came in between.
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": [roots("a")]}))
        .await;
    asked(&mut events)
        .await
        .replier
        .answer("a", Ok(b"{\"roots\":[2]}"));
    assert_eq!(house.peer.line().await["result"], json!({"roots": [2]}));
    house.end(call, id).await;
}

#[tokio::test]
async fn a_sink_may_answer_on_the_spot() {
    let mut house = House::new().await;
    let (call, id) = house.begin(Some(Arc::new(Obliging))).await;
    let questions = [roots("a"), roots("b")];
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": questions}))
        .await;
    assert_eq!(house.peer.line().await["result"], json!({"of": "a"}));
    assert_eq!(house.peer.line().await["result"], json!({"of": "b"}));
    house.end(call, id).await;
}

#[tokio::test]
async fn what_cannot_be_asked_fails_at_once_and_the_rest_is_asked() {
    let mut house = House::new().await;
    let (sink, mut events) = heard();
    let (call, id) = house.begin(sink).await;
    let questions = json!([
        roots("a"),
        {"key": "odd", "method": "tools/call", "params": {}},
        roots("a"),
        roots(&"k".repeat(300)),
        roots("b"),
        "senseless",
    ]);
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": questions}))
        .await;
    let ask = asked(&mut events).await;
    let keys: Vec<_> = ask.questions.iter().map(|it| &*it.key).collect();
    assert_eq!(keys, ["a", "b"]);
    for key in ["odd", "a", &"k".repeat(300)] {
        let answer = house.peer.line().await;
        assert_eq!(
            (&answer["target"], &answer["key"]),
            (&json!(id), &json!(key))
        );
        assert_eq!(answer["error"]["code"], "ask_failed", "{answer}");
    }
    assert_eq!(house.protocol_errors("question"), 4.0);

    let many: Vec<_> = (0..OPEN_QUESTIONS_MAX)
        .map(|it| roots(&it.to_string()))
        .collect();
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": many}))
        .await;
    assert_eq!(
        asked(&mut events).await.questions.len(),
        OPEN_QUESTIONS_MAX - 2
    );
    for _ in 0..2 {
        let message = house.peer.line().await["error"]["message"].to_string();
        assert!(message.contains("too many"), "{message}");
    }
    house.end(call, id).await;
}

#[tokio::test]
async fn an_answer_for_a_call_that_is_over_is_dropped() {
    let mut house = House::new().await;
    let (sink, mut events) = heard();
    let (answered, id) = house.begin(sink.clone()).await;
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": [roots("a")]}))
        .await;
    let first = asked(&mut events).await;
    house.end(answered, id).await;
    let (dropped, id) = house.begin(sink).await;
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": [roots("a")]}))
        .await;
    let second = asked(&mut events).await;
    drop(dropped);
    first.replier.answer("a", Ok(b"{}"));
    second.replier.answer("a", Ok(b"{}"));
    assert_eq!(
        house.peer.line().await,
        json!({"op": "cancel", "target": id})
    );
    // `begin` reads the next line, which is the call: no answer came before it.
    let (last, id) = house.begin(None).await;
    house.end(last, id).await;
    drop(house);
    second.replier.answer("a", Ok(b"{}"));
}

#[tokio::test]
async fn the_limit_of_a_call_is_told_once_nobody_waits_for_it() {
    let mut house = House::new().await;
    let (waiting, waiting_id) = house.begin(None).await;
    let (dropped, id) = house.begin(None).await;
    let limit_of = |house: &House, id, request| {
        let link = &house.connection.link;
        link.limit_of_abandoned(id, request)
    };
    assert_eq!(limit_of(&house, id, "r-1"), None);
    drop(dropped);
    assert_eq!(limit_of(&house, id, "r-1"), Some(LIMIT));
    // A call with this id on another connection belongs to another request.
    assert_eq!(limit_of(&house, id, "r-2"), None);
    assert_eq!(limit_of(&house, waiting_id, "r-1"), None);
    assert_eq!(
        house.peer.line().await,
        json!({"op": "cancel", "target": id})
    );
    house.end(waiting, waiting_id).await;
    // Calls that were given up long ago are forgotten.
    for _ in 0..ABANDONED_MAX {
        drop(house.begin(None).await);
        assert_eq!(house.peer.line().await["op"], "cancel");
    }
    assert_eq!(limit_of(&house, id, "r-1"), None);
    assert_eq!(house.connection.link.calls().abandoned.len(), ABANDONED_MAX);
}

#[tokio::test]
async fn a_call_nobody_listens_to_is_asked_nothing() {
    let mut house = House::new().await;
    let (call, id) = house.begin(None).await;
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": [roots("a")]}))
        .await;
    let answer = house.peer.line().await;
    assert_eq!(
        (&answer["key"], &answer["error"]["code"]),
        (&json!("a"), &json!("ask_failed"))
    );
    assert_eq!(house.protocol_errors("question"), 0.0);
    house.end(call, id).await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_becomes_an_error() {
    let mut house = House::new().await;
    let (sink, mut events) = heard();
    let (call, id) = house.begin(sink).await;
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": [roots("a")]}))
        .await;
    let large = vec![b' '; 2 * 1024 * 1024];
    asked(&mut events).await.replier.answer("a", Ok(&large));
    let answer = house.peer.line().await;
    let message = answer["error"]["message"].as_str().expect("text");
    assert!(message.contains("1048576"), "{message}");
    house.end(call, id).await;
}

#[tokio::test]
async fn a_worker_that_does_not_read_its_answers_loses_the_call() {
    let mut house = House::new().await;
    let (sink, mut events) = heard();
    let (call, id) = house.begin(sink).await;
    let questions: Vec<_> = (0..OPEN_QUESTIONS_MAX)
        .map(|it| roots(&it.to_string()))
        .collect();
    house
        .peer
        .send(json!({"op": "ask", "id": id, "questions": questions}))
        .await;
    let ask = asked(&mut events).await;
    let answer = vec![b' '; 1024 * 1024 - 1024];
    for question in &ask.questions {
        ask.replier.answer(&question.key, Ok(&answer));
    }
    let error = within(call.answer()).await.expect_err("given up");
    assert_eq!(error.code, CallErrorCode::Overloaded);
    assert!(house.connection.link.outbox().len() <= OUTBOX_MAX + 1024);
}
