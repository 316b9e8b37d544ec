//! Parses values as nginx spells them: sizes, times, rates, and texts with variables.

use std::num::NonZeroU32;
use std::time::Duration;

/// Parses a size such as `10m`, `8k` or `512`; returns a number of bytes.
pub(crate) fn size(text: &str) -> Option<u64> {
    let units = [
        (['k', 'K'], 1 << 10),
        (['m', 'M'], 1 << 20),
        (['g', 'G'], 1 << 30),
    ];
    let mut sizes = units
        .iter()
        .filter_map(|(unit, size)| Some((text.strip_suffix(*unit)?, *size)));
    let (digits, unit) = sizes.next().unwrap_or((text, 1));
    number(digits)?.checked_mul(unit)
}

/// Parses a time such as `30s`, `1h30m` or `500ms`; a number without a unit is in seconds.
pub(crate) fn time(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 8] = [
        ("ms", 1),
        ("s", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
        ("w", 7 * 86_400_000),
        ("M", 30 * 86_400_000),
        ("y", 365 * 86_400_000),
    ];
    let mut rest = text.trim();
    let mut total = 0_u64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let amount = number(&rest[..end])?;
        let unit = rest[end..].trim_start_matches(' ');
        let letters = unit
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(unit.len());
        let milliseconds = match &unit[..letters] {
            "" => 1_000,
            name => UNITS.iter().find(|(known, _)| *known == name)?.1,
        };
        total = total.checked_add(amount.checked_mul(milliseconds)?)?;
        rest = unit[letters..].trim_start();
    }
    Some(Duration::from_millis(total))
}

/// A rate: a number of requests per second or per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rate {
    PerSecond(NonZeroU32),
    PerMinute(NonZeroU32),
}

/// Parses a rate such as `10r/s` or `30r/m`.
pub(crate) fn rate(text: &str) -> Option<Rate> {
    let whole = |digits: &str| NonZeroU32::new(number(digits)?.try_into().ok()?);
    match text.strip_suffix("r/s") {
        Some(digits) => whole(digits).map(Rate::PerSecond),
        None => whole(text.strip_suffix("r/m")?).map(Rate::PerMinute),
    }
}

/// Parses a number that consists of digits only, without sign or blanks.
pub(crate) fn number(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// A piece of a text in which nginx replaces variables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Text(&'a str),
    /// The name of a variable, without the dollar sign.
    Variable(&'a str),
}

/// Splits a text into plain text and variables. A dollar sign without a variable's name after it is plain text.
pub(crate) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut begun = 0;
    let mut at = 0;
    while let Some(dollar) = text[at..].find('$').map(|offset| at + offset) {
        let after = &text[dollar + 1..];
        let braced = after.starts_with('{');
        let name = &after[usize::from(braced)..];
        let end = name
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(name.len());
        let closed = !braced || name[end..].starts_with('}');
        if end == 0 || !closed {
            at = dollar + 1;
            continue;
        }
        if begun < dollar {
            pieces.push(Piece::Text(&text[begun..dollar]));
        }
        pieces.push(Piece::Variable(&name[..end]));
        at = dollar + 1 + end + 2 * usize::from(braced);
        begun = at;
    }
    if begun < text.len() {
        pieces.push(Piece::Text(&text[begun..]));
    }
    pieces
}

/// Iterates over the names of the variables in a text.
pub(crate) fn variables_in(text: &str) -> impl Iterator<Item = &str> {
    pieces(text).into_iter().filter_map(|piece| match piece {
        Piece::Variable(name) => Some(name),
        Piece::Text(_) => None,
    })
}

/// Returns the variable's name if the text consists of one variable and nothing else.
pub(crate) fn only_variable(text: &str) -> Option<&str> {
    match pieces(text)[..] {
        [Piece::Variable(name)] => Some(name),
        _ => None,
    }
}

/// Returns true if a text contains no variable.
pub(crate) fn is_literal(text: &str) -> bool {
    variables_in(text).next().is_none()
}

/// Returns true if a value is the path of a file. False if it is the certificate or key itself (`data:`), or a reference to an
/// engine or store.
pub(crate) fn is_file(value: &str) -> bool {
    let elsewhere = ["data:", "engine:", "store:"];
    let is_path = !value.is_empty() && !value.contains(char::is_control);
    is_path && is_literal(value) && !elsewhere.iter().any(|it| value.starts_with(it))
}

/// Returns true if a value is a relative path, which nginx resolves against its prefix folder.
pub(super) fn is_relative(value: &str) -> bool {
    is_file(value) && !value.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_rates_are_read_as_nginx_reads_them() {
        for (text, bytes) in [
            ("512", Some(512)),
            ("8k", Some(8192)),
            ("1M", Some(1 << 20)),
            ("2g", Some(2 << 30)),
            ("-1", None),
            ("m", None),
            ("99999999999g", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
        for (text, milliseconds) in [
            ("60", Some(60_000)),
            ("1h30m", Some(5_400_000)),
            ("500ms", Some(500)),
            ("1d 2h", Some(93_600_000)),
            ("1x", None),
            ("", None),
            ("-1", None),
        ] {
            assert_eq!(time(text).map(|it| it.as_millis()), milliseconds, "{text}");
        }
        let ten = NonZeroU32::new(10).expect("ten");
        assert_eq!(rate("10r/s"), Some(Rate::PerSecond(ten)));
        assert_eq!(rate("10r/m"), Some(Rate::PerMinute(ten)));
        assert_eq!((rate("0r/s"), rate("10"), rate("r/s")), (None, None, None));
    }

    #[test]
    fn variables_are_found_in_texts() {
        let shown = |text| {
            let pieces = pieces(text).into_iter().map(|piece| match piece {
                Piece::Text(text) => text.to_owned(),
                Piece::Variable(name) => format!("<{name}>"),
            });
            pieces.collect::<Vec<_>>().join("|")
        };
        for (text, expected) in [
            ("Bearer $token", "Bearer |<token>"),
            ("${a}b$c$d", "<a>|b|<c>|<d>"),
            ("5$ $", "5$ $"),
            ("${a", "${a"),
            ("é$x", "é|<x>"),
            ("", ""),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        assert_eq!(only_variable("$a"), Some("a"));
        assert!(only_variable("$a$b").is_none() && is_literal("5$"));
    }
}
