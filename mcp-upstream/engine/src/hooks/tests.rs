use std::sync::Mutex;

use futures_util::future::BoxFuture;
use prometheus::Registry;
use serde_json::{Value, json};
use tooldock_base::answers::AnswerBudget;
use tooldock_base::error::CallErrorCode;
use tooldock_base::yaml;

use super::message::{HookAnswer, read};
use super::*;

/// Target that answers by a function, and notes the requests.
struct Scripted<F> {
    answer: F,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl<F> HookTarget for Scripted<F>
where
    F: Fn(&Value) -> Result<Value, HookFailure> + Send + Sync,
{
    fn ask<'a>(&'a self, query: HookQuery<'a>) -> BoxFuture<'a, Result<Bytes, HookFailure>> {
        let request = serde_json::from_slice(&query.message).expect("JSON");
        let answer = (self.answer)(&request);
        self.asked.lock().expect("fine").push(request);
        Box::pin(std::future::ready(answer.map(|it| it.to_string().into())))
    }
}

fn config(text: &str) -> HookConfig {
    yaml::from_str(text).expect(text)
}

fn hook<F>(text: &str, answer: F) -> (Hook, Arc<Mutex<Vec<Value>>>)
where
    F: Fn(&Value) -> Result<Value, HookFailure> + Send + Sync + 'static,
{
    let asked = Arc::<Mutex<Vec<Value>>>::default();
    let target = Arc::new(Scripted {
        answer,
        asked: Arc::clone(&asked),
    });
    let metrics = HookMetrics::new(&Registry::new()).expect("a fresh registry");
    let hook = Hook::new(&config(text), target, metrics).expect("a hook");
    (hook, asked)
}

/// Runs hooks for the event `call` in the namespace `own`, through the aggregate `both` if `path` says so.
async fn run(
    hooks: Vec<Hook>,
    through: bool,
) -> (
    Option<Result<Option<Bytes>, CallError>>,
    Option<&'static str>,
) {
    let all = Hooks::default();
    all.replace(hooks);
    let [own, both] = ["own", "both"].map(|it| it.parse::<NamespaceName>().expect("a name"));
    let outer = HookPath::Direct;
    let path = match through {
        true => HookPath::Through {
            aggregate: &both,
            outer: &outer,
        },
        false => HookPath::Direct,
    };
    let note = HookNote::default();
    let Some(set) = all.of(&own, path) else {
        return (None, None);
    };
    let account = AnswerAccount::new(&AnswerBudget::unbounded(), None, [127, 0, 0, 1].into());
    let subject = HookSubject {
        namespace: &own,
        path,
        tool: Some("a \"b\""),
        principal: None,
        request_id: &"r-1".into(),
        answers: &account,
    };
    let outcome = set.run(
        HookEvent::Call,
        &subject,
        r#"{"n":9007199254740993}"#,
        &note,
    );
    let outcome = outcome.await;
    (Some(outcome), note.word())
}

#[tokio::test]
async fn hooks_run_in_order_on_the_value_as_the_one_before_has_changed_it() {
    let changing = |to: i32| move |_: &Value| Ok(json!({"arguments": {"n": to}}));
    let (one, first) = hook("{ on: call, url: 'http://a' }", changing(1));
    let (list, unasked) = hook("{ on: list, url: 'http://a' }", changing(2));
    let (other, elsewhere) = hook(
        "{ on: call, url: 'http://a', namespaces: [other, 'ow?x'] }",
        changing(3),
    );
    let (last, second) = hook(
        "{ on: [result, call], url: 'http://a', namespaces: ['o*'] }",
        |_| Ok(json!({})),
    );
    let (outcome, word) = run(vec![one, list, other, last], false).await;
    let changed = outcome.expect("hooks").expect("no refusal");
    assert_eq!(changed.as_deref(), Some(&br#"{"n":1}"#[..]));
    assert_eq!(word, Some("changed"));
    let asked = |it: &Mutex<Vec<Value>>| it.lock().expect("fine").clone();
    let n = asked(&first)[0]["arguments"]["n"].as_u64();
    assert_eq!(n, Some(9_007_199_254_740_993));
    assert_eq!(asked(&second)[0]["arguments"], json!({"n": 1}));
    assert_eq!(asked(&first)[0]["tool"], "a \"b\"");
    assert_eq!(asked(&first)[0]["principal"], Value::Null);
    assert!(asked(&unasked).is_empty() && asked(&elsewhere).is_empty());
}

#[tokio::test]
async fn a_refusal_ends_the_run_and_its_reason_stays_out_of_the_log() {
    let (one, _) = hook("{ on: call, url: 'http://a:1/x' }", |_| {
        Ok(json!({"refuse": "\u{7}\n"}))
    });
    let (two, unasked) = hook("{ on: call, url: 'http://a' }", |_| Ok(json!({})));
    let (outcome, word) = run(vec![one, two], false).await;
    let refused = outcome.expect("hooks").expect_err("a refusal");
    assert_eq!(refused.code, CallErrorCode::HookRefused);
    assert_eq!(refused.message, "no reason is given");
    assert_eq!(refused.cause.expect("a cause").detail, "a:1");
    assert_eq!(word, Some("refused"));
    assert!(unasked.lock().expect("fine").is_empty());
}

#[tokio::test]
async fn a_failure_counts_by_the_rule_of_the_hook() {
    let fails = |_: &Value| Err(HookFailure::Busy);
    let (open, _) = hook("{ on: call, tool: a.b, fail: open }", fails);
    let (closed, _) = hook("{ on: call, tool: a.b }", fails);
    let (outcome, word) = run(vec![open], false).await;
    assert!(matches!(outcome, Some(Ok(None))));
    assert_eq!(word, Some("skipped"));
    let (outcome, word) = run(vec![closed], false).await;
    let failed = outcome.expect("hooks").expect_err("a failure");
    assert_eq!(failed.code, CallErrorCode::HookFailed);
    let cause = failed.cause.expect("a cause");
    assert_eq!(cause.detail, "a.b: too many requests to it run and wait");
    assert_eq!(word, Some("failed"));
}

#[tokio::test]
async fn a_hook_of_an_aggregate_sees_the_calls_of_its_members_through_it_alone() {
    for (through, asked) in [(true, 1), (false, 0)] {
        let (hook, requests) = hook("{ on: call, url: 'http://a', namespaces: [both] }", |_| {
            Ok(json!({}))
        });
        run(vec![hook], through).await;
        assert_eq!(requests.lock().expect("fine").len(), asked, "{through}");
    }
}

#[test]
fn management_tools_and_calls_of_hooks_are_not_seen() {
    let (hook, _) = hook(
        "{ on: call, url: 'http://a', namespaces: ['*', _system] }",
        |_| Ok(json!({})),
    );
    let hooks = Hooks::default();
    let name: NamespaceName = "own".parse().expect("a name");
    assert!(!hooks.cover(&name));
    hooks.replace(vec![hook]);
    assert!(hooks.cover(&name));
    assert!(!hooks.cover(&NamespaceName::system()));
    let inner = HookPath::Through {
        aggregate: &name,
        outer: &HookPath::Unhooked,
    };
    assert!(hooks.of(&name, inner).is_none());
    hooks.replace(Vec::new());
    assert!(!hooks.cover(&name));
}

#[test]
fn only_the_documented_answers_are_read() {
    let answer = |text: &str, event| read(&Bytes::copy_from_slice(text.as_bytes()), event);
    let changed = |text: &'static str| {
        let text = Bytes::from_static(text.as_bytes());
        Ok(HookAnswer::Verdict(HookVerdict::Changed(text)))
    };
    use HookEvent::{Call, List, Result};
    for event in [Call, Result, List] {
        let passed = HookAnswer::Verdict(HookVerdict::Passed);
        assert_eq!(answer(" {} ", event), Ok(passed));
    }
    for (event, text, value) in [
        (Call, r#"{"arguments":{"n":1e400}}"#, r#"{"n":1e400}"#),
        (Result, r#"{"result":{"content":[]}}"#, r#"{"content":[]}"#),
        (List, r#"{"tools":[{"name":"a"}]}"#, r#"[{"name":"a"}]"#),
        (List, r#"{"tools":[]}"#, "[]"),
    ] {
        assert_eq!(answer(text, event), changed(value), "{text}");
    }
    for (event, text) in [
        (Call, ""),
        (Call, "{"),
        (Call, "[]"),
        (Call, r#"{"tools":[]}"#),
        (Call, r#"{"arguments":{},"arguments":{}}"#),
        (Call, r#"{"arguments":{"a":1,"a":2}}"#),
        (Call, r#"{"arguments":null}"#),
        (Call, r#"{"refuse":"a","x":1}"#),
        (Call, r#"{"refuse":null}"#),
        (Result, r#"{"result":{}}"#),
        (Result, r#"{"result":{"content":"a"}}"#),
        (List, r#"{"tools":{}}"#),
        (List, r#"{"tools":[{"name":1}]}"#),
        (List, r#"{"tools":["a"]}"#),
    ] {
        let error = answer(text, event).expect_err(text);
        assert!(!error.contains(text) || text.len() < 3, "{error}");
    }
}

#[test]
fn wrong_keys_of_a_hook_are_named_with_the_remedy() {
    for (text, key, part) in [
        ("{ on: [], url: 'http://a' }", "on", "is empty"),
        ("{ on: [call, call], url: 'http://a' }", "on", "call twice"),
        ("{ on: call }", "url", "is missing"),
        (
            "{ on: call, url: 'http://a', tool: a.b }",
            "tool",
            "beside url",
        ),
        ("{ on: call, url: 'ftp://a' }", "url", "neither http"),
        (
            "{ on: call, url: 'http://u:p@a' }",
            "url",
            "credentials in it",
        ),
        ("{ on: call, tool: check }", "tool", "NAMESPACE.TOOL"),
        ("{ on: call, tool: a. }", "tool", "NAMESPACE.TOOL"),
        (
            "{ on: call, tool: _system.write_tool }",
            "tool",
            "NAMESPACE.TOOL",
        ),
        (
            "{ on: call, tool: a.b, credentials: x }",
            "credentials",
            "leave it out",
        ),
        (
            "{ on: call, tool: a.b, allow_private: true }",
            "allow_private",
            "leave it out",
        ),
        (
            "{ on: call, url: 'http://a', credentials: pass }",
            "credentials",
            "is pass",
        ),
        (
            "{ on: call, url: 'http://a', credentials: '${' }",
            "credentials",
            "${",
        ),
        (
            "{ on: call, url: 'http://a', timeout: 1h }",
            "timeout",
            "10ms and 1m",
        ),
        (
            "{ on: call, url: 'http://a', timeout: 1ms }",
            "timeout",
            "10ms",
        ),
        (
            "{ on: call, url: 'http://a', namespaces: [] }",
            "namespaces",
            "is empty",
        ),
        (
            "{ on: call, url: 'http://a', namespaces: ['['] }",
            "namespaces",
            "[",
        ),
    ] {
        let (named, reason) = config(text).validate().expect_err(text);
        assert_eq!(named, key, "{text}: {reason}");
        assert!(reason.contains(part), "{text}: {reason}");
    }
    for text in [
        "{ on: call, tool: a.b.c }",
        "{ on: [list, result], url: 'unix:/run/hook.sock:/x', fail: open }",
        "{ on: call, url: 'https://a.example/h?k=v', credentials: 'Bearer ${T}', allow_private: true }",
    ] {
        config(text).validate().expect(text);
    }
    for text in [
        "{ on: calls, url: 'http://a' }",
        "{ on: { a: 1 }, url: 'http://a' }",
    ] {
        let error = yaml::from_str::<HookConfig>(text)
            .expect_err(text)
            .to_string();
        assert!(error.contains("must be call, result or list"), "{error}");
    }
}

#[test]
fn a_hook_is_named_by_its_host_or_tool_and_keeps_its_url_to_itself() {
    let label = |text| config(text).label();
    assert_eq!(
        label("{ on: call, url: 'https://a.example/h?key=hunter2' }"),
        "a.example:443"
    );
    assert_eq!(label("{ on: call, tool: guard.check }"), "guard.check");
    let written = yaml::to_string(&config("{ on: call, tool: a.b }")).expect("YAML");
    assert!(
        written.starts_with("on: call\nnamespaces:\n- '*'\ntool: a.b\n"),
        "{written}"
    );
}
