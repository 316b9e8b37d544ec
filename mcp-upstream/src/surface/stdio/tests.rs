use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::profile::Profile;
use tooldock_sessions::testing::{caller, full, namespace};

use super::ConversationEnd;
use crate::testing::{Harness, InMemory, Wanted};

/// The time limit for anything that must come.
const SOON: Duration = Duration::from_secs(20);

/// A client on a pair of pipes.
struct Client {
    harness: Harness,
    input: Option<WriteHalf<DuplexStream>>,
    output: BufReader<ReadHalf<DuplexStream>>,
    stop: Arc<Notify>,
    serving: JoinHandle<ConversationEnd>,
    /// Messages that were read while another was awaited.
    aside: VecDeque<Value>,
}

fn of(name: &str) -> Caller {
    let name: tooldock_base::names::NamespaceName = name.parse().expect("a name");
    Caller {
        namespace: Some(name.clone()),
        profile: Arc::new(Profile::stdio(name)),
        ..caller()
    }
}

impl Client {
    fn of(name: &str) -> Self {
        Self::with(name, 1 << 16)
    }

    /// A client of this namespace, with this many bytes of buffer between it and the gateway.
    fn with(name: &str, room: usize) -> Self {
        let harness = Wanted {
            namespaces: vec![full("shared"), namespace("memory")],
            upstream: Some(Arc::new(InMemory::default())),
            ..Wanted::default()
        }
        .build();
        let (ours, theirs) = tokio::io::duplex(room);
        let (output, input) = tokio::io::split(ours);
        let (reading, writing) = tokio::io::split(theirs);
        let stop = Arc::new(Notify::new());
        let (service, stopped) = (harness.service.clone(), Arc::clone(&stop));
        let caller = of(name);
        let serving = tokio::spawn(async move {
            let stopped = async move { stopped.notified().await };
            service
                .serve_lines((caller, None), reading, writing, stopped)
                .await
        });
        Self {
            harness,
            input: Some(input),
            output: BufReader::new(output),
            stop,
            serving,
            aside: VecDeque::new(),
        }
    }

    async fn write(&mut self, text: &str) {
        let input = self.input.as_mut().expect("open");
        input.write_all(text.as_bytes()).await.expect("it is read");
    }

    async fn send(&mut self, message: Value) {
        self.write(&format!("{message}\n")).await;
    }

    /// The next line.
    async fn next(&mut self) -> Value {
        let mut line = String::new();
        let read = timeout(SOON, self.output.read_line(&mut line)).await;
        read.expect("a line comes").expect("text");
        assert!(line.ends_with('\n'), "the output ended: {line:?}");
        serde_json::from_str(&line).expect("a message")
    }

    /// The response to a request; other messages are kept for later.
    async fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        if let Some(at) = self.aside.iter().position(|it| it["id"] == id) {
            return self.aside.remove(at).expect("found");
        }
        loop {
            let message = self.next().await;
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.aside.push_back(message);
        }
    }

    async fn request(&mut self, id: u32, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(message).await;
        self.answer(id).await
    }

    async fn open(&mut self, version: &str, capabilities: Value) -> Value {
        let params = json!({ "protocolVersion": version, "capabilities": capabilities,
            "clientInfo": { "name": "c", "version": "1" } });
        let answer = self.request(0, "initialize", params).await;
        self.send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await;
        answer
    }

    /// Closes the input and waits for the end.
    async fn close(&mut self) -> ConversationEnd {
        // Dropping a half does not close a pipe of two halves.
        let mut input = self.input.take().expect("open");
        input.shutdown().await.expect("it is open");
        self.ended().await
    }

    async fn ended(&mut self) -> ConversationEnd {
        let ended = timeout(SOON, &mut self.serving).await;
        ended.expect("it ends").expect("without a panic")
    }
}

fn modern(id: u32, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
    });
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn call(name: &str, arguments: Value) -> Value {
    json!({ "name": name, "arguments": arguments })
}

#[tokio::test]
async fn both_eras_are_served_on_one_pair_of_pipes() {
    let mut client = Client::of("shared");
    let opened = client.open("2025-11-25", json!({})).await;
    assert_eq!(opened["result"]["protocolVersion"], "2025-11-25");
    let echoed = client.request(1, "tools/call", call("echo", json!({ "n": 1 })));
    let echoed = echoed.await;
    assert_eq!(echoed["result"]["structuredContent"], json!({ "n": 1 }));
    client
        .send(modern(2, "tools/call", call("echo", json!({ "n": 2 }))))
        .await;
    let echoed = client.answer(2).await["result"].clone();
    assert_eq!(echoed["resultType"], "complete");
    assert_eq!(echoed["structuredContent"], json!({ "n": 2 }));
    client.send(modern(3, "server/discover", json!({}))).await;
    let discovered = client.answer(3).await;
    let versions = &discovered["result"]["supportedVersions"];
    assert_eq!(
        *versions,
        json!([
            "2026-07-28",
            "2025-11-25",
            "2025-06-18",
            "2025-03-26",
            "2024-11-05"
        ])
    );
    assert_eq!(client.close().await, ConversationEnd::InputClosed);
}

#[tokio::test]
async fn the_oldest_revision_is_spoken_too() {
    let mut client = Client::of("shared");
    let opened = client.open("2024-11-05", json!({})).await;
    assert_eq!(opened["result"]["protocolVersion"], "2024-11-05");
    let listed = client.request(1, "tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"][0]["name"], "say_hello");
    assert_eq!(client.close().await, ConversationEnd::InputClosed);
}

#[tokio::test]
async fn a_call_speaks_and_asks_before_its_answer() {
    let mut client = Client::of("memory");
    client
        .open("2025-11-25", json!({ "elicitation": {} }))
        .await;
    let script = json!({ "steps": [{ "ask": [{ "key": "k", "method": "elicitation/create" }] }] });
    let message = json!({ "jsonrpc": "2.0", "id": "q", "method": "tools/call",
        "params": call("talk", script.clone()) });
    client.send(message).await;
    assert_eq!(client.next().await["params"]["data"], "begun");
    let question = client.next().await;
    assert_eq!(question["method"], "elicitation/create");
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } });
    client.send(answer).await;
    let told = client.answer("q").await["result"]["structuredContent"].clone();
    assert_eq!(told, json!({ "k": { "action": "accept" } }));
    // A client of 2026-07-28 answers with its next request.
    client
        .send(modern(1, "tools/call", call("talk", script.clone())))
        .await;
    let asked = client.answer(1).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let mut again = call("talk", script);
    again["requestState"] = asked["requestState"].clone();
    again["inputResponses"] = json!({ "k": { "action": "decline" } });
    client.send(modern(2, "tools/call", again)).await;
    let told = client.answer(2).await["result"]["structuredContent"].clone();
    assert_eq!(told, json!({ "k": { "action": "decline" } }));
}

#[tokio::test]
async fn progress_comes_in_its_order_before_the_answer() {
    let mut client = Client::of("shared");
    client.open("2025-11-25", json!({})).await;
    let mut params = call("talk", json!({ "steps": [{ "progress": 3 }] }));
    params["_meta"] = json!({ "progressToken": "p" });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    client.send(message).await;
    let last = client.answer(1).await;
    assert!(last["result"].is_object(), "{last}");
    let told: Vec<_> = client.aside.iter().map(|it| it["params"].clone()).collect();
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|it| it["progressToken"] == "p"));
    assert_eq!(told[2]["progress"], 3);
}

#[tokio::test]
async fn changes_are_told_to_the_session_and_to_who_listens() {
    let mut client = Client::of("shared");
    client.open("2025-11-25", json!({})).await;
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    client.send(modern(9, "subscriptions/listen", wanted)).await;
    let granted = client.next().await;
    assert_eq!(
        granted["method"],
        "notifications/subscriptions/acknowledged"
    );
    let changes = json!({ "steps": [{ "notice": "tools" }] });
    client.request(1, "tools/call", call("talk", changes)).await;
    let mut told = Vec::new();
    while told.len() < 2 {
        let message = match client.aside.pop_front() {
            Some(message) => message,
            None => client.next().await,
        };
        assert_eq!(message["method"], "notifications/tools/list_changed");
        told.push(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone());
    }
    told.sort_by_key(Value::is_null);
    assert_eq!(told, [json!(9), Value::Null]);
    // Both streams never end by themselves, and neither delays the end of the conversation.
    assert_eq!(client.close().await, ConversationEnd::InputClosed);
}

#[tokio::test]
async fn a_request_that_is_taken_back_is_ended_and_not_answered() {
    for era in ["legacy", "modern"] {
        let mut client = Client::of("shared");
        client.open("2025-11-25", json!({})).await;
        let hang = match era {
            "legacy" => {
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("hang", json!({})) })
            }
            _ => modern(1, "tools/call", call("hang", json!({}))),
        };
        client.send(hang).await;
        client
            .send(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } }))
            .await;
        client.request(2, "ping", json!({})).await;
        assert!(client.aside.is_empty(), "{era}: {:?}", client.aside);
        assert_eq!(client.close().await, ConversationEnd::InputClosed);
        let backend = &client.harness.backend;
        while backend.counts() != (1, 1, 0) {
            assert_eq!(backend.counts(), (1, 0, 0), "{era}");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn answers_come_when_they_are_there() {
    let mut client = Client::of("shared");
    client.open("2025-11-25", json!({})).await;
    client
        .send(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("hang", json!({})) }))
        .await;
    client
        .request(2, "tools/call", call("echo", json!({})))
        .await;
    assert!(client.aside.is_empty());
    client.harness.backend.release.add_permits(1);
    let done = client.answer(1).await;
    assert_eq!(done["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn what_is_no_message_is_answered_and_the_next_one_is_served() {
    let mut client = Client::of("shared");
    for (line, id, code) in [
        ("{\"jsonrpc\":", Value::Null, -32700),
        ("hello", Value::Null, -32700),
        ("\u{1}", Value::Null, -32700),
        ("[]", Value::Null, -32600),
        (
            "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
            json!(1),
            -32600,
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/list\"}",
            json!(2),
            -32600,
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"initialize\",\"params\":[]}",
            json!(3),
            -32602,
        ),
    ] {
        client.write(&format!("{line}\n")).await;
        let refused = client.next().await;
        assert_eq!(
            (&refused["id"], &refused["error"]["code"]),
            (&id, &json!(code)),
            "{line}: {refused}"
        );
    }
    // After a refused opening another is possible; after a successful one it is not.
    let opened = client.open("2025-11-25", json!({})).await;
    assert!(opened["result"].is_object(), "{opened}");
    let again = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    let again = client.request(4, "initialize", again).await;
    assert!(
        again["error"]["message"]
            .as_str()
            .unwrap()
            .contains("initialized already")
    );
    let unknown = client.request(5, "x/any", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32601);
    // These messages have no answer.
    client
        .send(json!({ "jsonrpc": "2.0", "id": 77, "result": {} }))
        .await;
    client
        .send(json!({ "jsonrpc": "2.0", "method": "notifications/nobody" }))
        .await;
    client.request(6, "ping", json!({})).await;
    assert!(client.aside.is_empty(), "{:?}", client.aside);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused_by_its_id_and_skipped() {
    let mut client = Client::of("shared");
    client.open("2025-11-25", json!({})).await;
    let long = "x".repeat(super::LINE_MAX);
    let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call("echo", json!({ "a": long })) });
    client.send(message).await;
    let refused = client.answer(7).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    client.request(8, "ping", json!({})).await;
}

#[tokio::test]
async fn a_batch_of_the_revision_that_has_them_is_answered_as_one() {
    let mut client = Client::of("shared");
    client.open("2025-03-26", json!({})).await;
    let ping = |id: u32| json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
    client.send(json!([ping(1), ping(2)])).await;
    let answers = client.next().await;
    let ids: Vec<_> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["id"].clone())
        .collect();
    assert_eq!(ids, [1, 2]);
    // No message in it expects an answer.
    client
        .send(json!([{ "jsonrpc": "2.0", "method": "notifications/x" }]))
        .await;
    client.request(3, "ping", json!({})).await;
    assert!(client.aside.is_empty());
}

#[tokio::test]
async fn who_closes_the_input_gets_the_answers_that_are_due() {
    let mut client = Client::of("shared");
    client.open("2025-11-25", json!({})).await;
    client
        .send(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("hang", json!({})) }))
        .await;
    let mut input = client.input.take().expect("open");
    input.shutdown().await.expect("open");
    client.harness.backend.release.add_permits(1);
    assert_eq!(
        client.answer(1).await["result"]["content"][0]["text"],
        "done"
    );
    assert_eq!(client.ended().await, ConversationEnd::InputClosed);
    assert_eq!(client.harness.service.core().sessions.count(), 0);
}

#[tokio::test]
async fn being_told_to_stop_ends_calls_and_session_at_once() {
    let mut client = Client::of("shared");
    client.open("2025-11-25", json!({})).await;
    client
        .send(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("hang", json!({})) }))
        .await;
    client.request(2, "ping", json!({})).await;
    assert_eq!(client.harness.service.core().sessions.count(), 1);
    client.stop.notify_one();
    assert_eq!(client.ended().await, ConversationEnd::Stopped);
    assert_eq!(client.harness.service.core().sessions.count(), 0);
    let backend = &client.harness.backend;
    while backend.counts().1 == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_client_that_reads_no_more_ends_the_conversation() {
    let mut client = Client::of("shared");
    client.open("2025-11-25", json!({})).await;
    client
        .send(json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }))
        .await;
    let Client {
        output,
        serving,
        input,
        ..
    } = client;
    drop((output, input));
    let ended = timeout(SOON, serving)
        .await
        .expect("it ends")
        .expect("no panic");
    assert!(
        matches!(
            ended,
            ConversationEnd::OutputClosed | ConversationEnd::InputClosed
        ),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_loses_what_was_said_before_and_never_the_answer() {
    for era in ["legacy", "modern"] {
        let mut client = Client::with("shared", 4096);
        client.open("2025-11-25", json!({})).await;
        let mut params = call("talk", json!({ "steps": [{ "progress": 30_000 }] }));
        params["_meta"] = json!({ "progressToken": "p" });
        let message = match era {
            "legacy" => {
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
            }
            _ => {
                let mut message = modern(1, "tools/call", params);
                message["params"]["_meta"]["progressToken"] = "p".into();
                message
            }
        };
        client.send(message).await;
        // Far longer than writers wait for a reader.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let last = client.answer(1).await;
        // The answer of a call without a session cannot be kept.
        let expected = if era == "legacy" { "result" } else { "error" };
        assert!(last.get(expected).is_some(), "{era}: {last}");
    }
}
