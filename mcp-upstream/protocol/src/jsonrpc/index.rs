//! Builds the index of a message in one pass: the positions of its known members. All other members are only validated.

use std::ops::Range;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;
use smallvec::SmallVec;
use tooldock_base::json::{InvalidJson, Walk};

use super::key::{Key, KeyLookup, Level};
use super::splice::span;

/// Maximum number of members of a message, of its `params`, and of their `_meta`; messages with more are refused. Code that edits
/// these objects stores each member, so many short members would use much more memory than the message itself.
pub(crate) const MEMBERS_MAX: usize = 1024;

/// Number of known members that an index stores without a heap allocation. Most messages have fewer.
const USUAL: usize = 12;

/// A byte range in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Creates a byte range. Returns `None` beyond 4 GiB; no message is that long.
    pub fn new(range: Range<usize>) -> Option<Self> {
        Some(Self {
            start: range.start.try_into().ok()?,
            end: range.end.try_into().ok()?,
        })
    }

    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Adjusts the byte range after an edit that replaced the bytes at `replaced` by `length` bytes. Returns `None` if the range
    /// was inside the replaced bytes.
    fn moved(self, replaced: Range<usize>, length: usize) -> Option<Self> {
        let own = self.range();
        let moved = |place: usize| (place + length).checked_sub(replaced.len());
        if own.end <= replaced.start {
            Some(self)
        } else if own.start >= replaced.end {
            Self::new(moved(own.start)?..moved(own.end)?)
        } else if own.start < replaced.start || own.end > replaced.end {
            // The replaced bytes are inside this range, so only its end moves.
            Self::new(own.start..moved(own.end)?)
        } else {
            None
        }
    }
}

/// A member with a known key, and its position in the message.
#[derive(Debug, Clone, Copy)]
struct IndexedMember {
    key: Key,
    /// Position of the quote with which the key begins.
    begin: u32,
    value: Span,
}

impl IndexedMember {
    fn new(key: Key, begin: usize, value: Range<usize>) -> Option<Self> {
        Some(Self {
            key,
            begin: begin.try_into().ok()?,
            value: Span::new(value)?,
        })
    }

    /// The byte range from the start of the key to the end of the value.
    fn whole(&self) -> Span {
        Span {
            start: self.begin,
            end: self.value.end,
        }
    }
}

/// The reason why another JSON parser may interpret the message differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ambiguity {
    /// The message contains a key that differs from a known key only in case.
    Alike {
        /// The key in the message, decoded.
        text: Box<str>,
        known: Key,
    },
    /// An object in the message has more than `MEMBERS_MAX` members.
    TooMany(Level),
}

/// Index of a message: the positions of its known members.
#[derive(Debug, Clone, Default)]
pub struct Index {
    members: SmallVec<[IndexedMember; USUAL]>,
    twice: Option<Key>,
    ambiguity: Option<Box<Ambiguity>>,
}

impl Index {
    /// Builds the index of a complete message.
    ///
    /// # Errors
    ///
    /// The text is not a JSON object, or is nested too deep for this parser.
    #[inline]
    pub fn of(text: &str) -> Result<Self, InvalidJson> {
        let mut reader = IndexReader {
            text,
            walk: Walk::new(text),
            index: Self::default(),
        };
        if !reader.walk.step_in()? {
            return Err(InvalidJson);
        }
        reader.object(Level::Message)?;
        reader.walk.over()?;
        Ok(reader.index)
    }

    /// The byte range of a member, from its key to the end of its value; `None` if the message does not contain it.
    pub fn whole(&self, key: Key) -> Option<Span> {
        let found = self.members.iter().find(|member| member.key == key);
        found.map(IndexedMember::whole)
    }

    /// Builds the index of a message that [`Self::of`] has refused, for example because it is nested too deep. Only the top level
    /// is indexed, which is sufficient for responses, but not for requests and notifications.
    ///
    /// # Errors
    ///
    /// The text is not a valid message.
    pub fn by_parser(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow, default, deserialize_with = "super::present")]
            jsonrpc: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "super::present")]
            id: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "super::present")]
            method: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "super::present")]
            params: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "super::present")]
            result: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "super::present")]
            error: Option<&'a RawValue>,
        }
        let envelope: Envelope<'_> = serde_json::from_str(text)?;
        let mut index = Self::default();
        for (key, value) in [
            (Key::JsonRpc, envelope.jsonrpc),
            (Key::Id, envelope.id),
            (Key::Method, envelope.method),
            (Key::Params, envelope.params),
            (Key::Result, envelope.result),
            (Key::Error, envelope.error),
        ] {
            let Some(value) = value else { continue };
            let at = span(text, value.get());
            let member = IndexedMember::new(key, at.start, at);
            let too_long = || serde_json::Error::custom("the message is too long");
            index.members.push(member.ok_or_else(too_long)?);
        }
        Ok(index)
    }

    /// The byte range of a member's value; of the first one if the key is repeated. `None` if the message does not contain it.
    #[inline]
    pub fn get(&self, key: Key) -> Option<Span> {
        let found = self.members.iter().find(|member| member.key == key);
        found.map(|member| member.value)
    }

    /// A known key that the message contains several times; `None` if there is none.
    pub fn repeated_key(&self) -> Option<Key> {
        self.twice
    }

    /// The reason why another JSON parser may interpret the message differently, except repeated keys; `None` if there is none.
    pub fn ambiguity(&self) -> Option<&Ambiguity> {
        self.ambiguity.as_deref()
    }

    /// Builds the index of an object that is the value of a member. `at` is the object's position in its message.
    ///
    /// # Errors
    ///
    /// The text is not a JSON object, or is nested too deep for this parser.
    pub fn of_value(text: &str, level: Level, at: usize) -> Result<Self, InvalidJson> {
        let mut reader = IndexReader {
            text,
            walk: Walk::new(text),
            index: Self::default(),
        };
        if reader.walk.step_in()? {
            reader.object(level)?;
        }
        let mut index = reader.index;
        index.replaced(0..0, at);
        Ok(index)
    }

    /// Adjusts all positions after an edit that replaced the bytes at `at` by `length` bytes.
    pub fn replaced(&mut self, at: Range<usize>, length: usize) {
        self.members.retain(|member| {
            let value = member.value.moved(at.clone(), length);
            let whole = member.whole().moved(at.clone(), length);
            let Some((value, whole)) = value.zip(whole) else {
                return false;
            };
            (member.value, member.begin) = (value, whole.start);
            true
        });
    }

    /// Adds a member to the index, and the known members inside its value. The key begins at `begin`; the value is `text` and
    /// begins at `at`.
    ///
    /// # Errors
    ///
    /// The value is not JSON, or is nested too deep.
    pub fn added(
        &mut self,
        key: Key,
        begin: usize,
        text: &str,
        at: usize,
    ) -> Result<(), InvalidJson> {
        let end = at + text.len();
        let member = IndexedMember::new(key, begin, at..end);
        self.members.push(member.ok_or(InvalidJson)?);
        if let Some(level) = key.below() {
            self.members
                .extend(Self::of_value(text, level, at)?.members);
        }
        Ok(())
    }
}

/// Returns true if the raw JSON is a string or a number, and so can be an id, a token or a name.
pub(crate) fn names(raw: &str) -> bool {
    raw.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'))
}

struct IndexReader<'a> {
    text: &'a str,
    walk: Walk<'a>,
    index: Index,
}

impl IndexReader<'_> {
    /// Reads an object, whose opening brace has been read already.
    fn object(&mut self, level: Level) -> Result<(), InvalidJson> {
        let mut members = 0;
        let mut next = self.walk.first_key()?;
        while let Some(at) = next {
            let begin = at.start;
            match level.find(self.text.get(at).ok_or(InvalidJson)?) {
                KeyLookup::Known(key) => self.known(key, begin)?,
                KeyLookup::Alike(text, known) => {
                    let text = text.into();
                    self.note(|| Ambiguity::Alike { text, known });
                    self.walk.value()?;
                }
                KeyLookup::Other => {
                    self.walk.value()?;
                }
            }
            members += 1;
            if members > MEMBERS_MAX {
                self.note(|| Ambiguity::TooMany(level));
            }
            next = self.walk.next_key()?;
        }
        Ok(())
    }

    fn known(&mut self, key: Key, begin: usize) -> Result<(), InvalidJson> {
        let value = match key.below() {
            Some(below) => {
                let start = self.walk.place();
                if self.walk.step_in()? {
                    self.object(below)?;
                    start..self.walk.end()
                } else {
                    self.walk.value()?
                }
            }
            None => self.walk.value()?,
        };
        if self.index.get(key).is_some() {
            if key.level() == Level::Message {
                // Parsers differ on which of the repeated members counts, so the message is refused.
                return Err(InvalidJson);
            }
            self.index.twice.get_or_insert(key);
            return Ok(());
        }
        let member = IndexedMember::new(key, begin, value);
        self.index.members.push(member.ok_or(InvalidJson)?);
        Ok(())
    }

    fn note(&mut self, ambiguity: impl FnOnce() -> Ambiguity) {
        self.index
            .ambiguity
            .get_or_insert_with(|| Box::new(ambiguity()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn found(text: &str, key: Key) -> Option<&str> {
        let index = Index::of(text).expect("an object");
        index.get(key).map(|span| &text[span.range()])
    }

    #[test]
    fn every_known_member_is_found_where_it_stands_with_its_bytes_untouched() {
        let text = r#" { "id" : 1.50 ,"x":{"id":2,"params":{"name":3}},"params": { "n\u0061me" : "\u0041, }" ,
            "arguments":{"name":[1.50 ],"_meta":{"progressToken":8}} ,"_meta":{"progressToken" : "t" ,"y":{},
            "io.modelcontextprotocol/related-task":{"taskId":"k"}}, "taskId" : null } } "#;
        for (key, value) in [
            (Key::Id, Some("1.50")),
            (Key::Name, Some(r#""\u0041, }""#)),
            (
                Key::Arguments,
                Some(r#"{"name":[1.50 ],"_meta":{"progressToken":8}}"#),
            ),
            (Key::ProgressToken, Some("\"t\"")),
            (Key::RelatedTask, Some(r#"{"taskId":"k"}"#)),
            (Key::RelatedTaskId, Some("\"k\"")),
            (Key::TaskId, Some("null")),
            (Key::Uri, None),
            (Key::Progress, None),
            (Key::Method, None),
        ] {
            assert_eq!(found(text, key), value, "{key:?}");
        }
        let params = found(text, Key::Params).expect("there");
        assert!(params.starts_with("{ \"n") && params.ends_with("null }"));
        // A value that should be an object but is not has no members.
        assert_eq!(found(r#"{"params":[{"name":1}]}"#, Key::Name), None);
        assert_eq!(
            found(r#"{"params":{"_meta":"progressToken"}}"#, Key::Meta),
            Some("\"progressToken\"")
        );
    }

    #[test]
    fn a_key_that_is_there_twice_is_noted_however_it_is_spelled() {
        for (text, key) in [
            (r#"{"params":{"name":1,"x":2,"name":3}}"#, Some(Key::Name)),
            (
                r#"{"params":{"_meta":{"progressToken":1,"progressToken":1}}}"#,
                Some(Key::ProgressToken),
            ),
            (r#"{"params":{"_meta":{},"_meta":{}}}"#, Some(Key::Meta)),
            (r#"{"params":{"x":1,"x":2},"x":1,"x":2}"#, None),
            (
                r#"{"params":{"progressToken":1,"_meta":{"progressToken":1}}}"#,
                None,
            ),
        ] {
            assert_eq!(Index::of(text).expect("JSON").twice, key, "{text}");
        }
    }

    #[test]
    fn what_differs_from_a_known_key_only_in_case_is_noted_where_keys_mean_something() {
        let alike = |text: &str| match Index::of(text).expect("JSON").ambiguity.as_deref() {
            Some(Ambiguity::Alike { text, known }) => Some((text.to_string(), *known)),
            Some(other) => panic!("{other:?}"),
            None => None,
        };
        for (text, key, known) in [
            (r#"{"method":"a","Method":"b"}"#, "Method", Key::Method),
            (r#"{"id":1,"result":{},"Params":{}}"#, "Params", Key::Params),
            (r#"{"params":{"NAME":"no","Uri":1}}"#, "NAME", Key::Name),
            (
                r#"{"params":{"_meta":{"a":{},"ProgressToken":1}}}"#,
                "ProgressToken",
                Key::ProgressToken,
            ),
            (
                r#"{"params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskid":"t"}}}}"#,
                "taskid",
                Key::RelatedTaskId,
            ),
        ] {
            assert_eq!(alike(text), Some((key.to_owned(), known)), "{text}");
        }
        for text in [
            r#"{"params":{"arguments":{"Name":1,"_meta":{"ProgressToken":1}}}}"#,
            r#"{"Name":1,"result":{"Method":1,"Id":2}}"#,
            r#"{"params":{"x":"\"Name\":","z":["Name",{"Name":1}],"Method":1}}"#,
            r#"{"params":[{"Name":1}],"x":{"params":{"Name":1}}}"#,
        ] {
            assert_eq!(alike(text), None, "{text}");
        }
    }

    #[test]
    fn there_is_an_end_to_the_members_of_an_object() {
        let object = |members: usize| format!("{{{}}}", vec!["\"\":1"; members].join(","));
        for (whole, level) in [
            ("MANY", Level::Message),
            (r#"{"params":MANY,"id":1}"#, Level::Params),
            (r#"{"params":{"_meta":MANY}}"#, Level::Meta),
        ] {
            let index =
                |members: usize| Index::of(&whole.replace("MANY", &object(members))).expect("JSON");
            assert_eq!(index(MEMBERS_MAX).ambiguity, None);
            let many = index(MEMBERS_MAX + 1);
            assert_eq!(many.ambiguity.as_deref(), Some(&Ambiguity::TooMany(level)));
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic_or_read_what_a_parser_does_not(text in r#"[{}\[\]",:\\ nNſ]{0,40}"#) {
            if Index::of(&text).is_ok() {
                prop_assert!(serde_json::from_str::<Value>(&text).is_ok());
            }
        }

        #[test]
        fn members_are_those_that_a_parser_finds(
            before in ".{0,12}", name in ".{0,40}", token in any::<u32>(), pretty in any::<bool>(),
        ) {
            let value = serde_json::json!({
                "x": [&before, { "params": &before }],
                "params": { "a": { &*before: 1 }, "name": &name, "_meta": { "b": &before, "progressToken": token } },
                "id": &before,
            });
            let text = match pretty {
                true => serde_json::to_string_pretty(&value),
                false => serde_json::to_string(&value),
            }.expect("JSON");
            for (key, path) in [
                (Key::Id, "/id"),
                (Key::Params, "/params"),
                (Key::Name, "/params/name"),
                (Key::Meta, "/params/_meta"),
                (Key::ProgressToken, "/params/_meta/progressToken"),
            ] {
                let read: Value = serde_json::from_str(found(&text, key).expect("there")).expect("JSON");
                prop_assert_eq!(Some(&read), value.pointer(path));
            }
        }
    }
}
