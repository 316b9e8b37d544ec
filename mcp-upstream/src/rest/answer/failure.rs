//! Classifies failed calls of servers in REST as faults of the caller or of the server, by the error texts of SDKs.
//!
//! In MCP a failed call is a result with a text for the model, and only this text shows whether the arguments were wrong. The
//! official SDKs and FastMCP write these texts:
//!
//! | SDK | wrong arguments | unknown tool |
//! |---|---|---|
//! | TypeScript 1.x | `MCP error -32602: Input validation error: …` | `MCP error -32602: Tool T not found` |
//! | Python 1.x, low level | `Input validation error: …` | a text of the tool's author |
//! | Python 1.x and 2.x | `Error executing tool T: 2 validation errors for TArguments⏎…` | `Unknown tool: T` |
//! | FastMCP | `2 validation errors for call[T]⏎…` | `Unknown tool: 'T'` |
//!
//! `MCP error -32602: Output validation error: …` is a fault of the server, in spite of its code.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};

use super::text;
use crate::jsonrpc::{self, spans};
use crate::protocol::code;

/// The failure that a server reported for a call.
#[derive(Debug)]
pub(super) struct ServerFailure {
    message: String,
    details: Option<Box<RawValue>>,
    /// The code of the server's JSON-RPC error, or 0 if the error has no code; `None` if the failure is a result with `isError`.
    code: Option<i32>,
    /// The error code that the server sent, as raw text, for logs.
    sent_code: Option<String>,
}

impl ServerFailure {
    /// Reads the failure from a JSON-RPC error object.
    pub(super) fn with(error: &[u8]) -> Self {
        let object = spans::raw(error);
        let member = |name| object.and_then(|it| spans::member(it, name));
        let message = member("message").and_then(jsonrpc::string);
        let message = message.unwrap_or(Cow::Borrowed("The server answered with an error"));
        let code = member("code").map(RawValue::get);
        Self {
            message: message.into_owned(),
            details: object.and_then(|it| detail("upstream", it)),
            code: Some(code.and_then(|it| it.parse().ok()).unwrap_or_default()),
            sent_code: code.map(str::to_owned),
        }
    }

    /// Reads the failure from a tool's result with `isError`.
    pub(super) fn from_error_result(result: &RawValue, blocks: &[&RawValue]) -> Self {
        let texts: Vec<Cow<'_, str>> = (blocks.iter())
            .filter_map(|block| jsonrpc::string(text(block)?))
            .collect();
        let message = match texts.is_empty() {
            true => "The tool failed".to_owned(),
            false => texts.join("\n"),
        };
        Self {
            message,
            details: detail("result", result),
            code: None,
            sent_code: None,
        }
    }

    /// Classifies the failure by the party or input at fault. `tool`: name of the called tool.
    pub(super) fn blame(&self, tool: &str) -> Blame {
        let is_of_arguments = match self.code {
            Some(code) => code == code::INVALID_PARAMS,
            None => blames_arguments(&self.message, tool),
        };
        match is_of_arguments {
            true => Blame::Arguments,
            false if self.code == Some(code::MISSING_CAPABILITY) => Blame::Caller,
            false if self.code.is_none() && self.message.starts_with("Unknown tool: ") => {
                Blame::Name
            }
            false => Blame::Server,
        }
    }

    /// Converts the failure to an error of the gateway. `is_known`: true if the server lists the tool.
    pub(super) fn error(self, blame: Blame, is_known: bool) -> CallError {
        let code = match (blame, is_known) {
            (Blame::Arguments | Blame::Name, false) => CallErrorCode::ToolNotFound,
            (Blame::Arguments, true) => CallErrorCode::InvalidArguments,
            (Blame::Caller, _) => CallErrorCode::MissingCapability,
            (Blame::Name, true) | (Blame::Server, _) => CallErrorCode::InternalError,
        };
        let mut error = CallError::new(code, self.message);
        if let Some(code) = self.sent_code {
            let detail = error.message.clone();
            error = error.caused_by(code, detail);
        }
        error.details = self.details;
        error
    }
}

/// The party or input that caused a call to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The arguments of the call are invalid.
    Arguments,
    /// The name of the tool is unknown.
    Name,
    /// The caller lacks a capability that the tool needs.
    Caller,
    /// The tool failed, or its server.
    Server,
}

fn detail(name: &str, value: &RawValue) -> Option<Box<RawValue>> {
    RawValue::from_string(format!(r#"{{"{name}":{}}}"#, value.get())).ok()
}

/// Returns true if a text is the error that an SDK writes for invalid arguments of this tool.
fn blames_arguments(text: &str, tool: &str) -> bool {
    if let Some(rest) = text.strip_prefix("MCP error -32602") {
        return !rest
            .trim_start_matches([':', ' '])
            .starts_with("Output validation error");
    }
    if text.starts_with("Input validation error") {
        return true;
    }
    let (line, _) = text.split_once('\n').unwrap_or((text, ""));
    let (line, model) = match line.strip_prefix("Error executing tool ") {
        Some(rest) => match rest.strip_prefix(tool).and_then(|it| it.strip_prefix(": ")) {
            Some(rest) => (rest, format!("{tool}Arguments")),
            None => return false,
        },
        None => (line, format!("call[{tool}]")),
    };
    let Some((count, rest)) = line.split_once(' ') else {
        return false;
    };
    let of = rest.strip_prefix("validation error for ");
    let of = of.or_else(|| rest.strip_prefix("validation errors for "));
    count.parse::<u32>().is_ok() && of == Some(&*model)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str, known: bool) -> CallErrorCode {
        let block = serde_json::json!({ "type": "text", "text": message });
        let result = serde_json::json!({ "isError": true, "content": [block] }).to_string();
        let block = block.to_string();
        let raw = |text| serde_json::from_str::<&RawValue>(text).expect("JSON");
        let failed = ServerFailure::from_error_result(raw(&result), &[raw(&block)]);
        let blame = failed.blame("add");
        let error = failed.error(blame, known);
        assert_eq!(error.message, message);
        let details = error.details.expect("details");
        assert_eq!(details.get(), format!(r#"{{"result":{result}}}"#));
        error.code
    }

    #[test]
    fn what_sdks_say_of_wrong_arguments_blames_the_caller() {
        for text in [
            "MCP error -32602: Input validation error: Invalid arguments for tool add: Invalid input: expected number, received undefined at a",
            "MCP error -32602: Invalid arguments for tool add: arguments contain more than the maximum of 10 elements",
            "Input validation error: 'a' is a required property",
            "Error executing tool add: 1 validation error for addArguments\na\n  Field required [type=missing, input_value={}, input_type=dict]",
            "Error executing tool add: 2 validation errors for addArguments\na\n  Input should be a valid number",
            "1 validation error for call[add]\na\n  Missing required argument [type=missing_argument]",
            "3 validation errors for call[add]\na\n  Input should be a valid number",
        ] {
            assert_eq!(said(text, true), CallErrorCode::InvalidArguments, "{text}");
        }
    }

    #[test]
    fn what_went_wrong_in_the_tool_does_not() {
        for text in [
            "MCP error -32602: Output validation error: Invalid structured content for tool add: Invalid input at r",
            "MCP error -32603: Input validation error",
            "Error executing tool add: Input validation error: mine",
            "Error executing tool add: 1 validation error for M\nn\n  Input should be a valid integer",
            "Error executing tool add",
            "Error calling tool 'add': 1 validation error for call[add]\nn",
            "1 validation error for call[other]\na",
            "no validation errors for call[add]",
            "Unknown tool: add",
            "",
        ] {
            assert_eq!(said(text, true), CallErrorCode::InternalError, "{text}");
        }
    }

    #[test]
    fn a_tool_that_is_not_listed_is_not_found() {
        for text in [
            "MCP error -32602: Tool add not found",
            "Unknown tool: add",
            "Unknown tool: 'add'",
        ] {
            assert_eq!(said(text, false), CallErrorCode::ToolNotFound, "{text}");
        }
        assert_eq!(said("no", false), CallErrorCode::InternalError);
        let absent = br#"{"code":-32602,"message":"Unknown tool"}"#;
        let error = |error, known| {
            let failed = ServerFailure::with(error);
            let blame = failed.blame("add");
            failed.error(blame, known)
        };
        let code = |known| error(absent, known).code;
        assert_eq!(code(false), CallErrorCode::ToolNotFound);
        assert_eq!(code(true), CallErrorCode::InvalidArguments);
        let failed = error(b"{}", true);
        assert_eq!(failed.code, CallErrorCode::InternalError);
        assert_eq!(failed.message, "The server answered with an error");
    }
}
