//! Explains an unknown tool: lists the files of its namespace that could not be loaded and may declare the tool.
//!
//! Only callers who may use every tool get file names and import errors ([`View::may_explain_missing`]). With `mask_errors` the
//! text of an import error is only logged, as the texts of exceptions are.

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::issue::Issue;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::View;
use tooldock_workers::registry::Namespace;

use super::unknown_tool;

/// Maximum number of files that one error message names.
const FILES_MAX: usize = 3;
/// Maximum number of characters of each file's import error in an error message.
const REASON_MAX: usize = 300;

/// Creates the error for a tool that the namespace does not have, with the names of files that may declare it.
pub(crate) fn missing_tool(caller: &Caller, namespace: &Namespace, name: &str) -> CallError {
    explained(unknown_tool(name), caller, namespace, name)
}

/// Adds the files that may declare the tool to an error with the code `tool_not_found`. Other errors are returned unchanged.
pub(crate) fn explained(
    mut error: CallError,
    caller: &Caller,
    namespace: &Namespace,
    name: &str,
) -> CallError {
    let is_declared = || namespace.tools.iter().any(|tool| *tool.name == *name);
    if error.code != CallErrorCode::ToolNotFound
        || !View::of(caller, namespace).may_explain_missing(name)
        || is_declared()
    {
        return error;
    }
    let shows_reasons = !namespace.limits.mask_errors || caller.manager;
    let hiding = || namespace.issues.iter().filter(move |it| it.may_hide(name));
    for issue in hiding().take(FILES_MAX) {
        error.message.push_str("; ");
        error.message.push_str(&issue_text(issue, shows_reasons));
    }
    let more = hiding().count().saturating_sub(FILES_MAX);
    if more > 0 {
        let more = format!("; and {more} more, which /ready names");
        error.message.push_str(&more);
    }
    error
}

fn issue_text(issue: &Issue, shows_reasons: bool) -> String {
    let reason = first_line(&issue.message);
    let file = &issue.subject;
    match (issue.is_about_update(), issue.code, shows_reasons) {
        (true, _, true) => reason.to_owned(),
        (true, _, false) => "the loaded version may be older than the files".to_owned(),
        (false, "invalid_tool", true) => format!("{file} has a tool that is not served: {reason}"),
        (false, "invalid_tool", false) => format!("{file} has a tool that is not served"),
        (false, _, true) => format!("{file} was not loaded: {reason}"),
        (false, _, false) => format!("{file} was not loaded"),
    }
}

fn first_line(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_suffix("; it is not loaded").unwrap_or(line);
    let end = line.char_indices().nth(REASON_MAX);
    &line[..end.map_or(line.len(), |(at, _)| at)]
}

#[cfg(test)]
mod tests {
    use tooldock_sessions::testing::{caller, caller_with_scopes, namespace};

    use super::*;

    const REPEAT: &str =
        "repeat.py was not loaded: SyntaxError: '(' was never closed (repeat.py line 1)";

    fn issue(code: &'static str, subject: &str, message: &str) -> Issue {
        Issue {
            code,
            subject: subject.into(),
            message: message.into(),
        }
    }

    fn with_issues(issues: Vec<Issue>) -> Namespace {
        Namespace {
            issues,
            ..namespace("shared")
        }
    }

    fn broken() -> Namespace {
        with_issues(vec![issue(
            "import_error",
            "repeat.py",
            "SyntaxError: '(' was never closed (repeat.py line 1)\nmore",
        )])
    }

    fn message(caller: &Caller, namespace: &Namespace, name: &str) -> String {
        missing_tool(caller, namespace, name).message
    }

    #[test]
    fn an_unknown_tool_names_the_file_that_was_not_loaded_and_the_first_line_of_its_error() {
        assert_eq!(
            message(&caller(), &broken(), "repeat"),
            format!("Unknown tool: repeat; {REPEAT}")
        );
        let whole = namespace("shared");
        assert_eq!(message(&caller(), &whole, "repeat"), "Unknown tool: repeat");
    }

    #[test]
    fn three_files_are_named_and_the_others_counted() {
        let files = ["a.py", "b.py", "c.py", "d.py", "e.py"];
        let issues = files.map(|file| issue("import_error", file, "no"));
        assert_eq!(
            message(&caller(), &with_issues(issues.into()), "x"),
            "Unknown tool: x; a.py was not loaded: no; b.py was not loaded: no; c.py was not loaded: no; \
             and 2 more, which /ready names"
        );
    }

    #[test]
    fn a_refused_tool_is_explained_to_those_who_ask_for_it() {
        let refused = issue("invalid_tool", "t.py", "x: *args cannot be given by name");
        let namespace = with_issues(vec![refused]);
        assert_eq!(
            message(&caller(), &namespace, "x"),
            "Unknown tool: x; t.py has a tool that is not served: x: *args cannot be given by name"
        );
        assert_eq!(message(&caller(), &namespace, "y"), "Unknown tool: y");
    }

    #[test]
    fn callers_with_scopes_for_certain_tools_and_names_that_the_policy_hides_learn_no_file() {
        let broken = broken();
        let some = caller_with_scopes(&["write"]);
        let plain = |caller: &Caller, name: &str| {
            assert_eq!(
                message(caller, &broken, name),
                format!("Unknown tool: {name}")
            );
        };
        plain(&some, "project_repeat");
        plain(&caller(), "secret_repeat");
        let all = caller_with_scopes(&["admin"]);
        assert!(message(&all, &broken, "repeat").ends_with(REPEAT));
    }

    #[test]
    fn masked_errors_name_the_file_alone_except_to_the_manager() {
        let mut broken = broken();
        broken.limits.mask_errors = true;
        assert_eq!(
            message(&caller(), &broken, "repeat"),
            "Unknown tool: repeat; repeat.py was not loaded"
        );
        let manager = Caller {
            manager: true,
            ..caller()
        };
        assert!(message(&manager, &broken, "repeat").ends_with(REPEAT));
    }

    #[test]
    fn long_errors_are_cut_and_other_errors_stay() {
        let long = issue("import_error", "a.py", &"é".repeat(5000));
        let namespace = with_issues(vec![long]);
        let told = message(&caller(), &namespace, "x");
        assert!(told.chars().count() < 400, "{told}");
        let other = CallError::new(CallErrorCode::InternalError, "no");
        let same = explained(other, &caller(), &namespace, "x");
        assert_eq!(same.message, "no");
    }
}
