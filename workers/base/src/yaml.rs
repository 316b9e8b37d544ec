//! Reads and writes YAML. Only this module uses the YAML crate, so that the crate can be replaced here.
//!
//! Tool code can write some of the files and must not be able to keep the parser busy: see [`readable_in_time`].

pub use serde_yaml::{
    Deserializer, Error, Mapping, Value, from_slice, from_str, from_value, to_string, to_value,
};

/// Maximum number of steps of the parser for one text. For each token, the parser inspects every open bracket again, so a small
/// file of brackets could keep it busy for hours. This number of steps takes at most a second; a hand-written file of the
/// largest size needs far fewer.
const READER_STEPS_MAX: usize = 500_000_000;

/// Returns true if the parser can read a text in about a second. The estimated steps are the number of brackets times the length.
pub fn readable_in_time(text: &[u8]) -> bool {
    let brackets = text
        .iter()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count();
    brackets.saturating_mul(text.len()) <= READER_STEPS_MAX
}

/// Error message for a text that the parser could not read in reasonable time.
pub const UNREADABLE: &str = "too many brackets for its size; use lines instead";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_that_would_keep_the_reader_busy_are_told_from_a_large_file() {
        assert!(!readable_in_time("[".repeat(50_000).as_bytes()));
        assert!(readable_in_time("key: [1, 2]\n".repeat(500).as_bytes()));
        assert!(readable_in_time("# comment\n".repeat(100_000).as_bytes()));
    }
}
