//! Finds members of a JSON object without decoding it: values keep their spelling, and the rest is not checked.

/// The value of a member, as it is spelled.
pub(crate) fn member<'a>(object: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    Members::of(object).find_map(|(name, value)| (name == key).then_some(value))
}

/// The members of an object in their order: names without quotes, values as they are spelled. Ends early if the text is
/// no JSON.
pub(crate) struct Members<'a> {
    rest: &'a [u8],
}

impl<'a> Members<'a> {
    pub(crate) fn of(object: &'a [u8]) -> Self {
        let object = object.trim_ascii();
        Self {
            rest: object.strip_prefix(b"{").unwrap_or_default(),
        }
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.trim_ascii_start();
        let (value, rest) = rest.split_at_checked(value_length(rest)?)?;
        self.rest = rest.trim_ascii_start();
        Some(value)
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.value()?.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        self.rest = self.rest.strip_prefix(b":")?;
        let value = self.value()?;
        self.rest = self.rest.strip_prefix(b",").unwrap_or_default();
        Some((key, value))
    }
}

/// The length of the value at the start of `bytes`.
fn value_length(bytes: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    loop {
        match bytes.get(at)? {
            b'"' => at += string_length(&bytes[at..])?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            _ if depth == 0 => {
                let ends =
                    |byte: &u8| matches!(byte, b',' | b'}' | b']' | b':' | b' ' | b'\t' | b'\r');
                let scalar = bytes[at..].iter().position(ends)?;
                return (scalar > 0).then_some(at + scalar);
            }
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The length of a string with both quotes. A long message consists mostly of one string, so its end is searched instead of
/// reading byte by byte.
fn string_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_stand_as_they_came() {
        let object = br#" {"a" : [1, {"b": "]"}], "c\"d":"x\\\"", "e":-1.5e3 } "#;
        let members: Vec<_> = Members::of(object).collect();
        assert_eq!(
            members,
            [
                (&b"a"[..], &br#"[1, {"b": "]"}]"#[..]),
                (br#"c\"d"#, br#""x\\\"""#),
                (b"e", b"-1.5e3"),
            ]
        );
        assert_eq!(member(object, b"e"), Some(&b"-1.5e3"[..]));
        assert_eq!(member(object, b"b"), None, "a member of a member");
    }

    #[test]
    fn what_is_cut_off_or_no_json_has_no_more_members() {
        for text in [
            r#"{"a":"b"#,
            r#"{"a":"b\"#,
            r#"{"a":[1"#,
            "{",
            "",
            "[}",
            "nonsense",
        ] {
            assert_eq!(Members::of(text.as_bytes()).count(), 0, "{text}");
        }
    }
}
