//! Calls on connections of their own, beside thousands of streams.

use crate::load::open::{Open, OpenLoad};
use crate::message::Expect;
use crate::servers::gateway::{ASYNC_TOOL, Gateway};
use crate::wire::Target;

/// As many as the namespace takes at once.
const CONNECTIONS: usize = 64;

/// Tool calls on a fixed schedule, until they are dropped.
pub(crate) async fn calls_beside(gateway: &Gateway, per_second: f64) -> anyhow::Result<Open> {
    Open::start(OpenLoad {
        target: Target::Http(gateway.address),
        requests: vec![gateway.envelope().call(ASYNC_TOOL); CONNECTIONS],
        expect: Expect::ECHO,
        per_second,
    })
    .await
}
