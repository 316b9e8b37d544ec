//! How much work one document may be. Authors of tools decide how large their schemas are and what these refer to; the
//! work for a document grows with the text of its tools, and never beyond these bounds.

/// Parts of schemas that are looked at for one document to resolve its references …
const STEPS_MAX: u64 = 2_000_000;
/// … and for one of its schemas, so that no tool takes the work of others.
const SCHEMA_STEPS_MAX: u64 = 200_000;
/// Bytes that all references of a document may become longer by.
const ADDED_MAX: usize = 16 * 1024 * 1024;
/// Bytes of schemas that are compiled for one document, patterns counted by [`PATTERN_WEIGHT`].
const COMPILED_MAX: usize = 4 * 1024 * 1024;
/// The cost of compiling a pattern, in bytes of schema.
const PATTERN_WEIGHT: usize = 64 * 1024;

/// The work that is left for a document.
#[derive(Debug)]
pub(super) struct Effort {
    steps: u64,
    added: usize,
    compiled: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            steps: STEPS_MAX,
            added: ADDED_MAX,
            compiled: COMPILED_MAX,
        }
    }
}

impl Effort {
    /// The steps for one schema. What of them is not used is given back by [`Effort::give_back`].
    pub(super) fn steps_of_a_schema(&mut self) -> u64 {
        let steps = self.steps.min(SCHEMA_STEPS_MAX);
        self.steps -= steps;
        steps
    }

    /// Takes back steps that were not used.
    pub(super) fn give_back(&mut self, steps: u64) {
        self.steps += steps;
    }

    /// Whether the document may become longer by so much; notes it if so.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        match self.added.checked_sub(bytes) {
            Some(left) => {
                self.added = left;
                true
            }
            None => false,
        }
    }

    /// Bytes that the document may still become longer by.
    pub(super) fn addable(&self) -> usize {
        self.added
    }

    /// Whether a schema of that text may be compiled; notes it if so.
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
