//! The echo server over its standard input and output: one message per line, as for a stdio server.

use std::io::{self, BufRead, BufReader, Read, Write};

use crate::MESSAGE_MAX;
use crate::answer::{Era, answer};

/// Buffer size of a read, in bytes: the usual capacity of a pipe.
const READ: usize = 64 * 1024;

/// Answers messages until the input ends, with one write for all messages of one read.
pub(crate) fn serve(era: Era, input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut input = BufReader::with_capacity(READ, input);
    let mut line = Vec::new();
    let mut answers = Vec::new();
    loop {
        if !answers.is_empty() && !input.buffer().contains(&b'\n') {
            output.write_all(&answers)?;
            output.flush()?;
            answers.clear();
        }
        line.clear();
        let most = MESSAGE_MAX as u64 + 1;
        let length = input.by_ref().take(most).read_until(b'\n', &mut line)?;
        if line.pop_if(|last| *last == b'\n').is_none() {
            return match length {
                0..=MESSAGE_MAX => Ok(()),
                _ => Err(io::Error::other("a line longer than 4 MiB")),
            };
        }
        let before = answers.len();
        answer(era, &line, &mut answers);
        if answers.len() > before {
            answers.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answers(era: Era, lines: &str) -> Vec<Value> {
        let mut output = Vec::new();
        serve(era, lines.as_bytes(), &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn modern(method: &str, mut params: Value) -> String {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
        format!(
            "{}\n",
            json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        )
    }

    #[test]
    fn it_is_opened_listed_and_called_in_one_write() {
        let lines = concat!(
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}"#,
            "\n",
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            "\n",
            r#"{"method":"tools/list","id":"a-1","jsonrpc":"2.0"}"#,
            "\r\n",
            r#"{"method":"tools/call", "params" : {"_meta":{"id":9}, "arguments":{"x":[1,{"text":"no"}],"text":"a \"}\\"},"name":"echo"},"id": 7 }"#,
            "\n",
        );
        let all = answers(Era::Legacy, lines);
        assert_eq!(all.len(), 3, "{all:?}");
        assert_eq!(all[0]["result"]["protocolVersion"], "2025-06-18");
        assert_eq!(
            (&all[1]["id"], &all[1]["result"]["tools"][0]["name"]),
            (&json!("a-1"), &json!("echo"))
        );
        assert_eq!(
            all[2],
            json!({"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": "a \"}\\"}]}})
        );
    }

    #[test]
    fn discover_is_known_only_to_the_dual_one() {
        let line = modern("server/discover", json!({}));
        assert_eq!(answers(Era::Legacy, &line)[0]["error"]["code"], -32601);
        let result = &answers(Era::Dual, &line)[0]["result"];
        assert_eq!(result["supportedVersions"][0], "2026-07-28");
        assert_eq!(
            (&result["resultType"], &result["cacheScope"]),
            (&json!("complete"), &json!("public"))
        );
    }

    #[test]
    fn a_modern_call_has_a_modern_result_and_a_legacy_one_has_not() {
        let line = modern(
            "tools/call",
            json!({"name": "echo", "arguments": {"text": "x"}}),
        );
        let of = |era| answers(era, &line)[0]["result"]["resultType"].clone();
        assert_eq!(
            (of(Era::Dual), of(Era::Legacy)),
            (json!("complete"), Value::Null)
        );
    }

    #[test]
    fn what_it_does_not_know_is_refused_and_what_is_no_json_is_skipped() {
        let lines = concat!(
            r#"{"id":1,"method":"tools/call","params":{"name":"other","arguments":{"text":"x"}}}"#,
            "\n",
            r#"{"id":2,"method":"tools/call","params":{"name":"echo","arguments":{"text":3}}}"#,
            "\n",
            r#"{"id":3,"method":"resources/list"}"#,
            "\nnonsense\n{\"id\":4,\"method\n{\"id\"\n[}\n{\"id\":5,\"method\":\"ping\"}\n",
        );
        let codes: Vec<_> = answers(Era::Dual, lines)
            .iter()
            .map(|answer| (answer["id"].clone(), answer["error"]["code"].clone()))
            .collect();
        let refused =
            [(1, -32602), (2, -32602), (3, -32601)].map(|(id, code)| (json!(id), json!(code)));
        assert_eq!(codes[..3], refused);
        assert_eq!(codes[3..], [(json!(5), Value::Null)]);
    }
}
