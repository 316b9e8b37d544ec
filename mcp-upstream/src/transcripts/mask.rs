//! Names that replace text in transcripts that differs from run to run.
//!
//! Names are translated in both directions: a test's script contains `<session-1>`, and the request is sent with the text that
//! this name replaces.

/// The names that were assigned so far, each with the text that it replaces.
#[derive(Default)]
pub(super) struct Mask(Vec<(String, String)>);

impl Mask {
    /// Assigns the next name of this kind to a text, unless the text has a name already.
    pub(super) fn learn(&mut self, kind: &str, text: &str) {
        if text.is_empty() || self.0.iter().any(|(_, known)| known == text) {
            return;
        }
        let prefix = format!("<{kind}-");
        let of_kind = self.0.iter().filter(|(name, _)| name.starts_with(&prefix));
        let name = format!("{prefix}{}>", of_kind.count() + 1);
        self.0.push((name, text.to_owned()));
    }

    /// Assigns a name to the sealed state (`requestState`) in a message to a client, if there is one.
    pub(super) fn learn_message(&mut self, text: &str) {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(text) else {
            return;
        };
        // States that the server itself chose are short. They do not vary, so they get no name.
        let state = message["result"]["requestState"].as_str();
        if let Some(state) = state.filter(|state| state.len() > 20) {
            self.learn("state", state);
        }
    }

    /// Returns the text with names in place of the texts that vary.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, known) in &self.0 {
            text = text.replace(known, name);
        }
        text.replace(env!("CARGO_PKG_VERSION"), "<version>")
    }

    /// Returns the text with the original texts in place of their names.
    pub(super) fn reveal(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, known) in &self.0 {
            text = text.replace(name, known);
        }
        text
    }
}
