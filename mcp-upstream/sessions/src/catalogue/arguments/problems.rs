//! Describes problems of arguments for the caller: the path to the argument and the violated rule. Values are not included.

use std::fmt::Write;

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use jsonschema::paths::LocationSegment;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::to_raw_value;
use tooldock_base::error::{CallError, CallErrorCode};

/// Maximum number of problems in the details of an error; further ones are left out.
pub(super) const PROBLEMS_MAX: usize = 100;
/// Maximum number of problems in the message of an error; the details contain more.
const PROBLEMS_SHOWN: usize = 3;
/// Maximum length of the text about one problem, in characters. Texts from a schema (an enumeration, a pattern) may be long, and
/// are cut.
pub(super) const MESSAGE_MAX: usize = 300;
/// Maximum length of a name in the path to a problem, in characters. Longer ones are cut.
const NAME_MAX: usize = 100;
/// Maximum number of alternatives of an `anyOf` whose problems are described.
const ALTERNATIVES_MAX: usize = 3;

/// A problem of one argument. Has the same format as the validation errors of Python workers.
#[derive(Debug, Serialize, PartialEq)]
pub(super) struct Problem {
    /// Path to the argument: member names and array indices.
    loc: Vec<Value>,
    msg: String,
    /// Name of the schema's keyword that is violated.
    r#type: String,
}

/// Converts an error of the validator to problems. Each missing or unexpected member is a separate problem.
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

/// Describes a problem of a tool's result: its path and the violated rule.
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

/// Describes the violated rule. The description does not contain the value that violates it.
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

/// The path to an argument in the form `a.0.b`; `arguments` for the arguments as a whole.
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
