//! What comparing URIs with templates may cost.

use crate::upstream::worker::uri_template;

/// Bytes of a template times bytes of a URI that one request may compare.
const COMPARED_MAX: usize = 16 * 1024 * 1024;

/// How much one request may still compare URIs with templates, which costs the product of both lengths.
pub(super) struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(COMPARED_MAX)
    }
}

impl Budget {
    /// Whether the URI may be one of the template's (K-42). Once the budget is used up, none is.
    pub(super) fn may_be_of(&mut self, template: &str, uri: &str) -> bool {
        // Of most templates the text before the first expression says that they are others.
        let begin = &template[..template.find('{').unwrap_or(template.len())];
        if !uri.starts_with(begin) {
            return false;
        }
        let left = self.0.checked_sub(template.len() * uri.len());
        self.0 = left.unwrap_or_default();
        left.is_some() && uri_template::has_text_of(template, uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparing_uris_with_templates_ends_with_the_budget() {
        let mut budget = Budget(100);
        assert!(budget.may_be_of("a://{x}", "a://1"));
        assert!(!budget.may_be_of("b://{x}", "a://1") && budget.0 == 65);
        assert!(budget.may_be_of("a://{x}", "a://1") && !budget.may_be_of("a://{x}", "a://12"));
        assert!(!budget.may_be_of("a://{x}", "a://1"));
    }
}
