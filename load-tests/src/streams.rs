//! Event streams by the thousand: who holds them, who publishes, and whether everybody had everything once.
//!
//! Streams live on a thread of their own ([`aside`]), so that reading them does not hold up the clients that are timed. A
//! process may hold 20,000 descriptors here, so 19,000 streams are the most.

mod aside;
mod calls;
mod client;
mod crowd;
mod decoder;
mod deliveries;
mod publisher;
mod socket;
mod tally;

pub(crate) use calls::calls_beside;
pub(crate) use crowd::Crowd;
pub(crate) use deliveries::Deliveries;
pub(crate) use publisher::Publisher;
