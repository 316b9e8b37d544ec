//! `tooldock-load-echo`: a stdio MCP server that costs next to nothing, so that what is in front of it can be measured.
//!
//! One tool, `echo`, gives its text back. Standard library only, one thread, one write for all that came with one read. It
//! speaks the revisions that begin with `initialize`, and with `--era dual` 2026-07-28 as well. A message is skipped
//! through for the members that are answered to; nothing else of it is checked.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

/// A line longer than this ends the server.
const LINE_MAX: usize = 4 * 1024 * 1024;

const INFO: &str = r#"{"name":"tooldock-load-echo","version":"1"}"#;
const CAPABILITIES: &str = r#"{"tools":{}}"#;
const TOOLS: &str = r#"[{"name":"echo","description":"Gives the text back.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]"#;
/// The revisions that begin with `initialize`, as they stand in a message; the first is for a client that asks for none.
const VERSIONS: [&str; 4] = [
    r#""2025-11-25""#,
    r#""2025-06-18""#,
    r#""2025-03-26""#,
    r#""2024-11-05""#,
];
const MODERN: &str = r#""2026-07-28""#;
const MODERN_KEY: &[u8] = b"io.modelcontextprotocol/protocolVersion";

/// Which revisions it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    Legacy,
    Dual,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let era = match arguments[..] {
        [] | ["--era", "legacy"] => Era::Legacy,
        ["--era", "dual"] => Era::Dual,
        _ => {
            eprintln!("usage: tooldock-load-echo [--era legacy|dual]");
            return ExitCode::from(2);
        }
    };
    match serve(era, io::stdin().lock(), io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tooldock-load-echo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Until the end of its input.
fn serve(era: Era, mut input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut pending: Vec<u8> = Vec::new();
    let mut answers = Vec::new();
    loop {
        let read = input.fill_buf()?;
        let length = read.len();
        if length == 0 {
            return Ok(());
        }
        pending.extend_from_slice(read);
        input.consume(length);
        let mut done = 0;
        while let Some(end) = pending[done..].iter().position(|byte| *byte == b'\n') {
            answer(era, &pending[done..done + end], &mut answers);
            done += end + 1;
        }
        pending.drain(..done);
        if pending.len() > LINE_MAX {
            return Err(io::Error::other("a line longer than 4 MiB"));
        }
        if !answers.is_empty() {
            output.write_all(&answers)?;
            output.flush()?;
            answers.clear();
        }
    }
}

/// Appends the answer to one message; nothing for a notification.
fn answer(era: Era, message: &[u8], answers: &mut Vec<u8>) {
    let (mut id, mut method, mut params) = (None, None, None);
    for (key, value) in Members::of(message) {
        match key {
            b"id" => id = Some(value),
            b"method" => method = Some(value),
            b"params" => params = Some(value),
            _ => {}
        }
    }
    let (Some(id), Some(method)) = (id, method) else {
        return;
    };
    let params = params.unwrap_or_default();
    let modern = era == Era::Dual
        && member(params, b"_meta").is_some_and(|meta| member(meta, MODERN_KEY).is_some());
    let complete = if modern {
        r#""resultType":"complete","#
    } else {
        ""
    };
    let cached = if modern {
        r#","ttlMs":3600000,"cacheScope":"public""#
    } else {
        ""
    };
    answers.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    answers.extend_from_slice(id);
    let outcome = match method {
        br#""tools/call""# => match echoed(params) {
            Ok(text) => {
                answers.extend_from_slice(b",\"result\":{");
                answers.extend_from_slice(complete.as_bytes());
                answers.extend_from_slice(br#""content":[{"type":"text","text":"#);
                answers.extend_from_slice(text);
                "}]}}\n".to_owned()
            }
            Err(why) => format!(",\"error\":{{\"code\":-32602,\"message\":\"{why}\"}}}}\n"),
        },
        br#""initialize""# => {
            let asked = member(params, b"protocolVersion");
            let known = VERSIONS
                .iter()
                .find(|known| asked == Some(known.as_bytes()));
            let version = known.unwrap_or(&VERSIONS[0]);
            format!(
                ",\"result\":{{\"protocolVersion\":{version},\"capabilities\":{CAPABILITIES},\"serverInfo\":{INFO}}}}}\n"
            )
        }
        br#""server/discover""# if era == Era::Dual => {
            let legacy = VERSIONS.join(",");
            format!(
                ",\"result\":{{{complete}\"supportedVersions\":[{MODERN},{legacy}],\"capabilities\":{CAPABILITIES},\
                 \"_meta\":{{\"io.modelcontextprotocol/serverInfo\":{INFO}}}{cached}}}}}\n"
            )
        }
        br#""tools/list""# => {
            format!(",\"result\":{{{complete}\"tools\":{TOOLS}{cached}}}}}\n")
        }
        br#""ping""# => ",\"result\":{}}\n".to_owned(),
        _ => ",\"error\":{\"code\":-32601,\"message\":\"no such method\"}}\n".to_owned(),
    };
    answers.extend_from_slice(outcome.as_bytes());
}

/// The text of a call, quotes and escapes as they came.
fn echoed(params: &[u8]) -> Result<&[u8], &'static str> {
    if member(params, b"name") != Some(br#""echo""#) {
        return Err("no such tool");
    }
    member(params, b"arguments")
        .and_then(|arguments| member(arguments, b"text"))
        .filter(|text| text.first() == Some(&b'"'))
        .ok_or("text must be a string")
}

fn member<'a>(object: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    Members::of(object).find_map(|(name, value)| (name == key).then_some(value))
}

/// The members of an object in their order: names without quotes, values as they stand. Ends early where it is no JSON.
struct Members<'a> {
    rest: &'a [u8],
}

impl<'a> Members<'a> {
    fn of(object: &'a [u8]) -> Self {
        let object = object.trim_ascii();
        Self {
            rest: object.strip_prefix(b"{").unwrap_or_default(),
        }
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.trim_ascii_start();
        let (value, rest) = rest.split_at_checked(value_length(rest)?)?;
        self.rest = rest.trim_ascii_start();
        Some(value)
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.value()?.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        self.rest = self.rest.strip_prefix(b":")?;
        let value = self.value()?;
        self.rest = self.rest.strip_prefix(b",").unwrap_or_default();
        Some((key, value))
    }
}

/// Where the value at the start ends.
fn value_length(bytes: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    loop {
        match bytes.get(at)? {
            b'"' => at += string_length(&bytes[at..])?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            _ if depth == 0 => {
                let ends =
                    |byte: &u8| matches!(byte, b',' | b'}' | b']' | b':' | b' ' | b'\t' | b'\r');
                let scalar = bytes[at..].iter().position(ends)?;
                return (scalar > 0).then_some(at + scalar);
            }
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// With both quotes.
fn string_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
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
