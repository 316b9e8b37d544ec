//! Messages between a client and the server behind a tool beside the answer: questions, cancellation, tasks, and the
//! news of a server that comes late.

use std::fs;

use serde_json::json;

use super::{House, call, names, result, tools_of};
use crate::support::{TOKEN, eventually, sse::Answering};

/// AGG-41: sampling and cancellation.
#[tokio::test]
async fn sampling_and_cancellation_pass_between_client_and_server() {
    let house = House::of("").await;
    let session = house.asking("toolman").await;
    let mut answer = session.call(4, "pjpd_sample", json!({})).await;
    let question = loop {
        let message = answer.message().await;
        if message["method"] == "sampling/createMessage" {
            break message;
        }
    };
    let content = json!({"type": "text", "text": "blue"});
    let said = json!({"role": "assistant", "model": "m", "content": content});
    let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": said});
    assert_eq!(session.post(&reply).await.status, 202);
    let last = answer.messages().await.pop().unwrap();
    assert_eq!(last["result"]["content"][0]["text"], "blue", "{last}");

    let calling = session.clone();
    let params = json!({"name": "pjpd_hang", "arguments": {}});
    let hanging = tokio::spawn(async move { super::answer(&calling, "tools/call", params).await });
    eventually("the call at its server", async || {
        let journal = house.journal();
        let hangs = journal.iter().any(|it| it["name"] == "hang");
        hangs.then_some(())
    })
    .await;
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": 7, "reason": "enough"}});
    assert_eq!(session.post(&cancelled).await.status, 202);
    eventually("the cancellation at the server", async || {
        let journal = house.journal();
        let told = |it: &serde_json::Value| {
            it["method"] == "notifications/cancelled" && it["name"] == "enough"
        };
        journal.iter().any(told).then_some(())
    })
    .await;
    let last = hanging.await.expect("an answer");
    assert_eq!(
        last["result"]["_meta"]["tooldock/error"]["code"], "cancelled",
        "{last}"
    );
}

/// A task is asked for at the member that runs it, by whoever began it.
#[tokio::test]
async fn requests_about_a_task_go_to_the_server_that_runs_it() {
    let house = House::of("").await;
    let session = house.session().await;
    let params = json!({"name": "pjpd_task", "arguments": {}, "task": {"ttl": 60000}});
    let begun = result(&session, "tools/call", params).await;
    let task = begun["task"]["taskId"].as_str().expect("a task").to_owned();
    assert!(!task.contains("pjpd"), "{task}");
    let about = json!({"taskId": task});
    let got = result(&session, "tasks/get", about.clone()).await;
    assert_eq!(
        (&got["taskId"], &got["status"]),
        (&json!(task), &json!("completed"))
    );
    let came = result(&session, "tasks/result", about.clone()).await;
    assert_eq!(came["content"][2]["uri"], "pjpd_projects://list", "{came}");
    assert_eq!(house.asked("vec", "tasks/get"), 0);
    for (task, method) in [
        ("vec-1", "tasks/get"),
        ("pjpd-1", "tasks/get"),
        ("pjpd-1", "tasks/cancel"),
        (&task[1..], "tasks/result"),
        ("", "tasks/cancel"),
    ] {
        let refused = session.request(9, method, json!({"taskId": task})).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let list = session.request(9, "tasks/list", json!({})).await;
    assert_eq!(list["error"]["code"], -32601, "{list}");
}

/// AGG-40, AGG-41: lists wait for a late server no longer than its time limit, and clients of both eras hear of it.
#[tokio::test]
async fn a_late_server_is_announced_when_it_comes() {
    let file = r#"
active_toolsets = ["*"]
[[servers]]
namespace = "vec"
command = "VEC"
[[servers]]
namespace = "pjpd"
connect_timeout = "200ms"
command = '''while [ ! -e go ]; do sleep 0.05; done; PJPD'''
"#;
    let house = House::with(file, json!({})).await;
    let session = house.session().await;
    let listed = tools_of(&session).await;
    assert!(listed.contains(&"vec_search".to_owned()), "{listed:?}");
    assert!(!listed.contains(&"pjpd_pid".to_owned()), "{listed:?}");
    let mut stream = session.listen().await;
    let mut modern = subscribed(&house).await;
    fs::write(house.folder.path().join("go"), "").expect("written");
    for stream in [&mut stream, &mut modern] {
        // The other server may have announced itself behind the first list.
        loop {
            while stream.message().await["method"] != "notifications/tools/list_changed" {}
            let listed = tools_of(&session).await;
            if listed.contains(&"pjpd_list_projects".to_owned()) {
                break;
            }
        }
    }
    let ran = call(&session, "pjpd_list_projects", json!({})).await;
    assert_eq!(ran["content"][0]["text"], "pjpd ran list_projects");
    let prompts = result(&session, "prompts/list", json!({})).await;
    assert_eq!(names(&prompts["prompts"], "name").len(), 2);
}

/// A client of 2026-07-28 that listens for changes of lists, once that is granted.
async fn subscribed(house: &House) -> Answering {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {
        "notifications": {"toolsListChanged": true},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    }});
    let body = message.to_string();
    let request = format!(
        "POST /mcp/toolman HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\nContent-Length: {}\r\n\r\n{body}",
        house.gateway.address,
        body.len(),
    );
    let mut stream = Answering::open(house.gateway.address, &request).await;
    assert_eq!(stream.status, 200);
    stream.message().await;
    stream
}
