//! Conditions of nginx's `if`: a variable, and a test of its value.

use crate::tree::Directive;
use crate::values::{is_literal, only_variable};

/// A test of a variable's value in a condition.
#[derive(Clone, Copy)]
pub(crate) enum VariableTest<'a> {
    /// The value is neither empty nor `0`.
    Set,
    Is(&'a str),
    IsNot(&'a str),
    Matches(&'a str),
    MatchesNot(&'a str),
}

impl VariableTest<'_> {
    /// Returns true if the condition is met for a value. `None` if that depends on a regular expression.
    pub(crate) fn holds(self, value: &str) -> Option<bool> {
        match self {
            Self::Set => Some(!value.is_empty() && value != "0"),
            Self::Is(other) => Some(value == other),
            Self::IsNot(other) => Some(value != other),
            Self::Matches(_) | Self::MatchesNot(_) => None,
        }
    }
}

/// Reads the variable and the test of `if (…)`; `None` for other conditions.
pub(crate) fn variable_test(condition: &Directive) -> Option<(&str, VariableTest<'_>)> {
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
        [] => VariableTest::Set,
        ["=", text] => VariableTest::Is(text),
        ["!=", text] => VariableTest::IsNot(text),
        ["~" | "~*", text] => VariableTest::Matches(text),
        ["!~" | "!~*", text] => VariableTest::MatchesNot(text),
        _ => return None,
    };
    // If the text for the comparison contains variables, its value is unknown, so the condition is not read.
    let known = match test {
        VariableTest::Is(text) | VariableTest::IsNot(text) => is_literal(text),
        _ => true,
    };
    known.then_some((variable, test))
}
