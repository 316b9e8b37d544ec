//! `tooldock explain`: requests from the running gateway the rights of a principal in a namespace, with the rules that grant
//! them, or the list of principals.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tooldock_upstream::management::core::{CoreLink as _, CoreRequest};
use tooldock_workers::explain::{Explanation, Principals, Question, Reach, ReachQuestion};

use crate::cli::ExplainArgs;
use crate::config::dev_tokens;
use crate::config::{self, CoreUrl, Effective};
use crate::operator::CommandFailure;
use crate::operator::gateway::core_at;
use crate::operator::output::{self, TerminalText};
use crate::serve::{CoreAddress, CoreOverHttp};
use crate::{print, refuse};

/// Runs `tooldock explain`.
pub(crate) fn run(arguments: ExplainArgs) -> ExitCode {
    let asker = match prepared(&arguments) {
        Ok(prepared) => prepared,
        Err(reason) => return refuse(reason),
    };
    let answer = match (arguments.principal, arguments.namespace) {
        (Some(who), Some(namespace)) => {
            let question = Question {
                who,
                namespace,
                tool: arguments.tool,
            };
            let asked = request_json::<Explanation>(&asker, &question);
            asked.map(|answer| {
                let text = text_or_json(&answer, explanation_text, arguments.json);
                (text, answer.allowed)
            })
        }
        (Some(who), None) => {
            let asked = request_json::<Reach>(&asker, &ReachQuestion { who });
            asked.map(|answer| (text_or_json(&answer, reached, arguments.json), true))
        }
        // Without a principal there is no namespace either, as clap requires one for it: list all principals.
        (None, _) => {
            let asked = request_json::<Principals>(&asker, &json!({}));
            asked.map(|answer| (text_or_json(&answer, listed, arguments.json), true))
        }
    };
    match answer {
        Ok((text, true)) => print(&text),
        // Scripts read the refusal from the exit status.
        Ok((text, false)) => {
            print(&text);
            ExitCode::FAILURE
        }
        Err(failure) => failure.exit(),
    }
}

fn text_or_json<T: Serialize>(
    answer: &T,
    for_people: impl Fn(&T) -> String,
    as_json: bool,
) -> String {
    match as_json {
        true => output::json(answer),
        false => for_people(answer),
    }
}

/// The data for requests to the running gateway: the configuration with its tokens, and the gateway's address.
struct Asker {
    effective: Effective,
    at: CoreAddress,
    /// True if `BEARER_TOKEN` or its file is set; false if the token is a stored one of `serve --dev`.
    is_set: bool,
}

/// Requests the tools that a new key opens from the running gateway.
///
/// # Errors
///
/// The reason why the request failed.
pub(crate) fn reach(
    config: Option<&Path>,
    data_dir: Option<&Path>,
    at: CoreAddress,
    key: &str,
) -> Result<Reach, String> {
    let (effective, is_set) = with_tokens(config, data_dir)?;
    let asker = Asker {
        effective,
        at,
        is_set,
    };
    let who = key.to_owned();
    request_json(&asker, &ReachQuestion { who }).map_err(CommandFailure::into_reason)
}

/// Loads a configuration with the tokens of the running gateway. The returned flag is true if `BEARER_TOKEN` or its file is set;
/// false if the token is a stored one of `serve --dev`.
fn with_tokens(
    config: Option<&Path>,
    data_dir: Option<&Path>,
) -> Result<(Effective, bool), String> {
    let mut effective = config::load_for_command(config, data_dir)?;
    let data = effective.data_dir.clone();
    let found = |token: anyhow::Result<_>| token.map_err(|error| format!("{error:#}"));
    let is_set = effective.bearer.is_some();
    if !is_set {
        effective.bearer = found(dev_tokens::found_token(&data))?;
    }
    if effective.generated.manager {
        let kept = found(dev_tokens::found_manager_token(&data))?.ok_or_else(|| {
            format!(
                "MANAGER_INTERNAL_TOKEN: not set, nor is MANAGER_INTERNAL_TOKEN_FILE, and {} has no token of serve --dev; \
                 it is shown to the running gateway, which needs the same one",
                data.display()
            )
        })?;
        effective.keep_manager(kept);
    }
    Ok((effective, is_set))
}

fn prepared(arguments: &ExplainArgs) -> Result<Asker, String> {
    let (effective, is_set) =
        with_tokens(arguments.config.as_deref(), arguments.data_dir.as_deref())?;
    let option = arguments.core.as_deref().map(|url| ("--core", url));
    let (at, _) = core_at(&effective, option, &arguments.trust)?;
    Ok(Asker {
        effective,
        at,
        is_set,
    })
}

fn request_json<T: DeserializeOwned>(
    asker: &Asker,
    question: &impl Serialize,
) -> Result<T, CommandFailure> {
    let refused = CommandFailure::Refused;
    let question = serde_json::to_vec(question).map_err(|error| refused(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| refused(error.to_string()))?;
    let core = CoreOverHttp::at(&asker.effective, asker.at.clone(), "");
    let request = CoreRequest::Explain {
        question: question.into(),
    };
    let answer = runtime
        .block_on(core.send(request))
        .map_err(|error| {
            let error = error.to_string();
            let hint = match error.contains("TLS: invalid peer certificate") {
                true => ". Name the certificates that vouch for it with --ca, or, on this machine, take any with --insecure",
                false => "",
            };
            CommandFailure::Unreachable(format!(
                "the running gateway cannot be asked: {error}{hint}"
            ))
        })?;
    if !answer.status.is_success() {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let detail = body["detail"].as_str().unwrap_or("no reason is given");
        let hint = match (answer.status.as_u16(), asker.is_set) {
            (401, false) => {
                " BEARER_TOKEN is not set, nor is BEARER_TOKEN_FILE: set one of them to the token of the running gateway."
            }
            (401, true) => {
                " BEARER_TOKEN, or what its file holds, is not the token of the running gateway."
            }
            (403, _) if matches!(asker.at.url, CoreUrl::Unix(_)) => {
                " Clients of a Unix socket may ask where admission.internal_cidrs names unix."
            }
            _ => "",
        };
        return Err(refused(format!("{detail} ({}).{hint}", answer.status)));
    }
    serde_json::from_slice(&answer.body).map_err(|error| {
        refused(format!(
            "the gateway's answer is not understood ({error}): it is of another version"
        ))
    })
}

/// Formats the principals as text, one per line.
fn listed(answer: &Principals) -> String {
    let mut lines = TerminalText::for_stdout();
    for principal in &answer.principals {
        let id = principal.key_id.as_deref();
        let id = id.map(|id| format!(" {id}")).unwrap_or_default();
        let state = match &*principal.state {
            "active" => String::new(),
            state => format!(", {state}"),
        };
        lines.push(format!(
            "{}  ({}{id}{state})",
            principal.name, principal.credential
        ));
    }
    if answer.left_out > 0 {
        lines.push(format!("and {} more", answer.left_out));
    }
    lines.into_text()
}

/// Formats the tools that a credential opens as text, one namespace per line.
fn reached(answer: &Reach) -> String {
    let mut lines = TerminalText::for_stdout();
    lines.push(format!(
        "{} ({}) may call:",
        answer.principal, answer.credential
    ));
    for it in &answer.namespaces {
        lines.push(format!(
            "  {}: {} of {} tools",
            it.namespace, it.open, it.tools
        ));
    }
    for note in &answer.notes {
        lines.push(format!("Note: {note}."));
    }
    lines.into_text()
}

/// Formats an explanation of rights as text.
fn explanation_text(answer: &Explanation) -> String {
    let mut lines = TerminalText::for_stdout();
    let may = if answer.allowed { "may" } else { "may not" };
    let what = match &answer.tool {
        Some(tool) => format!("call {tool} in"),
        None => "use".to_owned(),
    };
    lines.push(format!(
        "{} ({}) {may} {what} {}:",
        answer.principal, answer.credential, answer.namespace
    ));
    if let Some(state) = &answer.state {
        lines.push(format!("  {} is {state}", answer.namespace));
    }
    for rule in &answer.rules {
        let word = if rule.allows { "allows " } else { "REFUSES" };
        lines.push(format!("  {word}  {}: {}", rule.rule, rule.says));
    }
    if !answer.tools.is_empty() {
        lines.push("Tools:");
    }
    for tool in &answer.tools {
        lines.push(match &tool.refused_by {
            None => format!("  allowed  {}", tool.name),
            Some(rule) => format!("  refused  {} ({rule})", tool.name),
        });
    }
    if answer.left_out > 0 {
        lines.push(format!("  and {} more", answer.left_out));
    }
    for note in &answer.notes {
        lines.push(format!("Note: {note}."));
    }
    lines.into_text()
}

#[cfg(test)]
mod tests {
    use tooldock_workers::explain::{KnownPrincipal, Rule, ToolAccess};

    use super::*;

    #[test]
    fn the_answer_names_the_rule_that_refuses() {
        let rule = |rule: &str, allows, says: &str| Rule {
            rule: rule.into(),
            allows,
            says: says.into(),
        };
        let answer = Explanation {
            principal: "key:ci".into(),
            credential: "API key abc".into(),
            namespace: "work".into(),
            state: None,
            tool: Some("make".into()),
            allowed: false,
            rules: vec![
                rule("credential", true, "API key abc counts"),
                rule("scopes", false, "read does not open make"),
            ],
            tools: Vec::new(),
            left_out: 0,
            notes: vec!["work lists no tool make at the moment".into()],
        };
        assert_eq!(
            explanation_text(&answer),
            "key:ci (API key abc) may not call make in work:\n\
             \x20 allows   credential: API key abc counts\n\
             \x20 REFUSES  scopes: read does not open make\n\
             Note: work lists no tool make at the moment.\n"
        );
        let all = Explanation {
            state: None,
            tool: None,
            allowed: true,
            tools: vec![ToolAccess {
                name: "list".into(),
                allowed: true,
                refused_by: None,
            }],
            left_out: 3,
            notes: Vec::new(),
            rules: Vec::new(),
            ..answer
        };
        assert_eq!(
            explanation_text(&all),
            "key:ci (API key abc) may use work:\nTools:\n  allowed  list\n  and 3 more\n"
        );
    }

    #[test]
    fn names_and_rules_cannot_drive_the_terminal() {
        let evil = "a\u{1b}[2J\nb\u{202e}c\u{2028}d";
        let shown = "a\\u{1b}[2J\\nb\\u{202e}c\\u{2028}d";
        let answer = Explanation {
            principal: evil.into(),
            credential: "token".into(),
            namespace: "work".into(),
            state: None,
            tool: None,
            allowed: true,
            rules: vec![Rule {
                rule: "scopes".into(),
                allows: true,
                says: evil.into(),
            }],
            tools: vec![ToolAccess {
                name: evil.into(),
                allowed: true,
                refused_by: None,
            }],
            left_out: 0,
            notes: vec![evil.into()],
        };
        assert_eq!(
            explanation_text(&answer),
            format!(
                "{shown} (token) may use work:\n  allows   scopes: {shown}\nTools:\n  allowed  {shown}\nNote: {shown}.\n"
            )
        );
        let json = super::text_or_json(&evil, |_| String::new(), true);
        assert!(!json.contains(['\u{1b}', '\u{202e}', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), evil);
        let principal = KnownPrincipal {
            name: evil.into(),
            credential: "token".into(),
            key_id: None,
            state: "active".into(),
        };
        assert_eq!(
            listed(&Principals::new(vec![principal])),
            format!("{shown}  (token)\n")
        );
    }
}
