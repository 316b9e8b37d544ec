//! `/operator/doctor`: random values (nonces) by which `tooldock doctor` recognizes this gateway when it checks the proxies in
//! front of it.

use http::StatusCode;
use serde_json::json;

use super::answer::{Answer, WebFailure, json_of};
use super::request::ApiRequest;
use crate::mcp::Core;
use crate::probe::{LIFE, NONCES_MAX};

/// Responds with new nonces, and with the state of the replicas, since any replica may receive the request with a nonce. The
/// query's `n` is the number of nonces.
pub(super) fn nonces(core: &Core, request: &ApiRequest) -> Answer {
    let number = match request.parameter("n") {
        None => 1,
        Some(text) => text
            .parse()
            .ok()
            .filter(|number| (1..=NONCES_MAX).contains(number))
            .ok_or_else(|| {
                WebFailure::invalid("n", format!("n must be a number from 1 to {NONCES_MAX}"))
            })?,
    };
    let nonces: Result<Vec<_>, _> = (0..number).map(|_| core.probes.issue()).collect();
    let nonces = nonces.map_err(|error| {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        WebFailure::new(status, "internal_error", error.to_string())
    })?;
    json_of(&json!({
        "nonces": nonces,
        "valid_seconds": LIFE.as_secs(),
        "replicas": core.sessions.replicas().state(),
    }))
}
