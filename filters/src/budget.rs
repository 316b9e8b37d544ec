//! `RateLimit` and `RateLimit-Policy`: what is left of a limit, in the head of an answer
//! (draft-ietf-httpapi-ratelimit-headers-10).

use http::{HeaderName, HeaderValue};
use tooldock_workers::budget::Budget;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The two header fields: the limit as it is set (`q` at once, `w` seconds until all of that is there again), and what
/// is left (`r` now, `t` seconds until it is whole again).
pub fn header_fields(budget: &Budget) -> [(HeaderName, HeaderValue); 2] {
    let Budget {
        limit, quota, left, ..
    } = budget;
    let (window, reset) = (budget.window(), budget.reset());
    let policy = format!("\"{limit}\";q={quota};w={window}");
    let state = format!("\"{limit}\";r={left};t={reset}");
    [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, state)].map(|(name, value)| {
        // The limit's name is made of the words that limits are counted by.
        let value = HeaderValue::try_from(value).expect("visible ASCII");
        (name, value)
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn the_fields_are_structured_as_the_draft_has_them() {
        let budget = Budget {
            limit: "principal+tool".into(),
            quota: 100,
            rate: NonZeroU32::new(2).unwrap(),
            left: 7,
        };
        let [policy, state] = header_fields(&budget);
        assert_eq!(policy.0, "RateLimit-Policy");
        assert_eq!(policy.1, r#""principal+tool";q=100;w=50"#);
        assert_eq!(state.0, "RateLimit");
        assert_eq!(state.1, r#""principal+tool";r=7;t=47"#);
    }
}
