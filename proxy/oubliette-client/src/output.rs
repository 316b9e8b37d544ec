//! Writing of messages to the MCP client, from any thread. Each message is one complete line.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use serde_json::value::RawValue;

use crate::message::Era;

/// Standard output. The lock prevents that two threads mix their lines.
pub(crate) struct Output(Mutex<Box<dyn Write + Send>>);

impl Output {
    /// Creates an output that writes messages to `output`.
    pub(crate) fn new(output: impl Write + Send + 'static) -> Self {
        Self(Mutex::new(Box::new(output)))
    }

    /// Writes a message, which must be a single line. Ends the process if the client no longer reads.
    pub(crate) fn say(&self, message: &str) {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = writeln!(output, "{message}").and_then(|()| output.flush());
        if written.is_err() {
            std::process::exit(0);
        }
    }

    /// Responds to a request with a result, which is a JSON object.
    pub(crate) fn result(&self, id: &RawValue, era: Era, mut result: Value) {
        if era == Era::Modern
            && let Some(members) = result.as_object_mut()
        {
            members.insert("resultType".into(), "complete".into());
            let info = serde_json::json!({"io.modelcontextprotocol/serverInfo": server_info()});
            members.insert("_meta".into(), info);
        }
        self.say(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
        ));
    }

    /// Responds to a tool call with content blocks, given as raw JSON.
    pub(crate) fn content(&self, id: &RawValue, era: Era, content: &RawValue, is_error: bool) {
        let extra = match era {
            Era::Legacy => String::new(),
            Era::Modern => format!(
                r#","resultType":"complete","_meta":{{"io.modelcontextprotocol/serverInfo":{}}}"#,
                server_info()
            ),
        };
        self.say(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":{content},"isError":{is_error}{extra}}}}}"#
        ));
    }

    /// Responds to a tool call that failed, with a text that the model reads.
    pub(crate) fn failed_call(&self, id: &RawValue, era: Era, text: &str) {
        let content = serde_json::json!([{"type": "text", "text": text}]);
        self.result(
            id,
            era,
            serde_json::json!({"content": content, "isError": true}),
        );
    }

    /// Responds with an error. `id` is `None` if the id of the request could not be read.
    pub(crate) fn error(
        &self,
        id: Option<&RawValue>,
        code: i32,
        message: &str,
        data: Option<Value>,
    ) {
        let id = id.map_or("null", RawValue::get);
        let mut error = serde_json::json!({"code": code, "message": message});
        if let Some(data) = data {
            error["data"] = data;
        }
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
    }
}

/// Returns the name and version of this server.
pub(crate) fn server_info() -> Value {
    serde_json::json!({"name": "oubliette-client", "version": env!("CARGO_PKG_VERSION")})
}

/// An output for tests that collects the written bytes.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct OutputCapture(std::sync::Arc<Mutex<Vec<u8>>>);

#[cfg(test)]
impl OutputCapture {
    /// Discards the bytes written so far.
    pub(crate) fn clear(&self) {
        self.0.lock().expect("not poisoned").clear();
    }

    /// Returns the messages written so far.
    pub(crate) fn messages(&self) -> Vec<Value> {
        let text = self.0.lock().expect("not poisoned").clone();
        let text = String::from_utf8(text).expect("UTF-8");
        let read = |line| serde_json::from_str(line).expect("JSON");
        text.lines().map(read).collect()
    }
}

#[cfg(test)]
impl Write for OutputCapture {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .expect("not poisoned")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
