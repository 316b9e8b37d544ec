//! Describes problems of arguments for the caller: the path to an argument and the violated rule, never values.

use std::fmt::Write;

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use jsonschema::paths::LocationSegment;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::to_raw_value;
use tooldock_base::error::{CallError, CallErrorCode};

/// Maximum number of problems in the details of an error.
pub(super) const PROBLEMS_MAX: usize = 100;
/// The number of problems that the message repeats.
const PROBLEMS_SHOWN: usize = 3;
/// The longest text about one problem, in characters: texts out of a schema (an enumeration, a pattern) may be long.
pub(super) const MESSAGE_MAX: usize = 300;
/// The longest name in the path to a problem, in characters.
const NAME_MAX: usize = 100;
/// The most alternatives of an `anyOf` whose problems are described.
const ALTERNATIVES_MAX: usize = 3;

/// A problem of one argument, in the form of a worker's validation errors.
#[derive(Debug, Serialize, PartialEq)]
pub(super) struct Problem {
    /// The names and indices that lead to the argument.
    loc: Vec<Value>,
    msg: String,
    /// The violated rule: a keyword of the schema.
    r#type: String,
}

/// Problems that an error of the validator reports. Each missing or unexpected member is a separate problem.
pub(super) fn problems(error: ValidationError<'_>) -> Vec<Problem> {
    let at: Vec<Value> = (error.instance_path().segments())
        .map(|segment| match segment {
            LocationSegment::Property(name) => short(&name, NAME_MAX).into(),
            LocationSegment::Index(index) => index.into(),
        })
        .collect();
    let rule = error.kind().keyword().to_owned();
    let of_member = |name: &str, msg: &str| Problem {
        loc: at
            .iter()
            .cloned()
            .chain([short(name, NAME_MAX).into()])
            .collect(),
        msg: msg.to_owned(),
        r#type: rule.clone(),
    };
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            vec![of_member(name, "the argument is missing")]
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => (unexpected.iter())
            .map(|name| of_member(name, "there is no such argument"))
            .collect(),
        _ => vec![Problem {
            msg: described(&error),
            loc: at,
            r#type: rule,
        }],
    }
}

/// Describes a problem of a result by its path and the violated rule.
pub(super) fn fault(error: ValidationError<'_>) -> String {
    let missing = match error.kind() {
        ValidationErrorKind::Required { property } => property.as_str().map(ToOwned::to_owned),
        _ => None,
    };
    let mut at: Vec<Value> = (error.instance_path().segments())
        .map(|segment| match segment {
            LocationSegment::Property(name) => short(&name, NAME_MAX).into(),
            LocationSegment::Index(index) => index.into(),
        })
        .collect();
    let said = match missing {
        Some(name) => {
            at.push(short(&name, NAME_MAX).into());
            "the member is missing".to_owned()
        }
        None => described(&error),
    };
    let names: Vec<String> = (at.iter())
        .map(|name| {
            name.as_str()
                .map_or_else(|| name.to_string(), str::to_owned)
        })
        .collect();
    match names.is_empty() {
        true => format!("structuredContent: {said}"),
        false => format!("structuredContent.{}: {said}", names.join(".")),
    }
}

/// Describes the violated rule, without the value that violates it.
fn described(error: &ValidationError<'_>) -> String {
    let alternatives = match error.kind() {
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            &context[..]
        }
        _ => &[],
    };
    let first: Vec<String> = (alternatives.iter().take(ALTERNATIVES_MAX))
        .filter_map(|errors| errors.first())
        .map(|error| error.masked().to_string())
        .collect();
    let text = match first.is_empty() || alternatives.len() > ALTERNATIVES_MAX {
        true => error.masked().to_string(),
        false => first.join("; or "),
    };
    short(&text, MESSAGE_MAX)
}

pub(super) fn refused(mut problems: Vec<Problem>) -> CallError {
    #[derive(Serialize)]
    struct Details<'a> {
        errors: &'a [Problem],
    }
    let more = problems.len().saturating_sub(PROBLEMS_SHOWN);
    problems.truncate(PROBLEMS_MAX);
    let mut message = String::new();
    for problem in problems.iter().take(PROBLEMS_SHOWN) {
        if !message.is_empty() {
            message.push_str("; ");
        }
        message.push_str(&place(&problem.loc));
        message.push_str(": ");
        message.push_str(&problem.msg);
    }
    if more > 0 {
        // Writing to a string cannot fail.
        let _ = write!(message, "; and {more} more");
    }
    let mut error = CallError::new(CallErrorCode::InvalidArguments, message);
    let details = Details { errors: &problems };
    error.details = to_raw_value(&details).ok();
    error
}

/// The path to an argument in the form `a.0.b`, or `arguments` for the arguments as a whole.
fn place(loc: &[Value]) -> String {
    let names: Vec<String> = (loc.iter())
        .map(|name| {
            name.as_str()
                .map_or_else(|| name.to_string(), str::to_owned)
        })
        .collect();
    match names.is_empty() {
        true => "arguments".to_owned(),
        false => names.join("."),
    }
}

pub(super) fn short(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
