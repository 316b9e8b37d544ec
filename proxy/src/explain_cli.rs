//! `tooldock explain`: rights of a principal in a namespace and the rules behind them, or the list of principals, asked of
//! the running gateway.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tooldock_upstream::management::core::{CoreLink as _, CoreRequest};
use tooldock_workers::explain::{Explanation, Principals, Question};

use crate::cli::ExplainArgs;
use crate::config::{self, CoreUrl, Effective, ListenAddress, ProfileName};
use crate::serve::CoreOverHttp;
use crate::{print, refuse};

/// Asks the gateway that this configuration describes.
pub(crate) fn run(arguments: ExplainArgs) -> ExitCode {
    let (effective, url) = match prepared(&arguments) {
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
            let asked = asked::<Explanation>(&effective, url, &question);
            asked.map(|answer| shown(&answer, told, arguments.json))
        }
        // clap wants both or neither.
        _ => {
            let asked = asked::<Principals>(&effective, url, &json!({}));
            asked.map(|answer| shown(&answer, listed, arguments.json))
        }
    };
    match answer {
        Ok(text) => print(&text),
        Err(reason) => {
            eprintln!("tooldock: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn shown<T: Serialize>(answer: &T, for_people: impl Fn(&T) -> String, as_json: bool) -> String {
    match as_json {
        // A structure of texts is always JSON.
        true => serde_json::to_string_pretty(answer).unwrap_or_default() + "\n",
        false => for_people(answer),
    }
}

/// The configuration with its tokens, and where its gateway is.
fn prepared(arguments: &ExplainArgs) -> Result<(Effective, CoreUrl), String> {
    let mut effective = config::load_for_command(arguments.config.as_deref(), None)?;
    if effective.generated.bearer {
        // The running gateway made another token, or asks for none.
        effective.bearer = None;
    }
    if effective.generated.manager {
        return Err(
            "MANAGER_INTERNAL_TOKEN: not set, nor is MANAGER_INTERNAL_TOKEN_FILE; explain shows it to the running gateway, which needs the same one"
                .into(),
        );
    }
    let url = match &arguments.core {
        Some(url) => url.parse().map_err(|error| format!("--core: {error}"))?,
        None => core_of(&effective)?,
    };
    Ok((effective, url))
}

/// Where the core of a configuration listens, or what `CORE_URL` says.
fn core_of(effective: &Effective) -> Result<CoreUrl, String> {
    if effective.core_url != CoreUrl::default() {
        return Ok(effective.core_url.clone());
    }
    let mut listeners = effective.config.listeners.iter();
    let plain = listeners.find_map(|listener| match listener.address {
        ListenAddress::Tcp(address)
            if listener.profile == ProfileName::Core && listener.tls.is_none() =>
        {
            Some(address)
        }
        _ => None,
    });
    let address = plain.ok_or(
        "no listener of the profile core speaks plain HTTP on a port; name an address of the core with --core http://HOST:PORT",
    )?;
    Ok(reachable(address))
}

/// An address of this machine for one that stands for all of them.
fn reachable(address: SocketAddr) -> CoreUrl {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        IpAddr::V6(ip) if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    };
    let port = address.port();
    CoreUrl { host, port }
}

fn asked<T: DeserializeOwned>(
    effective: &Effective,
    url: CoreUrl,
    question: &impl Serialize,
) -> Result<T, String> {
    let question = serde_json::to_vec(question).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let core = CoreOverHttp::at(effective, url);
    let request = CoreRequest::Explain {
        question: question.into(),
    };
    let answer = runtime
        .block_on(core.send(request))
        .map_err(|error| format!("the running gateway cannot be asked: {error}"))?;
    if !answer.status.is_success() {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let detail = body["detail"].as_str().unwrap_or("no reason is given");
        return Err(format!("{detail} ({})", answer.status));
    }
    serde_json::from_slice(&answer.body).map_err(|error| {
        format!("the gateway's answer is not understood ({error}): it is of another version")
    })
}

/// The principals for people, one in each line.
fn listed(answer: &Principals) -> String {
    let mut text = String::new();
    for principal in &answer.principals {
        let id = principal.key_id.as_deref();
        let id = id.map(|id| format!(" {id}")).unwrap_or_default();
        let state = match &*principal.state {
            "active" => String::new(),
            state => format!(", {state}"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}  ({}{id}{state})",
            principal.name, principal.credential
        );
    }
    if answer.left_out > 0 {
        let _ = writeln!(text, "and {} more", answer.left_out);
    }
    text
}

/// The answer for people.
fn told(answer: &Explanation) -> String {
    let mut text = String::new();
    let may = if answer.allowed { "may" } else { "may not" };
    let what = match &answer.tool {
        Some(tool) => format!("call {tool} in"),
        None => "use".to_owned(),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} ({}) {may} {what} {}:",
        answer.principal, answer.credential, answer.namespace
    );
    for rule in &answer.rules {
        let word = if rule.allows { "allows " } else { "REFUSES" };
        let _ = writeln!(text, "  {word}  {}: {}", rule.rule, rule.says);
    }
    if !answer.tools.is_empty() {
        let _ = writeln!(text, "Tools:");
    }
    for tool in &answer.tools {
        let _ = match &tool.refused_by {
            None => writeln!(text, "  allowed  {}", tool.name),
            Some(rule) => writeln!(text, "  refused  {} ({rule})", tool.name),
        };
    }
    if answer.left_out > 0 {
        let _ = writeln!(text, "  and {} more", answer.left_out);
    }
    for note in &answer.notes {
        let _ = writeln!(text, "Note: {note}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use tooldock_workers::explain::{Rule, ToolAccess};

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
    fn an_address_of_all_interfaces_is_asked_on_this_machine() {
        for (address, url) in [
            ("0.0.0.0:8000", "http://127.0.0.1:8000"),
            ("[::]:8000", "http://[::1]:8000"),
            ("10.0.0.1:80", "http://10.0.0.1:80"),
        ] {
            assert_eq!(reachable(address.parse().unwrap()).to_string(), url);
        }
    }
}
