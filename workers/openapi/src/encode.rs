//! Values of parameters and form fields as text, in the styles of OpenAPI.

use percent_encoding::{
    AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode,
};
use serde_json::Value;

/// Characters that are encoded in values: all but the unreserved ones of RFC 3986.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// Characters that are encoded in values of query parameters with `allowReserved`: reserved characters stay, except
/// `#`, `&`, `+`, `=` and square brackets.
const RESERVED: &AsciiSet = &VALUE
    .remove(b':')
    .remove(b'/')
    .remove(b'?')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b',')
    .remove(b';');

/// Characters that are encoded in a path of a document, since a request may not contain them. Braces stay, since they enclose
/// parameters.
const TEMPLATE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'|');

/// Number of times that a path is percent-decoded in search of `.` and `..`.
const DECODINGS: usize = 3;

/// Style of a parameter: the form of lists and objects in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Simple,
    Label,
    Matrix,
    Form,
    SpaceDelimited,
    PipeDelimited,
    DeepObject,
}

impl Style {
    /// Returns the style with this name in documents; `None` for an unknown name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "simple" => Self::Simple,
            "label" => Self::Label,
            "matrix" => Self::Matrix,
            "form" => Self::Form,
            "spaceDelimited" => Self::SpaceDelimited,
            "pipeDelimited" => Self::PipeDelimited,
            "deepObject" => Self::DeepObject,
            _ => return None,
        })
    }

    /// Returns the text between the items of a list, or between the keys and values of an object, in a query or form field.
    fn separator(self) -> &'static str {
        match self {
            Self::SpaceDelimited => "%20",
            Self::PipeDelimited => "%7C",
            Self::Label => ".",
            _ => ",",
        }
    }
}

/// Percent-encodes a text. `may_be_reserved`: true if reserved characters such as `/` stay, false if they are encoded.
pub(crate) fn percent(text: &str, may_be_reserved: bool) -> String {
    let set = if may_be_reserved { RESERVED } else { VALUE };
    utf8_percent_encode(text, set).to_string()
}

/// Percent-encodes the characters of a document's path that a request may not contain.
pub(crate) fn template(path: &str) -> String {
    utf8_percent_encode(path, TEMPLATE).to_string()
}

/// Returns the text of a value: a string as it is, an empty text for `null`, other values as JSON.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    }
}

/// A text with a maximum size. Adding a piece that would exceed it fails.
pub(crate) struct BoundedText {
    text: String,
    max: usize,
}

/// Error of a text that would be larger than its limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl BoundedText {
    /// Creates an empty text of at most `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        let text = String::new();
        Self { text, max }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn into_string(self) -> String {
        self.text
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: &str) -> Result<(), TooLong> {
        if self.text.len() + piece.len() > self.max {
            return Err(TooLong);
        }
        self.text.push_str(piece);
        Ok(())
    }

    /// Adds the pieces with a separator between them.
    fn join(
        &mut self,
        pieces: impl Iterator<Item = String>,
        separator: &str,
    ) -> Result<(), TooLong> {
        for (at, piece) in pieces.enumerate() {
            if at > 0 {
                self.push(separator)?;
            }
            self.push(&piece)?;
        }
        Ok(())
    }

    /// Adds a name and a value of a query or a form, both already encoded, after a `&` if the text is not empty.
    fn pair(&mut self, name: &str, value: &str) -> Result<(), TooLong> {
        if !self.text.is_empty() {
            self.push("&")?;
        }
        self.push(name)?;
        self.push("=")?;
        self.push(value)
    }
}

/// Writes the value of the path parameter `name`, percent-encoded.
pub(crate) fn path(
    name: &str,
    value: &Value,
    style: Style,
    explode: bool,
    out: &mut BoundedText,
) -> Result<(), TooLong> {
    let encoded = |it: &Value| percent(&text(it), false);
    let name = percent(name, false);
    let (start, separator) = match (style, explode) {
        (Style::Label, true) => (".".to_owned(), "."),
        (Style::Label, false) => (".".to_owned(), ","),
        (Style::Matrix, true) if value.is_object() => (";".to_owned(), ";"),
        (Style::Matrix, true) if value.is_array() => (String::new(), ""),
        (Style::Matrix, _) => (format!(";{name}="), ","),
        _ => (String::new(), ","),
    };
    out.push(&start)?;
    match value {
        Value::Array(items) if style == Style::Matrix && explode => out.join(
            items.iter().map(|it| format!(";{name}={}", encoded(it))),
            "",
        ),
        Value::Array(items) => out.join(items.iter().map(encoded), separator),
        Value::Object(members) => {
            let sign = if explode { "=" } else { "," };
            let member = |(key, it): (&String, &Value)| {
                format!("{}{sign}{}", percent(key, false), encoded(it))
            };
            out.join(members.iter().map(member), separator)
        }
        value => out.push(&encoded(value)),
    }
}

/// Returns the value of a header or cookie parameter in the style `simple`, without percent-encoding.
pub(crate) fn plain(value: &Value, explode: bool) -> String {
    match value {
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(members) => {
            let sign = if explode { "=" } else { "," };
            let member = |(key, it): (&String, &Value)| format!("{key}{sign}{}", text(it));
            members.iter().map(member).collect::<Vec<_>>().join(",")
        }
        value => text(value),
    }
}

/// A parameter of a query or a form.
pub(crate) struct Field<'a> {
    pub(crate) name: &'a str,
    pub(crate) style: Style,
    pub(crate) explode: bool,
    pub(crate) may_be_reserved: bool,
}

/// Writes the names and values of a query parameter or form field, percent-encoded, with `&` between them and the earlier ones.
pub(crate) fn pairs(
    field: &Field<'_>,
    value: &Value,
    out: &mut BoundedText,
) -> Result<(), TooLong> {
    let encoded = |it: &Value| percent(&text(it), field.may_be_reserved);
    let mut name = percent(field.name, false);
    match value {
        _ if field.style == Style::DeepObject => deep(&mut name, value, field.may_be_reserved, out),
        Value::Array(items) if field.explode => items
            .iter()
            .try_for_each(|it| out.pair(&name, &encoded(it))),
        Value::Array(items) => {
            out.pair(&name, "")?;
            out.join(items.iter().map(encoded), field.style.separator())
        }
        Value::Object(members) if field.explode => members
            .iter()
            .try_for_each(|(key, it)| out.pair(&percent(key, false), &encoded(it))),
        Value::Object(members) => {
            let parts = members.iter();
            let parts = parts.flat_map(|(key, it)| [percent(key, false), encoded(it)]);
            out.pair(&name, "")?;
            out.join(parts, field.style.separator())
        }
        value => out.pair(&name, &encoded(value)),
    }
}

/// Writes `name[key]=value` for each member of an object, and `name[]=value` for each item of a list: most servers expect no
/// index. Extends `name` while it writes, and restores it: copies of a long name for many members would take too much memory.
fn deep(
    name: &mut String,
    value: &Value,
    may_be_reserved: bool,
    out: &mut BoundedText,
) -> Result<(), TooLong> {
    let len = name.len();
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                name.push_str(&format!("[{}]", percent(key, false)));
                deep(name, member, may_be_reserved, out)?;
                name.truncate(len);
            }
        }
        Value::Array(items) => {
            name.push_str("[]");
            for item in items {
                deep(name, item, may_be_reserved, out)?;
            }
            name.truncate(len);
        }
        value => out.pair(name, &percent(&text(value), may_be_reserved))?,
    }
    Ok(())
}

/// Returns true if a path has a segment `.` or `..`, as it stands or after up to [`DECODINGS`] rounds of percent-decoding by a
/// server. A backslash divides segments, too, and a segment ends before its first `;`.
pub(crate) fn has_dot_segment(path: &str) -> bool {
    let is_dot = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    let mut path = path.to_owned();
    for _ in 0..DECODINGS {
        if path.split(['/', '\\']).any(is_dot) {
            return true;
        }
        path = percent_decode_str(&path).decode_utf8_lossy().into_owned();
    }
    path.split(['/', '\\']).any(is_dot)
}

/// Returns a media type in lower case, without its parameters: `text/html` for `Text/HTML; charset=utf-8`.
pub(crate) fn plain_type(media_type: &str) -> String {
    let plain = media_type.split(';').next().unwrap_or_default();
    plain.trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_style_of_a_path_has_its_form() {
        let (list, object) = (json!(["a", "b c"]), json!({ "x": 1, "y": "z/" }));
        let of = |name: &str, value: &Value, style, explode| {
            let mut out = BoundedText::new(1_000);
            path(name, value, style, explode, &mut out).expect("short");
            out.into_string()
        };
        for (style, explode, of_list, of_object) in [
            (Style::Simple, false, "a,b%20c", "x,1,y,z%2F"),
            (Style::Simple, true, "a,b%20c", "x=1,y=z%2F"),
            (Style::Label, false, ".a,b%20c", ".x,1,y,z%2F"),
            (Style::Label, true, ".a.b%20c", ".x=1.y=z%2F"),
            (Style::Matrix, false, ";p=a,b%20c", ";p=x,1,y,z%2F"),
            (Style::Matrix, true, ";p=a;p=b%20c", ";x=1;y=z%2F"),
        ] {
            assert_eq!(
                of("p", &list, style, explode),
                of_list,
                "{style:?} {explode}"
            );
            assert_eq!(
                of("p", &object, style, explode),
                of_object,
                "{style:?} {explode}"
            );
        }
        assert_eq!(
            of("a/b;c", &json!(["x"]), Style::Matrix, true),
            ";a%2Fb%3Bc=x"
        );
    }

    #[test]
    fn each_style_of_a_query_has_its_form() {
        let (list, object) = (json!(["a", 1]), json!({ "x": true, "y": { "z": [1] } }));
        let of = |style, explode, value: &Value| {
            let field = Field {
                name: "p",
                style,
                explode,
                may_be_reserved: false,
            };
            let mut out = BoundedText::new(1_000);
            pairs(&field, value, &mut out).expect("short");
            out.into_string()
        };
        assert_eq!(of(Style::Form, true, &list), "p=a&p=1");
        assert_eq!(of(Style::Form, false, &list), "p=a,1");
        assert_eq!(of(Style::SpaceDelimited, false, &list), "p=a%201");
        assert_eq!(of(Style::PipeDelimited, false, &list), "p=a%7C1");
        assert_eq!(of(Style::Form, true, &json!({ "x": 1, "y": 2 })), "x=1&y=2");
        assert_eq!(
            of(Style::Form, false, &json!({ "x": 1, "y": 2 })),
            "p=x,1,y,2"
        );
        assert_eq!(
            of(Style::DeepObject, true, &object),
            "p[x]=true&p[y][z][]=1"
        );
        assert_eq!(of(Style::Form, true, &json!("a&b=c")), "p=a%26b%3Dc");
    }

    #[test]
    fn reserved_characters_stay_where_the_document_says_so() {
        assert_eq!(percent("a/b?c&d=e#f", true), "a/b?c%26d%3De%23f");
        assert_eq!(percent("a/b", false), "a%2Fb");
    }

    #[test]
    fn a_long_key_before_many_members_stays_within_the_limit() {
        let value = json!({ "k".repeat(100_000): vec![1; 100_000] });
        let field = Field {
            name: "p",
            style: Style::DeepObject,
            explode: true,
            may_be_reserved: false,
        };
        let mut out = BoundedText::new(1_000_000);
        assert_eq!(pairs(&field, &value, &mut out), Err(TooLong));
        assert!(out.as_str().len() <= 1_000_000);
    }

    #[test]
    fn segments_that_lead_to_another_path_are_found() {
        for path in [
            "..",
            "a/..",
            "a/./b",
            "..\\a",
            "a%2F..%2Fb",
            "%252e%252E/a",
            "..;x/a",
        ] {
            assert!(has_dot_segment(path), "{path}");
        }
        for path in ["", "a..b", ".a", "...", "a/..b", "1.2.3", "a,.."] {
            assert!(!has_dot_segment(path), "{path}");
        }
    }
}
