use std::pin::Pin;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::FutureExt;
use serde_json::{Value, json};
use tooldock_base::answers::AnswerBudget;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Gate;
use tooldock_base::parking::Parking;
use tooldock_process::worker::{AskMethod, Operation, Question};
use tooldock_sessions::audit::Audit;
use tooldock_sessions::broadcast::Filter;
use tooldock_sessions::interaction::{
    EventReceiver, Interaction, OPEN_IN_CALL, Responder, ask_failed, events,
};
use tooldock_sessions::stream::{KeepAlive, Stream};
use tooldock_sessions::testing::{audience, caller, namespace};
use tooldock_workers::registry::Namespace;

use super::*;
use crate::engine::{PeerEvent, UpstreamReply};
use crate::hooks::Hooks;
use crate::metrics::UpstreamMetrics;
use crate::testing::{FakeBackend, Unlimited, function_call};
use crate::upstream::Client;

struct Fixture {
    engine: Arc<Engine>,
    backend: Arc<FakeBackend>,
    namespace: Arc<Namespace>,
}

/// A namespace with one permit, no queue, three seconds for a call, sixty for a question, and room for two asking calls.
fn fixture() -> Fixture {
    fixture_with(|_| {})
}

fn fixture_with(change: impl FnOnce(&mut Namespace)) -> Fixture {
    let backend = Arc::new(FakeBackend::default());
    let metrics = UpstreamMetrics::new(&prometheus::Registry::new()).expect("a fresh registry");
    let mut namespace = namespace("shared");
    namespace.gate = Arc::new(Gate::new(1, 0));
    namespace.parked = Arc::new(Parking::new(2));
    namespace.limits.timeout = Duration::from_secs(3);
    namespace.limits.ask_timeout = Duration::from_secs(60);
    change(&mut namespace);
    Fixture {
        engine: Arc::new(Engine {
            limiter: Arc::new(Unlimited),
            audit: Audit::off(),
            metrics: Arc::new(metrics),
            audience: audience().2,
            answers: AnswerBudget::unbounded(),
            registry: Arc::default(),
            hooks: Hooks::default(),
        }),
        backend,
        namespace: Arc::new(namespace),
    }
}

/// Questions that were asked together.
struct Questions(Vec<Arc<Interaction>>);

impl Questions {
    /// Answers or fails a question; returns true if that counts.
    fn answer(&self, key: &str, outcome: Result<Bytes, CallError>) -> bool {
        let mut all = self.0.iter();
        let of_key = |it: &&Arc<Interaction>| it.question().is_some_and(|it| *it.key == *key);
        all.find(of_key).is_some_and(|entry| match outcome {
            Ok(result) => entry.set_answer(result),
            Err(why) => entry.fail(why),
        })
    }

    /// The questions without an answer.
    fn open(&self) -> impl Iterator<Item = &Question> {
        let open = self.0.iter().filter(|it| it.is_open());
        open.filter_map(|it| it.question())
    }
}

/// A call that runs while it is polled, or while its events are awaited.
struct Running {
    work: Pin<Box<dyn Future<Output = Result<Value, CallErrorCode>>>>,
    events: EventReceiver,
}

impl Fixture {
    fn begin(&self, script: Value) -> Running {
        let (sender, events) = events();
        Running {
            work: self.work("talk", &script, Some(sender)),
            events,
        }
    }

    fn work(
        &self,
        tool: &str,
        arguments: &Value,
        events: Option<EventSender>,
    ) -> Pin<Box<dyn Future<Output = Result<Value, CallErrorCode>>>> {
        let engine = Arc::clone(&self.engine);
        let operation = Operation::CallTool {
            tool: tool.into(),
            arguments: arguments.to_string().into(),
        };
        let call = function_call(&self.backend, &self.namespace, Client::Plain, operation);
        Box::pin(async move {
            match engine.run(&caller(), &call, events).await {
                Ok(UpstreamReply::Value(reply)) => {
                    Ok(serde_json::from_slice(&reply.value).expect("JSON"))
                }
                Ok(other) => panic!("no value: {other:?}"),
                Err(error) => Err(error.code),
            }
        })
    }

    /// The numbers of running and asking calls.
    fn places(&self) -> (usize, usize) {
        let namespace = &self.namespace;
        (namespace.gate.in_flight(), namespace.parked.parked())
    }
}

impl Running {
    /// Runs the call until it asks.
    async fn questions(&mut self) -> Questions {
        tokio::select! {
            biased;
            outcome = &mut self.work => panic!("the call ended: {outcome:?}"),
            event = self.events.next() => match event {
                PeerEvent::InputRequests(questions) => Questions(questions),
                other => panic!("{other:?}"),
            },
        }
    }

    /// Polls the call once.
    fn poll(&mut self) -> Option<Result<Value, CallErrorCode>> {
        (&mut self.work).now_or_never()
    }
}

fn asks(keys: &[&str]) -> Value {
    let question = |key: &&str| json!({ "key": key, "method": "elicitation/create" });
    json!({ "ask": keys.iter().map(question).collect::<Vec<_>>() })
}

fn script(steps: &[Value]) -> Value {
    json!({ "steps": steps })
}

fn yes() -> Result<Bytes, CallError> {
    Ok(Bytes::from_static(br#"{"action":"accept"}"#))
}

#[tokio::test(start_paused = true)]
async fn what_a_call_says_is_there_in_its_order_when_the_call_returns() {
    let fixture = fixture();
    let steps = [
        json!({ "progress": 2 }),
        json!({ "log": "warning" }),
        json!({ "progress": 1 }),
    ];
    let Running { work, mut events } = fixture.begin(script(&steps));
    assert_eq!(work.await, Ok(json!({})));
    let mut said = Vec::new();
    while let Some(event) = events.try_next() {
        said.push(match event {
            PeerEvent::Progress(report) => String::from_utf8(report.to_vec()).expect("UTF-8"),
            PeerEvent::Log { level, .. } => level.as_str().to_owned(),
            _ => panic!("a worker says nothing else"),
        });
    }
    let expected = [
        r#"{"progress":1,"total":2}"#,
        r#"{"progress":2,"total":2}"#,
        "warning",
        r#"{"progress":1,"total":1}"#,
    ];
    assert_eq!(said, expected);
    assert!(events.try_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_question_stops_the_clock_and_gives_the_permit_back() {
    let fixture = fixture();
    let mut call = fixture.begin(script(&[asks(&["k"])]));
    let questions = call.questions().await;
    assert_eq!(fixture.places(), (0, 1));
    assert_eq!(
        questions.open().next().expect("it").method,
        AskMethod::Elicit
    );
    // The permit is free for others, and more time passes than the call may take.
    assert!(fixture.work("say_hello", &json!({}), None).await.is_ok());
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(call.poll().is_none());
    assert!(questions.answer("k", yes()));
    assert_eq!(call.work.await, Ok(json!({ "k": { "action": "accept" } })));
    assert_eq!(fixture.places(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_clock_goes_on_where_it_stood() {
    let fixture = fixture();
    let steps = [asks(&["a"]), json!({ "hang": true })];
    let mut call = fixture.begin(script(&steps));
    let questions = call.questions().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    questions.answer("a", yes());
    let start = Instant::now();
    assert_eq!(call.work.await, Err(CallErrorCode::ExecutionTimeout));
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    assert_eq!(fixture.places(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn answers_reach_the_function_when_all_are_there_and_a_permit_is_free() {
    let fixture = fixture();
    let mut call = fixture.begin(script(&[asks(&["a", "b"])]));
    let questions = call.questions().await;
    questions.answer("a", yes());
    assert!(call.poll().is_none());
    assert_eq!(fixture.places(), (0, 1));
    let mut open = questions.open().map(|question| &*question.key);
    assert_eq!((open.next(), open.next()), (Some("b"), None));

    let mut other = fixture.work("hang", &json!({}), None);
    assert!((&mut other).now_or_never().is_none());
    questions.answer("b", yes());
    // The call waits for its turn although the queue has no room, and its clock runs.
    assert!(call.poll().is_none());
    assert_eq!(fixture.places(), (1, 1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(call.poll().is_none());
    fixture.backend.release.add_permits(1);
    assert!(other.await.is_ok());
    let answers = call.work.await.expect("answered");
    assert_eq!(answers.as_object().map(serde_json::Map::len), Some(2));
    assert_eq!(fixture.places(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_permit_after_the_answer_counts() {
    let fixture = fixture_with(|namespace| {
        let tool = tooldock_base::config::ToolLimits {
            timeout: Some(Duration::from_secs(100)),
            max_result: None,
        };
        namespace.tool_limits.insert("hang".into(), tool);
    });
    let mut call = fixture.begin(script(&[asks(&["a"])]));
    let questions = call.questions().await;
    let mut other = fixture.work("hang", &json!({}), None);
    assert!((&mut other).now_or_never().is_none());
    questions.answer("a", yes());
    let start = Instant::now();
    assert_eq!(call.work.await, Err(CallErrorCode::ExecutionTimeout));
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    assert_eq!(fixture.places(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_question_nobody_answers_in_time_fails_and_the_call_goes_on() {
    let fixture = fixture();
    let mut call = fixture.begin(script(&[asks(&["a", "b"])]));
    let questions = call.questions().await;
    questions.answer("b", yes());
    let start = Instant::now();
    let answers = call.work.await.expect("the function goes on");
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    let failed = "ask_failed: The client gave no answer within 60 s";
    assert_eq!(
        answers,
        json!({ "a": { "failed": failed }, "b": { "action": "accept" } })
    );
    assert!(!questions.answer("a", yes()), "the call is over");
}

#[tokio::test(start_paused = true)]
async fn more_calls_than_may_ask_go_on_without_an_answer() {
    let fixture = fixture_with(|namespace| namespace.parked = Arc::new(Parking::new(1)));
    let mut first = fixture.begin(script(&[asks(&["a"])]));
    let _questions = first.questions().await;
    let second = fixture.begin(script(&[asks(&["a"])])).work.await;
    let failed = "ask_failed: Too many calls of the namespace wait for an answer of their client";
    assert_eq!(second, Ok(json!({ "a": { "failed": failed } })));
    assert_eq!(fixture.places(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_principal_may_not_keep_all_calls_of_a_namespace_waiting() {
    let fixture = fixture_with(|namespace| namespace.parked = Arc::new(Parking::new(8)));
    let parked = &fixture.namespace.parked;
    let principal = tooldock_sessions::testing::caller()
        .principal_name()
        .to_owned();
    let _held: Vec<_> = (0..7)
        .map(|_| parked.enter(&principal).expect("room"))
        .collect();
    let second = fixture.begin(script(&[asks(&["a"])])).work.await;
    let failed = "ask_failed: Too many calls of this principal wait for an answer of their client";
    assert_eq!(second, Ok(json!({ "a": { "failed": failed } })));
    assert!(fixture.namespace.parked.enter("another").is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_asks_again_while_its_answers_wait() {
    let fixture = fixture();
    let steps = [asks(&["a"]), asks(&["b"])];
    let mut call = fixture.begin(script(&steps));
    let first = call.questions().await;
    assert!(first.answer("a", yes()));
    let second = call.questions().await;
    assert_eq!(&*second.open().next().expect("it").key, "b");
    assert!(second.answer("b", yes()));
    let answers = call.work.await.expect("answered");
    assert_eq!(answers.as_object().map(serde_json::Map::len), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_while_it_is_asked_frees_everything() {
    let fixture = fixture();
    let mut call = fixture.begin(script(&[asks(&["a"])]));
    let questions = call.questions().await;
    assert!(questions.open().next().is_some());
    drop(call.work);
    assert_eq!(fixture.places(), (0, 0));
    assert_eq!(fixture.backend.counts(), (1, 1, 0));
    assert!(questions.open().next().is_none() && !questions.answer("a", yes()));
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_counts_and_unknown_keys_change_nothing() {
    let fixture = fixture();
    let mut call = fixture.begin(script(&[asks(&["a"])]));
    let questions = call.questions().await;
    assert!(!questions.answer("c", yes()), "nobody asked that");
    assert!(questions.answer("a", Err(ask_failed("The client said no"))));
    assert!(!questions.answer("a", yes()), "the first answer counts");
    assert_eq!(
        call.work.await,
        Ok(json!({ "a": { "failed": "ask_failed: The client said no" } }))
    );
}

#[tokio::test(start_paused = true)]
async fn questions_that_nobody_reads_any_more_fail() {
    let fixture = fixture();
    let mut call = fixture.begin(script(&[asks(&["a"])]));
    assert!(call.poll().is_none());
    drop(call.events);
    assert_eq!(
        call.work.await,
        Ok(json!({ "a": { "failed": "ask_failed: The client gave no answer" } }))
    );
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_events_can_be_asked_nothing() {
    let fixture = fixture();
    let steps = [json!({ "progress": 1 }), asks(&["a"])];
    let outcome = fixture.work("talk", &script(&steps), None).await;
    let failed =
        "missing_capability: The client cannot be asked here: it has no capability \"elicitation\"";
    assert_eq!(outcome, Ok(json!({ "a": { "failed": failed } })));
}

#[tokio::test(start_paused = true)]
async fn one_call_cannot_have_more_questions_than_the_bound() {
    let fixture = fixture();
    let keys: Vec<_> = (0..=OPEN_IN_CALL).map(|n| format!("k{n}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let outcome = fixture.begin(script(&[asks(&keys)])).work.await;
    let outcome = outcome.expect("the function goes on");
    let failed = "ask_failed: A call may have at most 64 questions open";
    assert_eq!(outcome["k64"]["failed"], failed);
    assert_eq!(fixture.places(), (0, 0));
    let mut call = fixture.begin(script(&[asks(&keys[1..])]));
    assert_eq!(call.questions().await.0.len(), OPEN_IN_CALL);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_loses_progress_and_cannot_be_asked() {
    let fixture = fixture();
    let steps = [json!({ "progress": 4200 }), asks(&["a"])];
    let Running { work, mut events } = fixture.begin(script(&steps));
    let failed = "ask_failed: The client does not read what it is sent";
    assert_eq!(work.await, Ok(json!({ "a": { "failed": failed } })));
    let mut told = 0;
    while events.try_next().is_some() {
        told += 1;
    }
    assert_eq!(
        (told, fixture.engine.metrics.events_dropped.get()),
        (4096, 104)
    );
}

#[tokio::test(start_paused = true)]
async fn a_function_that_ends_while_it_asks_has_its_answer() {
    let fixture = fixture();
    let mut leave = asks(&["a"]);
    let asked = leave["ask"].take();
    let mut call = fixture.begin(script(&[
        json!({ "leave": asked }),
        json!({ "hang": true }),
    ]));
    let questions = call.questions().await;
    fixture.backend.release.add_permits(1);
    assert_eq!(call.work.await, Ok(json!({})));
    assert!(questions.open().next().is_none());
    assert_eq!(fixture.places(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn news_of_a_namespace_are_announced_whoever_called() {
    let fixture = fixture();
    let stream = Stream::detached(&KeepAlive::new(Duration::from_secs(15)));
    let mut heard = stream.read();
    let wanted = Filter {
        tools: true,
        prompts: true,
        resources: true,
        updates: vec!["a://b".to_owned()],
    };
    let audience = &fixture.engine.audience;
    let _listening = audience.listen(&fixture.namespace.name, wanted, "1", &stream);
    let steps = [
        json!({ "notice": "tools" }),
        json!({ "updated": "a://b" }),
        json!({ "notice": "prompts" }),
    ];
    let outcome = fixture.work("talk", &script(&steps), None).await;
    assert!(outcome.is_ok());
    let mut methods = Vec::new();
    while methods.len() < 3 {
        let chunk = heard.next().await.expect("an open stream");
        let text = String::from_utf8(chunk.to_vec()).expect("UTF-8");
        let messages = text.lines().filter_map(|line| line.strip_prefix("data: "));
        methods.extend(messages.map(|message| {
            let message: Value = serde_json::from_str(message).expect("JSON");
            message["method"]
                .as_str()
                .expect("a notification")
                .to_owned()
        }));
    }
    methods.sort();
    assert_eq!(
        methods,
        [
            "notifications/prompts/list_changed",
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_tool_without_context_has_nothing_around_it() {
    let fixture = fixture();
    let (sender, _events) = events();
    let outcome = fixture.work("echo", &json!({ "a": 1 }), Some(sender)).await;
    assert_eq!(outcome, Ok(json!({ "a": 1 })));
    assert_eq!(fixture.backend.sinks.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn questions_of_a_call_that_is_gone_fail_at_once() {
    let fixture = fixture();
    let (sender, _events) = events();
    let operation = Operation::CallTool {
        tool: "talk".into(),
        arguments: Bytes::from_static(b"{}"),
    };
    let call = function_call(
        &fixture.backend,
        &fixture.namespace,
        Client::Plain,
        operation,
    );
    let call = InteractiveCall::new(
        &fixture.engine,
        call.facts(),
        &caller(),
        Duration::from_secs(3),
        Some(sender),
        fixture.engine.account_of(&caller()),
    );
    let questions = Arc::clone(&call.questions);
    drop(call);
    let question = Question {
        key: "k".into(),
        method: AskMethod::Sample,
        params: Bytes::new(),
    };
    let (responder, told) = tokio::sync::oneshot::channel();
    let opened = questions.open(vec![(question, Responder::Round(responder))]);
    assert!(opened.is_empty());
    let failed = told.await.expect("told").expect_err("nobody is there");
    assert_eq!(failed.code, CallErrorCode::AskFailed);
    assert_eq!(fixture.places(), (0, 0));
}
