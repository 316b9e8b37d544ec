//! A link with a server that is played line by line.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tooldock_protocol::jsonrpc::ResponseOutcome;

use super::follow::READS;
use super::*;
use crate::scene::{Heard, House, Scene, ServerEnd, code, raw, request, response, result, within};

#[tokio::test]
async fn answers_come_in_any_order_and_keep_their_bytes() {
    let mut scene = Scene::new();
    let (one, first) = scene.begin("a").await;
    let (two, second) = scene.begin("b").await;
    let (three, third) = scene.begin("c").await;
    scene
        .peer
        .send(&format!(
            r#"{{"result": {{"n":1.0,"x":"\u0041"}} ,"jsonrpc":"2.0","id":{third}}}"#
        ))
        .await;
    scene
        .peer
        .send(&format!(
            r#"{{"jsonrpc":"2.0","id":{first},"error":{{"code":-1 }}}}"#
        ))
        .await;
    scene
        .peer
        .send(&format!(
            r#"{{"jsonrpc":"2.0","id":{second},"result":null}}"#
        ))
        .await;
    assert_eq!(result(within(two).await), "null");
    assert_eq!(
        within(one).await.expect("a reply"),
        ResponseOutcome::Error(bytes::Bytes::from_static(br#"{"code":-1 }"#))
    );
    assert_eq!(result(within(three).await), r#"{"n":1.0,"x":"\u0041"}"#);
    assert_eq!(scene.link.in_flight(), 0);
    assert_eq!(scene.odd(), []);
}

#[tokio::test]
async fn a_clients_request_goes_up_whole_and_comes_back_whole_behind_its_own_id() {
    let mut scene = Scene::new();
    let message = "{\"x-top\":1.0,\r\n\"jsonrpc\":\"2.0\",\"id\":9007199254740993,\"method\":\"tools/call\",\"params\":{\"_meta\":{\"progressToken\":\"\\u0041\",\"k\":2},\"name\":\"t\"}}";
    let (to, mut heard) = mpsc::channel(10);
    let mut call = scene
        .link
        .forward(&request(message), Some(Arc::new(Heard(to))), None, None)
        .expect("begun");
    let id = call.id();
    let line = scene.peer.line().await;
    assert_eq!(
        line,
        format!(
            "{{\"x-top\":1.0,  \"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"_meta\":{{\"progressToken\":{id},\"k\":2}},\"name\":\"t\"}}}}"
        )
    );
    scene.peer.send(&format!(r#"{{"y":[1e2],"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":1.50,"progressToken": {id} ,"z":{{}}}}}}"#)).await;
    scene
        .peer
        .send(&format!(
            r#"{{"result":{{"id":{id}}},"y":2,"id": {id},"jsonrpc":"2.0"}}"#
        ))
        .await;
    let answer = within(call.answer()).await.expect("an answer");
    assert_eq!(
        String::from_utf8(answer.with_id("9007199254740993")).expect("text"),
        format!(r#"{{"result":{{"id":{id}}},"y":2,"id": 9007199254740993,"jsonrpc":"2.0"}}"#)
    );
    let (whole, params) = heard.try_recv().expect("before the answer");
    assert_eq!(
        whole,
        r#"{"y":[1e2],"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1.50,"progressToken": "\u0041" ,"z":{}}}"#
    );
    assert_eq!(
        params,
        r#"{"progress":1.50,"progressToken": "\u0041" ,"z":{}}"#
    );
}

#[tokio::test]
async fn callers_with_the_same_token_hear_only_of_their_own_call() {
    let mut scene = Scene::new();
    let params = raw(r#"{"_meta":{"progressToken":1}}"#);
    let mut begun = Vec::new();
    for _ in 0..2 {
        let (to, heard) = mpsc::channel(10);
        let sink: Arc<dyn NotificationSink> = Arc::new(Heard(to));
        let call = scene
            .link
            .request("a", Some(params), Some(sink))
            .expect("begun");
        let line = scene.peer.json().await;
        assert_eq!(line["params"]["_meta"]["progressToken"], line["id"]);
        begun.push((call, heard));
    }
    let second = begun[1].0.id();
    scene.peer.send(&json!({"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":second,"progress":1}}).to_string()).await;
    scene.settle().await;
    assert!(begun[0].1.try_recv().is_err());
    let (_, params) = begun[1].1.try_recv().expect("heard");
    assert_eq!(
        serde_json::from_str::<Value>(&params).expect("JSON")["progressToken"],
        1
    );
}

#[tokio::test]
async fn a_server_that_asks_and_does_not_read_is_given_up() {
    let mut limits = LinkLimits::new(|| 1000);
    limits.outbox = 10_000;
    let mut scene = Scene::with(limits);
    let large = format!("\"{}\"", "x".repeat(5000));
    let mut asked = 0;
    while !scene.link.is_closed() {
        asked += 1;
        assert!(asked < 1000, "answers gather without end");
        let ask = json!({ "jsonrpc": "2.0", "id": asked, "method": "roots/list" });
        scene.peer.send(&ask.to_string()).await;
        let request = within(scene.asked.recv()).await.expect("asked");
        request.answer(Ok(raw(&large)));
    }
    let closed = within(scene.link.closed()).await;
    assert_eq!(closed, LinkEnd::Violation("it asks and does not read"));
}

#[tokio::test]
async fn progress_of_a_task_comes_under_the_clients_token_after_the_answer() {
    let mut scene = Scene::new();
    let (to, mut heard) = mpsc::channel(10);
    let params = raw(r#"{"task":{},"_meta":{"progressToken":"mine"}}"#);
    let call = scene
        .link
        .request("tools/call", Some(params), Some(Arc::new(Heard(to))))
        .expect("begun");
    let id = call.id();
    scene.peer.line().await;
    scene
        .peer
        .send(
            &json!({"jsonrpc":"2.0","id":id,"result":{"task":{"taskId":"x","status":"working"}}})
                .to_string(),
        )
        .await;
    within(call).await.expect("a task");
    scene.peer.send(&json!({"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":id,"progress":1}}).to_string()).await;
    scene.settle().await;
    let (message, _) = heard.try_recv().expect("heard");
    assert!(message.contains(r#""progressToken":"mine""#), "{message}");
    assert_eq!(scene.odd(), []);
}

#[tokio::test]
async fn what_belongs_to_a_subscription_goes_to_its_call_and_keeps_our_id_for_whoever_shares_it() {
    let mut scene = Scene::new();
    let (to, mut heard) = mpsc::channel(10);
    let call = scene
        .link
        .request("subscriptions/listen", None, Some(Arc::new(Heard(to))))
        .expect("begun");
    scene.peer.line().await;
    let id = call.id();
    let said = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"_meta":{{"{}": {id} }},"n":1.0}},"z":0}}"#,
        tooldock_protocol::jsonrpc::Key::Subscription.name()
    );
    scene.peer.send(&said).await;
    scene.settle().await;
    let (message, _) = heard.try_recv().expect("heard");
    assert_eq!(message, said);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_once_and_a_late_answer_harms_nobody() {
    let mut scene = Scene::new();
    let (call, id) = scene.begin("slow").await;
    drop(call);
    assert_eq!(
        scene.peer.json().await,
        json!({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":id}})
    );
    let (quiet, _) = scene.begin("slow").await;
    drop(quiet.without_cancel_on_drop());
    let (initialize, _) = scene.begin("initialize").await;
    drop(initialize);
    scene
        .peer
        .send(&json!({"jsonrpc":"2.0","id":id,"result":1}).to_string())
        .await;
    scene.settle().await;
    assert_eq!(scene.odd(), [ProtocolViolation::Late]);
}

#[tokio::test]
async fn what_the_server_may_still_work_on_is_told_until_it_answers() {
    let mut scene = Scene::new();
    let answer =
        |id: u64, result: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    let (dropped, first) = scene.begin("slow").await;
    drop(dropped);
    scene.peer.line().await;
    let (cancelled, second) = scene.begin("slow").await;
    let words =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}"#;
    assert!(cancelled.canceller().cancel(words));
    scene.peer.line().await;
    drop(cancelled);
    let given_up = [format!("given up {first}"), format!("given up {second}")];
    // Once each, though the second's caller dropped it after that.
    assert_eq!(scene.noted(), given_up);
    // A late response settles the call; one with a task means that the server goes on.
    scene.peer.send(&answer(first, "{}")).await;
    let task = r#"{"task":{"taskId":"t"}}"#;
    scene.peer.send(&answer(second, task)).await;
    scene.settle().await;
    let late = [
        format!("settled {first}"),
        format!("began {task} for nobody"),
        format!("settled {second}"),
    ];
    assert_eq!(scene.noted(), late);
}

#[tokio::test]
async fn a_task_is_told_before_its_caller_has_the_answer_and_the_gateways_own_calls_are_not() {
    let mut scene = Scene::new();
    let (call, id) = scene.begin("tools/call").await;
    let task = r#"{"resultType":"task","taskId":"t"}"#;
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{task}}}"#);
    scene.peer.send(&answer).await;
    within(call).await.expect("answered");
    assert_eq!(scene.noted(), [format!("began {task} for {id}")]);
    let (own, _) = scene.begin("tools/list").await;
    drop(own.of_gateway());
    // An id that was never used begins no task.
    let forged = answer.replace(&id.to_string(), "3");
    scene.peer.send(&forged).await;
    scene.peer.line().await;
    scene.settle().await;
    assert!(scene.noted().is_empty());
}

#[tokio::test]
async fn progress_under_a_token_that_is_not_the_listeners_reaches_nobody() {
    let mut scene = Scene::new();
    let (sender, mut heard) = mpsc::channel(8);
    let params = raw(r#"{"_meta":{"progressToken":"mine"}}"#);
    let sink = Arc::new(Heard(sender)) as Arc<dyn NotificationSink>;
    let given_up = scene
        .link
        .request("slow", Some(params), Some(Arc::clone(&sink)));
    let given_up = given_up.expect("begun");
    let old = scene.peer.json().await["id"].as_u64().expect("a number");
    drop(given_up);
    scene.peer.line().await;
    let call = scene
        .link
        .request("next", Some(params), Some(sink))
        .expect("begun");
    let next = scene.peer.json().await["id"].as_u64().expect("a number");
    assert_ne!(old, next);
    for token in [old.to_string(), (next + 1).to_string(), r#""mine""#.into()] {
        let progress = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        );
        scene.peer.send(&progress).await;
    }
    scene
        .peer
        .send(&json!({"jsonrpc":"2.0","id":next,"result":{}}).to_string())
        .await;
    within(call).await.expect("answered");
    assert!(heard.try_recv().is_err());
}

#[tokio::test]
async fn a_clients_cancellation_goes_up_with_its_reason_and_ends_the_call() {
    let mut scene = Scene::new();
    let (call, id) = scene.begin("slow").await;
    let canceller = call.canceller();
    let own = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"no","requestId":"c-1","x":1.0}}"#;
    assert!(canceller.cancel(own));
    assert!(!canceller.cancel(own));
    assert_eq!(
        scene.peer.line().await,
        own.replace("\"c-1\"", &id.to_string())
    );
    assert_eq!(code(within(call).await), CallErrorCode::Cancelled);
    scene.settle().await;
}

#[tokio::test]
async fn answers_behind_a_byte_order_mark_are_answers() {
    let mut scene = Scene::new();
    for _ in 0..2 {
        let (call, id) = scene.begin("next").await;
        let answer = format!("\u{feff}{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}");
        scene.peer.send(&answer).await;
        assert_eq!(result(within(call).await), "{}");
    }
    assert!(scene.odd().is_empty());
}

#[tokio::test]
async fn answers_and_progress_are_read_however_their_numbers_and_empty_members_are_written() {
    let mut scene = Scene::new();
    let (sender, mut heard) = mpsc::channel(8);
    for answer in [
        r#"{"jsonrpc":"2.0","id":"ID","result":{"x":null}}"#,
        r#"{"jsonrpc":"2.0","id":ID.0,"result":{"x":null}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"result":{"x":null},"error":null}"#,
        r#"{"jsonrpc":"2.0","id":"ID","method":null,"params":null,"result":{"x":null},"error":null}"#,
    ] {
        let params = raw(r#"{"_meta":{"progressToken":"mine"}}"#);
        let sink = Arc::new(Heard(sender.clone())) as Arc<dyn NotificationSink>;
        let call = scene.link.request("next", Some(params), Some(sink));
        let call = call.expect("begun");
        let id = scene.peer.json().await["id"].as_u64().expect("a number");
        let progress = format!(
            r#"{{"jsonrpc":"2.0","id":null,"method":"notifications/progress","params":{{"progressToken":"{id}","progress":1}},"error":null}}"#
        );
        scene.peer.send(&progress).await;
        scene
            .peer
            .send(&answer.replace("ID", &id.to_string()))
            .await;
        assert_eq!(result(within(call).await), r#"{"x":null}"#);
        assert!(heard.try_recv().is_ok());
    }
    assert!(scene.odd().is_empty());
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_fails_its_call_with_the_reason() {
    let mut scene = Scene::new();
    for (answer, reason) in [
        (
            r#"{"jsonrpc":"2.0","id":ID,"result":{"a":"#,
            "it was cut after",
        ),
        (
            r#"{"jsonrpc":"2.0","id":ID,"result":nonsense}"#,
            "are no JSON",
        ),
        (r#"{"jsonrpc":"2.0","id":ID}"#, "method is missing"),
    ] {
        let (call, id) = scene.begin("a").await;
        scene
            .peer
            .send(&answer.replace("ID", &id.to_string()))
            .await;
        let error = within(call).await.expect_err(reason);
        assert_eq!(error.code, CallErrorCode::UpstreamError);
        assert!(error.message.contains(reason), "{}", error.message);
        assert!(!error.message.contains("nonsense"), "{}", error.message);
    }
}

#[tokio::test]
async fn nonsense_is_counted_and_calls_go_on() {
    let mut scene = Scene::new();
    let (call, id) = scene.begin("a").await;
    let lines = [
        ("Server running on stdio", ProtocolViolation::NotJson),
        ("{\"truncated\":", ProtocolViolation::NotAMessage),
        ("17", ProtocolViolation::NotAMessage),
        ("\"text\"", ProtocolViolation::NotAMessage),
        ("{}", ProtocolViolation::NotAMessage),
        (
            r#"{"level":30,"msg":"x","id":1}"#,
            ProtocolViolation::NotAMessage,
        ),
        (
            r#"[{"jsonrpc":"2.0","id":1,"result":1}]"#,
            ProtocolViolation::Batch,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":1}"#,
            ProtocolViolation::Unknown,
        ),
        (
            r#"{"jsonrpc":"2.0","id":"65536a","result":1}"#,
            ProtocolViolation::Unknown,
        ),
        (
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#,
            ProtocolViolation::NotAMessage,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}"#,
            ProtocolViolation::NotAMessage,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x"}}"#,
            ProtocolViolation::Unknown,
        ),
        (
            r#"{"jsonrpc":"2.0","method":7,"id":65536}"#,
            ProtocolViolation::NotAMessage,
        ),
    ];
    for (line, _) in &lines {
        scene.peer.send(line).await;
    }
    scene.peer.bytes(b"\xff\xfe not text\n\n\r\n  \n").await;
    scene
        .peer
        .send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":"still here"}}"#
        ))
        .await;
    assert_eq!(result(within(call).await), "\"still here\"");
    let mut expected: Vec<_> = lines.iter().map(|(_, violation)| *violation).collect();
    expected.push(ProtocolViolation::NotJson);
    assert_eq!(scene.odd(), expected);
    scene
        .peer
        .send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":2}}"#))
        .await;
    scene.settle().await;
    assert_eq!(scene.odd(), [ProtocolViolation::Late]);
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_ends_its_call() {
    let mut scene = Scene::new();
    for (head, tail) in [
        (&b"{\"jsonrpc\":\"2.0\",\"id\":"[..], &b"}"[..]),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":",
            b",\"result\":1,\"error\":{\"code\":-1}}",
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":", b",\"result\":\"\xff\"}"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":", b",\"result\":tru}"),
        (
            b"{\"jsonrpc\":\"2.0\",\"result\":1,\"result\":2,\"id\":",
            b"}",
        ),
    ] {
        let (call, id) = scene.begin("a").await;
        let line = [head, id.to_string().as_bytes(), tail, b"\n"].concat();
        scene.peer.bytes(&line).await;
        assert_eq!(code(within(call).await), CallErrorCode::UpstreamError);
    }
}

#[tokio::test]
async fn a_result_or_a_line_that_is_too_large_ends_only_its_call() {
    let mut scene = Scene::new();
    let (other, other_id) = scene.begin("other").await;
    for size in [1001, 100_000, 50 * 1024 * 1024] {
        let (call, id) = scene.begin("big").await;
        let line = format!(
            r#"{{"result":"{}","jsonrpc":"2.0","id":{id}}}"#,
            "x".repeat(size)
        );
        scene.peer.send(&line).await;
        let error = within(call).await.expect_err("too large");
        assert_eq!(error.code, CallErrorCode::ResultTooLarge, "{error}");
    }
    scene.peer.send(&"x".repeat(300_000)).await;
    scene
        .peer
        .send(&format!(
            r#"{{"jsonrpc":"2.0","id":{other_id},"result":1}}"#
        ))
        .await;
    assert_eq!(result(within(other).await), "1");
    assert_eq!(scene.odd(), [ProtocolViolation::TooLong; 4]);
}

#[tokio::test]
async fn a_limit_that_was_raised_holds_for_what_comes_next() {
    let max = Arc::new(AtomicU64::new(1000));
    let asked = Arc::clone(&max);
    let limits = LinkLimits::new(move || asked.load(Ordering::Relaxed));
    let mut scene = Scene::with(limits);
    for (raised, allowed) in [(1000, false), (500_000, true)] {
        max.store(raised, Ordering::Relaxed);
        let (call, id) = scene.begin("big").await;
        let big = "x".repeat(400_000);
        let line = format!(r#"{{"result":"{big}","jsonrpc":"2.0","id":{id}}}"#);
        scene.peer.send(&line).await;
        let answer = within(call).await;
        assert_eq!(answer.is_ok(), allowed, "{raised}");
    }
}

#[tokio::test]
async fn an_endless_line_ends_the_link_and_its_calls() {
    let mut limits = LinkLimits::new(|| 1000);
    limits.endless = 1_000_000;
    let mut scene = Scene::with(limits);
    let (call, _) = scene.begin("a").await;
    let mut peer = scene.peer;
    let writing =
        tokio::spawn(async move { while peer.output.write_all(&[b'x'; 65536]).await.is_ok() {} });
    assert_eq!(code(within(call).await), CallErrorCode::WorkerUnavailable);
    assert!(matches!(
        within(scene.link.closed()).await,
        LinkEnd::Violation(_)
    ));
    within(writing).await.expect("the pipe was closed");
}

#[tokio::test]
async fn noise_is_read_slowly_and_an_answer_behind_it_still_arrives() {
    let mut scene = Scene::new();
    let (call, id) = scene.begin("a").await;
    let noise = "not json at all\n".repeat(20_000);
    scene.peer.bytes(noise.as_bytes()).await;
    scene
        .peer
        .send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#))
        .await;
    assert_eq!(result(within(call).await), "1");
    assert_eq!(scene.odd().len(), 20_000);
}

#[tokio::test]
async fn requests_of_the_server_are_answered_once_by_whoever_got_them() {
    let mut scene = Scene::new();
    let ask = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"sampling/createMessage","params":{{"x": 1.0}}}}"#
        )
    };
    scene.peer.send(&ask("\"s-1\"")).await;
    let request = within(scene.asked.recv()).await.expect("asked");
    assert_eq!(request.method(), "sampling/createMessage");
    assert_eq!(request.params().expect("given"), &r#"{"x": 1.0}"#);
    let asked = request.with_id(4);
    assert_eq!(String::from_utf8(asked).expect("text"), ask("4"));
    assert!(request.forward(&response(
        "{\"jsonrpc\":\"2.0\",\n\"result\":{\"n\":1.0},\"id\":4,\"z\":0}"
    )));
    assert_eq!(
        scene.peer.line().await,
        r#"{"jsonrpc":"2.0", "result":{"n":1.0},"id":"s-1","z":0}"#
    );

    scene.peer.send(&ask("1.0")).await;
    let request = within(scene.asked.recv()).await.expect("asked");
    assert!(request.answer(Ok(raw("{ }"))));
    assert_eq!(
        scene.peer.line().await,
        r#"{"jsonrpc":"2.0","id":1.0,"result":{ }}"#
    );

    scene.peer.send(&ask("7")).await;
    drop(within(scene.asked.recv()).await.expect("asked"));
    let line = scene.peer.json().await;
    assert_eq!(
        (&line["id"], &line["error"]["code"]),
        (&json!(7), &json!(-32603))
    );
    scene.settle().await;
}

#[tokio::test]
async fn a_request_the_server_took_back_is_not_answered() {
    let mut scene = Scene::new();
    scene
        .peer
        .send(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#)
        .await;
    let request = within(scene.asked.recv()).await.expect("asked");
    let taken_back = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q","reason":"x"}}"#;
    scene.peer.send(taken_back).await;
    assert_eq!(within(scene.said.recv()).await.expect("said"), taken_back);
    assert!(!request.answer(Ok(raw("{}"))));
    scene.settle().await;
}

#[tokio::test]
async fn a_server_that_asks_without_end_is_refused_and_a_doubled_id_too() {
    let mut scene = Scene::new();
    let ask = |id: usize| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
    for id in 0..1000 {
        scene.peer.send(&ask(id)).await;
    }
    let mut kept = Vec::new();
    for _ in 0..1000 {
        kept.push(within(scene.asked.recv()).await.expect("asked"));
    }
    for id in [1000, 5] {
        scene.peer.send(&ask(id)).await;
        let line = scene.peer.json().await;
        assert_eq!(line["id"], id);
        assert!(line["error"].is_object());
    }
    assert_eq!(scene.odd(), [ProtocolViolation::TooManyRequests; 2]);
    assert!(kept.remove(5).answer(Ok(raw("1"))));
    assert_eq!(scene.peer.json().await["result"], 1);
}

#[tokio::test]
async fn the_link_answers_pings_and_passes_other_messages_on() {
    let mut scene = Scene::new();
    scene
        .peer
        .send(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#)
        .await;
    assert_eq!(
        scene.peer.line().await,
        r#"{"jsonrpc":"2.0","id":"p","result":{}}"#
    );
    let log = r#"{"x":1.0,"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    scene.peer.send(&format!("{log}\r")).await;
    assert_eq!(within(scene.said.recv()).await.expect("said"), log);
    scene
        .link
        .notify("notifications/roots/list_changed", Some(raw("{}")))
        .expect("sent");
    assert_eq!(
        scene.peer.line().await,
        r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{}}"#
    );
    scene
        .link
        .forward_notification("{\"jsonrpc\":\"2.0\",\n\"method\":\"x\",\"y\":1.0}")
        .expect("sent");
    assert_eq!(
        scene.peer.line().await,
        r#"{"jsonrpc":"2.0", "method":"x","y":1.0}"#
    );
}

#[tokio::test]
async fn calls_fail_with_the_server_and_only_unwritten_ones_may_go_elsewhere() {
    // Larger than a pipe, so that it is stuck half-way and the next call is behind it.
    let large = format!("\"{}\"", "x".repeat(1_000_000));
    let mut scene = Scene::new();
    let (mut written, _) = scene.begin("a").await;
    let mut stuck = scene
        .link
        .request("b", Some(raw(&large)), None)
        .expect("begun");
    let mut head = [0; 20];
    within(scene.peer.input.read_exact(&mut head))
        .await
        .expect("some of it");
    let mut behind = scene.link.request("c", None, None).expect("begun");
    drop(scene.peer);
    for call in [&mut written, &mut stuck, &mut behind] {
        assert_eq!(
            code(within(&mut *call).await),
            CallErrorCode::WorkerUnavailable
        );
    }
    assert_eq!(within(scene.link.closed()).await, LinkEnd::Disconnected);
    assert!(!written.is_unsent() && !stuck.is_unsent());
    assert!(behind.is_unsent());
    assert!(scene.link.is_closed());
    let refused = scene.link.request("d", None, None).expect_err("over");
    assert_eq!(refused.code, CallErrorCode::WorkerUnavailable);
}

#[tokio::test]
async fn last_words_of_a_server_that_no_longer_reads_still_count() {
    let mut scene = Scene::new();
    let (call, id) = scene.begin("a").await;
    let ServerEnd { input, mut output } = scene.peer;
    drop(input);
    // The link notices that the server no longer reads.
    let lost = scene.link.request("b", None, None).expect("begun");
    while !scene.link.is_closed() {
        tokio::task::yield_now().await;
    }
    let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":1}}\n");
    within(output.write_all(line.as_bytes()))
        .await
        .expect("written");
    assert_eq!(result(within(call).await), "1");
    drop(output);
    assert_eq!(code(within(lost).await), CallErrorCode::WorkerUnavailable);
}

#[tokio::test]
async fn a_server_that_does_not_read_fills_its_outbox_and_no_more_and_loses_nothing() {
    let mut limits = LinkLimits::new(|| 1000);
    limits.outbox = 100_000;
    let mut scene = Scene::with(limits);
    let large = format!("\"{}\"", "x".repeat(200_000));
    let mut calls = Vec::new();
    let error = loop {
        match scene.link.request("a", Some(raw(&large)), None) {
            Ok(call) => calls.push(call),
            Err(error) => break error,
        }
        tokio::task::yield_now().await;
        assert!(calls.len() < 10);
    };
    assert_eq!(error.code, CallErrorCode::Overloaded);
    assert_eq!(scene.link.in_flight(), calls.len());
    let error = scene
        .link
        .notify("x", Some(raw(&large)))
        .expect_err("no room");
    assert_eq!(error.code, CallErrorCode::Overloaded);
    for call in &calls {
        assert_eq!(scene.peer.json().await["id"], call.id());
    }
    scene.settle().await;
}

#[tokio::test]
async fn finishing_writes_what_waits_closes_the_input_and_still_hears_answers() {
    let mut scene = Scene::new();
    let call = scene.link.request("a", None, None).expect("begun");
    scene.link.finish();
    assert!(scene.link.request("b", None, None).is_err());
    let mut rest = String::new();
    within(scene.peer.input.read_to_string(&mut rest))
        .await
        .expect("to the end");
    assert_eq!(rest.lines().count(), 1);
    let line = format!(r#"{{"jsonrpc":"2.0","id":{},"result":1}}"#, call.id());
    scene.peer.send(&line).await;
    assert_eq!(result(within(call).await), "1");
    drop(scene.peer);
    assert_eq!(within(scene.link.closed()).await, LinkEnd::Disconnected);
}

#[tokio::test]
async fn dropping_the_link_closes_both_pipes_and_fails_its_calls() {
    let mut scene = Scene::new();
    let (call, _) = scene.begin("a").await;
    drop(scene.link);
    assert_eq!(code(within(call).await), CallErrorCode::WorkerUnavailable);
    let mut rest = String::new();
    within(scene.peer.input.read_to_string(&mut rest))
        .await
        .expect("to the end");
    assert_eq!(rest, "");
    let broken = async {
        while scene.peer.output.write_all(b"x\n").await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within(broken).await;
}

#[tokio::test]
async fn a_token_that_is_there_twice_is_not_sent() {
    let scene = Scene::new();
    let params = raw(r#"{"_meta":{"progressToken":1,"progressToken":2}}"#);
    let refused = scene.link.request("a", Some(params), None);
    let error = refused.expect_err("refused");
    assert_eq!(error.code, CallErrorCode::InvalidArguments);
    assert!(error.message.contains("progressToken"), "{error}");
    assert_eq!(scene.link.in_flight(), 0);
}

/// A runtime with a thread of its own.
fn another_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A link to a server that answers each line with its own parameters; the server's thread ends with the link.
fn echoing(homes: LinkRuntimes) -> (Arc<Link>, std::thread::JoinHandle<()>) {
    let (server_in, stdin) = std::io::pipe().expect("a pipe");
    let (stdout, server_out) = std::io::pipe().expect("a pipe");
    let server = std::thread::spawn(move || {
        use std::io::{BufRead, BufReader, Write};
        let mut out = server_out;
        for line in BufReader::new(server_in).lines().map_while(Result::ok) {
            let line: Value = serde_json::from_str(&line).expect("JSON");
            let answer = json!({"jsonrpc":"2.0","id":line["id"],"result":line["params"]});
            if writeln!(out, "{answer}").is_err() {
                break;
            }
        }
        // Writing fails once the link has closed its pipes: the end of this thread shows that it has.
        while writeln!(out).is_ok() {}
    });
    let (said, _) = mpsc::channel(1);
    let (asked, _) = mpsc::channel(1);
    let house = Arc::new(House::new(said, asked));
    let pipes = Pipes {
        stdin: stdin.into(),
        stdout: stdout.into(),
    };
    let name = "demo".parse().expect("a name");
    let link = Link::open(name, pipes, homes, LinkLimits::new(|| 1000), house);
    (link.expect("pipes"), server)
}

async fn echoes(link: &Link, params: Value) {
    let params = params.to_string();
    let call = link.request("echo", Some(raw(&params)), None);
    assert_eq!(result(within(call.expect("begun")).await), params);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_a_link_of_another_runtime_and_each_gets_its_own_answer() {
    let elsewhere = another_runtime();
    let first = elsewhere.handle().clone();
    let homes = [first.clone(), Handle::current()];
    let (link, _) = echoing(LinkRuntimes::new(first, homes.into()));
    let done = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..32)
        .map(|caller| {
            let (link, done) = (Arc::clone(&link), Arc::clone(&done));
            tokio::spawn(async move {
                for turn in 0..50 {
                    echoes(&link, json!([caller, turn])).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for caller in callers {
        within(caller).await.expect("no panic");
    }
    assert_eq!(done.load(Ordering::Relaxed), 32 * 50);
    drop(link);
    elsewhere.shutdown_background();
}

#[tokio::test]
async fn a_link_is_read_where_its_calls_come_from() {
    let (one, other, stranger) = (another_runtime(), another_runtime(), another_runtime());
    let homes = [&one, &other].map(|it| it.handle().clone());
    let (link, server) = echoing(LinkRuntimes::new(homes[0].clone(), homes.into()));
    let read_in = |link: &Link| link.shared.queues.read_where();
    // For each runtime: where the link is read after as many calls from there as make it move, and after one call fewer.
    for (caller, at_first, then) in [
        (&one, &one, &one),
        (&other, &one, &other),
        (&stranger, &other, &other),
        (&one, &other, &one),
    ] {
        for turn in 1..=READS {
            let called = Arc::clone(&link);
            let call = caller.spawn(async move { echoes(&called, json!([turn])).await });
            within(call).await.expect("answered");
            if turn < READS {
                assert_eq!(read_in(&link), at_first.handle().id(), "{turn}");
            }
        }
        // The reader moves after it has delivered the response, so a further call shows it.
        let called = Arc::clone(&link);
        let call = caller.spawn(async move { echoes(&called, json!([])).await });
        within(call).await.expect("answered");
        assert_eq!(read_in(&link), then.handle().id());
    }
    // Calls from two runtimes in turn do not move the reader.
    for turn in 0..3 * READS {
        let caller = [&one, &other][turn as usize % 2];
        let called = Arc::clone(&link);
        let call = caller.spawn(async move { echoes(&called, json!([turn])).await });
        within(call).await.expect("answered");
        assert_eq!(read_in(&link), one.handle().id());
    }
    drop(link);
    let ended = tokio::task::spawn_blocking(move || server.join());
    within(ended).await.expect("waited for").expect("no panic");
    for runtime in [one, other, stranger] {
        runtime.shutdown_background();
    }
}

#[tokio::test]
async fn a_link_ends_with_the_runtime_it_is_read_in_wherever_it_was_opened() {
    let (one, other) = (another_runtime(), another_runtime());
    let homes = [&one, &other].map(|it| it.handle().clone());
    let (link, _) = echoing(LinkRuntimes::new(homes[0].clone(), homes.into()));
    for turn in 0..=READS {
        let called = Arc::clone(&link);
        let call = other.spawn(async move { echoes(&called, json!([turn])).await });
        within(call).await.expect("answered");
    }
    let waits = link.request("echo", Some(raw("[]")), None).expect("begun");
    other.shutdown_background();
    within(link.closed()).await;
    drop(waits);
    one.shutdown_background();
}

#[tokio::test]
async fn a_request_of_the_server_that_is_nested_too_deep_is_answered() {
    let mut scene = Scene::new();
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":"a\u0062","method":"sampling/createMessage","params":{{"x":{deep}}}}}"#
    );
    scene.peer.send(&request).await;
    assert_eq!(
        scene.peer.line().await,
        r#"{"jsonrpc":"2.0","id":"a\u0062","error":{"code":-32600,"message":"the message is nested too deep"}}"#
    );
    // These are responses to no request.
    for line in [
        format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{}},"method":"m","x":{deep}}}"#),
        format!(r#"{{"jsonrpc":"2.0","method":"m","params":{deep}}}"#),
        format!(r#"{{"level":"info","id":"r-1","method":"GET","x":{deep}}}"#),
    ] {
        scene.peer.send(&line).await;
    }
    scene.settle().await;
    assert_eq!(scene.odd(), [ProtocolViolation::NotAMessage; 4]);
}
