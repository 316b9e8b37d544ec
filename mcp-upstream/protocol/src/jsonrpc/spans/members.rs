//! Finds the members of an object in text that has been validated before. The text is not parsed completely, since quotes and
//! brackets show where a member ends.
//!
//! For text that is not valid JSON, the members found may be wrong; there is no other effect.

use std::borrow::Cow;
use std::collections::HashSet;

use memchr::memchr2;
use smallvec::SmallVec;

/// Maximum number of keys that are compared with each other to find repeated ones. For more keys, a hash table is used, so that
/// the work does not grow quadratically.
pub(crate) const FEW: usize = 12;
/// Number of bytes of a string that are scanned one by one before a faster search for long strings begins. Most strings are
/// shorter.
const SHORT: usize = 16;

/// A member of an object: its decoded key, and its value as raw JSON.
pub(crate) type Member<'a> = (Cow<'a, str>, &'a str);

/// The members of an object, in order. Returns `None` if the text is not an object, or contains a repeated key.
pub fn members(object: &str) -> Option<SmallVec<[Member<'_>; 8]>> {
    let mut scan = Scan {
        text: object,
        at: 0,
    };
    let mut members = SmallVec::new();
    scan.take(b'{')?;
    if scan.next()? == b'}' {
        scan.at += 1;
        return scan.is_over().then_some(members);
    }
    loop {
        let key = scan.key()?;
        scan.take(b':')?;
        members.push((key, scan.value()?));
        match scan.next()? {
            b',' => scan.at += 1,
            b'}' => break,
            _ => return None,
        }
    }
    scan.at += 1;
    (scan.is_over() && are_unique(&members)).then_some(members)
}

/// Iterates over the items of an array as raw JSON. They are not collected, since an array may have millions. There are none if
/// the text is not an array.
pub fn items(array: &str) -> ArrayItems<'_> {
    let mut scan = Scan { text: array, at: 0 };
    let is_array = scan.take(b'[').is_some();
    ArrayItems {
        scan: is_array.then_some(scan),
    }
}

/// Iterator that [`items`] returns.
#[derive(Clone)]
pub struct ArrayItems<'a> {
    /// Position before the next item, or before the end of the array; `None` after the last item.
    scan: Option<Scan<'a>>,
}

impl<'a> Iterator for ArrayItems<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        // The iteration also ends at text that is not valid JSON.
        let mut scan = self.scan.take()?;
        let item = scan.value()?;
        self.scan = match scan.next()? {
            b',' => {
                scan.at += 1;
                Some(scan)
            }
            _ => None,
        };
        Some(item)
    }
}

fn are_unique(members: &[Member<'_>]) -> bool {
    if members.len() <= FEW {
        let mut all = members.iter().enumerate();
        return !all.any(|(at, (key, _))| members[..at].iter().any(|(other, _)| other == key));
    }
    let mut seen = HashSet::with_capacity(members.len());
    members.iter().all(|(key, _)| seen.insert(&**key))
}

#[derive(Clone, Copy)]
struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    /// Skips white space, and returns the next byte without consuming it.
    fn next(&mut self) -> Option<u8> {
        loop {
            match *self.text.as_bytes().get(self.at)? {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    /// Skips white space and this byte. Returns `None` if the next byte is another one.
    fn take(&mut self, byte: u8) -> Option<()> {
        let is_next = self.next()? == byte;
        self.at += 1;
        is_next.then_some(())
    }

    /// Returns true if only white space remains.
    fn is_over(&mut self) -> bool {
        self.next().is_none()
    }

    fn key(&mut self) -> Option<Cow<'a, str>> {
        self.take(b'"')?;
        let start = self.at;
        let escapes = self.string()?;
        let inner = self.text.get(start..self.at - 1)?;
        if !escapes {
            return Some(Cow::Borrowed(inner));
        }
        let quoted = self.text.get(start - 1..self.at)?;
        serde_json::from_str(quoted).ok().map(Cow::Owned)
    }

    /// Skips a string whose opening quote has been consumed. Returns true if it contains escapes.
    fn string(&mut self) -> Option<bool> {
        let bytes = self.text.as_bytes();
        let mut escapes = false;
        loop {
            let rest = bytes.get(self.at..)?;
            let mut short = rest.iter().take(SHORT);
            let found = short.position(|byte| matches!(byte, b'"' | b'\\'));
            let found = match found {
                None => SHORT + memchr2(b'"', b'\\', rest.get(SHORT..)?)?,
                Some(found) => found,
            };
            self.at += found + 1;
            if rest[found] == b'"' {
                return Some(escapes);
            }
            escapes = true;
            // The character after a backslash is escaped, so a quote there does not end the string.
            self.at += 1;
        }
    }

    fn value(&mut self) -> Option<&'a str> {
        let first = self.next()?;
        let start = self.at;
        self.at += 1;
        match first {
            b'"' => {
                self.string()?;
            }
            b'{' | b'[' => self.nested()?,
            b',' | b':' | b'}' | b']' => return None,
            _ => {
                let rest = self.text.as_bytes().get(self.at..)?;
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t'..=b'\r');
                self.at += rest.iter().position(ends)?;
            }
        }
        self.text.get(start..self.at)
    }

    /// Skips an object or array whose opening bracket has been consumed.
    fn nested(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        let mut open = 1;
        while open > 0 {
            let byte = *bytes.get(self.at)?;
            self.at += 1;
            match byte {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => open += 1,
                b'}' | b']' => open -= 1,
                _ => {}
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    /// The members that a parser finds.
    fn parsed(text: &str) -> Option<Vec<(String, String)>> {
        let raw: &RawValue = serde_json::from_str(text).expect("JSON");
        let owned =
            |(key, value): (Cow<'_, str>, &RawValue)| (key.into_owned(), value.get().into());
        Some(
            crate::jsonrpc::entries(raw)?
                .into_iter()
                .map(owned)
                .collect(),
        )
    }

    fn found(text: &str) -> Option<Vec<(String, String)>> {
        let owned = |(key, value): Member<'_>| (key.into_owned(), value.to_owned());
        Some(members(text)?.into_iter().map(owned).collect())
    }

    #[test]
    fn members_are_what_a_parser_finds() {
        let many: Vec<_> = (0..40).map(|at| format!("\"{at}\":{at}")).collect();
        let many = format!("{{{}}}", many.join(","));
        let twice = format!("{},\"7\":0}}", &many[..many.len() - 1]);
        for text in [
            r#"{}"#,
            " { } ",
            r#"{"a":1}"#,
            r#"{ "a" : -1.50e3 , "b":"x" }"#,
            r#"{"a":{"b":[1,{"c":"}"}],"d":"]\"}"},"e":[[],{}]}"#,
            r#"{"\u0061":1,"b\n":"\\","c":"\"","long enough for the second search":"also long enough for it \" there"}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"ä":"ö😀","":null,"t":true}"#,
            "{\"a\"\n:\t1\r,\"b\":[ 1 , 2 ]\n}",
            "[1]",
            "null",
            "\"{}\"",
            "3",
            &many,
            &twice,
        ] {
            assert_eq!(found(text), parsed(text), "{text}");
        }
    }

    fn found_items(text: &str) -> Option<Vec<&str>> {
        serde_json::from_str::<Vec<&RawValue>>(text).ok()?;
        Some(items(text).collect())
    }

    fn parsed_items(text: &str) -> Option<Vec<&str>> {
        let all = serde_json::from_str::<Vec<&RawValue>>(text).ok()?;
        Some(all.into_iter().map(RawValue::get).collect())
    }

    #[test]
    fn items_are_what_a_parser_finds() {
        for text in [
            "[]",
            " [ ] ",
            "[0]",
            "[ 1 ,\"a,]\" ,[2,[3]],{\"b\":[4]}\n,null ] ",
        ] {
            assert!(found_items(text).is_some(), "{text}");
            assert_eq!(found_items(text), parsed_items(text), "{text}");
        }
        for text in ["{}", "{\"a\":[1]}", "5", "\"[1]\"", ""] {
            assert_eq!(items(text).count(), 0, "{text}");
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".{0,40}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::hash_map(".{0,20}", inner, 0..6)
                    .prop_map(|map| map.into_iter().collect::<serde_json::Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_object_has_the_members_a_parser_finds(value in json(), pretty in any::<bool>()) {
            let text = match pretty {
                true => serde_json::to_string_pretty(&value),
                false => serde_json::to_string(&value),
            };
            let text = text.expect("JSON");
            prop_assert_eq!(found(&text), parsed(&text));
            prop_assert_eq!(found_items(&text), parsed_items(&text));
        }

        #[test]
        fn no_text_is_too_odd(text in r#"[{}\[\]",:\\a \n1é]{0,40}"#) {
            let _ = members(&text);
            let _ = items(&text).count();
            // For valid JSON both must find the same.
            if serde_json::from_str::<&RawValue>(&text).is_ok() {
                prop_assert_eq!(found(&text), parsed(&text));
                prop_assert_eq!(found_items(&text), parsed_items(&text));
            }
        }
    }
}
