//! Templates: configured values that may contain references `${NAME}`, and the secrets and variables that the names refer to.
//!
//! Only `${NAME}` is special: a dollar sign alone is literal, and `$${` is written for `${`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::secret::Secret;
use crate::yaml::Value;

/// Variables with the gateway's own credentials. They are never passed to a server, even if its entry names them.
const OWN: [&str; 5] = [
    "BEARER_TOKEN",
    "MANAGER_INTERNAL_TOKEN",
    "SESSION_KEY",
    "SECRETS_KEY",
    "SECRETS_KEY_NEW",
];

/// Variables of the gateway's environment that are never secret.
const PLAIN: [&str; 8] = [
    "HOME", "HOSTNAME", "LANG", "PATH", "PWD", "TMPDIR", "TZ", "USER",
];

/// A configured value. It may be a secret, so it prints as `[redacted]`, unless it is only a reference.
#[derive(Clone, PartialEq, Eq)]
pub struct Template(String);

/// Reason why a template cannot be filled in. Names the variable, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoValue {
    /// The name is neither that of a secret nor that of a variable of the gateway's environment.
    #[error(
        "${{{0}}} is set neither in the gateway's environment nor in the secrets store; prepare_secret asks for it, `tooldock secrets set` sets it"
    )]
    Missing(String),
    /// The variable contains a credential of the gateway itself.
    #[error("${{{0}}} is the gateway's own and is not given away")]
    Own(String),
    /// No secret has the name, and the name is not in the list of allowed environment variables.
    #[error(
        "${{{0}}} is not in the secrets store, and namespaces.env_allowed of the gateway's configuration does not name it; prepare_secret asks for it, `tooldock secrets set` sets it"
    )]
    NotAllowed(String),
    /// The template contains `${` without a name after it.
    #[error(
        "\"${{\" is not followed by a variable name and \"}}\"; write \"$${{\" for the text \"${{\""
    )]
    Malformed,
}

/// The values that names may refer to: first the namespace's secrets, then the gateway's environment.
pub struct Sources<'a> {
    /// Secrets of the namespace, by name.
    pub secrets: &'a BTreeMap<String, Secret>,
    /// Looks up a variable of the gateway's environment.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Names that may be looked up in the environment. `None` for templates of the operator, which may refer to any name.
    pub allowed: Option<&'a [String]>,
}

impl Sources<'_> {
    /// Looks up the value of a name, in the secrets first and then in the environment.
    fn value(&self, name: &str) -> Result<Secret, NoValue> {
        if let Some(secret) = self.secrets.get(name) {
            return Ok(secret.clone());
        }
        if is_own(name) {
            return Err(NoValue::Own(name.to_owned()));
        }
        if !self.allows(name) {
            return Err(NoValue::NotAllowed(name.to_owned()));
        }
        let value = (self.environment)(name).map(Secret::new);
        value.ok_or_else(|| NoValue::Missing(name.to_owned()))
    }

    fn allows(&self, name: &str) -> bool {
        let Some(allowed) = self.allowed else {
            return true;
        };
        allowed.iter().any(|known| known == name)
    }
}

/// Returns true if a variable contains a credential of the gateway itself, or names the file of such a credential. No process
/// that the gateway starts may receive its value.
pub fn is_own(name: &str) -> bool {
    let name = name.strip_suffix("_FILE").unwrap_or(name);
    OWN.contains(&name)
}

impl Template {
    /// Creates a template with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text in a form that is safe to show: a text that consists of one `${NAME}` is unchanged, any other text is masked.
    pub fn masked(&self) -> &str {
        match self.pieces().as_deref() {
            Ok([Piece::Variable(_)]) => &self.0,
            _ => "***MASKED***",
        }
    }

    /// Returns true if the template's text, before names are replaced, equals this text.
    pub fn is(&self, text: &str) -> bool {
        self.0 == text
    }

    /// The names of the references `${NAME}` in the template.
    pub fn names(&self) -> Vec<&str> {
        let pieces = self.pieces().unwrap_or_default();
        let names = pieces.into_iter().filter_map(|piece| match piece {
            Piece::Variable(name) => Some(name),
            Piece::Text(_) => None,
        });
        names.collect()
    }

    /// Checks that each reference in the template is well-formed; otherwise the template can never be filled in.
    pub fn check(&self) -> Result<(), NoValue> {
        self.pieces().map(drop)
    }

    /// Returns the template's text with each reference replaced by its value.
    pub fn fill(&self, sources: &Sources<'_>) -> Result<Secret, NoValue> {
        let mut value = String::new();
        for piece in self.pieces()? {
            match piece {
                Piece::Text(text) => value.push_str(text),
                Piece::Variable(name) => value.push_str(sources.value(name)?.expose()),
            }
        }
        Ok(Secret::new(value))
    }

    /// Values that must be hidden in the server's logged output: the values of the template's references, and the filled-in text,
    /// which may contain a credential. A literal text is not hidden if it is short or a plain word.
    pub fn hidden(&self, sources: &Sources<'_>) -> Vec<Secret> {
        let mut hidden = Vec::new();
        let mut literal = true;
        for name in self.names() {
            literal = false;
            let stored = sources.secrets.get(name).cloned();
            if stored.is_some() || !PLAIN.contains(&name) {
                hidden.extend(stored.or_else(|| (sources.environment)(name).map(Secret::new)));
            }
        }
        if let Ok(whole) = self.fill(sources) {
            let worth = match literal {
                true => !is_plain(whole.expose()),
                false => !hidden.is_empty(),
            };
            hidden.extend(worth.then_some(whole));
        }
        hidden
    }

    /// Looks up all names except the `personal` ones, which have a separate value for each principal.
    pub fn parts(
        &self,
        sources: &Sources<'_>,
        personal: &dyn Fn(&str) -> bool,
    ) -> Result<Parts, NoValue> {
        let parts = self.pieces()?.into_iter().map(|piece| match piece {
            Piece::Text(text) => Ok(Part::Known(Secret::new(text))),
            Piece::Variable(name) if personal(name) => Ok(Part::Personal(name.to_owned())),
            Piece::Variable(name) => sources.value(name).map(Part::Known),
        });
        parts.collect::<Result<_, _>>().map(Parts)
    }

    fn pieces(&self) -> Result<Vec<Piece<'_>>, NoValue> {
        let mut pieces = Vec::new();
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            if let Some(kept) = before.strip_suffix('$') {
                pieces.push(Piece::Text(kept));
                pieces.push(Piece::Text("${"));
                rest = &from[2..];
                continue;
            }
            if !before.is_empty() {
                pieces.push(Piece::Text(before));
            }
            let (name, after) = from[2..].split_once('}').ok_or(NoValue::Malformed)?;
            if !is_variable_name(name) {
                return Err(NoValue::Malformed);
            }
            pieces.push(Piece::Variable(name));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest));
        }
        Ok(pieces)
    }
}

/// A template in which all values are filled in except the personal ones, which are different for each principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Known(Secret),
    /// Name of a personal value that is filled in later.
    Personal(String),
}

impl Parts {
    /// Returns the filled-in text for a principal; `None` if the principal has not stored one of the personal values.
    pub fn fill(&self, own: &BTreeMap<String, Secret>) -> Option<Secret> {
        let mut value = String::new();
        for part in &self.0 {
            value.push_str(match part {
                Part::Known(known) => known.expose(),
                Part::Personal(name) => own.get(name)?.expose(),
            });
        }
        Some(Secret::new(value))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Variable(&'a str),
}

/// Returns true if a literal text is a setting rather than a credential: `debug`, `production`, `8080`.
fn is_plain(text: &str) -> bool {
    text.len() < 8 || (text.len() <= 12 && text.bytes().all(|b| b.is_ascii_alphabetic()))
}

/// Returns true if a text is a valid name of a variable.
pub fn is_variable_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 256
        && bytes
            .next()
            .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.masked() {
            shown if shown == self.0 => f.write_str(shown),
            _ => f.write_str("[redacted]"),
        }
    }
}

impl Serialize for Template {
    /// Writes the unmasked text with its secrets. Use [`Template::masked`] to show it.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Template {
    /// Reads any single value, such as a number, because people write `PORT: 8080` without quotes.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(Value::deserialize(deserializer)?)
            .map(Self)
            .ok_or_else(|| de::Error::custom("must be a single value"))
    }
}

/// Converts a single value to text, null to an empty text. Returns `None` for lists and objects.
pub fn scalar(value: Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => Some(value.to_string()),
        Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::yaml;

    use super::*;

    fn filled(text: &str) -> Result<String, NoValue> {
        let secrets = BTreeMap::from([
            ("A".to_owned(), Secret::new("secret ${B}")),
            ("SESSION_KEY".to_owned(), Secret::new("a server's own")),
        ]);
        let environment = |name: &str| match name {
            "A" | "B" | "BEARER_TOKEN" => Some(format!("environment {name}")),
            _ => None,
        };
        let sources = Sources {
            secrets: &secrets,
            environment: &environment,
            allowed: None,
        };
        let value = Template::new(text).fill(&sources)?;
        Ok(value.expose().to_owned())
    }

    #[test]
    fn a_secret_wins_over_the_environment_and_no_value_is_looked_into_again() {
        assert_eq!(filled("${A}").unwrap(), "secret ${B}");
        assert_eq!(
            filled("x${B}y${B}").unwrap(),
            "xenvironment Byenvironment B"
        );
    }

    #[test]
    fn only_a_braced_name_is_special() {
        for (text, value) in [
            ("", ""),
            ("$", "$"),
            ("$A $$ a}b", "$A $$ a}b"),
            ("$${A}", "${A}"),
            ("$${${B}", "${environment B"),
        ] {
            assert_eq!(filled(text).unwrap(), value, "{text}");
        }
        for text in ["${", "${A", "${}", "${A-b}", "x${1A}", "${A}${"] {
            assert_eq!(filled(text), Err(NoValue::Malformed), "{text}");
        }
    }

    #[test]
    fn a_missing_variable_is_named() {
        let message = filled("a ${NOT_SET}").unwrap_err().to_string();
        assert!(
            message.starts_with("${NOT_SET} is set neither"),
            "{message}"
        );
    }

    #[test]
    fn the_gateways_own_tokens_are_not_given_away_but_a_secret_may_have_such_a_name() {
        for name in OWN.iter().filter(|name| **name != "SESSION_KEY") {
            assert_eq!(
                filled(&format!("${{{name}}}")),
                Err(NoValue::Own((*name).to_owned()))
            );
        }
        assert_eq!(filled("${SESSION_KEY}").unwrap(), "a server's own");
    }

    #[test]
    fn a_text_that_is_not_the_operators_reaches_allowed_variables_and_secrets_alone() {
        let secrets = BTreeMap::from([("STORED".to_owned(), Secret::new("s"))]);
        let environment = |name: &str| (name != "UNSET").then(|| format!("value of {name}"));
        let allowed = ["HERE", "UNSET", "BEARER_TOKEN"].map(str::to_owned);
        let sources = Sources {
            secrets: &secrets,
            environment: &environment,
            allowed: Some(&allowed),
        };
        let filled = |text: &str| {
            let value = Template::new(text).fill(&sources);
            value.map(|value| value.expose().to_owned())
        };
        assert_eq!(filled("${STORED}-${HERE}").unwrap(), "s-value of HERE");
        let name = |name: &str| name.to_owned();
        assert_eq!(filled("${OTHER}"), Err(NoValue::NotAllowed(name("OTHER"))));
        assert_eq!(filled("${UNSET}"), Err(NoValue::Missing(name("UNSET"))));
        assert_eq!(
            filled("${BEARER_TOKEN}"),
            Err(NoValue::Own(name("BEARER_TOKEN")))
        );
    }

    #[test]
    fn values_of_references_and_literals_that_may_be_credentials_are_hidden_in_output() {
        let secrets = BTreeMap::from([("STORED".to_owned(), Secret::new("pw"))]);
        let environment = |name: &str| Some(format!("value of {name}"));
        let sources = Sources {
            secrets: &secrets,
            environment: &environment,
            allowed: None,
        };
        let hidden = |text: &str| -> Vec<String> {
            let hidden = Template::new(text).hidden(&sources);
            hidden.iter().map(|it| it.expose().to_owned()).collect()
        };
        assert_eq!(hidden("${A}"), ["value of A", "value of A"]);
        assert_eq!(hidden("db://u:${STORED}@h"), ["pw", "db://u:pw@h"]);
        assert_eq!(hidden("ghp_0123456789"), ["ghp_0123456789"]);
        for text in ["", "debug", "production", "8080", "${", "${HOME}/x"] {
            assert!(hidden(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn only_a_bare_reference_is_shown() {
        assert_eq!(Template::new("${A}").masked(), "${A}");
        for text in ["hunter2", "hunter2${A}", "${A}${B}", "$${A}", "${"] {
            let template = Template::new(text);
            assert_eq!(template.masked(), "***MASKED***", "{text}");
            assert_eq!(format!("{template:?}"), "[redacted]");
        }
    }

    #[test]
    fn a_single_value_of_any_type_is_text() {
        let parsed: BTreeMap<String, Template> =
            yaml::from_str("{ a: 8080, b: true, c: , d: x }").unwrap();
        let texts: Vec<_> = parsed.values().map(|template| &*template.0).collect();
        assert_eq!(texts, ["8080", "true", "", "x"]);
        assert!(yaml::from_str::<Template>("[a]").is_err());
    }
}
