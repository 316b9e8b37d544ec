//! Logical lines of a Python file, without its strings and comments.

/// A simple statement, or the header of a compound statement. Lines that brackets or backslashes join are one logical line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogicalLine {
    /// Number of blanks and tabs before the first character.
    pub(super) indent: usize,
    /// Text without strings (each is `""`), comments and surrounding blanks.
    pub(super) text: String,
}

/// Splits a Python file into its logical lines. Text that is not valid Python gives some lines, too.
pub(super) fn logical_lines(text: &str) -> Vec<LogicalLine> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut depth = 0_usize;
    let mut rest = text;
    while let Some(sign) = rest.chars().next() {
        let after = &rest[sign.len_utf8()..];
        match sign {
            '#' => {
                rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
                continue;
            }
            '\'' | '"' => {
                line.push_str("\"\"");
                rest = after_string(rest, sign);
                continue;
            }
            '\\' if after.starts_with('\n') || after.starts_with("\r\n") => {
                line.push(' ');
                rest = &after[after.find('\n').map_or(0, |at| at + 1)..];
                continue;
            }
            '\n' if depth == 0 => end(&mut line, &mut lines),
            '\n' | '\r' => line.push(' '),
            _ => {
                match sign {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                line.push(sign);
            }
        }
        rest = after;
    }
    end(&mut line, &mut lines);
    lines
}

fn end(line: &mut String, lines: &mut Vec<LogicalLine>) {
    let text = line.trim();
    if !text.is_empty() {
        lines.push(LogicalLine {
            indent: line.len() - line.trim_start().len(),
            text: text.to_owned(),
        });
    }
    line.clear();
}

/// Returns the text after the string with which `text` begins. `quote`: the string's quotation mark.
fn after_string(text: &str, quote: char) -> &str {
    let triple: String = [quote; 3].iter().collect();
    let is_long = text.starts_with(&triple);
    let delimiter = match is_long {
        true => &triple[..],
        false => &triple[..1],
    };
    let mut rest = &text[delimiter.len()..];
    while let Some(sign) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix(delimiter) {
            return after;
        }
        if sign == '\n' && !is_long {
            // The string is not closed, so the file is not valid.
            return rest;
        }
        rest = &rest[sign.len_utf8()..];
        if sign == '\\' {
            rest = rest
                .chars()
                .next()
                .map_or(rest, |next| &rest[next.len_utf8()..]);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_are_left_out_and_joined_lines_are_one() {
        let text = "a = 'x # y' # c\n\"\"\"doc\n  b = 1\n\"\"\"\ndef f(\n    x,\n):\n    return 'it\\'s' \\\n        + y\nr'\\'\nlast";
        let lines: Vec<_> = logical_lines(text)
            .into_iter()
            .map(|line| (line.indent, line.text))
            .collect();
        let expected = [
            (0, "a = \"\""),
            (0, "\"\""),
            (0, "def f(     x, ):"),
            (4, "return \"\"          + y"),
            (0, "r\"\""),
            (0, "last"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(indent, text)| (*indent, (*text).to_owned()))
            .collect();
        assert_eq!(lines, expected);
    }
}
