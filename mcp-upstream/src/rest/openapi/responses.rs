//! Responses of an operation: the value of a call, and every possible error status.
//!
//! The error statuses are those of the edge (for requests that it refuses) and of `crate::error`. A test compares this list
//! with both.

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tooldock_engine::upstream::Upstream;

/// Kind of an operation, which determines its error statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fails {
    /// The operation calls a tool.
    Call,
    /// A request about a namespace's tools. It can fail like a call, since the tools may first have to be read from their server.
    Tools,
    /// The operation is about the gateway itself.
    Gateway,
    /// The operation is a health check, which needs no credentials and is not rate limited.
    HealthCheck,
}

/// An error response: its status, the name of its component in the document, its meaning, and its header if it has one.
type Row = (u16, &'static str, &'static str, Option<Header>);
/// Name and description of a response header.
type Header = (&'static str, &'static str);

const CHALLENGE: Option<Header> = Some(("WWW-Authenticate", "How to authenticate"));
const RETRY_AFTER: Option<Header> = Some(("Retry-After", "Seconds to wait before another try"));

#[rustfmt::skip]
const STATUSES: [Row; 15] = [
    (400, "BadRequest", "The request is malformed, or its body is no JSON", None),
    (401, "Unauthorized", "The bearer token is missing or wrong", CHALLENGE),
    (403, "Forbidden", "The token, address, host or origin may not do this", None),
    (404, "NotFound", "There is no such namespace or tool", None),
    (408, "BodyTimeout", "The body did not arrive in time", None),
    (413, "BodyTooLarge", "The body is too large", None),
    (414, "UriTooLong", "The path is too long", None),
    (415, "UnsupportedMediaType", "The body is not announced as application/json", None),
    (422, "InvalidArguments", "The arguments do not fit the tool; it did not run", None),
    (429, "TooManyRequests", "A limit is used up", RETRY_AFTER),
    (431, "HeadersTooLarge", "The headers are too large", None),
    (500, "Failed", "The tool or its server failed", None),
    (502, "NoUsableAnswer", "A server or a hook of the call gave no usable answer", None),
    (503, "Unavailable", "The tool's process is away, or too much is going on", RETRY_AFTER),
    (504, "TimedOut", "The tool or its server took too long", None),
];

impl Fails {
    fn with(self, status: u16) -> bool {
        match self {
            Self::Call => true,
            Self::Tools => !matches!(status, 408 | 415 | 422),
            Self::Gateway => !matches!(status, 404 | 408 | 415 | 422 | 500 | 502..=504),
            Self::HealthCheck => matches!(status, 400 | 403 | 414 | 431),
        }
    }

    /// Adds the error statuses to an operation's responses.
    pub(super) fn add(self, responses: &mut Value) {
        for (status, name, ..) in STATUSES {
            if self.with(status) {
                let reference = format!("#/components/responses/{name}");
                responses[status.to_string()] = json!({ "$ref": reference });
            }
        }
    }
}

/// Returns the error responses as components of the document, to which operations refer.
pub(super) fn components() -> Map<String, Value> {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    let component = |(_, name, description, header): Row| {
        let mut response = json!({
            "description": description,
            "content": { "application/json": { "schema": schema } },
        });
        if let Some((header, description)) = header {
            response["headers"] = json!({
                header: { "description": description, "schema": { "type": "string" } },
            });
        }
        (name.to_owned(), response)
    };
    STATUSES.into_iter().map(component).collect()
}

/// Returns the schema of the body that all error responses have.
pub(super) fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["detail", "error"],
        "properties": {
            "detail": { "type": "string" },
            "error": {
                "type": "object",
                "required": ["code", "message", "details"],
                "properties": {
                    "code": { "type": "string" },
                    "message": { "type": "string" },
                    "details": { "type": "object" },
                },
            },
        },
    })
}

/// Form in which REST sends the value of a tool that has an output schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueForm {
    /// REST sends the value that a worker's function returned.
    Bare,
    /// REST sends the structured content of an MCP server's result.
    Structured,
}

impl ValueForm {
    /// Returns the form for the tools of an upstream.
    pub(super) fn by(upstream: &dyn Upstream) -> Self {
        match upstream.server_facts().gets_client_messages() {
            true => Self::Structured,
            false => Self::Bare,
        }
    }
}

/// Schema keyword of a function whose value is wrapped in an object `{"result": …}`, since structured content in MCP must be an
/// object.
const WRAPPED: &str = "x-fastmcp-wrap-result";

/// Returns the schema of a successful call's value; `{}` if the tool declares none. `sent`: the form in which REST sends it.
pub(super) fn value_schema(declared: Option<&RawValue>, sent: ValueForm) -> String {
    let Some(schema) = declared else {
        return "{}".to_owned();
    };
    match sent {
        ValueForm::Structured => schema.get().to_owned(),
        ValueForm::Bare => unwrapped(schema).unwrap_or_else(|| schema.get().to_owned()),
    }
}

/// Returns the schema of the value inside the wrapping object; `None` if the tool's schema declares no wrapping.
fn unwrapped(schema: &RawValue) -> Option<String> {
    let mut outer: Map<String, Value> = serde_json::from_str(schema.get()).ok()?;
    if outer.get(WRAPPED) != Some(&Value::Bool(true)) {
        return None;
    }
    let Value::Object(mut inner) = outer.get_mut("properties")?.get_mut("result")?.take() else {
        return None;
    };
    if let Some(definitions) = outer.remove("$defs") {
        inner.insert("$defs".to_owned(), definitions);
    }
    Some(Value::Object(inner).to_string())
}

#[cfg(test)]
mod tests {
    use tooldock_base::error::CallErrorCode;
    use tooldock_sessions::call_error::rest_status;
    use tooldock_sessions::testing::tool;

    use super::*;

    fn documented(fails: Fails) -> Vec<u16> {
        let statuses = STATUSES.iter().map(|row| row.0);
        statuses.filter(|status| fails.with(*status)).collect()
    }

    #[test]
    fn every_status_of_a_failed_call_is_documented() {
        let call = documented(Fails::Call);
        for code in [
            CallErrorCode::ToolNotFound,
            CallErrorCode::InsufficientScope,
            CallErrorCode::ResourceNotFound,
            CallErrorCode::PromptNotFound,
            CallErrorCode::InvalidArguments,
            CallErrorCode::DependencyError,
            CallErrorCode::ExecutionTimeout,
            CallErrorCode::InternalError,
            CallErrorCode::OutputType,
            CallErrorCode::ToolError,
            CallErrorCode::WorkerUnavailable,
            CallErrorCode::Starting,
            CallErrorCode::Overloaded,
            CallErrorCode::RateLimited,
            CallErrorCode::ResultTooLarge,
            CallErrorCode::Cancelled,
            CallErrorCode::MissingCapability,
            CallErrorCode::AskFailed,
            CallErrorCode::MissingCredential,
            CallErrorCode::UpstreamError,
            CallErrorCode::HookRefused,
            CallErrorCode::HookFailed,
        ] {
            let status = rest_status(code).as_u16();
            assert!(call.contains(&status), "{code:?}: {status}");
        }
    }

    #[test]
    fn an_operation_refers_to_components_that_are_there() {
        let components = components();
        assert_eq!(components.len(), STATUSES.len());
        let mut responses = json!({ "200": {} });
        Fails::HealthCheck.add(&mut responses);
        assert_eq!(
            responses,
            json!({
                "200": {},
                "400": { "$ref": "#/components/responses/BadRequest" },
                "403": { "$ref": "#/components/responses/Forbidden" },
                "414": { "$ref": "#/components/responses/UriTooLong" },
                "431": { "$ref": "#/components/responses/HeadersTooLarge" },
            })
        );
        assert!(components["TooManyRequests"]["headers"]["Retry-After"].is_object());
    }

    #[test]
    fn the_schema_is_that_of_what_is_sent() {
        let declared = |output: Value| {
            tool(json!({
                "name": "t", "description": "", "filename": "", "inputSchema": {}, "outputSchema": output,
            }))
        };
        let schema = |tool: &tooldock_base::tool::Tool, sent| -> Value {
            serde_json::from_str(&value_schema(tool.output_schema.as_deref(), sent)).expect("JSON")
        };
        let wrapped = json!({
            "type": "object", "properties": { "result": { "items": { "$ref": "#/$defs/n" } } },
            "$defs": { "n": { "type": "number" } }, "x-fastmcp-wrap-result": true,
        });
        let tool = declared(wrapped.clone());
        assert_eq!(schema(&tool, ValueForm::Structured), wrapped);
        assert_eq!(
            schema(&tool, ValueForm::Bare),
            json!({ "items": { "$ref": "#/$defs/n" }, "$defs": { "n": { "type": "number" } } })
        );
        let object = json!({ "type": "object", "properties": { "result": { "type": "number" } } });
        assert_eq!(schema(&declared(object.clone()), ValueForm::Bare), object);
        assert_eq!(schema(&declared(Value::Null), ValueForm::Bare), json!({}));
    }
}
