//! Checks the nesting depth of a body before it is parsed, since parsing a member as raw JSON accepts any depth.

use memchr::memchr2;

/// Returns true if brackets are nested deeper than `limit`. Brackets inside strings do not count. For text that is not JSON, the
/// result has no meaning; the parser refuses such text later.
pub fn exceeds(body: &[u8], limit: usize) -> bool {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = body.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => at = after_string(body, at),
            _ => {}
        }
    }
    false
}

/// Position after the end of the string whose first character is at `at`.
fn after_string(body: &[u8], mut at: usize) -> usize {
    while let Some(found) = body.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if body[at] == b'"' {
            return at + 1;
        }
        // The character after a backslash is escaped, so a quote there does not end the string.
        at += 2;
    }
    body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_hide_brackets_and_escapes_hide_quotes() {
        assert!(!exceeds(br#"{"a":"[[[[\"[[[["}"#, 1));
        assert!(exceeds(br#"{"a":"\\",  "b":[1]}"#, 1));
        assert!(!exceeds(br#"[[],[],[]]"#, 2));
        assert!(!exceeds(br#""open \"#, 1));
    }
}
