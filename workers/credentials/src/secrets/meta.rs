//! The file `secrets.meta.yaml`: the names and statuses of the secrets, without their values (EX-60).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tooldock_base::yaml;

use super::Scope;
use super::scoped::{Entries, ScopedEntries};
use super::values::{Values, WithoutValue, told};

/// Status of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The secret has a value.
    Set,
    /// The secret was requested, and has no value yet.
    Placeholder,
}

/// Content of `secrets.meta.yaml`: the status of each secret.
pub(super) type Meta = ScopedEntries<Status>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    global: Option<BTreeMap<String, MetaEntry>>,
    #[serde(default)]
    namespaces: MetaGroups,
    #[serde(default)]
    principals: MetaGroups,
}

/// The secrets of each namespace or principal, by its name. Each level is optional, since YAML reads a key without a value as
/// null.
type MetaGroups = Option<BTreeMap<String, Option<BTreeMap<String, MetaEntry>>>>;

#[derive(Serialize, Deserialize)]
struct MetaEntry {
    status: Status,
}

impl Meta {
    /// Parses the file. The error contains the position in the file, if it is known.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        // The error does not quote the file, since a person may have entered a value there by mistake.
        let file: Option<File> = yaml::from_slice(text).map_err(|error| told(&error))?;
        let Some(file) = file else {
            return Ok(Self::default());
        };
        let entries = |entries: BTreeMap<String, MetaEntry>| -> Entries<Status> {
            let entries = entries.into_iter();
            entries.map(|(key, entry)| (key, entry.status)).collect()
        };
        let named = |all: MetaGroups| {
            let all = all.unwrap_or_default().into_iter();
            let own = all.map(|(name, own)| (name, entries(own.unwrap_or_default())));
            own.collect()
        };
        Ok(Self {
            global: entries(file.global.unwrap_or_default()),
            namespaces: named(file.namespaces),
            principals: named(file.principals),
        })
    }

    /// Writes the file's text: its sections, separated by empty lines. The section of principals is written only if there are
    /// any, since older versions, which do not know the section, read the file, too.
    pub(super) fn to_yaml(&self) -> Result<String, yaml::Error> {
        let entries = |entries: &Entries<Status>| -> BTreeMap<String, MetaEntry> {
            let entries = entries.iter();
            let entry =
                |(key, status): (&String, &Status)| (key.clone(), MetaEntry { status: *status });
            entries.map(entry).collect()
        };
        let section = |title: &str, all: &BTreeMap<String, Entries<Status>>| {
            let own = all.iter().map(|(name, own)| (name, entries(own)));
            yaml::to_string(&BTreeMap::from([(title, own.collect::<BTreeMap<_, _>>())]))
        };
        let global = yaml::to_string(&BTreeMap::from([("global", entries(&self.global))]))?;
        let mut text = format!("{global}\n{}", section("namespaces", &self.namespaces)?);
        if !self.principals.is_empty() {
            text.push('\n');
            text.push_str(&section("principals", &self.principals)?);
        }
        Ok(text)
    }

    pub(super) fn status(&self, key: &str, scope: &Scope) -> Option<Status> {
        self.get(key, scope).copied()
    }

    /// Keys of a namespace that have no value yet.
    pub(super) fn placeholders(&self, namespace: &str) -> impl Iterator<Item = &str> {
        let all = self.of_namespace(namespace);
        let without = all.filter(|(_, status)| **status == Status::Placeholder);
        without.map(|(key, _)| key.as_str())
    }

    /// Corrects the entries to match the values. The files of entries and of values are written one after the other, so they may
    /// differ after a crash. In the result, a key with a value is set, and a key without a value is a placeholder.
    pub(super) fn healed(&self, values: &Values) -> Self {
        let mut healed = self.clone();
        let named = healed.namespaces.values_mut();
        let named = named.chain(healed.principals.values_mut());
        let all = named.chain([&mut healed.global]);
        for status in all.flat_map(BTreeMap::values_mut) {
            *status = Status::Placeholder;
        }
        for (key, owner, _) in values.entries() {
            let entries = healed.of_mut(owner);
            entries.insert(key.to_owned(), Status::Set);
        }
        healed
    }

    /// Creates the entries for all values, and for the keys without a value.
    pub(super) fn of_document(values: &Values, without: &[WithoutValue]) -> Self {
        let mut meta = Self::default();
        for WithoutValue { key, owner } in without {
            let entries = meta.of_mut(owner.owner());
            entries.insert(key.clone(), Status::Placeholder);
        }
        meta.healed(values)
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::secret::Secret;

    use super::*;
    use crate::secrets::scoped::EntryOwner;

    const EX_60: &str = "global:
  GITHUB_TOKEN:
    status: set
  OPENAI_API_KEY:
    status: placeholder

namespaces:
  slack:
    SLACK_BOT_TOKEN:
      status: placeholder
";

    #[test]
    fn the_documented_file_is_parsed_and_reproduced() {
        let meta = Meta::parse(EX_60.as_bytes()).unwrap();
        let all: Vec<_> = meta
            .entries()
            .map(|(key, owner, status)| (key, owner, *status))
            .collect();
        let expected = [
            ("GITHUB_TOKEN", EntryOwner::Everybody, Status::Set),
            ("OPENAI_API_KEY", EntryOwner::Everybody, Status::Placeholder),
            (
                "SLACK_BOT_TOKEN",
                EntryOwner::Namespace("slack"),
                Status::Placeholder,
            ),
        ];
        assert_eq!(all, expected);
        assert_eq!(meta.to_yaml().unwrap(), EX_60);
    }

    #[test]
    fn words_that_yaml_takes_for_something_else_stay_names() {
        let mut meta = Meta::default();
        for name in ["null", "true", "1", "1e5", "0x1f", "no"] {
            let scope: Scope = name.parse().unwrap();
            meta.insert("NULL", &scope, Status::Set);
            meta.insert("TRUE", &Scope::Global, Status::Set);
        }
        let text = meta.to_yaml().unwrap();
        assert_eq!(Meta::parse(text.as_bytes()), Ok(meta.clone()), "{text}");
        meta.insert("A", &"principal:key:ada # 1".parse().unwrap(), Status::Set);
        let text = meta.to_yaml().unwrap();
        assert_eq!(Meta::parse(text.as_bytes()), Ok(meta), "{text}");
        assert_eq!(Meta::parse(b""), Ok(Meta::default()));
        assert_eq!(
            Meta::parse(b"global:\nnamespaces:\n  a:\n"),
            Meta::parse(b"namespaces: { a: {} }")
        );
    }

    #[test]
    fn an_entry_that_means_nothing_has_a_place() {
        let error = Meta::parse(b"global:\n  A:\n    status: maybe\n").unwrap_err();
        assert!(error.contains("line 3"), "{error}");
        for text in [
            "global:\n  A: hunter2\n",
            "global:\n  A:\n    status: hunter2\n",
            "hunter2: x",
        ] {
            let error = Meta::parse(text.as_bytes()).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn values_decide_after_a_crash_between_the_two_files() {
        let mut values = Values::default();
        values.insert("NEW", &Scope::Global, Secret::new("v"));
        values.insert("OWN", &"ns".parse().unwrap(), Secret::new("v"));
        let mut meta = Meta::default();
        meta.insert("LOST", &Scope::Global, Status::Set);
        meta.insert("ASKED", &Scope::Global, Status::Placeholder);
        let healed = meta.healed(&values);
        let status = |key: &str| healed.status(key, &Scope::Global);
        assert_eq!(status("NEW"), Some(Status::Set));
        assert_eq!(status("LOST"), Some(Status::Placeholder));
        assert_eq!(status("ASKED"), Some(Status::Placeholder));
        assert_eq!(
            healed.status("OWN", &"ns".parse().unwrap()),
            Some(Status::Set)
        );
        let placeholders: Vec<_> = healed.placeholders("ns").collect();
        assert_eq!(placeholders, ["ASKED", "LOST"]);
    }
}
