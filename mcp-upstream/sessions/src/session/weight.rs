//! The memory of a session, in bytes: the parts whose size depends on its client, and a fixed cost. Two parts are not counted:
//! events that streams store for resumption, which the event log bounds, and calls in flight, which the namespace bounds.

use std::sync::atomic::Ordering;

use super::Session;
use crate::interaction::QUESTION_COST;

/// Memory of an empty session, including its id and its entries in the table's index, in bytes.
pub(super) const SESSION_COST: usize = 1536;
/// Memory of a client's description in addition to its text, in bytes.
const FACTS_COST: usize = 128;
/// Memory of a stream that is read or stored, in addition to its events, in bytes.
const STREAM_COST: usize = 384;

impl Session {
    /// The approximate memory that the session holds now, in bytes. Locks each collection of the session in turn.
    pub fn weight(&self) -> usize {
        let client = self.client.get();
        let facts = client.map_or(0, |facts| facts.bytes() + FACTS_COST);
        let affinity = self.affinity().map_or(0, |affinity| affinity.bytes());
        SESSION_COST
            + facts
            + affinity
            + self.toolset().bytes()
            + self.subscriptions.weight()
            + self.streams.len() * STREAM_COST
            + self.questions.len() * QUESTION_COST
    }

    /// The session's memory in bytes, as last recorded in the table's index.
    pub(super) fn recorded_weight(&self) -> usize {
        self.recorded_weight.load(Ordering::Relaxed)
    }

    pub(super) fn book(&self, weight: usize) {
        self.recorded_weight.store(weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interaction::OPEN_IN_SESSION;
    use crate::session::client::CLIENT_FACTS_MAX;
    use crate::session::subscriptions::{URI_BYTES_MAX, URIS_MAX, cost};
    use crate::session::tests::{facts, session};

    #[test]
    fn everything_a_client_can_make_grow_has_its_weight() {
        let session = session();
        assert_eq!(session.weight(), SESSION_COST);
        session
            .set_client(facts(r#"{"sampling":{}}"#))
            .expect("short");
        let with_facts = session.weight();
        assert!(with_facts >= SESSION_COST + 15);
        session.subscriptions().add("test://a").expect("the first");
        let with_subscription = session.weight();
        assert_eq!(with_subscription, with_facts + cost(1, 8));
        let wait = crate::interaction::testing::Wait::new();
        let (question, _told) = crate::interaction::testing::round(&wait);
        session.ask(&question).expect("a request");
        assert_eq!(session.weight(), with_subscription + QUESTION_COST);
        drop(question);
        let late = serde_json::from_str("{}").expect("JSON");
        let late: &serde_json::value::RawValue = late;
        let late =
            tooldock_protocol::jsonrpc::ResponseOutcome::Result(late.get().to_owned().into());
        session.answer(
            "1",
            tooldock_protocol::jsonrpc::Response::from_outcome(late),
        );
        session.subscriptions().remove("test://a");
        assert_eq!(session.weight(), with_facts);
    }

    #[test]
    fn one_session_at_its_own_bounds_fits_into_the_smallest_share() {
        let most = SESSION_COST
            + CLIENT_FACTS_MAX
            + FACTS_COST
            + cost(URIS_MAX, URI_BYTES_MAX)
            + OPEN_IN_SESSION * QUESTION_COST
            + 64 * STREAM_COST
            + 2 * crate::session::UPSTREAM_ID_MAX
            + 28 * crate::session::toolset::DIFFERENCES_MAX;
        assert!(most <= crate::session::config::BYTES_MIN, "{most}");
    }
}
