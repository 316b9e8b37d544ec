//! Names in transcripts for text that differs from run to run.
//!
//! No other module does this. Names work both ways: a script says `<session-1>`, and the request contains the text behind the
//! name.

/// The names given so far, with the texts they stand for.
#[derive(Default)]
pub(super) struct Mask(Vec<(String, String)>);

impl Mask {
    /// Gives a varying text the next name of its kind, unless it has one.
    pub(super) fn learn(&mut self, kind: &str, text: &str) {
        if text.is_empty() || self.0.iter().any(|(_, known)| known == text) {
            return;
        }
        let prefix = format!("<{kind}-");
        let of_kind = self.0.iter().filter(|(name, _)| name.starts_with(&prefix));
        let name = format!("{prefix}{}>", of_kind.count() + 1);
        self.0.push((name, text.to_owned()));
    }

    /// Learns the sealed state in a message to a client.
    pub(super) fn learn_message(&mut self, text: &str) {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(text) else {
            return;
        };
        // The server's own states, which are short, are compared by spelling.
        let state = message["result"]["requestState"].as_str();
        if let Some(state) = state.filter(|state| state.len() > 20) {
            self.learn("state", state);
        }
    }

    /// The text with names in place of varying texts.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, known) in &self.0 {
            text = text.replace(known, name);
        }
        text.replace(env!("CARGO_PKG_VERSION"), "<version>")
    }

    /// The text with names replaced by the texts they stand for.
    pub(super) fn reveal(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, known) in &self.0 {
            text = text.replace(name, known);
        }
        text
    }
}
