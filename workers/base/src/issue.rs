//! Problems of namespaces that are shown to operators.

/// A problem of a namespace that is served in spite of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// Stable code of the problem: `import_error`, `limit_clamped`, `dependency_error`, `duplicate_tool`, …
    pub code: &'static str,
    /// The file or key that has the problem, or [`UPDATE`].
    pub subject: String,
    /// Description of the problem, in one line.
    pub message: String,
}

/// Subject of an [`Issue`] that contains the reason why the last update of a namespace failed.
pub const UPDATE: &str = "reload";

impl Issue {
    /// Returns true if the issue may be the reason why a tool of this name is not served. There are three such issues: a Python
    /// file was not loaded (it may define the tool), the tool itself was refused, or the last update of the namespace failed.
    pub fn may_hide(&self, tool: &str) -> bool {
        if self.is_about_update() {
            return true;
        }
        // Python files in subfolders and files that begin with an underscore define no tools. The files that import them have
        // issues.
        let is_tool_file = !self.subject.starts_with('_') && !self.subject.contains('/');
        let Some(module) = self.subject.strip_suffix(".py").filter(|_| is_tool_file) else {
            return false;
        };
        match self.code {
            "invalid_tool" => {
                let told = self.message.strip_prefix(tool);
                module == tool || told.is_some_and(|rest| rest.starts_with(": "))
            }
            _ => self.is_about_unloaded_file(),
        }
    }

    /// Returns true if the issue means that a Python file was not loaded.
    pub fn is_about_unloaded_file(&self) -> bool {
        let codes = [
            "dependency_error",
            "exit_at_import",
            "import_error",
            "import_timeout",
            "not_a_file",
            "symlink_outside",
            "unreadable",
        ];
        codes.contains(&self.code) && self.subject.ends_with(".py")
    }

    /// Returns true if the issue concerns the last update of the namespace, and not a file or key.
    pub fn is_about_update(&self) -> bool {
        self.subject == UPDATE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_may_be_hidden_by_a_file_that_was_not_loaded_by_its_own_refusal_and_by_a_failed_update()
     {
        let issue = |code, subject: &str, message: &str| Issue {
            code,
            subject: subject.into(),
            message: message.into(),
        };
        for hiding in [
            issue("import_error", "repeat.py", "SyntaxError: invalid syntax"),
            issue("dependency_error", "other.py", "No module named 'x'"),
            issue("unreadable", "other.py", "cannot be read"),
            issue(
                "invalid_tool",
                "tools.py",
                "repeat: *args cannot be given by name",
            ),
            issue("invalid_tool", "repeat.py", "a needs an annotation"),
            issue(
                "worker_unavailable",
                UPDATE,
                "the last change is not served: no",
            ),
        ] {
            assert!(hiding.may_hide("repeat"), "{hiding:?}");
        }
        for other in [
            issue("invalid_tool", "tools.py", "repeated: no"),
            issue("invalid_tool", "tools.py", "repeat"),
            issue("duplicate_tool", "tools.py", "repeat: no"),
            issue("import_error", "requirements.txt", "no"),
            issue("unreadable", "_helper.py", "no"),
            issue("unreadable", "data/helper.py", "no"),
            issue("limit_clamped", "tooldock.yaml: timeout", "no"),
        ] {
            assert!(!other.may_hide("repeat"), "{other:?}");
        }
    }
}
