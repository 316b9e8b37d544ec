//! Thousands of event streams: clients that hold them, a publisher, and a check that each client received every event
//! once.
//!
//! Streams run on a separate thread ([`aside`]), so that reading them does not delay the timed clients. A process may have
//! 20,000 descriptors, so 19,000 streams are the maximum.

mod aside;
mod calls;
mod client;
mod crowd;
mod decoder;
mod deliveries;
mod publisher;
mod socket;
mod tally;

pub(crate) use aside::Aside;
pub(crate) use calls::calls_beside;
pub(crate) use crowd::Crowd;
pub(crate) use deliveries::Deliveries;
pub(crate) use publisher::Publisher;
