//! Lines of the import's report about limits that the gateway has by default and the imported nginx did not have, and about
//! sessions, which end with a restart of the gateway.

use tooldock_base::yaml::Value;

use crate::config::Config;

/// A limit that the gateway has by default: the path of its configuration key, and its description for the report.
struct NewLimit {
    path: &'static [&'static str],
    words: String,
}

/// Returns the report's lines about limits whose key the imported configuration does not set.
pub(super) fn lines(yaml: &Value) -> Vec<String> {
    let defaults = Config::default();
    let limits = &defaults.namespaces.defaults;
    let timeout = humantime_serde::re::humantime::format_duration(limits.timeout);
    let admission = &defaults.admission.limits;
    let slowed = defaults.admission.failures.limits().map(|failures| NewLimit {
        path: &["admission", "failures"],
        words: format!(
            "after {} wrong tokens of an address, more of them get 429 for up to {} (failures); right ones are admitted",
            failures.free,
            humantime_serde::re::humantime::format_duration(failures.max_delay)
        ),
    });
    let all = [
        NewLimit {
            path: &["namespaces", "defaults", "max_concurrency"],
            words: format!(
                "{} calls of a namespace run at once and {} wait (max_concurrency, queue); more get 503 overloaded",
                limits.max_concurrency.remote(),
                limits.queue
            ),
        },
        NewLimit {
            path: &["namespaces", "defaults", "timeout"],
            words: format!(
                "a call takes at most {timeout} (timeout), its stream included; nginx ended silences of 60s"
            ),
        },
        NewLimit {
            path: &["namespaces", "defaults", "max_result"],
            words: format!("an answer holds at most {} (max_result)", limits.max_result),
        },
        NewLimit {
            path: &["admission", "limits", "streams_per_principal"],
            words: format!(
                "a principal holds at most {} streams and {} sessions (streams_per_principal, sessions_per_principal)",
                admission.streams_per_principal, admission.sessions_per_principal
            ),
        },
        NewLimit {
            path: &["admission", "limits", "header_fields"],
            words: format!(
                "a request has at most {} header lines (header_fields)",
                admission.header_fields
            ),
        },
        NewLimit {
            path: &["sessions", "initialized_wait"],
            words: "a client that sends no notifications/initialized after initialize waits 1s with each request and gets not_initialized; behind nginx its server decided (REQUIRE_INITIALIZED=off serves it)".to_owned(),
        },
        NewLimit {
            path: &["sessions", "store"],
            words: "sessions end with a restart of the gateway, and clients initialize again; behind nginx they lived as long as their server (store: disk keeps them)".to_owned(),
        },
    ];
    let unset = all
        .into_iter()
        .chain(slowed)
        .filter(|limit| !has(yaml, limit.path) && !every_server_has(yaml, limit.path));
    unset
        .map(|limit| {
            format!(
                "{}: {}",
                limit.path[..limit.path.len() - 1].join("."),
                limit.words
            )
        })
        .collect()
}

/// Returns true if every remote server sets the last key of `path` below its `limits`.
fn every_server_has(yaml: &Value, path: &[&str]) -> bool {
    let servers = yaml.get("upstreams").and_then(|it| it.get("remote"));
    let (Some(Value::Mapping(servers)), Some(key)) = (servers, path.last()) else {
        return false;
    };
    servers
        .values()
        .all(|server| has(server, &["limits", *key]))
}

fn has(yaml: &Value, path: &[&str]) -> bool {
    let mut found = yaml;
    for key in path {
        match found.get(*key) {
            Some(value) => found = value,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn limits_that_the_import_sets_are_not_new() {
        let read = |text: &str| lines(&yaml::from_slice(text.as_bytes()).expect("YAML"));
        let all = read("{}");
        for words in ["512 calls of a namespace", "after 30 wrong tokens"] {
            assert!(all.iter().any(|line| line.contains(words)), "{all:?}");
        }
        let set = read(
            "{ namespaces: { defaults: { timeout: 24h } }, admission: { failures: off, limits: { streams_per_principal: 5 } } }",
        );
        assert_eq!(set.len(), all.len() - 3, "{set:?}");
    }
}
