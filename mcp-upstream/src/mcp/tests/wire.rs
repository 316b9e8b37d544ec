//! Reads the streams of replies as a client would.

use std::pin::Pin;
use std::time::Duration;

use axum::body::BodyDataStream;
use axum::response::IntoResponse;
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use crate::reply::Reply;

/// An event, a comment, or a lone field.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) retry: Option<u64>,
    pub(crate) data: Option<String>,
    pub(crate) comment: bool,
}

/// A reply that is a stream of events.
pub(crate) struct Wire {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Pin<Box<BodyDataStream>>,
    text: String,
    /// The id of the last event that had one.
    pub(crate) last_id: Option<String>,
}

impl Wire {
    pub(crate) fn of(reply: Reply) -> Self {
        assert!(!matches!(reply, Reply::Full { .. }), "{reply:?}");
        let (head, body) = reply.into_response().into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            body: Box::pin(body.into_data_stream()),
            text: String::new(),
            last_id: None,
        }
    }

    /// The next frame of any kind; `None` at the end.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let text: String = self.text.drain(..end + 2).collect();
                let frame = parsed(text.trim_end());
                if frame.id.is_some() {
                    self.last_id.clone_from(&frame.id);
                }
                return Some(frame);
            }
            let chunk = self.body.next().await?.expect("a stream does not fail");
            self.text
                .push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        }
    }

    /// The next message; `None` at the end.
    pub(crate) async fn message(&mut self) -> Option<Value> {
        let data = self.line().await?;
        Some(serde_json::from_str(&data).expect("JSON"))
    }

    /// The text of the next message; `None` at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        loop {
            let frame = self.frame().await?;
            if frame.event.as_deref() == Some("message") {
                return Some(frame.data.expect("a message has data"));
            }
        }
    }

    /// All messages up to the end.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.message().await {
            messages.push(message);
        }
        messages
    }

    /// Returns true if no message comes for a while. Needs the paused clock.
    pub(crate) async fn is_silent(&mut self) -> bool {
        timeout(Duration::from_millis(50), self.message())
            .await
            .is_err()
    }
}

fn parsed(text: &str) -> Frame {
    let mut frame = Frame::default();
    for line in text.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match name {
            "" => frame.comment = true,
            "id" => frame.id = Some(value),
            "event" => frame.event = Some(value),
            "retry" => frame.retry = Some(value.parse().expect("a number")),
            "data" => frame.data = Some(value),
            other => panic!("unknown field {other}"),
        }
    }
    frame
}
