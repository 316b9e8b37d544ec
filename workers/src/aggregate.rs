//! Aggregates: many servers behind one namespace, whose tools the model turns on and off ("Toolman").
//!
//! ```text
//! toolman: NAME ─▶ tools.toml ─▶ AggregateSpec ─▶ Aggregate, in the snapshot ─▶ one hidden namespace for each server
//! ```
//!
//! Here stands only what is configured. What the members offer, which of that is active for whom, and how a call finds
//! its member is known to the service above.

mod file;
mod spec;

pub use file::read;
pub use spec::{
    ActivationScope, ActivePatterns, AggregateOptions, AggregateSpec, InvalidActivePattern, Member,
    MemberKind, Pin,
};
