use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tooldock_base::answers::AnswerBudget;
use tooldock_base::error::CallErrorCode;
use tooldock_base::gate::Gate;
use tooldock_process::worker::Operation;
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_sessions::audit::{Audit, AuditConfig};
use tooldock_sessions::testing::{audience, caller, caller_with_scopes, namespace};
use tooldock_workers::registry::Namespace;

use super::*;
use crate::hooks::Hooks;
use crate::metrics::UpstreamMetrics;
use crate::metrics::breakdown::{BreakdownConfig, PerPrincipal};
use crate::testing::{FakeBackend, Refuses, Unlimited, function_call};
use crate::upstream::Client;

struct Fixture {
    engine: Arc<Engine>,
    backend: Arc<FakeBackend>,
    namespace: Arc<Namespace>,
}

fn fixture(change: impl FnOnce(&mut Namespace)) -> Fixture {
    let backend = Arc::new(FakeBackend::default());
    let metrics = UpstreamMetrics::new(&prometheus::Registry::new()).expect("a fresh registry");
    let mut namespace = namespace("shared");
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

impl Fixture {
    fn request(&self, operation: Operation) -> Arc<dyn UpstreamCall> {
        function_call(&self.backend, &self.namespace, Client::Plain, operation)
    }

    fn tool(&self, tool: &str) -> Arc<dyn UpstreamCall> {
        self.request(Operation::CallTool {
            tool: tool.into(),
            arguments: Bytes::from_static(b"{}"),
        })
    }

    async fn call(&self, tool: &str) -> Result<UpstreamReply, CallErrorCode> {
        let outcome = self.engine.run(&caller(), &self.tool(tool), None).await;
        outcome.map_err(|error| error.code)
    }

    fn count(&self, outcome: &str) -> u64 {
        self.engine.metrics.calls_of("shared", outcome)
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_turn_never_came_says_overloaded() {
    let gate = Arc::new(Gate::new(1, 1));
    let fixture = fixture(|namespace| {
        namespace.gate = Arc::clone(&gate);
        namespace.limits.timeout = Duration::from_secs(3);
    });
    let _taken = gate.enter(&None).await.expect("the gate is empty");
    let outcome = fixture.call("hang").await;
    assert_eq!(outcome.err(), Some(CallErrorCode::Overloaded));
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_covers_the_wait_in_the_queue_and_cancels_the_call() {
    let fixture = fixture(|namespace| {
        namespace.gate = Arc::new(Gate::new(1, 1));
        namespace.limits.timeout = Duration::from_secs(3);
    });
    let start = tokio::time::Instant::now();
    let (first, second) = tokio::join!(fixture.call("hang"), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.call("hang").await
    });
    assert_eq!(first.err(), Some(CallErrorCode::ExecutionTimeout));
    assert_eq!(second.err(), Some(CallErrorCode::ExecutionTimeout));
    assert_eq!(start.elapsed(), Duration::from_secs(4));
    assert_eq!(fixture.backend.counts(), (2, 2, 0));
    assert_eq!(fixture.namespace.gate.in_flight(), 0);
    assert_eq!(fixture.count("execution_timeout"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let fixture = fixture(|namespace| namespace.gate = Arc::new(Gate::new(1, 1)));
    let calls = async { tokio::join!(fixture.call("hang"), fixture.call("hang")) };
    let third = async {
        tokio::task::yield_now().await;
        let refused = fixture.call("hang").await;
        fixture.backend.release.add_permits(2);
        refused
    };
    let ((first, second), third) = tokio::join!(calls, third);
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(third.err(), Some(CallErrorCode::Overloaded));
    assert_eq!((fixture.count("ok"), fixture.count("overloaded")), (2, 1));
}

#[tokio::test]
async fn a_tool_outside_of_the_callers_scopes_is_refused_whether_or_not_it_exists() {
    let fixture = fixture(|_| {});
    let reader = tooldock_sessions::testing::caller_with_scopes(&["read"]);
    for tool in ["say_hello", "nope"] {
        let call = fixture.tool(tool);
        let refused = fixture.engine.run(&reader, &call, None).await;
        let refused = refused.expect_err("outside of the scopes");
        assert_eq!(refused.code, CallErrorCode::InsufficientScope, "{tool}");
        assert!(refused.message.contains(tool), "{refused}");
    }
    let known = fixture.tool("project_list");
    let unknown = fixture.engine.run(&reader, &known, None).await;
    assert_eq!(
        unknown.err().map(|error| error.code),
        Some(CallErrorCode::ToolNotFound)
    );
    let admin = tooldock_sessions::testing::caller_with_scopes(&["admin"]);
    let call = fixture.tool("say_hello");
    assert!(fixture.engine.run(&admin, &call, None).await.is_ok());
}

#[tokio::test]
async fn a_limit_on_calls_is_asked_for_tools_that_exist() {
    let mut fixture = fixture(|_| {});
    let limiter = Arc::new(Refuses("echo", Mutex::default()));
    let engine = Arc::get_mut(&mut fixture.engine).expect("not shared yet");
    engine.limiter = Arc::clone(&limiter) as Arc<dyn Limiter>;
    assert!(fixture.call("say_hello").await.is_ok());
    assert_eq!(
        fixture.call("nope").await.err(),
        Some(CallErrorCode::ToolNotFound)
    );
    let refused = fixture
        .engine
        .run(&caller(), &fixture.tool("echo"), None)
        .await;
    let refused = refused.expect_err("limited");
    assert_eq!(refused.code, CallErrorCode::RateLimited);
    assert_eq!(
        refused.message,
        "Too many calls: 20 in 10 s are allowed per tool; try again in 2 s"
    );
    assert_eq!(
        *limiter.1.lock().expect("not poisoned"),
        ["tester/shared/say_hello", "tester/shared/echo"]
    );
}

#[tokio::test]
async fn a_result_beyond_the_limit_is_refused() {
    let fixture = fixture(|namespace| namespace.limits.max_result = bytesize::ByteSize::b(5));
    assert_eq!(
        fixture.call("say_hello").await.err(),
        Some(CallErrorCode::ResultTooLarge)
    );
    assert!(fixture.call("echo").await.is_ok());
}

#[tokio::test]
async fn every_call_leaves_one_audit_line_however_it_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut fixture = fixture(|_| {});
    let dropped = fixture.engine.metrics.audit_dropped();
    let (sender, guard) =
        Audit::start(AuditConfig::default(), dir.path().to_owned(), dropped).expect("a thread");
    Arc::get_mut(&mut fixture.engine)
        .expect("not shared yet")
        .audit = sender;
    let _ = fixture.call("say_hello").await;
    let _ = fixture.call("nope").await;
    let mut hanging = Box::pin(fixture.call("hang"));
    assert!(futures_util::poll!(&mut hanging).is_pending());
    drop(hanging);
    drop(guard);
    let file = std::fs::read_dir(dir.path())
        .expect("a folder")
        .next()
        .expect("a file")
        .expect("readable");
    let text = std::fs::read_to_string(file.path()).expect("text");
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let of = |key: &str| {
        lines
            .iter()
            .map(|line| line[key].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("status"), ["ok", "tool_not_found", "cancelled"]);
    assert_eq!(of("http_status"), [200, 404, 499]);
    assert_eq!(of("tool"), ["say_hello", "nope", "hang"]);
    assert_eq!(
        fixture
            .engine
            .metrics
            .namespace(&fixture.namespace.name)
            .in_flight
            .get(),
        0
    );
}

#[tokio::test]
async fn what_is_no_tool_takes_the_same_path_and_is_counted_by_its_method() {
    let refuses = Arc::new(Refuses("test://static", Mutex::default()));
    let mut fixture = fixture(|namespace| {
        *namespace = tooldock_sessions::testing::full("shared");
        namespace.gate = Arc::new(Gate::new(1, 0));
        namespace.limits.max_result = bytesize::ByteSize::b(60);
    });
    let engine = Arc::get_mut(&mut fixture.engine).expect("not shared yet");
    engine.limiter = Arc::clone(&refuses) as Arc<dyn Limiter>;
    let read = |uri: &str| Operation::ReadResource { uri: uri.into() };
    let call = async |operation: Operation| {
        let call = fixture.request(operation);
        let outcome = fixture.engine.run(&caller(), &call, None).await;
        outcome.map(|_| ()).map_err(|error| error.code)
    };
    assert_eq!(call(read("test://static")).await, Ok(()));
    let missing = call(read("test://none")).await;
    assert_eq!(missing, Err(CallErrorCode::ResourceNotFound));
    let long = Operation::GetPrompt {
        prompt: "greet".into(),
        arguments: Bytes::from_static(br#"{"who":"somebody with a name of some length"}"#),
    };
    assert_eq!(call(long).await, Err(CallErrorCode::ResultTooLarge));
    {
        let _taken = fixture.namespace.gate.enter(&None).await.expect("free");
        let refused = call(read("test://static")).await;
        assert_eq!(refused, Err(CallErrorCode::Overloaded));
    }
    // Limits counted in tool calls are not checked, and no tool call is counted.
    assert!(refuses.1.lock().expect("not poisoned").is_empty());
    assert_eq!(fixture.count("ok"), 0);
    let of = |method, outcome| fixture.engine.metrics.others_of("shared", method, outcome);
    assert_eq!(of("resources/read", "ok"), 1);
    assert_eq!(of("resources/read", "resource_not_found"), 1);
    assert_eq!(of("resources/read", "overloaded"), 1);
    assert_eq!(of("prompts/get", "result_too_large"), 1);
}

#[tokio::test]
async fn names_that_are_no_tools_have_no_series_by_tool() {
    let fixture = fixture(|_| {});
    let breakdown = fixture.engine.metrics.breakdown();
    breakdown.configure(BreakdownConfig {
        per_tool: true,
        ..BreakdownConfig::default()
    });
    let opens_nothing = caller_with_scopes(&["read"]);
    for tool in ["say_hello", "nope"] {
        let _ = fixture.call(tool).await;
        let call = fixture.tool(tool);
        let refused = fixture.engine.run(&opens_nothing, &call, None);
        let refused = refused.await.err().map(|error| error.code);
        assert_eq!(refused, Some(CallErrorCode::InsufficientScope), "{tool}");
    }
    let counted = breakdown.tools_counted();
    assert_eq!(counted, [("say_hello".to_owned(), 2)]);
}

/// A call of an aggregate's tool, which `call` of a member runs.
struct DelegatedCall {
    call: Arc<dyn UpstreamCall>,
    via: Arc<str>,
}

impl CancelNotice for DelegatedCall {
    fn cancelled(&self, message: &str) {
        self.call.cancelled(message);
    }
}

impl UpstreamCall for DelegatedCall {
    fn facts(&self) -> &CallFacts {
        self.call.facts()
    }

    fn delegate(&self) -> Option<Delegate<'_>> {
        Some(Delegate {
            call: &self.call,
            via: &self.via,
        })
    }

    fn start(self: Arc<Self>, peer: Peer) -> Work {
        Arc::clone(&self.call).start(peer)
    }
}

#[tokio::test]
async fn a_call_through_an_aggregate_is_counted_once_for_its_principal() {
    let fixture = fixture(|_| {});
    let breakdown = fixture.engine.metrics.breakdown();
    breakdown.configure(BreakdownConfig {
        per_principal: PerPrincipal::Top50,
        ..BreakdownConfig::default()
    });
    let call: Arc<dyn UpstreamCall> = Arc::new(DelegatedCall {
        call: fixture.tool("say_hello"),
        via: "member".into(),
    });
    let _ = fixture.engine.run(&caller(), &call, None).await;
    assert_eq!(breakdown.principals_counted().len(), 1);
    assert_eq!(breakdown.principals_counted()[0].1, 1);
}

#[test]
fn a_name_is_cut_between_characters() {
    let long = "é".repeat(200);
    assert_eq!(shortened(&long), "é".repeat(UNKNOWN_NAME_MAX));
    assert_eq!(shortened("short"), "short");
}

#[test]
fn an_answer_is_counted_by_what_it_says() {
    let said = |outcome| UpstreamReply::Response(Response::from_outcome(outcome));
    let result =
        |text: &'static str| said(ResponseOutcome::Result(Bytes::from_static(text.as_bytes())));
    assert_eq!(
        said(ResponseOutcome::Error(Bytes::from_static(b"{}"))).status(),
        "upstream_error"
    );
    assert_eq!(
        result(r#"{"content":[],"isError":true}"#).status(),
        "tool_error"
    );
    for text in [
        r#"{"content":[{"isError":true}]}"#,
        r#"{"isError":false}"#,
        "{}",
    ] {
        assert_eq!(result(text).status(), "ok", "{text}");
    }
}
