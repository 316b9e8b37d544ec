//! Receiver of finished requests: queues their spans, and counts their durations.

use std::sync::Arc;
use std::time::Duration;

use tooldock_base::trace::{Attribute, AttributeValue, Span, TraceContext, TraceSink};

use crate::ExportState;
use crate::queue::Weight;

/// Approximate size of a span without its texts, in bytes.
const SPAN_BYTES: usize = 256;
/// Approximate size of an attribute without its text, in bytes.
const ATTRIBUTE_BYTES: usize = 48;

/// Receiver of finished requests, which passes them to the exporting thread.
pub(crate) struct ExportSink(pub(crate) Arc<ExportState>);

impl TraceSink for ExportSink {
    fn is_sampled(&self, parent: Option<&TraceContext>, trace_id: u128) -> bool {
        let settings = &self.0.settings;
        settings.traces && is_sampled(settings.sample, parent, trace_id)
    }

    fn spans(&self, spans: Vec<Span>) {
        self.0.spans.add(spans);
    }

    fn operation(&self, attributes: &[Attribute], time: Duration) {
        if self.0.settings.metrics {
            self.0.operations.count(attributes, time);
        }
    }

    fn new_id(&self) -> u64 {
        fastrand::u64(1..)
    }
}

/// Returns true if a trace is recorded: as the trace context of the client demands, or, without one, for the configured share of
/// traces. With a share of 0, no trace is recorded.
fn is_sampled(share: f64, parent: Option<&TraceContext>, trace_id: u128) -> bool {
    if share <= 0.0 {
        return false;
    }
    match parent {
        Some(parent) => parent.is_sampled,
        // The lower half of a trace id is random. The decision depends on the id alone, so that all replicas decide alike.
        None => ((trace_id as u64) >> 11) as f64 / (1u64 << 53) as f64 <= share,
    }
}

impl Weight for Span {
    fn bytes(&self) -> usize {
        let text = |value: &AttributeValue| match value {
            AttributeValue::Text(text) => text.len(),
            AttributeValue::Static(_) => 0,
        };
        let attributes = self.attributes.iter();
        let attributes: usize = attributes.map(|(_, it)| ATTRIBUTE_BYTES + text(it)).sum();
        SPAN_BYTES + self.name.len() + self.state.as_ref().map_or(0, |it| it.len()) + attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_traces_is_recorded_and_clients_decide_about_their_own() {
        let recorded = |share| {
            let ids = 0..1000;
            let ids = ids.map(|at: u64| u128::from(at.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            ids.filter(|&id| is_sampled(share, None, id)).count()
        };
        assert_eq!(recorded(0.0), 0);
        assert_eq!(recorded(1.0), 1000);
        assert!((200..300).contains(&recorded(0.25)), "{}", recorded(0.25));
        let client = |is_sampled| TraceContext {
            trace_id: 1,
            span_id: 1,
            is_sampled,
        };
        assert!(is_sampled(0.01, Some(&client(true)), u128::MAX));
        assert!(!is_sampled(1.0, Some(&client(false)), 1));
        assert!(
            !is_sampled(0.0, Some(&client(true)), 1),
            "0 records nothing"
        );
    }
}
