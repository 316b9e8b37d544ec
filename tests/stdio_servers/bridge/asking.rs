//! Questions of a server before its answer: requests of the one era, `input_required` of the other.

use serde_json::{Value, json};

use super::super::client::Modern;
use super::super::{everything, last, serving, silent_session, start, stray, text, with_servers};
use super::{VERSION, journal};
use crate::support::session::Session;
use crate::support::{eventually, sha256};

const OTHER_TOKEN: &str = "other-token-0123456789abcdef";

fn key(asked: &Value) -> &String {
    let questions = asked["inputRequests"]
        .as_object()
        .unwrap_or_else(|| panic!("{asked}"));
    questions.keys().next().expect("a question")
}

fn accept(asked: &Value, answer: &str) -> Value {
    json!({key(asked): {"action": "accept", "content": {"answer": answer}}})
}

/// A call that asks, and its question.
async fn asking(client: &Modern<'_>, message: &str) -> (Value, Value) {
    let call = client.call_message(json!(1), "ask", json!({"message": message}));
    let (status, answer) = client.ask(&call).await;
    assert_eq!(
        (status, &answer["result"]["resultType"]),
        (200, &json!("input_required")),
        "{answer}"
    );
    (call, answer["result"].clone())
}

#[tokio::test]
async fn a_modern_client_answers_what_a_legacy_server_asks() {
    let gateway = serving(json!({"any": stray(&[])})).await;
    let client = Modern::new(&gateway, "any").asked();
    let (call, asked) = asking(&client, "Which colour?").await;
    let question = &asked["inputRequests"][key(&asked)];
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["message"], "Which colour?");
    assert_eq!(
        question["params"]["requestedSchema"]["properties"]["answer"]["type"],
        "string"
    );
    let (status, end) = client
        .ask(&Modern::again(&call, &asked, accept(&asked, "red")))
        .await;
    assert_eq!((status, &end["id"]), (200, &json!("again")));
    assert_eq!(end["result"]["resultType"], "complete", "{end}");
    assert!(text(&end["result"]).contains(r#""answer":"red""#), "{end}");
}

#[tokio::test]
async fn sampling_and_roots_of_a_legacy_server_are_asked_for_and_answered_too() {
    let gateway = serving(json!({"any": everything("legacy")})).await;
    let client = Modern::new(&gateway, "any").asked();
    let sampled =
        json!({"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"});
    let roots = json!({"roots": [{"uri": "file:///r", "name": "r"}]});
    for (tool, arguments, method, answer, expected) in [
        (
            "test_sampling",
            json!({"prompt": "capital?"}),
            "sampling/createMessage",
            sampled,
            "Paris",
        ),
        ("list_roots", json!({}), "roots/list", roots, "file:///r"),
    ] {
        let call = client.call_message(json!(1), tool, arguments);
        let asked = client.ask(&call).await.1["result"].clone();
        assert_eq!(
            asked["inputRequests"][key(&asked)]["method"],
            method,
            "{asked}"
        );
        let (_, end) = client
            .ask(&Modern::again(&call, &asked, json!({key(&asked): answer})))
            .await;
        assert!(text(&end["result"]).contains(expected), "{end}");
    }
}

#[tokio::test]
async fn a_state_that_was_changed_or_belongs_to_another_request_is_refused() {
    let tokens = json!({"admission": {"tokens": [{"name": "other", "sha256": sha256(OTHER_TOKEN), "namespaces": ["*"]}]}});
    let servers = json!({"any": stray(&[]), "else": stray(&[])});
    let gateway = start(with_servers(servers).config(tokens)).await;
    let client = Modern::new(&gateway, "any").asked();
    let (call, asked) = asking(&client, "mine?").await;
    let retry = Modern::again(&call, &asked, accept(&asked, "x"));
    let state = asked["requestState"].as_str().unwrap();
    let mut tampered = retry.clone();
    let middle = state.len() / 2;
    let flipped = if &state[middle..=middle] == "A" {
        "B"
    } else {
        "A"
    };
    tampered["params"]["requestState"] = json!(format!(
        "{}{flipped}{}",
        &state[..middle],
        &state[middle + 1..]
    ));
    let mut invented = retry.clone();
    invented["params"]["requestState"] = json!("invented");
    let mut other_tool = retry.clone();
    other_tool["params"]["name"] = json!("echo");
    let mut other_arguments = retry.clone();
    other_arguments["params"]["arguments"] = json!({"message": "changed"});
    for wrong in [tampered, invented, other_tool, other_arguments] {
        let (status, answer) = client.ask(&wrong).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (200, &json!(-32602)),
            "{answer}"
        );
        assert!(!answer.to_string().contains(state), "{answer}");
    }
    for foreign in [
        client.clone().with_token(OTHER_TOKEN),
        Modern::new(&gateway, "else").asked(),
    ] {
        let (status, answer) = foreign.ask(&retry).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (200, &json!(-32602)),
            "{answer}"
        );
    }
    // None of them took the call from its own client.
    let (_, end) = client.ask(&retry).await;
    assert!(text(&end["result"]).contains(r#""answer":"x""#), "{end}");
    // And it can be answered once only.
    let (_, twice) = client.ask(&retry).await;
    assert_eq!(twice["error"]["code"], -32602, "{twice}");
    assert!(!gateway.log().contains(state));
}

#[tokio::test]
async fn a_question_nobody_answers_in_time_ends_its_call() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("journal");
    let servers = json!({"any": stray(&["--journal", file.to_str().unwrap()])});
    let limits = json!({"namespaces": {"overrides": {"any": {"ask_timeout": "400ms"}}}});
    let gateway = start(with_servers(servers).config(limits)).await;
    let client = Modern::new(&gateway, "any").asked();
    let (call, asked) = asking(&client, "late?").await;
    // The server is told something, so that it does not wait for ever.
    eventually("the call is over for the server, too", || async {
        let told = journal(&file).iter().any(|it| {
            it["id"].as_str().is_some_and(|id| id.starts_with("ask-"))
                || it["method"] == "notifications/cancelled"
        });
        told.then_some(())
    })
    .await;
    let (_, late) = client
        .ask(&Modern::again(&call, &asked, accept(&asked, "x")))
        .await;
    assert!(
        late["error"]["code"] == -32602 || late["result"]["isError"] == true,
        "{late}"
    );
}

#[tokio::test]
async fn a_client_that_can_be_asked_nothing_is_not_asked() {
    let gateway = serving(json!({"old": stray(&[]), "new": stray(&["--era", "modern"])})).await;
    let modern = Modern::new(&gateway, "old").call("ask", json!({})).await;
    assert!(text(&modern).contains("-32601"), "{modern}");
    let session = silent_session(&gateway, "new").await;
    let answer = last(session.call(1, "ask", json!({})).await).await;
    let failed = answer["result"]["isError"] == true || answer["error"]["code"].is_i64();
    assert!(failed, "{answer}");
}

#[tokio::test]
async fn a_legacy_client_answers_what_a_modern_server_requires() {
    let gateway = serving(json!({"any": stray(&["--era", "modern"])})).await;
    let session = Session::start(&gateway, "any", VERSION).await;
    let mut call = session
        .call(1, "ask", json!({"message": "Which colour?"}))
        .await;
    let question = call.message().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_eq!(question["params"]["message"], "Which colour?");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"answer": "blue"}}});
    assert_eq!(session.post(&answer).await.status, 202);
    let end = call.message().await;
    assert!(text(&end["result"]).contains("blue"), "{end}");
    assert!(end["result"].get("resultType").is_none(), "{end}");
}

#[tokio::test]
async fn a_modern_server_may_ask_a_legacy_client_in_several_rounds_and_several_things_at_once() {
    let gateway = serving(json!({"any": everything("modern")})).await;
    let session = Session::start(&gateway, "any", VERSION).await;
    let answers = |question: &Value| match question["method"].as_str().unwrap() {
        "elicitation/create" => {
            json!({"action": "accept", "content": {"name": "Ada", "color": "green"}})
        }
        "sampling/createMessage" => {
            json!({"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"})
        }
        _ => json!({"roots": [{"uri": "file:///r"}]}),
    };
    for (tool, questions, expected) in [
        (
            "test_input_required_result_multi_round",
            2,
            "Multi-round complete for Ada who likes green",
        ),
        (
            "test_input_required_result_multiple_inputs",
            3,
            "Name: Ada; Greeting: Hi; Roots: 1",
        ),
    ] {
        let mut call = session.call(1, tool, json!({})).await;
        for _ in 0..questions {
            let question = call.message().await;
            let answer =
                json!({"jsonrpc": "2.0", "id": question["id"], "result": answers(&question)});
            assert_eq!(session.post(&answer).await.status, 202);
        }
        assert_eq!(text(&call.message().await["result"]), expected);
    }
}
