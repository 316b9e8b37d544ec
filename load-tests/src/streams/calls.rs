//! Calls on connections of their own, beside thousands of streams.

use crate::load::open::{Open, OpenLoad};
use crate::message::Expect;
use crate::servers::gateway::{ASYNC_TOOL, Gateway};
use crate::wire::Target;

/// A quarter of what two cores can do at most, so that the calls are not what disturbs.
const PER_SECOND: f64 = 1_000.0;
/// As many as the namespace takes at once.
const CONNECTIONS: usize = 64;

/// Tool calls on a fixed schedule, until they are dropped.
pub(crate) async fn calls_beside(gateway: &Gateway) -> anyhow::Result<Open> {
    Open::start(OpenLoad {
        target: Target::Http(gateway.address),
        requests: vec![gateway.envelope().call(ASYNC_TOOL); CONNECTIONS],
        expect: Expect::ECHO,
        per_second: PER_SECOND,
    })
    .await
}
