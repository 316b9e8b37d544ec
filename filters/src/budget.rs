//! The response headers `RateLimit` and `RateLimit-Policy`, which tell a client a limit and its remaining budget
//! (draft-ietf-httpapi-ratelimit-headers-10).

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tooldock_base::budget::Budget;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Maximum length of a header value without the limit's name, in bytes: two quotes, and two parameters such as `;q=` with a
/// number of up to ten digits.
const ROOM: usize = 2 + 2 * (3 + 10);

/// Builds both header fields: the limit as configured (`q` events at a time, `w` seconds until all of them are available
/// again), and the remaining budget (`r` events now, `t` seconds until the budget is full again).
pub fn header_fields(budget: &Budget) -> [(HeaderName, HeaderValue); 2] {
    let Budget {
        limit, quota, left, ..
    } = budget;
    let policy = field(limit, ["q", "w"], [*quota, budget.window()]);
    let state = field(limit, ["r", "t"], [*left, budget.reset()]);
    [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, state)]
}

/// Builds a header value: the limit's name in quotes, and two parameters. `format!` is avoided, since each response has two
/// such values and it would cost more than all other steps here.
fn field(limit: &str, names: [&str; 2], numbers: [u32; 2]) -> HeaderValue {
    let mut field = Vec::with_capacity(limit.len() + ROOM);
    field.push(b'"');
    field.extend_from_slice(limit.as_bytes());
    field.push(b'"');
    for (name, number) in names.into_iter().zip(numbers) {
        field.push(b';');
        field.extend_from_slice(name.as_bytes());
        field.push(b'=');
        field.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
    // Cannot fail: the limit's name consists of the ASCII names of limit keys.
    HeaderValue::from_maybe_shared(Bytes::from(field)).expect("visible ASCII")
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
