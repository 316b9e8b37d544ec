//! Precedence of sources: if several sources configure a namespace of the same name, decides which of them is served.
//!
//! ```text
//! operator's file ─▶ $DATA/config.yaml ─▶ folders ─▶ external/config.yaml
//! ```
//!
//! Tool code can write to every source except the operator's file, so a name in the operator's file is never served from another
//! source, not even while the operator's server is disabled. A claim that loses is reported as an issue of its name: in the log,
//! in `/ready` and by `tooldock check`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::issue::Issue;
use crate::names::NamespaceName;

/// Code of the [`Issue`] that several sources claim the same name.
pub const COLLISION: &str = "name_collision";

/// Name of `$DATA/config.yaml` in messages.
pub const DATA_FILE: &str = "config.yaml of the data directory";

/// Path of the file with servers that management tools add, relative to the data directory.
pub const EXTERNAL_FILE: &str = "external/config.yaml";

/// Source of a namespace's configuration. If several sources configure the same name, the first in this order is used.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The operator's configuration file and environment.
    #[default]
    Operator,
    /// `$DATA/config.yaml`, to which tool code can write.
    DataFile,
    /// A folder below `tools/`.
    Folder,
    /// `external/config.yaml` of the data directory.
    ExternalFile,
}

/// Kind of a namespace. If one source configures the same name as several kinds, the first in this order is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A folder of Python files.
    Folder,
    /// An MCP server that runs as a child process.
    Stdio,
    /// An MCP server that is reached over HTTP.
    Remote,
    /// Several servers published as one namespace.
    Aggregate,
}

/// The source and the kind of a namespace. Stored credentials are bound to a namespace's source, kind and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Source of the namespace's configuration.
    pub source: Source,
    /// The kind of the namespace.
    pub kind: Kind,
}

/// An entry of one source that claims the name of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The claimed name.
    pub name: NamespaceName,
    /// Source and kind of the claimed namespace.
    pub origin: Origin,
    /// The file or configuration key of the claim, for messages.
    pub place: String,
    /// True if the namespace is to be served; false if it is disabled. A disabled claim still reserves its name.
    pub enabled: bool,
}

/// All claimed names, each with the claim that won it and the claims that lost.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<NamespaceName, NameDecision>);

#[derive(Debug)]
struct NameDecision {
    winner: Claim,
    losers: Vec<Claim>,
    /// Refused changes that another file would have made to the winner's configuration.
    refused: Vec<String>,
    /// Issues of the winning namespace that `Names::note` added.
    notes: Vec<Issue>,
}

impl Source {
    /// The source as text, such as "a server of external/config.yaml".
    fn described(self) -> &'static str {
        match self {
            Self::Operator => "the operator's configuration",
            Self::DataFile => DATA_FILE,
            Self::Folder => "the tools directory",
            Self::ExternalFile => EXTERNAL_FILE,
        }
    }
}

impl Kind {
    fn described(self) -> &'static str {
        match self {
            Self::Folder => "a folder",
            Self::Stdio => "a stdio server",
            Self::Remote => "a remote server",
            Self::Aggregate => "an aggregate",
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {}",
            self.kind.described(),
            self.source.described()
        )
    }
}

impl Claim {
    /// The claim of a folder below `tools/` to its name.
    pub fn folder(name: &NamespaceName) -> Self {
        Self {
            name: name.clone(),
            origin: Origin {
                source: Source::Folder,
                kind: Kind::Folder,
            },
            place: format!("tools/{name}"),
            enabled: true,
        }
    }

    /// The claim of the folder that `vault.tools_dir` names, which lies outside of `tools/`.
    pub fn vault(name: &NamespaceName) -> Self {
        Self {
            origin: Origin {
                source: Source::Operator,
                kind: Kind::Folder,
            },
            place: "vault.tools_dir".to_owned(),
            ..Self::folder(name)
        }
    }

    /// The claim of an entry of `external/config.yaml`.
    pub fn external(name: &NamespaceName, enabled: bool) -> Self {
        Self {
            name: name.clone(),
            origin: Origin {
                source: Source::ExternalFile,
                kind: Kind::Stdio,
            },
            place: format!("{EXTERNAL_FILE}: servers.{name}"),
            enabled,
        }
    }

    /// The claim of an entry of the configuration below the key `key`.
    pub fn configured(name: &NamespaceName, origin: Origin, key: &str, enabled: bool) -> Self {
        let key = format!("{key}.{name}");
        Self {
            name: name.clone(),
            origin,
            place: match origin.source {
                Source::DataFile => format!("{DATA_FILE}: {key}"),
                _ => key,
            },
            enabled,
        }
    }
}

impl Names {
    /// Assigns each name to the claim with the highest precedence: by source, then enabled before disabled, then by kind.
    pub fn settle(claims: impl IntoIterator<Item = Claim>) -> Self {
        let mut claims: Vec<_> = claims.into_iter().collect();
        claims.sort_by_key(|it| (it.origin.source, !it.enabled, it.origin.kind));
        let mut names: BTreeMap<NamespaceName, NameDecision> = BTreeMap::new();
        for claim in claims {
            match names.get_mut(&claim.name) {
                Some(settled) => settled.losers.push(claim),
                None => {
                    let settled = NameDecision {
                        winner: claim.clone(),
                        losers: Vec::new(),
                        refused: Vec::new(),
                        notes: Vec::new(),
                    };
                    names.insert(claim.name, settled);
                }
            }
        }
        Self(names)
    }

    /// Adds refused changes: those that `$DATA/config.yaml` would have made to the operator's servers. They are reported as
    /// issues of the servers' names.
    #[must_use]
    pub fn with_refused(mut self, refused: &BTreeMap<NamespaceName, Vec<String>>) -> Self {
        for (name, refused) in refused {
            if let Some(settled) = self.0.get_mut(name) {
                settled.refused.clone_from(refused);
            }
        }
        self
    }

    /// Adds issues to the names that they concern.
    pub fn note(&mut self, issues: Vec<(NamespaceName, Issue)>) {
        for (name, issue) in issues {
            if let Some(settled) = self.0.get_mut(&name) {
                settled.notes.push(issue);
            }
        }
    }

    /// Returns true if the namespace of this origin is served under the name.
    pub fn serves(&self, name: &NamespaceName, origin: Origin) -> bool {
        let settled = self.0.get(name);
        settled.is_some_and(|it| it.winner.enabled && it.winner.origin == origin)
    }

    /// The claim that won the name.
    pub fn winner(&self, name: &NamespaceName) -> Option<&Claim> {
        self.0.get(name).map(|it| &it.winner)
    }

    /// The origin of the namespace that is served under a name; `None` if none is.
    pub fn served(&self, name: &NamespaceName) -> Option<Origin> {
        let winner = self.winner(name)?;
        winner.enabled.then_some(winner.origin)
    }

    /// Issues of a name: claims to it that lost, refused changes of its namespace, and the issues added by `Names::note`.
    pub fn issues(&self, name: &NamespaceName) -> Vec<Issue> {
        self.0
            .get(name)
            .map(NameDecision::issues)
            .unwrap_or_default()
    }

    /// Issues of the names under which no namespace is served, since the claim that won the name is disabled.
    pub fn unserved(&self) -> Vec<(NamespaceName, Issue)> {
        let off = self.0.iter().filter(|(_, it)| !it.winner.enabled);
        let issues = off.flat_map(|(name, it)| {
            let issues = it.issues().into_iter();
            issues.map(|issue| (name.clone(), issue))
        });
        issues.collect()
    }

    /// The issues of all names, each with its name.
    pub fn all_issues(&self) -> Vec<(NamespaceName, Issue)> {
        let all = self.0.iter();
        all.flat_map(|(name, it)| it.issues().into_iter().map(|issue| (name.clone(), issue)))
            .collect()
    }

    /// Names whose served namespace has another origin than in `before`, or under which no namespace is served any more.
    pub fn changed_hands<'a>(&'a self, before: &'a Self) -> Vec<&'a NamespaceName> {
        let all = before.0.iter();
        let changed = all
            .filter(|(name, it)| it.winner.enabled && self.served(name) != Some(it.winner.origin));
        changed.map(|(name, _)| name).collect()
    }
}

impl NameDecision {
    fn issues(&self) -> Vec<Issue> {
        let Claim {
            name,
            place: taken_by,
            enabled,
            ..
        } = &self.winner;
        let off = if *enabled { "" } else { ", switched off," };
        let losers = self.losers.iter().filter(|it| it.enabled);
        let losers = losers.map(|loser| Issue {
            code: COLLISION,
            subject: loser.place.clone(),
            message: format!(
                "is not served: {taken_by}{off} has the name {name} already; give one of them another name"
            ),
        });
        let refused = self.refused.iter().map(|message| Issue {
            code: COLLISION,
            subject: DATA_FILE.to_owned(),
            message: message.clone(),
        });
        let notes = self.notes.iter().cloned();
        losers.chain(refused).chain(notes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(Source, Kind); 4] = [
        (Source::Operator, Kind::Remote),
        (Source::DataFile, Kind::Stdio),
        (Source::Folder, Kind::Folder),
        (Source::ExternalFile, Kind::Stdio),
    ];

    fn claim(source: Source, kind: Kind, enabled: bool) -> Claim {
        Claim {
            name: "a".parse().unwrap(),
            origin: Origin { source, kind },
            place: format!("{source:?}"),
            enabled,
        }
    }

    #[test]
    fn each_source_gives_way_to_every_source_before_it_in_whatever_order_they_are_found() {
        let name: NamespaceName = "a".parse().unwrap();
        for (first, (source, kind)) in ALL.into_iter().enumerate() {
            let claims = ALL[first..].iter().map(|(s, k)| claim(*s, *k, true));
            let mut claims: Vec<_> = claims.collect();
            for _ in 0..2 {
                claims.reverse();
                let names = Names::settle(claims.clone());
                assert_eq!(names.served(&name), Some(Origin { source, kind }));
                let issues = names.issues(&name);
                assert_eq!(issues.len(), ALL.len() - first - 1);
                let told = |it: &Issue| {
                    it.code == COLLISION && it.message.contains(&format!("{source:?}"))
                };
                assert!(issues.iter().all(told), "{issues:?}");
            }
        }
    }

    #[test]
    fn a_name_that_is_switched_off_is_kept_from_every_lower_source() {
        let name: NamespaceName = "a".parse().unwrap();
        let off = claim(Source::Operator, Kind::Stdio, false);
        let names = Names::settle(
            ALL[1..]
                .iter()
                .map(|(s, k)| claim(*s, *k, true))
                .chain([off]),
        );
        assert_eq!(names.served(&name), None);
        assert_eq!(names.unserved().len(), 3);
        let quiet = claim(Source::ExternalFile, Kind::Stdio, false);
        let names = Names::settle([claim(Source::Operator, Kind::Stdio, true), quiet]);
        assert_eq!(names.issues(&name), [], "a claim that asks for nothing");
    }

    #[test]
    fn a_name_changes_hands_when_its_origin_is_another_or_none() {
        let before = Names::settle([claim(Source::Folder, Kind::Folder, true)]);
        let same = Names::settle([claim(Source::Folder, Kind::Folder, true)]);
        assert!(same.changed_hands(&before).is_empty());
        let taken = Names::settle([claim(Source::Operator, Kind::Remote, true)]);
        assert_eq!(taken.changed_hands(&before).len(), 1);
        assert_eq!(Names::default().changed_hands(&before).len(), 1);
        assert!(before.changed_hands(&Names::default()).is_empty());
    }
}
