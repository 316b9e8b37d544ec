//! Limits on the work for one OpenAPI document. Authors of tools decide how large their schemas are and how many references they
//! contain. The work for a document grows with the text of its tools, and never beyond these limits.

/// Maximum number of schema parts that are visited to resolve the references of one document.
const STEPS_MAX: u64 = 2_000_000;
/// Maximum number of schema parts that are visited for one schema, so that no tool uses up the budget of others.
const SCHEMA_STEPS_MAX: u64 = 200_000;
/// Maximum number of bytes by which all resolved references may lengthen a document.
const ADDED_MAX: usize = 16 * 1024 * 1024;
/// Maximum size of the schemas that are compiled for one document, in bytes; each pattern counts as [`PATTERN_WEIGHT`].
const COMPILED_MAX: usize = 4 * 1024 * 1024;
/// Cost that is counted for compiling one `pattern` keyword, as if the schema were longer by this number of bytes.
const PATTERN_WEIGHT: usize = 64 * 1024;

/// The remaining budget of work for one document.
#[derive(Debug)]
pub(super) struct WorkBudget {
    steps: u64,
    added: usize,
    compiled: usize,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self {
            steps: STEPS_MAX,
            added: ADDED_MAX,
            compiled: COMPILED_MAX,
        }
    }
}

impl WorkBudget {
    /// Takes the steps for one schema out of the budget. Unused steps are returned by [`WorkBudget::give_back`].
    pub(super) fn steps_of_a_schema(&mut self) -> u64 {
        let steps = self.steps.min(SCHEMA_STEPS_MAX);
        self.steps -= steps;
        steps
    }

    /// Returns unused steps to the budget.
    pub(super) fn give_back(&mut self, steps: u64) {
        self.steps += steps;
    }

    /// Counts bytes by which the document grows. Returns false, without counting them, if they exceed the remaining budget.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        match self.added.checked_sub(bytes) {
            Some(left) => {
                self.added = left;
                true
            }
            None => false,
        }
    }

    /// Returns the number of bytes by which the document may still grow.
    pub(super) fn addable(&self) -> usize {
        self.added
    }

    /// Counts the compilation of a schema. Returns false, without counting it, if it exceeds the remaining budget.
    pub(super) fn may_compile(&mut self, schema: &str) -> bool {
        let patterns = memchr::memmem::find_iter(schema.as_bytes(), "attern").count();
        let weight = schema.len() + patterns * PATTERN_WEIGHT;
        match self.compiled.checked_sub(weight) {
            Some(left) => {
                self.compiled = left;
                true
            }
            None => false,
        }
    }
}
