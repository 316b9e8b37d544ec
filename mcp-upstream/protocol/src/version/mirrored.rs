//! Encoding of texts in the headers of 2026-07-28 that repeat values of the body (SEP-2243). A text that is valid in a header is
//! not changed; any other text is encoded in base64 between `=?base64?` and `?=`.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "=?base64?";
const END: &str = "?=";

/// Encodes a text as a header value.
pub fn encode(text: &str) -> Cow<'_, str> {
    let padded = text.starts_with([' ', '\t']) || text.ends_with([' ', '\t']);
    let looks_encoded = text.starts_with(BEGIN) && text.ends_with(END);
    match is_plain(text) && !padded && !looks_encoded {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("{BEGIN}{}{END}", STANDARD.encode(text))),
    }
}

/// Decodes a header value to its text; `None` if the value is not valid.
pub fn decode(value: &str) -> Option<Cow<'_, str>> {
    let wrapped = value
        .strip_prefix(BEGIN)
        .and_then(|rest| rest.strip_suffix(END));
    match wrapped {
        Some(encoded) => {
            let bytes = STANDARD.decode(encoded).ok()?;
            String::from_utf8(bytes).ok().map(Cow::Owned)
        }
        None => is_plain(value).then_some(Cow::Borrowed(value)),
    }
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_a_header_value_and_stands_for_the_same_text() {
        for text in [
            "add",
            "a b",
            "",
            " a",
            "a\t",
            "größe",
            "a\nb",
            "=?base64?YQ==?=",
            "=?base64?",
        ] {
            let value = encode(text);
            assert!(http::HeaderValue::from_str(&value).is_ok(), "{value:?}");
            assert_eq!(value.trim_matches([' ', '\t']), value);
            assert_eq!(decode(&value).as_deref(), Some(text));
        }
        assert_eq!(encode("add"), "add");
        assert_eq!(decode("=?base64?!?="), None);
        assert_eq!(decode("größe"), None);
    }
}
