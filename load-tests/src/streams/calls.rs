//! Calls on separate connections during thousands of streams.

use crate::load::open::{Open, OpenLoad};
use crate::message::Expect;
use crate::servers::gateway::{ASYNC_TOOL, Gateway};
use crate::wire::Target;

/// Number of connections: the number of concurrent calls that the namespace accepts.
const CONNECTIONS: usize = 64;

/// Tool calls on a fixed schedule, until the returned value is dropped.
pub(crate) async fn calls_beside(gateway: &Gateway, per_second: f64) -> anyhow::Result<Open> {
    Open::start(OpenLoad {
        target: Target::Http(gateway.address),
        requests: vec![gateway.envelope().call(ASYNC_TOOL); CONNECTIONS],
        expect: Expect::ECHO,
        per_second,
    })
    .await
}
