//! Checks the results of tools against the `outputSchema` that their server lists.
//!
//! Official clients refuse a result that violates the schema, so it is lost although the tool has run. If no tool of a server has
//! an `outputSchema`, nothing is checked.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tooldock_protocol::jsonrpc::spans;

use super::arguments::ARGUMENTS_MAX;
use super::list::ToolList;

/// Maximum number of different faults of one server's results that are logged; further ones are not.
const FAULTS_MAX: usize = 1_000;

/// State of the checks of one server's results.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// True if at least one tool of the server has an `outputSchema`.
    pub(super) declared: AtomicBool,
    /// Pairs of a tool and a fault that have been logged. The lock is never held across an await.
    logged: Mutex<HashSet<(String, String)>>,
}

/// Outcome of checking the result of a tool.
#[derive(Debug, PartialEq, Eq)]
pub enum ResultCheck {
    /// No fault was found in the result, or it cannot be checked.
    Fits,
    /// A fault was found. Contains its path in the result and the violated rule.
    Fault(String),
    /// The result was not checked, since the check is too much work for an I/O thread.
    Heavy,
}

impl Results {
    pub(super) fn are_declared(&self) -> bool {
        self.declared.load(Ordering::Relaxed)
    }

    pub(super) fn known(&self, list: &ToolList) {
        self.declared
            .store(list.declares_outputs(), Ordering::Relaxed);
    }

    /// Records a fault of a tool's results. Returns true if the fault is new and must be logged.
    pub(super) fn is_news(&self, tool: &str, fault: &str) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < FAULTS_MAX && logged.insert((tool.to_owned(), fault.to_owned()))
    }
}

impl ToolList {
    /// The part of a call's result that must be checked against the tool's schema; `None` if nothing must be checked.
    ///
    /// # Errors
    ///
    /// A description of the fault, if the tool has an `outputSchema` but the result has no structured content.
    pub fn structured<'r>(&self, tool: &str, result: &'r str) -> Result<Option<&'r str>, String> {
        let Some(entry) = self.tool(tool) else {
            return Ok(None);
        };
        if entry.output_schema().is_none() {
            return Ok(None);
        }
        let structured = spans::find(result, "structuredContent");
        // Structured content that is too large is not checked.
        if structured.is_some_and(|it| it.len() > ARGUMENTS_MAX) {
            return Ok(None);
        }
        let is_other = |name: &str, usual: &str| {
            spans::find(result, name).is_some_and(|it| it != usual && it != "null")
        };
        // Failures, tasks and questions to the client have no structured content to check.
        if is_other("isError", "false")
            || is_other("task", "null")
            || is_other("resultType", "\"complete\"")
        {
            return Ok(None);
        }
        match structured {
            Some(structured) => Ok(Some(structured)),
            None => Err("it has no structuredContent".into()),
        }
    }

    /// Checks the structured content of a result against the tool's schema. If `light` is set, only a check that is small enough
    /// for an I/O thread is made.
    pub fn check_structured(&self, tool: &str, structured: &str, light: bool) -> ResultCheck {
        let Some(entry) = self.tool(tool) else {
            return ResultCheck::Fits;
        };
        let Ok(schema) = self.result_schema(entry, light) else {
            return ResultCheck::Heavy;
        };
        match schema.map(|schema| schema.fault_of_result(structured.as_bytes(), light)) {
            None | Some(Ok(None)) => ResultCheck::Fits,
            Some(Ok(Some(fault))) => ResultCheck::Fault(fault),
            Some(Err(())) => ResultCheck::Heavy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ToolList {
        /// Holds a whole result against the schema.
        fn check_result(&self, tool: &str, result: &str, light: bool) -> ResultCheck {
            match self.structured(tool, result) {
                Ok(Some(structured)) => self.check_structured(tool, structured, light),
                Ok(None) => ResultCheck::Fits,
                Err(fault) => ResultCheck::Fault(fault),
            }
        }
    }

    #[test]
    fn only_the_structured_part_is_looked_at_and_only_where_it_is_not_too_large() {
        let list = ToolList::of_page(
            r#"{"tools":[{"name":"add","outputSchema":{"type":"object","required":["v"]}},{"name":"plain"}]}"#,
        );
        let result = |bytes: usize| {
            let text = "x".repeat(bytes);
            format!(
                r#"{{"content":[{{"type":"text","text":"{text}"}}],"structuredContent":{{"x":"{text}"}}}}"#
            )
        };
        let around = r#"{"x":""}"#.len();
        let largest = result(ARGUMENTS_MAX - around);
        let part = list.structured("add", &largest).expect("no fault");
        assert_eq!(part.map(str::len), Some(ARGUMENTS_MAX));
        assert_eq!(list.structured("plain", &largest), Ok(None));
        let fault = ResultCheck::Fault("structuredContent.v: the member is missing".into());
        assert_eq!(list.check_result("add", &largest, true), ResultCheck::Heavy);
        assert_eq!(list.check_result("add", &largest, false), fault);
        let larger = result(ARGUMENTS_MAX - around + 1);
        for light in [true, false] {
            assert_eq!(list.check_result("add", &larger, light), ResultCheck::Fits);
        }
        assert_eq!(
            list.check_result("add", r#"{"content":[]}"#, true),
            ResultCheck::Fault("it has no structuredContent".into())
        );
    }

    #[test]
    fn a_result_is_held_against_the_schema_of_its_tool() {
        let list = ToolList::of_page(
            r#"{"tools":[{"name":"add","outputSchema":{"type":"object","properties":{"v":{"type":"integer"},"l":{"items":{"type":"string"}}},"required":["v"]}},{"name":"plain"},{"name":"odd","outputSchema":{"type":5}}]}"#,
        );
        assert!(list.declares_outputs());
        let ok = r#"{"content":[],"structuredContent":{"v":1}}"#;
        assert_eq!(list.check_result("add", ok, true), ResultCheck::Heavy);
        for (tool, result, fault) in [
            ("add", ok, None),
            (
                "add",
                r#"{"content":[]}"#,
                Some("it has no structuredContent"),
            ),
            (
                "add",
                r#"{"content":[],"structuredContent":null}"#,
                Some(r#"structuredContent: value is not of type "object""#),
            ),
            (
                "add",
                r#"{"structuredContent":{"v":"secret"}}"#,
                Some(r#"structuredContent.v: value is not of type "integer""#),
            ),
            (
                "add",
                r#"{"structuredContent":{"v":1,"l":["a",2]}}"#,
                Some(r#"structuredContent.l.1: value is not of type "string""#),
            ),
            (
                "add",
                r#"{"structuredContent":{}}"#,
                Some("structuredContent.v: the member is missing"),
            ),
            (
                "add",
                r#"{"structuredContent":[1]}"#,
                Some(r#"structuredContent: value is not of type "object""#),
            ),
            ("add", r#"{"content":[],"isError":true}"#, None),
            ("add", r#"{"task":{"taskId":"t"}}"#, None),
            ("add", r#"{"resultType":"input_required"}"#, None),
            ("plain", r#"{"content":[]}"#, None),
            ("odd", r#"{"structuredContent":{}}"#, None),
            ("unlisted", r#"{"content":[]}"#, None),
        ] {
            let expected = match fault {
                None => ResultCheck::Fits,
                Some(fault) => ResultCheck::Fault(fault.into()),
            };
            assert_eq!(list.check_result(tool, result, false), expected, "{result}");
        }
        // The schema is compiled now, so a light check suffices.
        assert_eq!(list.check_result("add", ok, true), ResultCheck::Fits);
        let long = format!(
            r#"{{"structuredContent":{{"v":1,"x":"{}"}}}}"#,
            "x".repeat(20_000)
        );
        assert_eq!(list.check_result("add", &long, true), ResultCheck::Heavy);
        assert!(!ToolList::of_page(r#"{"tools":[{"name":"a"}]}"#).declares_outputs());
    }

    #[test]
    fn a_fault_is_news_once() {
        let results = Results::default();
        assert!(results.is_news("a", "x") && !results.is_news("a", "x"));
        assert!(results.is_news("b", "x") && results.is_news("a", "y"));
    }
}
