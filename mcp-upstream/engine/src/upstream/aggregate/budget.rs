//! Limit on the work of comparing URIs with URI templates in one request.

use crate::upstream::worker::uri_template;

/// Maximum work for comparing URIs with templates in one request: bytes of the template times bytes of the URI, summed over all
/// comparisons.
const COMPARED_MAX: usize = 16 * 1024 * 1024;

/// Remaining work of a request for comparing URIs with templates; one comparison costs the product of both lengths.
pub(super) struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(COMPARED_MAX)
    }
}

impl Budget {
    /// Returns true if the URI may match the template (K-42). Once the budget is used up, no URI matches.
    pub(super) fn may_be_of(&mut self, template: &str, uri: &str) -> bool {
        // For most templates, the text before the first expression shows that the URI does not match.
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
