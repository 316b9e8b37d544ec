//! What differs from run to run, and the names it has in transcripts.
//!
//! The one place for this. Names go both ways: a script says `<session-1>`, and the request holds what that stands for.

/// The names given so far, and what they stand for.
#[derive(Default)]
pub(super) struct Mask(Vec<(String, String)>);

impl Mask {
    /// Gives what differs the next name of its kind, unless it has one.
    pub(super) fn learn(&mut self, kind: &str, text: &str) {
        if text.is_empty() || self.0.iter().any(|(_, known)| known == text) {
            return;
        }
        let prefix = format!("<{kind}-");
        let of_kind = self.0.iter().filter(|(name, _)| name.starts_with(&prefix));
        let name = format!("{prefix}{}>", of_kind.count() + 1);
        self.0.push((name, text.to_owned()));
    }

    /// Learns the sealed state that a message to a client holds.
    pub(super) fn learn_message(&mut self, text: &str) {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(text) else {
            return;
        };
        // Of the server's own states, which are short, the spelling matters.
        let state = message["result"]["requestState"].as_str();
        if let Some(state) = state.filter(|state| state.len() > 20) {
            self.learn("state", state);
        }
    }

    /// The text with names for what differs.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, known) in &self.0 {
            text = text.replace(known, name);
        }
        text.replace(env!("CARGO_PKG_VERSION"), "<version>")
    }

    /// The text with what the names stand for.
    pub(super) fn reveal(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, known) in &self.0 {
            text = text.replace(name, known);
        }
        text
    }
}
