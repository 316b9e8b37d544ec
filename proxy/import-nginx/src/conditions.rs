//! Conditions of nginx's `if` that the importer reads: a variable that is tested, or compared with a text.

use crate::tree::Directive;
use crate::values::{is_literal, only_variable};

/// A test of a variable's value in a condition.
#[derive(Clone, Copy)]
pub(crate) enum VariableTest<'a> {
    /// The value is neither empty nor `0`.
    Set,
    Is(&'a str),
    IsNot(&'a str),
}

impl VariableTest<'_> {
    /// Returns true if the condition is met for a value.
    pub(crate) fn holds(self, value: &str) -> bool {
        match self {
            Self::Set => !value.is_empty() && value != "0",
            Self::Is(other) => value == other,
            Self::IsNot(other) => value != other,
        }
    }
}

/// Reads the variable and the test of `if (…)`; `None` for patterns, files, and texts that contain variables.
pub(crate) fn variable_test(condition: &Directive) -> Option<(&str, VariableTest<'_>)> {
    let mut words: Vec<&str> = condition.args().collect();
    match words.first()?.strip_prefix('(')? {
        "" => drop(words.remove(0)),
        first => words[0] = first,
    }
    match words.last()?.strip_suffix(')')? {
        "" => drop(words.pop()),
        last => *words.last_mut()? = last,
    }
    let variable = only_variable(words.first()?)?;
    let test = match words[1..] {
        [] => VariableTest::Set,
        ["=", text] if is_literal(text) => VariableTest::Is(text),
        ["!=", text] if is_literal(text) => VariableTest::IsNot(text),
        _ => return None,
    };
    Some((variable, test))
}
