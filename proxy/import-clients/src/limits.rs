//! Keys that entries with a command and entries with a URL share: whether the server is enabled, its time limit, and its tools.

use tooldock_base::yaml::{Mapping, Value as Yaml};

use crate::entry::Reader;
use crate::tree::{Node, Value};

/// Keys of a client's entry that list the tools that may be used.
const ALLOWED: [&str; 6] = [
    "includeTools",
    "enabled_tools",
    "enabledTools",
    "allowedTools",
    "available_tools",
    "tools",
];
/// Keys of a client's entry that list the tools that may not be used.
const DENIED: [&str; 4] = [
    "excludeTools",
    "disabled_tools",
    "disabledTools",
    "disabled-tools",
];
/// Keys of a client's entry that list the tools which the client runs without confirmation by its user.
const APPROVED: [&str; 7] = [
    "alwaysAllow",
    "autoApprove",
    "autoAllow",
    "autoApproved",
    "default_tools_approval_mode",
    "trust",
    "approval_mode",
];
/// Keys of a client's entry that describe a sandbox around the server.
const SANDBOX: [&str; 4] = ["sandboxEnabled", "sandbox", "sandboxed", "permissions"];

impl Reader<'_> {
    /// Reads the keys that entries with a command and entries with a URL share.
    pub(crate) fn shared_keys(&mut self) {
        for (key, off) in [("disabled", true), ("enabled", false), ("isActive", false)] {
            if let Some(node) = self.take(key) {
                match node.value {
                    Value::Bool(value) => self.disabled |= value == off,
                    _ => self.lost(
                        node.line,
                        key,
                        "must be true or false; the server is left on",
                    ),
                }
            }
        }
        self.time_limits();
        for (keys, limit) in [(&ALLOWED[..], "tools_allow"), (&DENIED[..], "tools_deny")] {
            for key in keys {
                self.tools(key, limit);
            }
        }
        for key in APPROVED {
            if let Some(node) = self.take(key)
                && is_said(node)
            {
                self.lost(
                    node.line,
                    key,
                    "the client ran these tools without a question; the gateway asks nobody, and allows tools by limits.tools_allow and the scopes of keys",
                );
            }
        }
        let sandbox_is_off = matches!(
            self.peek("sandboxEnabled").map(|it| &it.value),
            Some(Value::Bool(false))
        );
        for key in SANDBOX {
            if let Some(node) = self.take(key)
                && is_said(node)
                && !sandbox_is_off
            {
                self.security(
                    node.line,
                    key,
                    "the client ran the server in a sandbox, and the gateway does not; the server is switched off: confine its command, by a container for example, then say enabled: true",
                );
            }
        }
    }

    fn time_limits(&mut self) {
        for key in ["timeout", "tool_timeout_sec", "requestTimeout"] {
            let Some(node) = self.take(key) else { continue };
            match milliseconds(node, key) {
                Some(time) => {
                    self.limits.insert("timeout".into(), time.into());
                }
                None => self.lost(
                    node.line,
                    key,
                    "must be a number; the time limit of the gateway counts",
                ),
            }
        }
        for key in ["startup_timeout_sec", "startup_timeout_ms"] {
            let Some(node) = self.take(key) else { continue };
            match milliseconds(node, key) {
                Some(time) if self.is_stdio => {
                    self.keys.insert("connect_timeout".into(), time.into());
                }
                _ => self.lost(
                    node.line,
                    key,
                    "has no meaning for this server in the gateway",
                ),
            }
        }
    }

    fn tools(&mut self, key: &str, limit: &str) {
        let Some(node) = self.take(key) else { return };
        if node.is_map() && key == "tools" {
            // A map contains settings for single tools, as Codex has them.
            self.lost(node.line, key, "settings of single tools have no counterpart; use limits.tools_allow, limits.tools_deny and limits.tools");
            return;
        }
        let Some(names) = node.scalars() else {
            let why = "must be a list of names; the server is switched off, since it would have more tools than in the client: write limits.tools_allow, then enabled: true";
            return self.security(node.line, key, why);
        };
        // Goose writes an empty list for "all tools". An empty list of denied tools denies none.
        if names.is_empty() {
            if key != "available_tools" && limit == "tools_allow" {
                let why = "allows no tool at all; the server is switched off: write limits.tools_allow, then enabled: true";
                self.security(node.line, key, why);
            }
            return;
        }
        let patterns = names
            .into_iter()
            .map(|(name, _)| Yaml::from(pattern(&name)));
        let patterns: Vec<_> = patterns.collect();
        match self.limits.get_mut(limit) {
            Some(Yaml::Sequence(before)) => before.extend(patterns),
            _ => {
                self.limits.insert(limit.into(), Yaml::Sequence(patterns));
            }
        }
    }

    /// Takes the limits that were read for the entry; `None` if there are none.
    pub(crate) fn take_limits(&mut self) -> Option<Mapping> {
        let limits = std::mem::take(&mut self.limits);
        (!limits.is_empty()).then_some(limits)
    }
}

/// Returns true if the value of a key has an effect: it is not `false`, null or an empty list.
fn is_said(node: &Node) -> bool {
    match &node.value {
        Value::Null | Value::Bool(false) => false,
        Value::List(items) => !items.is_empty(),
        _ => true,
    }
}

/// Converts a tool's name to a pattern that matches only this name. The name `*` remains the pattern for all tools.
fn pattern(name: &str) -> String {
    if name == "*" {
        return name.to_owned();
    }
    let mut pattern = String::new();
    for letter in name.chars() {
        match letter {
            '*' | '?' | '[' | ']' | '{' | '}' | '!' => pattern.push_str(&format!("[{letter}]")),
            '\\' => pattern.push_str("\\\\"),
            letter => pattern.push(letter),
        }
    }
    pattern
}

/// A time limit in the format of the gateway's configuration. Some clients write seconds and others milliseconds: unless the
/// key's ending names the unit, numbers from 1000 on are read as milliseconds.
fn milliseconds(node: &Node, key: &str) -> Option<String> {
    /// Minimum number that is read as milliseconds if the key does not name the unit.
    const MILLISECONDS_FROM: f64 = 1_000.0;
    let number: f64 = node.scalar()?.parse().ok()?;
    if !number.is_finite() || number <= 0.0 || number > 1e12 {
        return None;
    }
    let is_seconds = key.ends_with("_sec") || (!key.ends_with("_ms") && number < MILLISECONDS_FROM);
    let milliseconds = match is_seconds {
        true => number * 1_000.0,
        false => number,
    };
    // The conversion cannot overflow, since the number was checked above.
    let milliseconds = milliseconds.round() as u64;
    Some(match milliseconds % 1_000 {
        0 => format!("{}s", milliseconds / 1_000),
        _ => format!("{milliseconds}ms"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tools_become_patterns_that_match_them_alone() {
        assert_eq!(pattern("get_file"), "get_file");
        assert_eq!(pattern("*"), "*");
        assert_eq!(pattern("a*[b]"), "a[*][[]b[]]");
    }
}
