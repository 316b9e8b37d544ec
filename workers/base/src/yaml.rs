//! Reads and writes YAML. Only this module uses the YAML crate, so that the crate can be replaced here.
//!
//! Tool code and other people write some of the files, and must not be able to keep the parser busy or to fill the memory. An alias
//! (`*name`) takes a few bytes of the text and stands for a value of any size, so [`from_slice`] and [`from_str`] count all values
//! of a text, with each alias as the value it stands for, before they make any of them. Readers that make values of another type
//! use [`Deserializer`] and count with an [`Allowance`].

use std::cell::Cell;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
pub use serde_yaml::{Deserializer, Error, Mapping, Value, from_value, to_string, to_value};

/// Maximum number of steps of the parser for one text. For each token, the parser inspects every open bracket again, so a small
/// file of brackets could keep it busy for hours. This number of steps takes at most a second; a hand-written file of the
/// largest size needs far fewer.
const READER_STEPS_MAX: usize = 500_000_000;
/// Maximum number of values and keys in a text, after its aliases are expanded. A longer text may have a value for each byte, which
/// it cannot exceed without aliases.
const VALUES_MAX: usize = 100_000;
/// Maximum total size of the keys and strings in a text after its aliases are expanded, in bytes. A text of more than half this
/// size may have twice its own size.
const TEXTS_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of lists and maps around a value.
const DEPTH_MAX: usize = 64;

/// Returns true if the parser can read a text in about a second.
pub fn readable_in_time(text: &[u8]) -> bool {
    all_readable_in_time([text])
}

/// Returns true if the parser can read all these texts in about a second. The estimated steps are the number of brackets of each
/// text times its length.
pub fn all_readable_in_time<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let steps = texts.into_iter().map(|text| {
        let brackets = text.iter().filter(|byte| matches!(byte, b'[' | b'{'));
        brackets.count().saturating_mul(text.len())
    });
    steps.fold(0, usize::saturating_add) <= READER_STEPS_MAX
}

/// Error message for a text that the parser could not read in reasonable time.
pub const UNREADABLE: &str = "too many brackets for its size; use lines instead";

/// Reads a value from a text.
///
/// # Errors
///
/// When the text is no YAML, does not fit the type, or exceeds the bounds of this module.
pub fn from_slice<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Error> {
    let bounds = Bounds {
        values: VALUES_MAX.max(text.len()),
        texts: TEXTS_MAX.max(text.len().saturating_mul(2)),
        depth: DEPTH_MAX,
    };
    from_slice_within(text, bounds)
}

/// Reads a value from a text, as [`from_slice`], within other bounds.
///
/// # Errors
///
/// When the text is no YAML, does not fit the type, or exceeds the bounds.
pub fn from_slice_within<'a, T: Deserialize<'a>>(
    text: &'a [u8],
    bounds: Bounds,
) -> Result<T, Error> {
    if !readable_in_time(text) {
        return Err(Error::custom(UNREADABLE));
    }
    let left = bounds.left();
    CountedValue(left.allowance()).deserialize(Deserializer::from_slice(text))?;
    serde_yaml::from_slice(text)
}

/// Reads a value from a text, as [`from_slice`].
///
/// # Errors
///
/// As [`from_slice`].
pub fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Error> {
    from_slice(text.as_bytes())
}

/// Bounds of the values of a text, after its aliases are expanded.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of values and keys.
    pub values: usize,
    /// Maximum total size of strings and keys, in bytes.
    pub texts: usize,
    /// Maximum number of lists and maps around a value.
    pub depth: usize,
}

impl Bounds {
    /// Begins to count the values of a text.
    pub fn left(self) -> BoundsLeft {
        BoundsLeft {
            bounds: self,
            values: Cell::new(self.values),
            texts: Cell::new(self.texts),
        }
    }
}

/// Values of a text that may still be read.
#[derive(Debug)]
pub struct BoundsLeft {
    bounds: Bounds,
    values: Cell<usize>,
    texts: Cell<usize>,
}

impl BoundsLeft {
    /// The allowance of the value at the top of the text.
    pub fn allowance(&self) -> Allowance<'_> {
        Allowance {
            left: self,
            depth: self.bounds.depth,
        }
    }
}

/// Counter of a text's values, at one level of its lists and maps.
#[derive(Debug, Clone, Copy)]
pub struct Allowance<'a> {
    left: &'a BoundsLeft,
    depth: usize,
}

impl Allowance<'_> {
    /// Counts a value or a key.
    ///
    /// # Errors
    ///
    /// When the text has too many values.
    pub fn value<E: serde::de::Error>(self) -> Result<(), E> {
        take(&self.left.values, 1).ok_or_else(|| {
            let most = self.left.bounds.values;
            E::custom(format_args!(
                "more than {most} values, with each alias (*name) as all that it stands for; use fewer aliases, or split the file"
            ))
        })
    }

    /// Counts the text of a string or key.
    ///
    /// # Errors
    ///
    /// When the strings are too long.
    pub fn text<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        take(&self.left.texts, text.len()).ok_or_else(|| {
            let most = self.left.bounds.texts;
            E::custom(format_args!(
                "more than {most} bytes of text, with each alias (*name) as all that it stands for; use fewer aliases, or split the \
                 file"
            ))
        })
    }

    /// The allowance of the values inside of a list or map.
    ///
    /// # Errors
    ///
    /// When the lists and maps are nested too deeply.
    pub fn inside<E: serde::de::Error>(self) -> Result<Self, E> {
        let depth = self.depth.checked_sub(1).ok_or_else(|| {
            let most = self.left.bounds.depth;
            E::custom(format_args!(
                "more than {most} levels of lists and maps; use fewer levels"
            ))
        })?;
        Ok(Self { depth, ..self })
    }
}

fn take(left: &Cell<usize>, count: usize) -> Option<()> {
    let rest = left.get().checked_sub(count)?;
    left.set(rest);
    Some(())
}

/// Reader that counts a value with all values in it, and makes none.
#[derive(Clone, Copy)]
struct CountedValue<'a>(Allowance<'a>);

impl<'de> DeserializeSeed<'de> for CountedValue<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        self.0.value()?;
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CountedValue<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i128<E>(self, _: i128) -> Result<(), E> {
        Ok(())
    }

    fn visit_u128<E>(self, _: u128) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.0.text(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inside = Self(self.0.inside()?);
        while items.next_element_seed(inside)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inside = Self(self.0.inside()?);
        while entries.next_entry_seed(inside, inside)?.is_some() {}
        Ok(())
    }

    /// Counts a value with a tag.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let ((), value) = tagged.variant_seed(self)?;
        value.newtype_variant_seed(Self(self.0.inside()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_that_would_keep_the_reader_busy_are_told_from_a_large_file() {
        assert!(!readable_in_time("[".repeat(50_000).as_bytes()));
        assert!(readable_in_time("key: [1, 2]\n".repeat(500).as_bytes()));
        assert!(readable_in_time("# comment\n".repeat(100_000).as_bytes()));
        let refused = from_str::<Value>(&"[".repeat(50_000)).expect_err("brackets");
        assert_eq!(refused.to_string(), UNREADABLE);
    }

    fn refusal(text: &str) -> String {
        from_str::<Value>(text).expect_err("refused").to_string()
    }

    #[test]
    fn aliases_that_stand_for_too_many_values_are_refused_before_a_value_is_made() {
        let list = vec!["x"; 130].join(",");
        let uses = vec!["*a"; 150].join(",");
        let wide = format!("a: &a [{list}]\nb: &b [{uses}]\nc: [*b,*b,*b,*b,*b,*b]\n");
        assert!(wide.len() < 900, "{}", wide.len());
        let mut nested = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..9 {
            let before = format!("*a{},", level - 1).repeat(10);
            nested += &format!("a{level}: &a{level} [{before}]\n");
        }
        for text in [&wide, &nested] {
            let refused = refusal(text);
            assert!(
                refused.contains("more than 100000 values, with each alias"),
                "{refused}"
            );
            assert!(refused.contains(" at line "), "{refused}");
            let typed = from_str::<std::collections::BTreeMap<String, Vec<Value>>>(text);
            assert_eq!(typed.expect_err("refused").to_string(), refused);
            let skipped = from_str::<serde::de::IgnoredAny>(text);
            assert_eq!(skipped.expect_err("refused").to_string(), refused);
        }
    }

    #[test]
    fn aliases_of_a_long_string_are_refused() {
        let text = format!("a: &a {}\nb:\n{}", "x".repeat(100_000), "- *a\n".repeat(50));
        let refused = refusal(&text);
        assert!(
            refused.contains("more than 4194304 bytes of text"),
            "{refused}"
        );
    }

    #[test]
    fn levels_of_lists_and_maps_are_bounded() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        from_str::<Value>(&nested(DEPTH_MAX)).expect("fits");
        let refused = refusal(&nested(DEPTH_MAX + 1));
        assert!(refused.contains("more than 64 levels"), "{refused}");
    }

    #[test]
    fn texts_without_aliases_are_read_whatever_their_size() {
        let text = format!("[{}]", "1,".repeat(VALUES_MAX + 1));
        let read: Vec<u8> = from_str(&text).expect("fits");
        assert_eq!(read.len(), VALUES_MAX + 1);
        let text = format!("a: {}", "x".repeat(TEXTS_MAX + 1));
        from_str::<Value>(&text).expect("fits");
    }

    #[test]
    fn aliases_tags_merges_and_large_numbers_are_read() {
        let text = "a: &a {x: 1}\nb: {<<: *a, y: !t [~, 1.5, true, -1]}\nc: *a\n? [k]\n: 18446744073709551615\n";
        let read: Value = from_str(text).expect("YAML");
        assert_eq!(read["c"]["x"], Value::from(1));
        assert_eq!(
            from_str::<Option<Mapping>>("# nothing\n").expect("YAML"),
            None
        );
        assert_eq!(from_str::<Value>("").expect("YAML"), Value::Null);
    }
}
