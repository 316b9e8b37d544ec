//! Reports an unusable configuration to the client as an MCP error: its first request is answered with the reason. If the process
//! only ended, the client could not show its user the reason.

use std::io::{BufRead, BufReader, IsTerminal, Read as _, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Maximum wait for the client's first request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of bytes that are read to find the first request.
const REQUEST_MAX: u64 = 1024 * 1024;
/// The JSON-RPC error code for an internal error of the server.
const INTERNAL_ERROR: i32 = -32603;

/// Answers the first request on standard input with an error that contains `reason`. Does nothing if standard input is a
/// terminal.
pub(super) fn answer_one_request(reason: &str) {
    if std::io::stdin().is_terminal() {
        return;
    }
    let (say, said) = mpsc::sync_channel(1);
    // The thread is not joined, because its read cannot be cancelled. It ends with the process.
    thread::spawn(move || {
        let input = BufReader::new(std::io::stdin().take(REQUEST_MAX));
        let id = input
            .lines()
            .map_while(Result::ok)
            .find_map(|line| request_id(&line));
        let _ = say.send(id);
    });
    if let Ok(Some(id)) = said.recv_timeout(PATIENCE) {
        let mut output = std::io::stdout().lock();
        // A failure is ignored: the reason is also written to standard error, which the client may show.
        let _ = writeln!(output, "{}", answer(&id, reason)).and_then(|()| output.flush());
    }
}

fn request_id(line: &str) -> Option<Value> {
    let message: Value = serde_json::from_str(line).ok()?;
    let id = message
        .get("id")
        .filter(|id| id.is_string() || id.is_number())?;
    message.get("method").map(|_| id.clone())
}

/// The error response. Its `data` has the same form as in other errors of the aggregate.
fn answer(id: &Value, reason: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": {
        "code": INTERNAL_ERROR,
        "message": reason,
        "data": { "success": false, "result": null, "error": reason },
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_is_answered() {
        for line in [
            "",
            "{",
            "[]",
            r#"{"method":"x"}"#,
            r#"{"id":1,"result":{}}"#,
            r#"{"id":null,"method":"x"}"#,
        ] {
            assert_eq!(request_id(line), None, "{line}");
        }
        let id = request_id(r#"{"jsonrpc":"2.0","id":"a","method":"initialize"}"#);
        let answer = answer(&id.expect("a request"), "tools.toml:1:1: wrong");
        assert_eq!(answer["id"], "a");
        assert_eq!(answer["error"]["message"], "tools.toml:1:1: wrong");
        assert_eq!(answer["error"]["data"]["success"], false);
    }
}
