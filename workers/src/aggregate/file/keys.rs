//! A TOML table whose keys are read one by one; errors have the line and the column.
//!
//! An error names keys and types, never a value: values may be credentials.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Allowed range of every duration in an aggregate's file.
const TIMES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);

/// The text of an aggregate's file, with the file's name.
#[derive(Clone, Copy)]
pub(super) struct AggregateText<'a> {
    /// Name of the file, for errors.
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

/// Value of a TOML key, with its byte range in the file.
pub(super) type Value<'a> = Spanned<DeValue<'a>>;

/// A TOML table whose keys are taken out one by one. The keys that remain are unknown keys.
pub(super) struct Keys<'a> {
    source: AggregateText<'a>,
    /// Kind of the table for errors, as in "unknown key of a server".
    what: &'static str,
    /// Byte offset in the file at which the table begins.
    at: usize,
    /// Name of the key that contains the table, with the byte offset of that name; `None` if there is no such key.
    name: Option<(String, usize)>,
    entries: Vec<(Spanned<String>, Value<'a>)>,
    known: Vec<&'static str>,
}

impl<'a> AggregateText<'a> {
    /// Returns an error message with the line and column of the byte offset `at`.
    pub(super) fn error(self, at: usize, message: impl Display) -> String {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = 1 + memchr::memchr_iter(b'\n', before.as_bytes()).count();
        let column = 1 + before
            .rsplit('\n')
            .next()
            .unwrap_or_default()
            .chars()
            .count();
        format!("{}:{line}:{column}: {message}", self.name)
    }

    /// Parses the complete file as a table.
    pub(super) fn keys(self) -> Result<Keys<'a>, String> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let at = error.span().map_or(0, |span: Range<usize>| span.start);
            let message = error.message().lines().next().unwrap_or_default();
            self.error(at, format_args!("this is no TOML: {message}"))
        })?;
        Ok(Keys::new(self, "the file", 0, table.into_inner()))
    }
}

impl<'a> Keys<'a> {
    pub(super) fn new(
        source: AggregateText<'a>,
        what: &'static str,
        at: usize,
        table: DeTable<'a>,
    ) -> Self {
        let owned = |(key, value): (Spanned<_>, _)| {
            let span = key.span();
            let text: std::borrow::Cow<'_, str> = key.into_inner();
            (Spanned::new(span, text.into_owned()), value)
        };
        Self {
            source,
            what,
            at,
            name: None,
            entries: table.into_iter().map(owned).collect(),
            known: Vec::new(),
        }
    }

    /// Sets the name of the key that contains the table, and the byte offset of that name.
    pub(super) fn named(self, name: &str, at: usize) -> Self {
        let name = Some((name.to_owned(), at));
        Self { name, ..self }
    }

    /// The name of the key that contains the table, with the byte offset of that name.
    pub(super) fn name(&self) -> Option<(String, usize)> {
        self.name.clone()
    }

    /// The byte offset at which the table begins.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Takes out the value of a key.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Value<'a>> {
        self.known.push(key);
        let found = self
            .entries
            .iter()
            .position(|(name, _)| name.get_ref() == key)?;
        Some(self.entries.swap_remove(found).1)
    }

    /// The byte offset of the value of a key, if the key exists.
    pub(super) fn place_of(&self, key: &str) -> Option<usize> {
        let mut entries = self.entries.iter();
        let found = entries.find(|(name, _)| name.get_ref() == key);
        found.map(|(_, value)| value.span().start)
    }

    /// Returns an error if keys remain that were not taken out.
    ///
    /// # Errors
    ///
    /// The first unknown key, and the known key that is most similar to it.
    pub(super) fn finish(self) -> Result<(), String> {
        let first = self.entries.iter().min_by_key(|(key, _)| key.span().start);
        let Some((key, _)) = first else { return Ok(()) };
        let name = key.get_ref();
        let nearest = self
            .known
            .iter()
            .map(|known| (strsim::damerau_levenshtein(known, name), known));
        let nearest = nearest
            .min()
            .filter(|(distance, known)| *distance <= known.len().max(3) / 3);
        let hint = match nearest {
            Some((_, known)) => format!("did you mean \"{known}\"?"),
            None => format!("there are {}", self.known.join(", ")),
        };
        let message = format!("unknown key \"{name}\" of {}; {hint}", self.what);
        Err(self.source.error(key.span().start, message))
    }

    /// Takes out a key whose value is a text, and returns the text with its byte offset.
    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<(String, usize)>, String> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let at = value.span().start;
        match value.into_inner() {
            DeValue::String(text) => Ok(Some((text.into_owned(), at))),
            other => Err(self.wrong(at, key, "a text in quotes", &other)),
        }
    }

    /// Takes out a key whose value is `true` or `false`.
    pub(super) fn switch(&mut self, key: &'static str) -> Result<Option<bool>, String> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let at = value.span().start;
        match value.into_inner() {
            DeValue::Boolean(said) => Ok(Some(said)),
            other => Err(self.wrong(at, key, "true or false", &other)),
        }
    }

    /// Takes out a key whose value is a duration.
    pub(super) fn duration(&mut self, key: &'static str) -> Result<Option<Duration>, String> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let at = value.span().start;
        let DeValue::String(text) = value.get_ref() else {
            return Err(self.wrong(at, key, "a time such as \"30s\" or \"2m\"", value.get_ref()));
        };
        let read = humantime_serde::re::humantime::parse_duration(text);
        let read = read.ok().filter(|it| TIMES.contains(it));
        read.map(Some).ok_or_else(|| {
            let message = format!(
                "{key} must be a time such as \"30s\", \"2m\" or \"500ms\", at least 1ms and at most 1d"
            );
            self.source.error(at, message)
        })
    }

    /// Takes out a key whose value is a list of at most `max` texts, and returns each text with its byte offset.
    pub(super) fn texts(
        &mut self,
        key: &'static str,
        max: usize,
    ) -> Result<Vec<(String, usize)>, String> {
        let Some(value) = self.take(key) else {
            return Ok(Vec::new());
        };
        let at = value.span().start;
        let values = match value.into_inner() {
            DeValue::Array(values) => values,
            other => return Err(self.wrong(at, key, "a list such as [\"a_*\", \"b_*\"]", &other)),
        };
        if values.len() > max {
            let message = format!("{key} has {} entries, more than {max}", values.len());
            return Err(self.source.error(at, message));
        }
        let texts = values.into_iter().map(|value| {
            let at = value.span().start;
            match value.into_inner() {
                DeValue::String(text) => Ok((text.into_owned(), at)),
                other => Err(self.wrong(at, key, "a list of texts in quotes", &other)),
            }
        });
        texts.collect()
    }

    /// Takes out a key whose value is a table of single values, and returns each with the byte offset of its key. Numbers and
    /// booleans are returned as they are written.
    pub(super) fn values(
        &mut self,
        key: &'static str,
    ) -> Result<BTreeMap<String, (String, usize)>, String> {
        let Some(value) = self.take(key) else {
            return Ok(BTreeMap::new());
        };
        let at = value.span().start;
        let table = match value.into_inner() {
            DeValue::Table(table) => table,
            other => {
                return Err(self.wrong(at, key, "a table such as { NAME = \"value\" }", &other));
            }
        };
        let values = table.into_iter().map(|(name, value)| {
            let at = name.span().start;
            let name = name.into_inner().into_owned();
            let text = match value.into_inner() {
                DeValue::String(text) => text.into_owned(),
                DeValue::Boolean(value) => value.to_string(),
                DeValue::Integer(value) => value.to_string(),
                DeValue::Float(value) => value.to_string(),
                other => {
                    let key = format!("{key}.{name}");
                    return Err(self.wrong(at, &key, "a single value", &other));
                }
            };
            Ok((name, (text, at)))
        });
        values.collect()
    }

    /// Returns the error about a value of an unexpected type.
    pub(super) fn wrong(&self, at: usize, key: &str, wanted: &str, found: &DeValue<'_>) -> String {
        let message = format!("{key} must be {wanted}, and is {}", kind(found));
        self.source.error(at, message)
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
