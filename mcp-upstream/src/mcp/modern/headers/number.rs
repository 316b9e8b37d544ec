//! Compares decimal numbers exactly: `42` and `42.0` are equal, 2^53 and 2^53+1 are not.

/// A decimal number: its sign, its significant digits, and the power of ten of the last digit.
#[derive(PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

/// Compares two numbers without rounding. Returns false if a text is not a number.
pub(super) fn equal(one: &str, other: &str) -> bool {
    one == other && parse(one).is_some()
        || parse(one).is_some_and(|one| parse(other).is_some_and(|other| one == other))
}

fn parse(text: &str) -> Option<Decimal> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (mantissa, ""),
    };
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
    let mut exponent = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    while digits.last() == Some(&b'0') {
        digits.pop();
        exponent = exponent.checked_add(1)?;
    }
    let leading = digits.iter().take_while(|digit| **digit == b'0').count();
    digits.drain(..leading);
    if digits.is_empty() {
        return Some(Decimal {
            negative: false,
            digits,
            exponent: 0,
        });
    }
    Some(Decimal {
        negative,
        digits,
        exponent,
    })
}

#[cfg(test)]
mod tests {
    use super::equal;

    #[test]
    fn numbers_are_compared_by_value_without_rounding() {
        for (one, other) in [
            ("42", "42"),
            ("42", "42.0"),
            ("42", "4.2e1"),
            ("420", "4.2E+2"),
            ("-7", "-7.00"),
            ("0", "-0.0"),
            ("9007199254740993", "9007199254740993.0"),
            ("1e400", "10e399"),
        ] {
            assert!(equal(one, other), "{one} {other}");
            assert!(equal(other, one), "{other} {one}");
        }
        for (one, other) in [
            ("9007199254740993", "9007199254740992"),
            ("1", "-1"),
            ("1", "1x"),
            ("1", ""),
            ("1", "1."),
            ("1", "+1"),
            ("1", "0x1"),
            ("x", "x"),
            ("1", "1e99999999999999999999"),
        ] {
            assert!(!equal(one, other), "{one} {other}");
        }
    }
}
