//! `tooldock explain`: the rights of a principal in a namespace and the rules behind them, or the list of principals,
//! requested from the running gateway.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tooldock_process::child::output::printable_text;
use tooldock_upstream::management::core::{CoreLink as _, CoreRequest};
use tooldock_workers::explain::{Explanation, Principals, Question, Reach, ReachQuestion};

use crate::cli::{ExplainArgs, GatewayTrust};
use crate::config::dev_tokens;
use crate::config::{
    self, ClientAuth, CoreUrl, Effective, ListenAddress, ListenerConfig, ProfileName,
};
use crate::serve::{CoreAddress, CoreOverHttp, CoreTrust};
use crate::{print, refuse, tls};

/// Runs `tooldock explain` against the gateway that the configuration describes.
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
            let asked = asked::<Explanation>(&asker, &question);
            asked.map(|answer| shown(&answer, told, arguments.json))
        }
        (Some(who), None) => {
            let asked = asked::<Reach>(&asker, &ReachQuestion { who });
            asked.map(|answer| shown(&answer, reached, arguments.json))
        }
        // clap requires a principal beside a namespace.
        (None, _) => {
            let asked = asked::<Principals>(&asker, &json!({}));
            asked.map(|answer| shown(&answer, listed, arguments.json))
        }
    };
    match answer {
        Ok(text) => print(&text),
        Err(reason) => {
            eprintln!("tooldock: {}", printable_text(&reason));
            ExitCode::FAILURE
        }
    }
}

fn shown<T: Serialize>(answer: &T, for_people: impl Fn(&T) -> String, as_json: bool) -> String {
    match as_json {
        // The answer holds only texts, so it can always be written as JSON.
        true => json_text(&serde_json::to_string_pretty(answer).unwrap_or_default()) + "\n",
        false => for_people(answer),
    }
}

/// Escapes characters of a JSON text that control a terminal: JSON itself escapes only some of them.
fn json_text(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        let shown = printable_text(character.encode_utf8(&mut [0; 4]));
        match character == '\n' || shown.chars().eq([character]) {
            true => text.push(character),
            false => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text
}

/// A configuration with its tokens, and the address of the gateway that is asked.
struct Asker {
    effective: Effective,
    at: CoreAddress,
    /// True when BEARER_TOKEN or its file is set.
    is_set: bool,
}

/// The tools that a new key opens in the running gateway of a configuration.
///
/// # Errors
///
/// The reason why the gateway cannot be asked.
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
    asked(&asker, &ReachQuestion { who })
}

/// A configuration with the tokens of the running gateway, and true if BEARER_TOKEN or its file is set.
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
    let at = core_at(&effective, arguments.core.as_deref(), &arguments.trust)?;
    Ok(Asker {
        effective,
        at,
        is_set,
    })
}

/// The address of the core, by `--core` or by the configuration, with the trust that options choose.
///
/// # Errors
///
/// A line that names the option, or the reason why no listener can be asked.
pub(crate) fn core_at(
    effective: &Effective,
    core: Option<&str>,
    trust: &GatewayTrust,
) -> Result<CoreAddress, String> {
    let mut at = match core {
        Some(url) => {
            let url: CoreUrl = url.parse().map_err(|error| format!("--core: {error}"))?;
            url.into()
        }
        None => core_of(effective)?,
    };
    if let Some(file) = &trust.ca {
        at.trust = CoreTrust::of_file(file).map_err(|error| format!("--ca: {error}"))?;
    }
    if trust.insecure {
        if !at.url.is_local() {
            return Err(format!(
                "--insecure: {} is no address of this machine, and tokens go there: name the certificates that vouch for \
                 it with --ca",
                at.url
            ));
        }
        at.trust = CoreTrust::Any;
    }
    Ok(at)
}

/// The address of the core, by `CORE_URL` or by the listeners of the configuration.
fn core_of(effective: &Effective) -> Result<CoreAddress, String> {
    if effective.core_url != CoreUrl::default() {
        return Ok(effective.core_url.clone().into());
    }
    let listeners = || {
        let listeners = effective.config.listeners.iter();
        listeners.filter(|it| it.profile == ProfileName::Core && !it.proxy_protocol)
    };
    let of = |wanted: fn(&ListenerConfig) -> bool| listeners().find(|it| wanted(it));
    let found = of(|it| it.tls.is_none() && matches!(it.address, ListenAddress::Tcp(_)))
        .or_else(|| {
            of(|it| {
                let tls = it.tls.as_ref();
                let may_ask = tls.is_some_and(|tls| tls.client_auth != ClientAuth::Required);
                may_ask && matches!(it.address, ListenAddress::Tcp(_))
            })
        })
        .or_else(|| of(|it| it.tls.is_none()));
    let listener = found.ok_or(
        "no listener of the profile core can be asked: each takes headers of the PROXY protocol, or wants a client's \
         certificate; name an address of the core with --core",
    )?;
    Ok(match &listener.address {
        ListenAddress::Unix(path) => CoreUrl::Unix(path.clone()).into(),
        ListenAddress::Tcp(address) => CoreAddress {
            url: reachable(*address, listener.tls.is_some()),
            tls_name: listener.tls.as_ref().and_then(tls::certificate_name),
            host: served_host(effective, address),
            trust: CoreTrust::System,
        },
    })
}

/// A host name under which the listener answers, if it does not answer to its address. Loopback listeners always do.
fn served_host(effective: &Effective, address: &SocketAddr) -> Option<String> {
    if address.ip().is_loopback() {
        return None;
    }
    let hosts = effective.config.admission.hosts.iter();
    let names = hosts.map(ToString::to_string);
    names.into_iter().find(|it| !it.contains('*'))
}

/// The URL at which a client on this machine reaches a listener; loopback for a listener on all addresses.
fn reachable(address: SocketAddr, tls: bool) -> CoreUrl {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        IpAddr::V6(ip) if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    };
    let port = address.port();
    CoreUrl::Tcp { host, port, tls }
}

fn asked<T: DeserializeOwned>(asker: &Asker, question: &impl Serialize) -> Result<T, String> {
    let question = serde_json::to_vec(question).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
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
            format!("the running gateway cannot be asked: {error}{hint}")
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
        return Err(format!("{detail} ({}).{hint}", answer.status));
    }
    serde_json::from_slice(&answer.body).map_err(|error| {
        format!("the gateway's answer is not understood ({error}): it is of another version")
    })
}

/// Lines for a terminal, with control characters escaped: names and rules come from tools, clients and configurations.
#[derive(Default)]
struct TerminalText(String);

impl TerminalText {
    fn push(&mut self, line: impl AsRef<str>) {
        self.0.push_str(&printable_text(line.as_ref()));
        self.0.push('\n');
    }
}

/// The principals as text for people, one per line.
fn listed(answer: &Principals) -> String {
    let mut lines = TerminalText::default();
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
    lines.0
}

/// The tools of all namespaces that a credential opens, one namespace per line.
fn reached(answer: &Reach) -> String {
    let mut lines = TerminalText::default();
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
    lines.0
}

/// The answer as text for people.
fn told(answer: &Explanation) -> String {
    let mut lines = TerminalText::default();
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
    lines.0
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
            told(&answer),
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
            told(&all),
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
            told(&answer),
            format!(
                "{shown} (token) may use work:\n  allows   scopes: {shown}\nTools:\n  allowed  {shown}\nNote: {shown}.\n"
            )
        );
        let json = super::shown(&evil, |_| String::new(), true);
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

    #[test]
    fn an_address_of_all_interfaces_is_asked_on_this_machine() {
        for (address, url) in [
            ("0.0.0.0:8000", "http://127.0.0.1:8000"),
            ("[::]:8000", "http://[::1]:8000"),
            ("10.0.0.1:80", "http://10.0.0.1:80"),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(reachable(address, false).to_string(), url);
            let encrypted = url.replace("http:", "https:");
            assert_eq!(reachable(address, true).to_string(), encrypted);
        }
    }
}
