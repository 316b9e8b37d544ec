//! What an `if` asks: one variable, and one test of it.

use super::tree::Directive;
use super::values::{is_literal, only_variable};

/// What a condition asks about a variable.
#[derive(Clone, Copy)]
pub(super) enum Test<'a> {
    /// That it is neither empty nor 0.
    Set,
    Is(&'a str),
    IsNot(&'a str),
    Matches(&'a str),
    MatchesNot(&'a str),
}

impl Test<'_> {
    /// Whether the condition holds for a value. None where that cannot be said without a regular expression.
    pub(super) fn holds(self, value: &str) -> Option<bool> {
        match self {
            Self::Set => Some(!value.is_empty() && value != "0"),
            Self::Is(other) => Some(value == other),
            Self::IsNot(other) => Some(value != other),
            Self::Matches(_) | Self::MatchesNot(_) => None,
        }
    }
}

/// The variable and the test of `if (…)`.
pub(super) fn asked(condition: &Directive) -> Option<(&str, Test<'_>)> {
    let mut words: Vec<&str> = condition.args().collect();
    let first = words.first()?.strip_prefix('(')?;
    match first {
        "" => drop(words.remove(0)),
        first => words[0] = first,
    }
    let last = words.last()?.strip_suffix(')')?;
    match last {
        "" => drop(words.pop()),
        last => *words.last_mut()? = last,
    }
    let variable = only_variable(words.first()?)?;
    let test = match words[1..] {
        [] => Test::Set,
        ["=", text] => Test::Is(text),
        ["!=", text] => Test::IsNot(text),
        ["~" | "~*", text] => Test::Matches(text),
        ["!~" | "!~*", text] => Test::MatchesNot(text),
        _ => return None,
    };
    // What is compared with a variable is not known.
    let known = match test {
        Test::Is(text) | Test::IsNot(text) => is_literal(text),
        _ => true,
    };
    known.then_some((variable, test))
}
