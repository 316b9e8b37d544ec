//! Files that operators install (`packaging/`): metrics and labels of alert rules and dashboards exist, and configurations can
//! be used. `packaging/tests` has the tests that need programs of operators.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tooldock_base::yaml;

use crate::support::ports::free_address;
use crate::support::programs::root;

/// Crates whose sources declare metrics.
const CRATES: [&str; 14] = [
    "filters",
    "mcp-upstream",
    "mcp-upstream/engine",
    "mcp-upstream/protocol",
    "mcp-upstream/servers",
    "mcp-upstream/sessions",
    "proxy",
    "proxy/otlp",
    "workers",
    "workers/base",
    "workers/builder",
    "workers/credentials",
    "workers/openapi",
    "workers/process",
];

/// Labels that Prometheus adds to series, and that of a histogram's buckets.
const ADDED_LABELS: [&str; 3] = ["instance", "job", "le"];

/// Series of a histogram, beside its name.
const HISTOGRAM_ENDS: [&str; 3] = ["_bucket", "_count", "_sum"];

/// Labels by the name of their metric.
type Families = BTreeMap<String, BTreeSet<String>>;

fn sources_below(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources_below(&path, sources);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            sources.push(path);
        }
    }
}

/// Texts in quotes.
fn quoted(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split('"').skip(1).step_by(2).map(str::to_owned)
}

/// Labels of a metric, from the source on both sides of its name: `Kind["label", …] = NAME` of a `metric_table!`, or
/// `&["label", …]` in the call or function that makes it.
fn declared_labels(before: &str, after: &str) -> BTreeSet<String> {
    if let Some(declaration) = before.trim_end().strip_suffix('=') {
        let declaration = declaration.trim_end();
        let inside = declaration
            .strip_suffix(']')
            .and_then(|text| text.rsplit_once('['));
        return inside.map_or_else(BTreeSet::new, |(_, labels)| quoted(labels).collect());
    }
    let function = after.split("fn ").next().unwrap_or_default();
    let inside = function
        .split_once("&[\"")
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or_else(BTreeSet::new, |(labels, _)| {
        quoted(&format!("\"{labels}")).collect()
    })
}

/// Metrics that the sources declare, with their labels.
fn families() -> Families {
    let mut sources = Vec::new();
    for name in CRATES {
        sources_below(&root().join(name).join("src"), &mut sources);
    }
    let mut families = Families::new();
    for source in sources {
        let text = fs::read_to_string(source).unwrap();
        let text = text
            .split("#[cfg(test)]\nmod tests")
            .next()
            .unwrap_or_default();
        for prefix in ["\"tooldock_", "\"process_"] {
            for (start, _) in text.match_indices(prefix) {
                let (before, rest) = text.split_at(start);
                let Some((name, after)) = rest[1..].split_once('"') else {
                    continue;
                };
                let labels = declared_labels(before, after);
                families.entry(name.to_owned()).or_default().extend(labels);
            }
        }
    }
    assert!(families.len() > 80, "{families:?}");
    families
}

#[test]
fn labels_of_metrics_are_read_from_the_sources() {
    let families = families();
    let expected: [(&str, &[&str]); 4] = [
        ("tooldock_sessions", &[]),
        ("tooldock_requests_total", &["route", "status"]),
        ("tooldock_long_polls_total", &["cause", "route"]),
        (
            "tooldock_tool_calls_by_tool_total",
            &["namespace", "outcome", "tool"],
        ),
    ];
    for (name, labels) in expected {
        let found: Vec<_> = families[name].iter().map(String::as_str).collect();
        assert_eq!(found, labels, "{name}");
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The metrics of an expression, each with the labels in its braces.
fn selected(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_word) {
        let word = &rest[start..];
        let end = word.find(|c: char| !is_word(c)).unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        rest = after;
        if !["tooldock_", "process_"]
            .iter()
            .any(|prefix| name.starts_with(*prefix))
        {
            continue;
        }
        let braces = after
            .strip_prefix('{')
            .and_then(|inside| inside.split_once('}'));
        let conditions = braces.map_or("", |(inside, _)| inside).split(',');
        let labels = conditions.filter_map(|condition| {
            let label = condition.split(['=', '!']).next()?.trim();
            (!label.is_empty()).then(|| label.to_owned())
        });
        found.push((name.to_owned(), labels.collect()));
    }
    found
}

/// Labels behind `by (`.
fn grouped(expression: &str) -> Vec<String> {
    let lists = expression.split("by (").skip(1);
    let lists = lists.filter_map(|rest| Some(rest.split_once(')')?.0));
    let labels = lists.flat_map(|list| list.split(','));
    labels.map(|label| label.trim().to_owned()).collect()
}

/// Labels that a text shows: `{{label}}` of a legend, `{{ $labels.label }}` of an alert.
fn shown(text: &str) -> Vec<String> {
    let places = text.split("{{").skip(1);
    let places = places.filter_map(|rest| Some(rest.split_once("}}")?.0.trim()));
    let labels = places.filter_map(|place| match place.strip_prefix('$') {
        None => Some(place),
        Some(variable) => {
            let label = variable.strip_prefix("labels.")?;
            label.split(|c: char| !is_word(c)).next()
        }
    });
    labels.map(str::to_owned).collect()
}

/// Metrics and labels of an expression, and labels shown with it, that the gateway lacks.
fn unknown(families: &Families, expression: &str, shown: &[String]) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut together = BTreeSet::new();
    for (name, labels) in selected(expression) {
        let family = HISTOGRAM_ENDS
            .iter()
            .filter_map(|end| name.strip_suffix(*end))
            .find(|family| families.contains_key(*family))
            .unwrap_or(&name);
        let Some(known) = families.get(family) else {
            unknown.push(name);
            continue;
        };
        together.extend(known.iter().map(String::as_str));
        let missing = labels
            .iter()
            .filter(|label| !known.contains(*label) && !ADDED_LABELS.contains(&label.as_str()));
        unknown.extend(missing.map(|label| format!("{name}{{{label}}}")));
    }
    for label in grouped(expression).iter().chain(shown) {
        if !together.contains(label.as_str()) && !ADDED_LABELS.contains(&label.as_str()) {
            unknown.push(format!("{label} of {expression}"));
        }
    }
    unknown
}

#[test]
fn metrics_and_labels_of_the_alert_rules_exist() {
    let families = families();
    let text = fs::read_to_string(root().join("packaging/prometheus/alerts.yaml")).unwrap();
    let file: Value = yaml::from_str(&text).unwrap();
    let rules = file["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 9, "{}", rules.len());
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let summary = rule["annotations"]["summary"].as_str().unwrap();
        let unknown = unknown(&families, expression, &shown(summary));
        assert!(unknown.is_empty(), "{}: {unknown:?}", rule["alert"]);
    }
}

#[test]
fn metrics_and_labels_of_the_dashboards_exist() {
    let families = families();
    let mut boards = 0;
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("packaging/grafana")).unwrap() {
        let path = entry.unwrap().path();
        let board: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        boards += 1;
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                let legend = shown(target["legendFormat"].as_str().unwrap());
                found.extend(unknown(&families, expression, &legend));
            }
        }
        for variable in board["templating"]["list"].as_array().unwrap() {
            // label_values(METRIC{…}, LABEL)
            let Some(query) = variable["definition"].as_str() else {
                continue;
            };
            let (_, label) = query.trim_end_matches(')').rsplit_once(',').unwrap();
            found.extend(unknown(&families, query, &[label.trim().to_owned()]));
        }
    }
    assert_eq!(boards, 4);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_metric_or_label_that_the_gateway_lacks_is_found() {
    let families = families();
    let unknown = |expression: &str, text: &str| unknown(&families, expression, &shown(text));
    assert_eq!(unknown("tooldock_nothing > 0", ""), ["tooldock_nothing"]);
    assert_eq!(
        unknown("tooldock_sessions{colour=\"red\"}", ""),
        ["tooldock_sessions{colour}"]
    );
    assert_eq!(unknown("sum by (colour) (tooldock_sessions)", "").len(), 1);
    assert_eq!(
        unknown("tooldock_sessions", "{{ $labels.colour }}").len(),
        1
    );
    assert_eq!(
        unknown("tooldock_request_seconds_bucket{route=\"/\"}", "{{le}}"),
        [""; 0]
    );
}

/// Runs `tooldock check` of a configuration, with the secrets of a service in files of this folder.
fn check(folder: &Path, configuration: &str) {
    let file = folder.join("tooldock.yaml");
    fs::write(&file, configuration).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    command
        .args(["check", "-c"])
        .arg(&file)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("DATA_DIR", folder.join("data"));
    for name in ["core", "manager", "metrics"] {
        let port = free_address().port().to_string();
        command.env(format!("TOOLDOCK_{}_PORT", name.to_uppercase()), port);
    }
    for name in [
        "bearer_token",
        "manager_internal_token",
        "secrets_key",
        "session_key",
        "valkey_password",
    ] {
        let secret = folder.join(name);
        fs::write(&secret, format!("{name}-0123456789abcdef0123456789abcdef")).unwrap();
        if name != "valkey_password" {
            command.env(format!("{}_FILE", name.to_uppercase()), &secret);
        }
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn packages_close_the_variables_of_the_service_to_other_users() {
    let manifest = fs::read_to_string(root().join("proxy/Cargo.toml")).unwrap();
    let lines = manifest.lines();
    let lines: Vec<_> = lines
        .filter(|line| line.contains("packaging/etc/environment\""))
        .collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        assert!(line.contains("\"640\""), "{line}");
    }
    let setup = fs::read_to_string(root().join("packaging/setup")).unwrap();
    for command in [
        "chown root:tooldock /etc/tooldock/environment",
        "chmod 0640 /etc/tooldock/environment",
    ] {
        assert!(setup.contains(command), "{command}");
    }
}

#[test]
fn the_configuration_of_the_service_can_be_used_as_it_is_and_with_its_examples() {
    let text = fs::read_to_string(root().join("packaging/etc/tooldock.yaml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    check(folder.path(), &text);

    // Examples begin at the `#`, or two spaces behind it; a space alone begins a comment.
    let example = |line: &str| -> Option<String> {
        let code = line.strip_prefix('#')?;
        let indent = code.len() - code.trim_start().len();
        (!code.is_empty() && [0, 2].contains(&indent)).then(|| code.to_owned())
    };
    let lines = text
        .lines()
        .map(|line| example(line).unwrap_or_else(|| line.to_owned()));
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let with_examples = lines
        .collect::<Vec<_>>()
        .join("\n")
        .replace("/var/log/tooldock", logs.to_str().unwrap());
    assert!(
        with_examples.contains("\n  store: disk\n"),
        "{with_examples}"
    );
    check(folder.path(), &with_examples);
}

#[test]
fn the_configuration_of_replicas_in_kubernetes_can_be_used() {
    let text = fs::read_to_string(root().join("packaging/kubernetes/base/tooldock.yaml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let port = free_address().port();
    let text = text
        .replace("POD_IP:7100", &format!("127.0.0.1:{port}"))
        .replace(
            "dns:tooldock-replicas:7100",
            &format!("dns:localhost:{port}"),
        )
        .replace("/run/secrets/tooldock", folder.path().to_str().unwrap());
    check(folder.path(), &text);
}
