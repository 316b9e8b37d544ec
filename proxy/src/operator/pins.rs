//! `tooldock pins`: lists the recorded definitions of servers (tools, prompts, resource templates), shows their changes, and
//! approves or forgets them.

use http::Method;
use serde_json::{Value, json};

use super::client::GatewayClient;
use super::gateway::RunningGateway;
use super::output::{self, Cell, Colour, TerminalText};
use super::status::{list, word};
use super::{CommandFailure, Outcome};
use crate::cli::{PinsArgs, PinsCommand};

/// Maximum number of definitions that one request returns.
const PAGE: &str = "500";
/// Number of characters of a digest that the table shows; the rest is cut off.
const DIGEST_SHOWN: usize = 12;

pub(super) async fn run(arguments: PinsArgs) -> Outcome {
    let client = GatewayClient::new(RunningGateway::find(&arguments.gateway)?)?;
    let as_json = arguments.json;
    match arguments.command {
        PinsCommand::List { namespace } => {
            let found = request_pins(&client, namespace.as_deref(), None, false).await?;
            show(as_json, &found, as_table);
        }
        PinsCommand::Diff { namespace, name } => {
            let found = request_pins(&client, namespace.as_deref(), name.as_deref(), true).await?;
            let differs = !list(&found["pins"]).is_empty();
            show(as_json, &found, as_differences);
            if differs {
                return Err(CommandFailure::Shown);
            }
        }
        PinsCommand::Approve {
            namespace,
            name,
            digest,
        } => {
            let mut query = Vec::new();
            query.extend(name.as_deref().map(|it| ("name", it)));
            query.extend(digest.as_deref().map(|it| ("digest", it)));
            let path = ["operator", "pins", &namespace, "approve"];
            let done = client.json(Method::POST, &path, &query).await?;
            show(as_json, &done, |done| approved(&namespace, done));
            if !list(&done["skipped"]).is_empty() {
                return Err(CommandFailure::Shown);
            }
        }
        PinsCommand::Forget { namespace, name } => {
            let query: Vec<_> = name.as_deref().map(|it| ("name", it)).into_iter().collect();
            let path = ["operator", "pins", &namespace, "forget"];
            let done = client.json(Method::POST, &path, &query).await?;
            show(as_json, &done, |done| {
                let done = list(&done["forgotten"]);
                decided(done, "forgotten", "Nothing is recorded.")
            });
        }
    }
    Ok(())
}

fn show(as_json: bool, value: &Value, as_text: impl FnOnce(&Value) -> String) {
    output::show(&match as_json {
        true => output::json(value),
        false => as_text(value),
    });
}

/// Requests the recorded definitions, all pages. With `waiting`, only definitions with a version that waits for approval.
async fn request_pins(
    client: &GatewayClient,
    namespace: Option<&str>,
    name: Option<&str>,
    waiting: bool,
) -> Outcome<Value> {
    let mut pins = Vec::new();
    let mut cursor = String::new();
    loop {
        let mut query = vec![("limit", PAGE), ("cursor", &*cursor)];
        query.extend(namespace.map(|it| ("namespace", it)));
        query.extend(name.map(|it| ("name", it)));
        query.extend(waiting.then_some(("state", "changed,new,suspicious")));
        let page = client
            .json(Method::GET, &["operator", "pins"], &query)
            .await?;
        pins.extend_from_slice(list(&page["pins"]));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return Ok(json!({"pins": pins, "problem": page["problem"]})),
        }
    }
}

fn problem(found: &Value, text: &mut TerminalText) {
    if let Some(problem) = found["problem"].as_str() {
        text.push(format!("Problem: {problem}"));
    }
}

fn state(pin: &Value) -> Cell {
    let state = word(&pin["state"]);
    let colour = match state {
        "approved" => Colour::Green,
        "suspicious" => Colour::Red,
        _ => Colour::Yellow,
    };
    Cell::new(state).coloured(colour)
}

/// The version of a recorded definition to show: the newest one that waits for approval, or else the newest approved one.
fn current(pin: &Value) -> &Value {
    let waiting = list(&pin["pending"]).last();
    let current = waiting.or_else(|| list(&pin["approved"]).last());
    current.unwrap_or(&Value::Null)
}

fn as_table(found: &Value) -> String {
    let mut text = TerminalText::for_stdout();
    problem(found, &mut text);
    let rows: Vec<_> = list(&found["pins"])
        .iter()
        .map(|pin| {
            let digest: String = word(&current(pin)["digest"])
                .chars()
                .take(DIGEST_SHOWN)
                .collect();
            [
                word(&pin["namespace"]).into(),
                word(&pin["kind"]).into(),
                word(&pin["name"]).into(),
                state(pin),
                digest.into(),
            ]
        })
        .collect();
    text.table(["NAMESPACE", "KIND", "NAME", "STATE", "DIGEST"], &rows);
    text.into_text()
}

fn as_differences(found: &Value) -> String {
    let mut text = TerminalText::for_stdout();
    problem(found, &mut text);
    let pins = list(&found["pins"]);
    if pins.is_empty() {
        text.push("Every definition is approved.");
    }
    for (at, pin) in pins.iter().enumerate() {
        if at > 0 {
            text.push("");
        }
        write_pin(pin, &mut text);
    }
    text.into_text()
}

fn write_pin(pin: &Value, text: &mut TerminalText) {
    let waiting = list(&pin["pending"]);
    let versions = match waiting.is_empty() {
        true => std::slice::from_ref(current(pin)),
        false => waiting,
    };
    for (at, version) in versions.iter().enumerate() {
        let which = match versions.len() {
            1 => String::new(),
            all => format!(", version {} of {all} that wait", at + 1),
        };
        text.push(format!(
            "{} {} of {}: {}, digest {}{which}",
            word(&pin["kind"]),
            word(&pin["name"]),
            word(&pin["namespace"]),
            word(&pin["state"]),
            word(&version["digest"]),
        ));
        // The differences of the newest version may be stored in the definition's record and not in the version's.
        let is_last = at + 1 == versions.len();
        let differences = match list(&version["differences"]) {
            [] if is_last => list(&pin["differences"]),
            own => own,
        };
        of_version(version, differences, text);
    }
    if versions.len() > 1 {
        text.push("  Several versions wait: approve the one that you mean by --digest DIGEST");
    }
    if pin["varying"] == true {
        text.push("  The server varies it: further versions are not recorded until you approve one, or forget it");
    }
}

fn of_version(version: &Value, differences: &[Value], text: &mut TerminalText) {
    for finding in list(&version["findings"]) {
        let place = word(&finding["place"]);
        text.push(format!(
            "  ! {}{}{place}: {}",
            word(&finding["code"]),
            if place.is_empty() { "" } else { " in " },
            word(&finding["detail"])
        ));
    }
    for it in differences {
        text.push(format!("  {}", word(&it["path"])));
        for (sign, value) in [("-", &it["before"]), ("+", &it["after"])] {
            if value.is_string() {
                text.push(format!("    {sign} {}", word(value)));
            }
        }
    }
    if differences.is_empty() {
        text.push(match &version["definition"] {
            Value::String(_) => format!("    + {}", word(&version["definition"])),
            _ => "    the definition is too large to be recorded".to_owned(),
        });
    }
}

fn approved(namespace: &str, done: &Value) -> String {
    let skipped = list(&done["skipped"]);
    let nothing = match skipped.is_empty() {
        true => "Nothing waits for approval.",
        false => "Nothing was approved.",
    };
    let mut text = TerminalText::for_stdout();
    for it in skipped {
        let digests = list(&it["digests"]).iter();
        let digests = digests.map(|it| word(it).chars().take(DIGEST_SHOWN).collect::<String>());
        text.push(format!(
            "{} {} was skipped, since several versions of it wait ({}): approve one by tooldock pins approve {namespace} NAME \
             --digest DIGEST",
            word(&it["kind"]),
            word(&it["name"]),
            digests.collect::<Vec<_>>().join(", ")
        ));
    }
    decided(list(&done["approved"]), "approved", nothing) + &text.into_text()
}

fn decided(done: &[Value], what: &str, nothing: &str) -> String {
    let mut text = TerminalText::for_stdout();
    for it in done {
        let digest: String = word(&it["digest"]).chars().take(DIGEST_SHOWN).collect();
        text.push(format!(
            "{} {} is {what}{}{digest}",
            word(&it["kind"]),
            word(&it["name"]),
            if digest.is_empty() { "" } else { ": " },
        ));
    }
    if done.is_empty() {
        text.push(nothing);
    }
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_shown_with_their_findings() {
        let found = json!({"problem": null, "pins": [
            {"namespace": "git", "kind": "tool", "name": "add", "state": "suspicious",
                "approved": [{"digest": "a1", "seen": 1}],
                "pending": [{"digest": "b2", "seen": 2,
                    "findings": [{"code": "instruction", "place": "description", "detail": "\"<important>\""}]}],
                "differences": [{"path": "description", "before": "\"adds\"", "after": "\"<important>\""},
                    {"path": "title", "before": null, "after": "\"x\u{1b}\""}]},
            {"namespace": "git", "kind": "prompt", "name": "ask", "state": "new", "approved": [],
                "pending": [{"digest": "c3", "seen": 2, "definition": "{\"name\":\"ask\"}"}]},
        ]});
        let expected = "suspicious, digest b2\n  ! instruction in description: \"<important>\"\n  description\n    - \"adds\"\n    \
             + \"<important>\"\n  title\n    + \"x\\u{1b}\"\n\nprompt ask of git: new, digest c3\n    + {\"name\":\"ask\"}\n";
        assert_eq!(
            as_differences(&found),
            format!("tool add of git: {expected}")
        );
        let several = json!({"pins": [{"namespace": "git", "kind": "tool", "name": "a\nb", "state": "changed",
            "varying": true, "approved": [{"digest": "a1", "seen": 1}], "pending": [
                {"digest": "b2", "seen": 2, "differences": [{"path": "title", "before": "\"x\"", "after": "\"y\""}]},
                {"digest": "c3", "seen": 3, "findings": [{"code": "instruction", "place": "", "detail": "x\ny"}],
                    "differences": [{"path": "title", "before": "\"x\"", "after": "\"z\""}]}]}]});
        assert_eq!(
            as_differences(&several),
            "tool a\\nb of git: changed, digest b2, version 1 of 2 that wait\n  title\n    - \"x\"\n    + \"y\"\ntool a\\nb of git: \
             changed, digest c3, version 2 of 2 that wait\n  ! instruction: x\\ny\n  title\n    - \"x\"\n    + \"z\"\n  Several \
             versions wait: approve the one that you mean by --digest DIGEST\n  The server varies it: further versions are not \
             recorded until you approve one, or forget it\n"
        );
        let table = as_table(&found);
        assert!(
            table.contains("git        tool    add   suspicious  b2\n"),
            "{table}"
        );
        assert_eq!(
            as_differences(&json!({"pins": [], "problem": "no"})),
            "Problem: no\nEvery definition is approved.\n"
        );
    }
}
