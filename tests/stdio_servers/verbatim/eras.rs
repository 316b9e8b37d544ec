//! Verbatim messages of clients of 2026-07-28, and the parts that a bridge leaves unchanged.

use serde_json::{Value, json};

use super::super::client::Modern;
use super::super::{serving, stray, text};
use super::{ODD, post, quoted_line, verbatim};
use crate::support::TOKEN;

/// A modern request whose parameters hold odd spellings, and those.
fn odd_request(client: &Modern<'_>, method: &str, name: &str) -> (Value, String, String) {
    let given = json!({"name": name, "arguments": {"odd": "HERE"}, "_meta": {"example.org/odd": "HERE"}, "x-unknown": "HERE"});
    let message = client.message(json!("i"), method, given);
    let body = message.to_string().replace("\"HERE\"", ODD);
    let params = message["params"].to_string().replace("\"HERE\"", ODD);
    (message, body, params)
}

#[tokio::test]
async fn a_modern_clients_parameters_reach_a_modern_server_as_they_were_spelled() {
    let gateway = serving(json!({"any": verbatim(&["--modern"])})).await;
    let client = Modern::new(&gateway, "any");
    for (method, name) in [
        ("tools/call", "echo"),
        ("prompts/get", "x"),
        ("example.org/x", "x"),
    ] {
        let (message, body, params) = odd_request(&client, method, name);
        let answer = raw_answer(&client, &message, &body).await;
        // The metadata of a call of a tool end with the gateway's id of the request.
        let parts = match (method, params.split_once(r#"},"arguments""#)) {
            ("tools/call", Some((meta, rest))) => vec![
                format!(r#""params":{meta},"tooldock/request_id":""#),
                format!(r#""}},"arguments"{rest}"#),
            ],
            _ => vec![format!(r#""params":{params}"#)],
        };
        for part in parts {
            let quoted = Value::from(part).to_string();
            let quoted = &quoted[1..quoted.len() - 1];
            assert!(answer.contains(quoted), "{method}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_legacy_server_sees_of_a_modern_clients_parameters_all_but_the_eras_own_keys() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let client = Modern::new(&gateway, "any");
    let (message, body, _) = odd_request(&client, "tools/call", "echo");
    let answer = raw_answer(&client, &message, &body).await;
    let line = quoted_line(&answer);
    assert!(
        line.contains(&format!(r#""arguments":{{"odd":{ODD}}}"#)),
        "{line}"
    );
    assert!(line.contains(&format!(r#""x-unknown":{ODD}"#)), "{line}");
    assert!(
        line.contains(&format!(
            r#""_meta":{{"example.org/odd":{ODD},"tooldock/request_id":""#
        )),
        "{line}"
    );
    assert!(!line.contains("io.modelcontextprotocol"), "{line}");
    // Additions to the answer leave the rest of it unchanged.
    let (message, body, _) = odd_request(&client, "tools/call", "odd");
    let answer = raw_answer(&client, &message, &body).await;
    assert!(
        answer.contains(&format!(r#""structuredContent":{ODD}"#)),
        "{answer}"
    );
    assert!(
        answer.contains(&format!(r#""x-unknown":{ODD}"#)),
        "{answer}"
    );
    assert!(answer.contains(r#""resultType":"complete""#), "{answer}");
}

#[tokio::test]
async fn a_modern_server_sees_a_legacy_clients_parameters_and_what_the_era_wants() {
    let gateway = serving(json!({"any": verbatim(&["--modern"])})).await;
    let call = format!(r#"{{"name":"echo","arguments":{ODD},"x-unknown":{ODD}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{call}}}"#);
    let answer = post(&gateway, "any", &body).await;
    let line = quoted_line(&answer);
    assert!(
        line.contains(&format!(r#""arguments":{ODD},"x-unknown":{ODD}"#)),
        "{line}"
    );
    assert!(
        line.contains(r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#),
        "{line}"
    );
    assert!(!answer.contains("resultType"), "{answer}");
    let body = body.replace("\"echo\"", "\"odd\"");
    let answer = post(&gateway, "any", &body).await;
    let odd = format!(
        r#""result":{{"content":[{{"type":"text","text":"\u006fdd","x-unknown":{ODD}}}],"structuredContent":{ODD},"_meta":{{"example.org/odd":{ODD}}},"isError":false,"x-unknown":{ODD}}}}}"#
    );
    assert!(answer.ends_with(&odd), "{answer}");
}

/// The text of a modern answer that is no stream.
async fn raw_answer(client: &Modern<'_>, message: &Value, body: &str) -> String {
    let params = &message["params"];
    let request = client
        .gateway
        .client
        .post(client.gateway.url("/mcp"))
        .bearer_auth(TOKEN)
        .header("X-Namespace", "any")
        .header("Accept", "application/json, text/event-stream")
        .header("Content-Type", "application/json")
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", message["method"].as_str().unwrap())
        .header("Mcp-Name", params["name"].as_str().unwrap())
        .body(body.to_owned());
    request.send().await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn a_modern_servers_own_state_and_questions_pass_untouched() {
    let gateway = serving(json!({"any": stray(&["--era", "modern"])})).await;
    let client = Modern::new(&gateway, "any").asked();
    let call = client.call_message(json!(1), "ask", json!({"message": "well?"}));
    let asked = client.ask(&call).await.1["result"].clone();
    assert_eq!(asked["requestState"], "stray", "{asked}");
    let answer = json!({"answer": {"action": "accept", "content": {"answer": "so so"}}});
    let (_, end) = client.ask(&Modern::again(&call, &asked, answer)).await;
    assert!(text(&end["result"]).contains("so so"), "{end}");
}
