//! Collects log messages for tests.

use std::sync::{Arc, Mutex};

/// All messages that are logged in this thread.
#[derive(Clone, Default)]
pub(crate) struct Logged(Arc<Mutex<String>>);

impl Logged {
    /// All of it: a line for each field, message included.
    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Write<'a>(&'a mut String);
        impl tracing::field::Visit for Write<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                use std::fmt::Write as _;
                let _ = writeln!(self.0, "{}={value:?}", field.name());
            }
        }
        event.record(&mut Write(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
