//! Results of tool calls, from the responses of an API.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use crate::encode;
use crate::operation::{Operation, is_json};
use crate::pages;

/// Maximum length of an error response's body in a result, in characters. A longer body is cut.
const ERROR_MAX: usize = 8_000;

/// A complete response of the API.
#[derive(Debug)]
pub struct ApiResponse<'a> {
    /// HTTP status of the response.
    pub status: StatusCode,
    /// Headers of the response.
    pub headers: &'a HeaderMap,
    /// Complete body of the response.
    pub body: &'a [u8],
}

/// Builds the result of a failed tool call. `text`: the reason, for the model.
pub fn failed(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

impl Operation {
    /// Builds the result of a tool call. A response with a status other than 2xx becomes a failure whose text has the status and
    /// the body.
    pub fn result(&self, response: &ApiResponse<'_>) -> Value {
        match response.status.is_success() {
            true => self.success(response),
            false => failed(&error_text(response)),
        }
    }

    fn success(&self, response: &ApiResponse<'_>) -> Value {
        let media_type = media_type(response.headers);
        let value: Option<Value> = match is_json(media_type) || media_type.is_empty() {
            true => serde_json::from_slice(response.body).ok(),
            false => None,
        };
        let mut content = vec![self.content(response, media_type)];
        if let Some(text) = pages::next(&self.parameters, response.headers, value.as_ref()) {
            content.push(json!({ "type": "text", "text": text }));
        }
        let mut result = json!({ "content": content, "isError": false });
        if let Some(output) = &self.output {
            result["structuredContent"] = output.content(value);
        }
        result
    }

    fn content(&self, response: &ApiResponse<'_>, media_type: &str) -> Value {
        let body = response.body;
        if body.is_empty() {
            return json!({ "type": "text", "text": status_text(response.status) });
        }
        let plain = encode::plain_type(media_type);
        let kind = plain.split('/').next().unwrap_or_default();
        if let ("image" | "audio", false) = (kind, plain.ends_with("+xml")) {
            return json!({ "type": kind, "data": STANDARD.encode(body), "mimeType": plain });
        }
        match std::str::from_utf8(body) {
            Ok(text) => json!({ "type": "text", "text": text }),
            Err(_) => json!({ "type": "resource", "resource": {
                "uri": format!("response:{}", self.name),
                "mimeType": if plain.is_empty() { "application/octet-stream" } else { &plain },
                "blob": STANDARD.encode(body),
            } }),
        }
    }
}

fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE);
    value.and_then(|it| it.to_str().ok()).unwrap_or_default()
}

fn status_text(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("HTTP {} {reason}", status.as_str()),
        None => format!("HTTP {}", status.as_str()),
    }
}

fn error_text(response: &ApiResponse<'_>) -> String {
    let mut text = status_text(response.status);
    for name in [header::RETRY_AFTER, header::LOCATION] {
        if let Some(value) = response.headers.get(&name).and_then(|it| it.to_str().ok()) {
            let value: String = value.chars().take(200).collect();
            text.push_str(&format!("\n{name}: {value}"));
        }
    }
    let body = String::from_utf8_lossy(response.body);
    let is_cut = body.chars().count() > ERROR_MAX;
    let kept: String = body.chars().take(ERROR_MAX).collect();
    if !kept.trim().is_empty() {
        text.push('\n');
        text.push_str(kept.trim());
        text.push_str(if is_cut { "…" } else { "" });
    }
    text
}
