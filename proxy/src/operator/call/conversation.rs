//! Handles the messages that a server sends before the result of a call. Progress and log messages are printed to standard
//! error. Questions are asked at the terminal; without a terminal they are declined.

#![allow(
    deprecated,
    reason = "log messages are deprecated in MCP and still sent"
)]

use std::io::Write as _;

use rmcp::model::{
    ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    LoggingMessageNotificationParam, ProgressNotificationParam,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use rmcp::{ClientHandler, ErrorData};
use serde_json::{Map, Value, json};
use tooldock_process::child::output::printable_text;

use super::super::mcp::client_info;
use super::super::status::{list, word};
use super::arguments::typed;
use super::has_terminal;

/// Handler for the messages that the server sends during a call.
pub(super) struct Conversation {
    /// True if a person at the terminal can answer questions.
    asks: bool,
}

impl Conversation {
    pub(super) fn new() -> Self {
        Self {
            asks: has_terminal(),
        }
    }
}

fn print_line(line: &str) {
    eprintln!("{}", printable_text(line));
}

impl ClientHandler for Conversation {
    fn get_info(&self) -> ClientConfig {
        client_info(json!({"elicitation": {"form": {}, "url": {}}}))
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let question = json!(params);
        print_line(&format!("The tool asks: {}", word(&question["message"])));
        if !self.asks {
            print_line("declined: there is no terminal to ask at");
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        }
        // Reading from a terminal blocks, so it runs on a thread for blocking work.
        let answered = tokio::task::spawn_blocking(move || answer(&question)).await;
        Ok(answered.unwrap_or_else(|_| ElicitResult::new(ElicitationAction::Cancel)))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let total = params.total.map(|total| format!("/{total}"));
        let message = params.message.map(|message| format!(": {message}"));
        print_line(&format!(
            "progress {}{}{}",
            params.progress,
            total.unwrap_or_default(),
            message.unwrap_or_default()
        ));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let level = json!(params.level);
        let data = match &params.data {
            Value::String(text) => text.clone(),
            other => other["msg"]
                .as_str()
                .map_or(other.to_string(), str::to_owned),
        };
        print_line(&format!("{}: {data}", word(&level)));
    }
}

/// Asks the user at the terminal. If standard input ends, the question is cancelled.
fn answer(question: &Value) -> ElicitResult {
    let asked = match question["mode"] == "url" {
        true => agree(
            &format!("Open {} in a browser. Done? [y/N] ", word(&question["url"])),
            false,
        )
        .map(|agreed| agreed.then_some(None)),
        false => fill(&question["requestedSchema"]),
    };
    match asked {
        None => ElicitResult::new(ElicitationAction::Cancel),
        Some(None) => ElicitResult::new(ElicitationAction::Decline),
        Some(Some(None)) => ElicitResult::new(ElicitationAction::Accept),
        Some(Some(Some(content))) => {
            ElicitResult::new(ElicitationAction::Accept).with_content(content)
        }
    }
}

/// Asks the user for each property of a schema. Returns `None` if standard input has ended, and `Some(None)` if the user
/// declined.
#[allow(
    clippy::option_option,
    reason = "the three answers of a question: cancelled, declined, accepted"
)]
fn fill(schema: &Value) -> Option<Option<Option<Value>>> {
    if !agree("Answer? [Y/n] ", true)? {
        return Some(None);
    }
    let mut content = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = list(&schema["required"])
            .iter()
            .any(|it| it == name.as_str());
        loop {
            let text = line(&prompt(name, property, is_required))?;
            if text.is_empty() {
                match property.get("default") {
                    Some(value) => drop(content.insert(name.clone(), value.clone())),
                    None if is_required => continue,
                    None => {}
                }
                break;
            }
            let value = typed(&text, property, schema).and_then(|value| among(value, property));
            match value {
                Ok(value) => {
                    content.insert(name.clone(), value);
                    break;
                }
                Err(error) => print_line(&format!("{name} {error}")),
            }
        }
    }
    Some(Some(Some(Value::Object(content))))
}

/// Returns the value if it is among the property's choices or the property has none. Otherwise returns an error.
fn among(value: Value, property: &Value) -> Result<Value, String> {
    let choices = choices(property);
    match choices.is_empty() || choices.contains(&&value) {
        true => Ok(value),
        false => Err("must be one of the choices".to_owned()),
    }
}

fn choices(property: &Value) -> Vec<&Value> {
    let plain = list(&property["enum"]).iter();
    let titled = list(&property["oneOf"])
        .iter()
        .filter_map(|it| it.get("const"));
    plain.chain(titled).collect()
}

fn prompt(name: &str, property: &Value, is_required: bool) -> String {
    let mut prompt = property["title"].as_str().unwrap_or(name).to_owned();
    let description = word(&property["description"]);
    if !description.is_empty() {
        prompt += &format!(" ({description})");
    }
    let choices = choices(property);
    let shown = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
    if !choices.is_empty() {
        let choices: Vec<_> = choices.into_iter().map(shown).collect();
        prompt += &format!(" [{}]", choices.join(", "));
    }
    match property.get("default") {
        Some(value) => prompt += &format!(" [default: {}]", shown(value)),
        None if !is_required => prompt += " [may be empty]",
        None => {}
    }
    prompt + ": "
}

fn agree(prompt: &str, default: bool) -> Option<bool> {
    Some(match line(prompt)?.to_lowercase().as_str() {
        "" => default,
        "y" | "yes" => true,
        _ => false,
    })
}

/// Shows the prompt and reads a line of standard input. Returns `None` at the end of the input.
fn line(prompt: &str) -> Option<String> {
    let mut out = std::io::stderr();
    let _ = write!(out, "{}", printable_text(prompt));
    let _ = out.flush();
    let mut text = String::new();
    match std::io::stdin().read_line(&mut text) {
        Ok(read) if read > 0 => Some(text.trim().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_names_choices_and_the_default() {
        let property =
            json!({"type": "string", "title": "Colour", "enum": ["red", "blue"], "default": "red"});
        assert_eq!(
            prompt("c", &property, true),
            "Colour [red, blue] [default: red]: "
        );
        assert_eq!(prompt("n", &json!({}), false), "n [may be empty]: ");
        assert!(among(json!("green"), &property).is_err());
        assert!(among(json!("blue"), &property).is_ok());
        let titled = json!({"oneOf": [{"const": "a", "title": "A"}]});
        assert!(among(json!("b"), &titled).is_err() && among(json!("a"), &titled).is_ok());
    }
}
