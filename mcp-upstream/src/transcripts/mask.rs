//! Names that replace text in transcripts that differs from run to run.
//!
//! No other module does this. Names work both ways: a script contains `<session-1>`, and the request is sent with the text that
//! the name replaces.

/// The names assigned so far, with the texts that they replace.
#[derive(Default)]
pub(super) struct Mask(Vec<(String, String)>);

impl Mask {
    /// Assigns the next name of this kind to a varying text, unless the text has a name.
    pub(super) fn learn(&mut self, kind: &str, text: &str) {
        if text.is_empty() || self.0.iter().any(|(_, known)| known == text) {
            return;
        }
        let prefix = format!("<{kind}-");
        let of_kind = self.0.iter().filter(|(name, _)| name.starts_with(&prefix));
        let name = format!("{prefix}{}>", of_kind.count() + 1);
        self.0.push((name, text.to_owned()));
    }

    /// Assigns a name to the sealed state in a message to a client.
    pub(super) fn learn_message(&mut self, text: &str) {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(text) else {
            return;
        };
        // The server's own states, which are short, are compared as they are.
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

    /// The text with names replaced by the varying texts.
    pub(super) fn reveal(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, known) in &self.0 {
            text = text.replace(name, known);
        }
        text
    }
}
