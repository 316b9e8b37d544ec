//! The layer of `tracing` that queues log events for the export.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::encode::{attribute, nanos, string, text};
use crate::queue::{BYTES_MAX, LOGS_MAX, Queue, Weight};

/// Maximum length of a text in a log record, in bytes; longer texts are cut.
const TEXT_MAX: usize = 8 * 1024;
/// Target prefix of this crate's own log events. They report failures of the export, and are not exported.
const OWN: &str = "tooldock_otlp";

/// Log records that wait for their export.
pub struct LogQueue(pub(crate) Queue<LogRecord>);

impl LogQueue {
    /// Creates an empty queue of log records. Events are queued from the start of the process, before the export starts.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Queue::new(LOGS_MAX, BYTES_MAX)))
    }
}

/// Layer of `tracing` that puts each event which passes its filter into the queue.
pub struct LogLayer(Arc<LogQueue>);

impl LogLayer {
    /// Creates a layer that puts log events into this queue.
    pub fn new(queue: &Arc<LogQueue>) -> Self {
        Self(Arc::clone(queue))
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target().starts_with(OWN) {
            return;
        }
        let (number, name) = match *metadata.level() {
            Level::ERROR => (SeverityNumber::Error, "ERROR"),
            Level::WARN => (SeverityNumber::Warn, "WARN"),
            Level::INFO => (SeverityNumber::Info, "INFO"),
            Level::DEBUG => (SeverityNumber::Debug, "DEBUG"),
            Level::TRACE => (SeverityNumber::Trace, "TRACE"),
        };
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields.attributes.push(text("target", metadata.target()));
        let now = nanos(SystemTime::now());
        let record = LogRecord {
            time_unix_nano: now,
            observed_time_unix_nano: now,
            severity_number: number as i32,
            severity_text: name.to_owned(),
            body: Some(string(fields.message)),
            attributes: fields.attributes,
            ..LogRecord::default()
        };
        self.0.0.add(vec![record]);
    }
}

/// The fields of a log event as OTLP attributes.
#[derive(Default)]
struct Fields {
    message: String,
    attributes: Vec<KeyValue>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        // Fields whose names begin with `log.` are omitted: they are metadata of records that libraries logged with the `log`
        // crate.
        if !field.name().starts_with("log.") {
            self.attributes.push(attribute(field.name(), value));
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = cut(value.to_owned()),
            _ => self.add(field, Value::StringValue(cut(value.to_owned()))),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::IntValue(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::IntValue(value.try_into().unwrap_or(i64::MAX)));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Value::DoubleValue(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::BoolValue(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Cuts a text to the maximum length of a text in a log record.
fn cut(mut value: String) -> String {
    value.truncate(value.floor_char_boundary(TEXT_MAX));
    value
}

impl Weight for LogRecord {
    fn bytes(&self) -> usize {
        let length = |value: &Option<opentelemetry_proto::tonic::common::v1::AnyValue>| match value
            .as_ref()
            .and_then(|it| it.value.as_ref())
        {
            Some(Value::StringValue(text)) => text.len(),
            _ => 0,
        };
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|it| 96 + it.key.len() + length(&it.value));
        256 + length(&self.body) + attributes.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn an_event_keeps_its_message_level_and_fields_and_own_events_are_left_out() {
        let queue = LogQueue::new();
        let subscriber = tracing_subscriber::registry().with(LogLayer::new(&queue));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "tooldock::x", left = 3, id = "r-1", why = ?Some(1), "call {}", 7);
            tracing::warn!(target: "tooldock_otlp::export", "cannot export");
        });
        let records = queue.0.take();
        assert_eq!(records.len(), 1);
        let record = &records[0];
        assert_eq!(record.severity_text, "WARN");
        assert_eq!(record.body, Some(string("call 7")));
        assert_eq!(
            record.attributes,
            [
                attribute("left", Value::IntValue(3)),
                text("id", "r-1"),
                text("why", "Some(1)"),
                text("target", "tooldock::x"),
            ]
        );
    }
}
