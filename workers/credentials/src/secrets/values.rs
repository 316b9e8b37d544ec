//! The values of all secrets: `{global: {KEY: VALUE}, namespaces: {NAME: {KEY: VALUE}}, principals: {NAME: {KEY: VALUE}}}`, and
//! the conversion of this document to text and back. The encrypted document also contains the values' owners: `{…, owners: {…}}`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tooldock_base::names::PrincipalName;
use tooldock_base::secret::Secret;
use tooldock_base::yaml;
use zeroize::Zeroizing;

use super::scoped::{EntryOwner, ScopedEntries};
use super::{Owners, Scope, SecretsError, check_key};

/// Maximum size of the document with all values, in bytes.
pub(super) const BYTES_MAX: u64 = 1024 * 1024;

/// Maximum length of a value, in bytes. Together with its name it must fit an environment variable, for which Linux allows
/// 128 KiB.
const VALUE_MAX: usize = 96 * 1024;

/// The values of all secrets, by scope and key.
pub(super) type Values = ScopedEntries<Secret>;

impl Values {
    /// The values that a namespace gets: global ones, overridden by its own.
    pub(super) fn merged(&self, namespace: &str) -> BTreeMap<String, Secret> {
        let merged = self.of_namespace(namespace);
        merged
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Writes the values as a JSON document.
    pub(super) fn to_json(&self) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
        self.to_json_up_to(BYTES_MAX, None)
    }

    /// Writes the JSON document that is encrypted: the values and their owners.
    pub(super) fn to_json_with(
        &self,
        owners: Option<&Owners>,
    ) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
        let values = self.to_json()?;
        match owners {
            // The limit is doubled, so that owners do not reduce the space for values.
            Some(_) => self.to_json_up_to(BYTES_MAX.saturating_mul(2), owners),
            None => Ok(values),
        }
    }

    fn to_json_up_to(
        &self,
        bytes_max: u64,
        owners: Option<&Owners>,
    ) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
        let too_large = |_| SecretsError::TooLarge(BYTES_MAX);
        let recorded = owners.map_or(Ok(0), |it| serde_json::to_vec(it).map(|it| it.len()));
        let recorded = recorded.map_err(too_large)?;
        // The buffer is large enough even if each byte is escaped: a buffer that grows would leave copies of secrets in memory.
        let room = self.bytes().saturating_mul(6) + recorded + 4096;
        let mut json = Zeroizing::new(Vec::with_capacity(room));
        serde_json::to_writer(&mut *json, &ValuesDocument(self, owners)).map_err(too_large)?;
        match json.len() as u64 > bytes_max {
            true => Err(SecretsError::TooLarge(BYTES_MAX)),
            false => Ok(json),
        }
    }

    fn bytes(&self) -> usize {
        let entries = self.entries();
        let entries: usize = entries
            .map(|(key, _, value)| key.len() + value.expose().len() + 8)
            .sum();
        let names = self.namespaces.keys().chain(self.principals.keys());
        let names: usize = names.map(|name| name.len() + 8).sum();
        entries + names
    }

    /// Parses a document from JSON. The error contains the position in the text and quotes no value.
    pub(super) fn from_json(json: &[u8]) -> Result<Document, String> {
        serde_json::from_slice(json).map_err(|error| {
            // Only the position is reported: the parser's message may quote a value.
            format!("line {}, column {}", error.line(), error.column())
        })
    }
}

/// A document of secrets, written by a person or read from a file: keys with their values, and keys without a value.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    #[serde(default)]
    global: Section,
    #[serde(default)]
    namespaces: Option<BTreeMap<String, Section>>,
    #[serde(default)]
    principals: Option<BTreeMap<String, Section>>,
    /// Owners of the values. Only documents in encrypted files contain them.
    #[serde(default)]
    owners: Option<Owners>,
}

/// The keys of one scope. Keys and the section are optional, since YAML reads a key without a value as null.
type Section = Option<BTreeMap<String, Option<Value>>>;

/// A secret's key without a value, and its scope.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WithoutValue {
    pub(super) key: String,
    pub(super) owner: OwnerName,
}

/// Scope of an entry, as [`EntryOwner`], but with its own copy of the name, so that it can outlive the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnerName {
    Everybody,
    Namespace(String),
    Principal(String),
}

impl OwnerName {
    pub(super) fn owner(&self) -> EntryOwner<'_> {
        match self {
            Self::Everybody => EntryOwner::Everybody,
            Self::Namespace(name) => EntryOwner::Namespace(name),
            Self::Principal(name) => EntryOwner::Principal(name),
        }
    }
}

impl Document {
    /// Parses YAML that a person wrote. Errors contain line and column, and quote no value.
    pub(super) fn from_yaml(text: &[u8]) -> Result<Self, String> {
        if text.len() as u64 > BYTES_MAX {
            return Err(format!("larger than {} KiB", BYTES_MAX / 1024));
        }
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        // The text is also parsed as a tree, because only that parser reports a key that is written twice.
        yaml::from_slice::<Option<yaml::Mapping>>(text)
            .and_then(|_| yaml::from_slice::<Option<Self>>(text))
            .map(|document| Self {
                owners: None,
                ..document.unwrap_or_default()
            })
            .map_err(|error| {
                let expected =
                    "expected `global:` and `namespaces:` with lines of the form KEY: VALUE";
                format!("{}; {expected}", told(&error))
            })
    }

    /// Removes the recorded owners of the values from the document and returns them.
    pub(super) fn take_owners(&mut self) -> Option<Owners> {
        self.owners.take()
    }

    /// Splits the document into values and keys without a value.
    pub(super) fn into_parts(self) -> (Values, Vec<WithoutValue>) {
        let mut without = Vec::new();
        let mut values = Values::default();
        let mut take = |owner: OwnerName, section: Section| {
            for (key, value) in section.unwrap_or_default() {
                match value {
                    Some(Value(value)) => {
                        values.of_mut(owner.owner()).insert(key, value);
                    }
                    None => without.push(WithoutValue {
                        key,
                        owner: owner.clone(),
                    }),
                }
            }
        };
        take(OwnerName::Everybody, self.global);
        for (name, own) in self.namespaces.unwrap_or_default() {
            take(OwnerName::Namespace(name), own);
        }
        for (name, own) in self.principals.unwrap_or_default() {
            take(OwnerName::Principal(name), own);
        }
        (values, without)
    }

    /// Checks the sections of an edited text. Both `global` and `namespaces` are required, so that an empty file, which an editor
    /// may have saved, does not remove all secrets. A section with owners is refused, since they must not be edited.
    pub(super) fn check_sections(&self, text: &[u8]) -> Result<(), SecretsError> {
        let sections = yaml::from_slice::<Option<yaml::Mapping>>(text);
        let sections = sections.ok().flatten().unwrap_or_default();
        if sections.contains_key("owners") {
            let message = "there is no section `owners:`; remove it".to_owned();
            return Err(SecretsError::InvalidDocument(message));
        }
        for section in ["global", "namespaces"] {
            if !sections.contains_key(section) {
                let message = format!(
                    "the section `{section}:` is missing; leave it in place, empty if need be"
                );
                return Err(SecretsError::InvalidDocument(message));
            }
        }
        Ok(())
    }

    /// Checks the names and values of a document that a person wrote.
    pub(super) fn check(&self) -> Result<(), SecretsError> {
        for (key, value) in self.global.iter().flatten() {
            check_entry(key, value.as_ref())?;
        }
        for (name, own) in self.namespaces.iter().flatten() {
            if !matches!(name.parse(), Ok(Scope::Namespace(_))) {
                let message = format!(
                    "namespaces.{name}: {}",
                    tooldock_base::names::InvalidNamespaceName
                );
                return Err(SecretsError::InvalidDocument(message));
            }
            for (key, value) in own.iter().flatten() {
                check_entry(key, value.as_ref())?;
            }
        }
        for (name, own) in self.principals.iter().flatten() {
            if let Err(error) = name.parse::<PrincipalName>() {
                // The error does not quote the name, since a person may have written a value in its place.
                let message = format!("principals: {error}");
                return Err(SecretsError::InvalidDocument(message));
            }
            for (key, value) in own.iter().flatten() {
                check_entry(key, value.as_ref())?;
            }
        }
        Ok(())
    }
}

fn check_entry(key: &str, value: Option<&Value>) -> Result<(), SecretsError> {
    check_key(key)?;
    value.map_or(Ok(()), |Value(value)| check_value(key, value))
}

/// Checks that a value can be the value of an environment variable.
pub(super) fn check_value(key: &str, value: &Secret) -> Result<(), SecretsError> {
    let text = value.expose();
    let reason = if text.is_empty() {
        "is empty; `remove` takes a secret away"
    } else if text.contains('\0') {
        "has a NUL character in it, which no environment variable can have"
    } else if text.len() > VALUE_MAX {
        "is longer than 96 KiB, which is more than an environment variable can have"
    } else {
        return Ok(());
    };
    Err(SecretsError::InvalidValue {
        key: key.to_owned(),
        reason,
    })
}

/// The text of a YAML error without the parts that quote the document, since these may contain a value.
pub(super) fn told(error: &yaml::Error) -> String {
    let text = error.to_string();
    let text = match text.find(['"', '`']) {
        Some(quote) => text[..quote].trim_end().to_owned(),
        None => match text.rfind(" at line ") {
            Some(place) => text[..place].to_owned(),
            None => text,
        },
    };
    match error.location() {
        Some(at) => format!("line {}, column {}: {text}", at.line(), at.column()),
        None => text,
    }
}

/// A single value of any type, such as a number, because people write `PORT: 8080` without quotes.
#[derive(Debug)]
struct Value(Secret);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Single;

        impl Visitor<'_> for Single {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a single value")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
                Ok(Value(Secret::new(text)))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Value, E> {
                Ok(Value(Secret::new(text)))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
                Ok(Value(Secret::new(value.to_string())))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
                Ok(Value(Secret::new(value.to_string())))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
                Ok(Value(Secret::new(value.to_string())))
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Value, E> {
                // Refused, since numbers such as `1e5` or `0.10` would be converted to a different text.
                Err(E::custom(
                    "a number with a fraction or exponent needs quotes",
                ))
            }
        }

        deserializer.deserialize_any(Single)
    }
}

/// The document in the form in which it is written. Only the store may use it: no other module may serialize a secret.
pub(super) struct ValuesDocument<'a>(pub(super) &'a Values, pub(super) Option<&'a Owners>);

struct SecretEntries<'a>(&'a BTreeMap<String, Secret>);
struct SecretGroups<'a>(&'a BTreeMap<String, BTreeMap<String, Secret>>);

impl Serialize for ValuesDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Without principals the section is omitted, since older versions, which do not know the section, may read the document.
        let principals = !self.0.principals.is_empty();
        let sections = 2 + usize::from(principals) + usize::from(self.1.is_some());
        let mut map = serializer.serialize_map(Some(sections))?;
        map.serialize_entry("global", &SecretEntries(&self.0.global))?;
        map.serialize_entry("namespaces", &SecretGroups(&self.0.namespaces))?;
        if principals {
            map.serialize_entry("principals", &SecretGroups(&self.0.principals))?;
        }
        if let Some(owners) = self.1 {
            map.serialize_entry("owners", owners)?;
        }
        map.end()
    }
}

impl Serialize for SecretEntries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value.expose())))
    }
}

impl Serialize for SecretGroups<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, own)| (name, SecretEntries(own))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        match Document::from_yaml(text.as_bytes()) {
            Ok(document) => document.check().unwrap_err().to_string(),
            Err(message) => message,
        }
    }

    #[test]
    fn a_document_holds_single_values_of_any_type_and_keys_without_one() {
        let text =
            "global: { PORT: 8080, ON: true, TEXT: x, NONE: }\nnamespaces: { a: { K: v }, b: }";
        let (values, without) = Document::from_yaml(text.as_bytes()).unwrap().into_parts();
        let global: Vec<_> = values.global.values().map(Secret::expose).collect();
        assert_eq!(global, ["true", "8080", "x"]);
        assert_eq!(values.namespaces["a"]["K"].expose(), "v");
        let none = WithoutValue {
            key: "NONE".to_owned(),
            owner: OwnerName::Everybody,
        };
        assert_eq!(without, [none]);
    }

    #[test]
    fn what_is_wrong_has_a_place_and_shows_no_value() {
        for (text, place) in [
            ("global: hunter2", "line 1"),
            ("global:\n  A: [hunter2]", "line 2"),
            ("global:\n  A: hunter2\n  A: hunter2", "line 2"),
            ("global:\n  A: hunter2\n B: hunter2: x", "line 3"),
            ("globl: { A: hunter2 }", "line 1"),
            ("global: { A: 1.10 }", "line 1"),
            ("global: { A: '' }", "empty"),
            ("namespaces: { _system: { A: hunter2 } }", "_system"),
            (
                "namespaces: { global: { A: hunter2 } }",
                "namespaces.global",
            ),
            ("principals: { anonymous: { A: hunter2 } }", "anonymous"),
            ("principals: { ' hunter2': { A: x } }", "principal name"),
            ("global: { 'A B': hunter2 }", "no key"),
        ] {
            let message = wrong(text);
            assert!(message.contains(place), "{text}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn json_goes_there_and_back() {
        let mut values = Values::default();
        values.insert("A", &Scope::Global, Secret::new("line\n\"quote\" ä"));
        values.insert("B", &"ns".parse().unwrap(), Secret::new("b"));
        assert!(
            !values
                .to_json()
                .unwrap()
                .windows(10)
                .any(|it| it == b"principals")
        );
        values.insert("B", &"principal:key:a".parse().unwrap(), Secret::new("c"));
        let json = values.to_json().unwrap();
        let (back, without) = Values::from_json(&json).unwrap().into_parts();
        assert_eq!(back, values);
        assert!(without.is_empty() && !format!("{values:?}").contains("quote"));
        assert!(values.remove("B", &"ns".parse().unwrap()));
        assert!(!values.remove("B", &"ns".parse().unwrap()));
        assert!(values.namespaces.is_empty());
    }
}
