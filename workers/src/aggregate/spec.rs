//! Specification of an aggregate, as its file defines it. Nothing is looked up or started.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use globset::{Glob, GlobSet, GlobSetBuilder};
use tooldock_base::names::NamespaceName;

use crate::external::StdioServerConfig;
use crate::remote::RemoteServerConfig;

/// Maximum length of a pattern, in bytes, and maximum number of alternatives `{…}` in a pattern. They bound the depth of nested
/// alternatives, because a pattern is compiled recursively.
const PATTERN_MAX: usize = 256;
const ALTERNATIVES_MAX: usize = 16;
/// Maximum number of characters of a pattern that an error contains.
const SHOWN_MAX: usize = 64;

/// Specification of an aggregate. The parser of the aggregate's file creates it and has validated every field.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregateSpec {
    /// Path of the file that defines the aggregate, for messages.
    pub file: PathBuf,
    /// Members, in the order of the file. If two members publish the same name, the first member's is used.
    pub members: Vec<Member>,
    /// Patterns of the names that are initially active.
    pub active: ActivePatterns,
    /// Options that the aggregate's file sets.
    pub options: AggregateOptions,
}

impl AggregateSpec {
    /// A unique label for each member, in the members' order: the prefix, followed by `~2`, `~3` if earlier members have the same
    /// prefix. Labels are unique, because no prefix contains a `~`.
    pub fn labels(&self) -> Vec<String> {
        let mut seen: HashMap<&str, usize> = HashMap::new();
        let labels = self.members.iter().map(|member| {
            let count = seen.entry(&member.prefix).or_insert(0);
            *count += 1;
            match *count {
                1 => member.prefix.clone(),
                nth => format!("{}~{nth}", member.prefix),
            }
        });
        labels.collect()
    }
}

/// A server of an aggregate.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Prefix of the server's published names, followed by a `_`; the key `namespace` of the file. With an empty prefix, names
    /// are published unchanged. Members may share a prefix (AGG-09); [`AggregateSpec::labels`] distinguishes them.
    pub prefix: String,
    /// Kind of the member, with its configuration.
    pub kind: MemberKind,
    /// Maximum time that a request for the list of the aggregate's tools waits for this member.
    pub connect_timeout: Duration,
    /// Hash that the member's definitions must have; otherwise the member is not published. `None`: not checked.
    pub pin: Option<Pin>,
}

/// Kind of an aggregate's member.
#[derive(Debug, Clone, PartialEq)]
pub enum MemberKind {
    /// A program that a shell runs: `command` is `sh`, `args` are `-c` and the command of the file. The default of `restart` is
    /// `on-failure` if a gateway serves the aggregate, and `never` if it is served on stdio.
    Stdio(Box<StdioServerConfig>),
    /// A server that is called over HTTP.
    Remote(Box<RemoteServerConfig>),
    /// Another namespace of this gateway, of any kind.
    Namespace(NamespaceName),
}

/// SHA-256 over all names and definitions of a server, written as `sha256:HEX`. A server with other definitions is omitted,
/// because they have changed since a person reviewed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin(pub [u8; 32]);

/// Patterns of the key `active_toolsets`: globs over published names of tools and URIs of resources. Tools and resources are
/// matched independently.
#[derive(Clone)]
pub struct ActivePatterns {
    patterns: Vec<String>,
    globs: GlobSet,
}

/// Error for a pattern that is not a valid glob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid pattern {:?}: {reason}", pattern.chars().take(SHOWN_MAX).collect::<String>())]
pub struct InvalidActivePattern {
    /// The invalid pattern.
    pub pattern: String,
    /// Message of the glob parser, or the exceeded limit.
    pub reason: String,
}

/// Options of an aggregate. If an option is `None`, its default depends on the aggregate's transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateOptions {
    /// Clients that share a set of active tools. `None`: the session over HTTP, and the process on stdio.
    pub activation_scope: Option<ActivationScope>,
    /// True if clients are notified with `list_changed` when the active tools change.
    pub notify_on_activation: bool,
    /// True if the response to an activation contains the definitions of the activated tools, for clients that never list tools
    /// again. `None`: true over HTTP, and false on stdio.
    pub activation_schemas: Option<bool>,
    /// True if the four lists of `toolman_activate` may contain patterns such as `github_*`; otherwise they contain exact names.
    pub activation_patterns: bool,
    /// True if each entry of the aggregate's catalogue has the approximate number of tokens of its definition.
    pub token_estimates: bool,
    /// True if the tool `toolman_search` is offered to clients.
    pub toolman_search: bool,
    /// True if the tool `toolman_call` is offered to clients.
    pub toolman_call: bool,
    /// Characters that published names of tools and prompts may have.
    pub tool_names: ToolNames,
}

/// Characters that the published names of an aggregate's tools and prompts may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolNames {
    /// ASCII letters and digits, `_` and `-`, at most 64 characters: names that the APIs of model providers accept. Every
    /// other character is replaced by `_`.
    #[default]
    Safe,
    /// Names are published unchanged, as the servers send them.
    AsIs,
}

/// Clients that share a set of active tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationScope {
    /// Each session has its own active set. Clients without a session send their set in a handle.
    Session,
    /// All clients with the same token share an active set. A handle that a client sends takes precedence.
    Principal,
    /// All clients of the process share one active set.
    Process,
}

impl Default for AggregateOptions {
    fn default() -> Self {
        Self {
            activation_scope: None,
            notify_on_activation: true,
            activation_schemas: None,
            activation_patterns: false,
            token_estimates: true,
            toolman_search: false,
            toolman_call: false,
            tool_names: ToolNames::default(),
        }
    }
}

impl ActivePatterns {
    /// Compiles the patterns. `*` matches any characters, including `/`.
    ///
    /// # Errors
    ///
    /// The first pattern that is not a valid glob, or exceeds a limit.
    pub fn new(patterns: Vec<String>) -> Result<Self, InvalidActivePattern> {
        let mut globs = GlobSetBuilder::new();
        let mut compile = |pattern: &String| {
            globs.add(Glob::new(pattern)?);
            Ok::<_, globset::Error>(())
        };
        for pattern in &patterns {
            bounded(pattern).map_err(|reason| InvalidActivePattern {
                pattern: pattern.clone(),
                reason,
            })?;
            compile(pattern).map_err(|error| InvalidActivePattern {
                pattern: pattern.clone(),
                reason: error.kind().to_string(),
            })?;
        }
        let globs = globs.build().map_err(|error| InvalidActivePattern {
            pattern: patterns.join(", "),
            reason: error.kind().to_string(),
        })?;
        Ok(Self { patterns, globs })
    }

    /// Returns true if the tool or resource published under this name or URI is initially active.
    pub fn matches(&self, published: &str) -> bool {
        self.globs.is_match(published)
    }
}

fn bounded(pattern: &str) -> Result<(), String> {
    if pattern.len() > PATTERN_MAX {
        return Err(format!("it has more than {PATTERN_MAX} bytes"));
    }
    if pattern.matches('{').count() > ALTERNATIVES_MAX {
        return Err(format!("it holds {{ more than {ALTERNATIVES_MAX} times"));
    }
    Ok(())
}

impl Default for ActivePatterns {
    /// Returns the empty list of patterns: no tool or resource is initially active.
    fn default() -> Self {
        Self {
            patterns: Vec::new(),
            globs: GlobSet::empty(),
        }
    }
}

impl fmt::Debug for ActivePatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.patterns.fmt(f)
    }
}

impl PartialEq for ActivePatterns {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl FromStr for Pin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "must be sha256: and 64 hexadecimal digits, as the log shows it";
        let digits = text.strip_prefix("sha256:").ok_or(SHAPE)?;
        if digits.len() != 64 || !digits.is_ascii() {
            return Err(SHAPE);
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let digits = &digits[2 * at..2 * at + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| SHAPE)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_whole_uris_and_names() {
        let active = ActivePatterns::new(vec!["pjpd*".into(), "vec_search".into()]).unwrap();
        for published in ["pjpd_list", "pjpd_projects://list/all", "vec_search"] {
            assert!(active.matches(published), "{published}");
        }
        for published in ["vec_index", "a_pjpd_list", "vec_search2"] {
            assert!(!active.matches(published), "{published}");
        }
        assert!(!ActivePatterns::default().matches("pjpd_list"));
    }

    #[test]
    fn what_is_no_glob_is_named() {
        let error = ActivePatterns::new(vec!["a*".into(), "b[".into()]).unwrap_err();
        assert_eq!(error.pattern, "b[");
    }

    #[test]
    fn a_pattern_is_bounded_in_length_and_in_alternatives_and_shown_cut() {
        let of = |pattern: String| ActivePatterns::new(vec![pattern]);
        let nested = |depth| format!("{}a{}", "{".repeat(depth), "}".repeat(depth));
        assert!(of("a".repeat(256)).is_ok() && of(nested(16)).unwrap().matches("a"));
        let error = of("a".repeat(257)).unwrap_err().to_string();
        let shown = "a".repeat(64);
        let wanted = format!("invalid pattern {shown:?}: it has more than 256 bytes");
        assert_eq!(error, wanted);
        let error = of(nested(17)).unwrap_err();
        assert_eq!(error.reason, "it holds { more than 16 times");
        assert!(of(nested(100_000)).is_err());
    }

    #[test]
    fn a_pin_is_read_as_it_is_shown() {
        let pin = Pin([0xab; 32]);
        assert_eq!(pin.to_string().parse(), Ok(pin));
        for wrong in ["", "ab", "sha256:ab", &format!("sha256:{}", "g".repeat(64))] {
            assert!(wrong.parse::<Pin>().is_err(), "{wrong}");
        }
    }
}
