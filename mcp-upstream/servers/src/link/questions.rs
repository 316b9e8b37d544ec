//! Requests of a server that the gateway has not answered yet.

use std::collections::HashMap;

use tooldock_protocol::jsonrpc::RawId;

/// Maximum number of a server's requests that wait for a response; further ones are not registered.
const OPEN_MAX: usize = 1000;
/// Maximum size of the id of a server's request, in bytes. The id is stored and sent again in the response.
const ID_MAX: usize = 4096;

/// The ids of a server's requests that wait for a response. A server may use an id again after a response or a
/// cancellation. So each request also gets a number, by which a late response to the earlier request with an id is
/// told from a response to the later request.
#[derive(Debug, Default)]
pub(super) struct ServerRequests {
    open: HashMap<RawId, u64>,
    last: u64,
}

impl ServerRequests {
    /// Registers a request and returns its number. `None` if too many requests wait, its id is in use, or its id is too long.
    pub(super) fn insert(&mut self, id: &RawId) -> Option<u64> {
        let fits = self.open.len() < OPEN_MAX && id.as_str().len() <= ID_MAX;
        if !fits || self.open.contains_key(id) {
            return None;
        }
        self.last += 1;
        self.open.insert(id.clone(), self.last);
        Some(self.last)
    }

    /// Removes the request with this number. Returns false if it no longer waits for a response.
    pub(super) fn answer(&mut self, id: &RawId, number: u64) -> bool {
        let open = self.open.get(id) == Some(&number);
        if open {
            self.open.remove(id);
        }
        open
    }

    /// Removes a request that the server cancelled.
    pub(super) fn take_back(&mut self, id: &RawId) {
        self.open.remove(id);
    }

    /// Removes all requests, so that none of them can be answered any more.
    pub(super) fn clear(&mut self) {
        self.open = HashMap::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_an_earlier_request_does_not_answer_a_later_one_with_its_id() {
        let mut questions = ServerRequests::default();
        let id = RawId::new("1");
        let first = questions.insert(&id).expect("room");
        assert_eq!(questions.insert(&id), None);
        questions.take_back(&id);
        let second = questions.insert(&id).expect("room");
        assert!(!questions.answer(&id, first));
        assert!(questions.answer(&id, second));
        assert!(!questions.answer(&id, second));
    }

    #[test]
    fn requests_and_their_ids_are_bounded() {
        let mut questions = ServerRequests::default();
        assert_eq!(questions.insert(&RawId::new(&"1".repeat(5000))), None);
        for id in 0..OPEN_MAX {
            assert!(questions.insert(&RawId::new(&id.to_string())).is_some());
        }
        assert_eq!(questions.insert(&RawId::new("\"x\"")), None);
    }
}
