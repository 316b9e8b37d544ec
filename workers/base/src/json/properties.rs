//! Property tests: for any text, the reader returns exactly the same spans as `serde_json`, or refuses the text.

use std::collections::BTreeMap;
use std::fmt;

use proptest::prelude::*;
use proptest::strategy::Union;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::members::JsonMember;
use super::{DEPTH_MAX, JsonMembers, from_str, is_value};

/// The members that `serde_json` reads: raw keys and raw values.
struct Reference<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Reference<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Vec<(&'de RawValue, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(all)
            }
        }

        deserializer.deserialize_map(All).map(Self)
    }
}

/// Position and text of a key, and position and text of its value.
type Placed<'a> = (usize, &'a str, usize, &'a str);

/// The members of the text with their positions, as read by `serde_json`. `None` if it refuses the text.
fn expected(text: &str) -> Option<Vec<Placed<'_>>> {
    let Reference(all) = serde_json::from_str(text).ok()?;
    let place = |raw: &RawValue| raw.get().as_ptr() as usize - text.as_ptr() as usize;
    let each = |(key, value)| {
        (
            place(key),
            RawValue::get(key),
            place(value),
            RawValue::get(value),
        )
    };
    Some(all.into_iter().map(each).collect())
}

fn read(text: &str) -> Option<Vec<Placed<'_>>> {
    let mut members = JsonMembers::of(text).ok()?;
    let mut all = Vec::new();
    let place = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
    while let Some(JsonMember { key, value }) = members.next_member().ok()? {
        all.push((place(key), key, place(value), value));
    }
    Some(all)
}

/// The nesting depth of a text: its maximum number of open brackets. Brackets in strings are not counted.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn agrees(text: &str) {
    let is_object = text.trim_ascii_start().starts_with('{');
    assert_eq!(
        is_value(text.as_bytes(), |_| {}) && is_object,
        read(text).is_some(),
        "{text:?}"
    );
    match (read(text), expected(text)) {
        (None, Some(_)) => assert!(depth(text) > DEPTH_MAX, "{text:?} is not read"),
        (ours, theirs) => assert_eq!(ours, theirs, "{text:?}"),
    }
}

fn space() -> impl Strategy<Value = String> {
    "[ \t\r\n]{0,2}"
}

/// Generates JSON strings in which escapes and ends are at every position of a block. Some contain characters that are rare in
/// texts.
fn string() -> BoxedStrategy<String> {
    let piece = Union::new([
        "[ -!#-\\[\\]-~]{0,40}".boxed(),
        "[é🦀\u{7f}\u{85}\u{2028}]{1,3}".boxed(),
        "[a-zé ]{100,300}".boxed(),
        "\\\\[\"\\\\/bfnrt]".boxed(),
        "\\\\u[0-9a-fA-F]{4}".boxed(),
    ]);
    let pieces = prop::collection::vec(piece, 0..6);
    pieces
        .prop_map(|pieces| format!("\"{}\"", pieces.concat()))
        .boxed()
}

fn json() -> BoxedStrategy<String> {
    let leaf = Union::new([
        "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?".boxed(),
        "true|false|null".boxed(),
        string(),
    ]);
    leaf.prop_recursive(4, 24, 5, |inner| {
        let items = prop::collection::vec((space(), inner.clone(), space()), 0..5);
        let array = (items, space()).prop_map(|(items, gap)| {
            let items: Vec<_> = items.iter().map(|(a, x, b)| format!("{a}{x}{b}")).collect();
            format!("[{gap}{}]", items.join(","))
        });
        Union::new([array.boxed(), object_of(inner)])
    })
    .boxed()
}

fn object_of(value: BoxedStrategy<String>) -> BoxedStrategy<String> {
    let members = prop::collection::vec((string(), value, space()), 0..5);
    (members, space())
        .prop_map(|(members, gap)| {
            let each = |(key, value, space): &(String, String, String)| {
                format!("{gap}{key}{space}:{gap}{value}{space}")
            };
            let members: Vec<_> = members.iter().map(each).collect();
            format!("{gap}{{{gap}{}}}{gap}", members.join(","))
        })
        .boxed()
}

/// Changes a text so that it may become invalid: removes a character, inserts one, replaces one, or cuts the text off.
fn broken(text: &str, at: prop::sample::Index, how: u8, with: char) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    let at = at.index(characters.len());
    match how {
        0 => {
            characters.remove(at);
        }
        1 => characters.insert(at, with),
        2 => characters[at] = with,
        _ => characters.truncate(at),
    }
    characters.into_iter().collect()
}

fn any_character() -> impl Strategy<Value = char> {
    let telling: Vec<char> = "{}[]\",:\\/-+.eE0129untrf \t\n\r\u{0}\u{1f}\u{b}\u{7f}é"
        .chars()
        .collect();
    prop_oneof![4 => prop::sample::select(telling), 1 => any::<char>()]
}

/// A struct as in the gateway's code, with spans, and with a value that is present even if it is `null`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields<'a> {
    #[serde(borrow)]
    a: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    b: Option<&'a RawValue>,
    c: Option<String>,
    d: Option<f32>,
    e: Option<Vec<u8>>,
    f: Option<BTreeMap<u8, bool>>,
    g: (),
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn same_struct(text: &str) {
    let ours = from_str::<Fields<'_>>(text).map_err(|error| error.to_string());
    let theirs = serde_json::from_str::<Fields<'_>>(text).map_err(|error| error.to_string());
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{text:?}");
}

proptest! {
    #[test]
    fn every_object_is_read_as_it_stands(text in object_of(json())) {
        let plain = text.replace(['\n', '\r', '\t'], " ");
        for text in [text, plain] {
            let members = read(&text);
            prop_assert!(members.is_some(), "{text:?}");
            prop_assert_eq!(members, expected(&text));
        }
    }

    #[test]
    fn a_mistake_is_one_to_both(
        text in object_of(json()), at in any::<prop::sample::Index>(), how in 0_u8..4, with in any_character(),
    ) {
        // The text is also tested without control characters, because the reader handles such texts by other code.
        let plain = text.replace(['\n', '\r', '\t'], " ");
        for text in [text, plain] {
            agrees(&broken(&text, at, how, with));
        }
    }

    #[test]
    fn any_text_is_the_same_to_both(
        telling in prop::collection::vec(any_character(), 0..40), other in ".{0,40}",
    ) {
        let telling: String = telling.into_iter().collect();
        for text in [&telling, &other, &format!("{{\"a\":{telling}}}"), &format!("{{\"{telling}\":1}}")] {
            agrees(text);
        }
    }

    #[test]
    fn a_struct_is_the_same_to_both(
        members in prop::collection::vec(("[a-h]|\\\\u006[1-7]", json()), 0..4), gap in space(),
    ) {
        let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\"{gap}:{value}")).collect();
        same_struct(&format!("{gap}{{{}}}", members.join(",")));
    }
}

#[test]
fn what_both_must_take_and_what_they_must_not() {
    for (value, taken) in [
        ("0", true),
        ("-0", true),
        ("-", false),
        ("01", false),
        ("-01", false),
        ("1.", false),
        (".5", false),
        ("1e", false),
        ("1e+", false),
        ("1E-400", true),
        ("+1", false),
        ("NaN", false),
        ("tru", false),
        ("nul", false),
        ("True", false),
        (r#""\u12G4""#, false),
        (r#""\u123""#, false),
        (r#""\x""#, false),
        (r#""\"#, false),
        (r#""\ud800""#, true),
        ("\"\u{1f}\"", false),
        ("\"\u{7f}\"", true),
        ("\"\n\"", false),
        ("[1,]", false),
        ("[,]", false),
        ("[}", false),
        ("{]", false),
        (r#"{"a"}"#, false),
        (r#"{"a":}"#, false),
        (r#"{"a":1,}"#, false),
        (r#"{a:1}"#, false),
        ("[ \t\r\n]", true),
        ("\u{a0}1", false),
        ("\u{c}1", false),
        ("1 2", false),
        ("/**/1", false),
        ("", false),
    ] {
        let text = format!(r#"{{"a":{value}}}"#);
        assert_eq!(expected(&text).is_some(), taken, "{text:?}");
        assert_eq!(read(&text), expected(&text), "{text:?}");
    }
    for text in [
        "",
        "{",
        "}",
        "[]",
        "null",
        "{}x",
        "{}{}",
        "{},",
        "\u{feff}{}",
        "{\"a\":1}}",
    ] {
        assert_eq!(read(text), None, "{text:?}");
        assert_eq!(expected(text), None, "{text:?}");
    }
    assert_eq!(read(" { } "), Some(Vec::new()));
}

#[test]
fn a_string_ends_where_it_ends_wherever_that_is() {
    for length in 0..100 {
        for escape in ["", "\\\\", "\\\"", "\\u0022", "\\n"] {
            for between in ["", "\n"] {
                let long = "x".repeat(length);
                let text = format!(r#"{{"a":"{long}{escape}{long}{escape}",{between}"b":"\\"}}"#);
                assert_eq!(read(&text).map(|all| all.len()), Some(2), "{text}");
                assert_eq!(read(&text), expected(&text));
                for end in 0..text.len() {
                    agrees(&text[..end]);
                }
            }
        }
    }
}

#[test]
fn nesting_is_bounded_with_the_object_itself() {
    let nested = |open: &str, close: &str, levels: usize| {
        format!("{{\"a\":{}1{}}}", open.repeat(levels), close.repeat(levels))
    };
    for (open, close) in [("[", "]"), ("{\"x\":", "}")] {
        let text = nested(open, close, DEPTH_MAX - 1);
        assert_eq!(read(&text), expected(&text));
        assert_eq!(read(&nested(open, close, DEPTH_MAX)), None);
    }
    let empty = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert!(read(&empty(DEPTH_MAX - 1)).is_some());
    assert_eq!(read(&empty(DEPTH_MAX)), None);
    // `from_str` does not refuse deeper texts: it lets `serde_json` read them.
    assert!(from_str::<Fields<'_>>(&empty(DEPTH_MAX)).is_ok());
}

#[test]
fn each_key_is_shown_as_it_stands_and_no_value() {
    let text = r#" {"a" : ["b", {"\u0063":{}, "d" :"e"}], "a":{"f\"":[{}]}} "#;
    let mut keys = Vec::new();
    assert!(is_value(text.as_bytes(), |key| keys.push(key.to_vec())));
    let expected = [r#""a""#, r#""\u0063""#, r#""d""#, r#""a""#, r#""f\"""#];
    assert_eq!(keys, expected.map(|key| key.as_bytes().to_vec()));
}

#[test]
fn spans_are_not_read_again() {
    use super::raw;
    assert_eq!(raw("no JSON").map(RawValue::get), Some("no JSON"));
}
