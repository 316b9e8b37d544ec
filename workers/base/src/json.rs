//! Reading JSON as spans of its text: the members of an object and their places, with everything in them checked and nothing
//! decoded.
//!
//! Texts that are accepted here are accepted by `serde_json`, with equal spans, and the other way round up to [`DEPTH_MAX`];
//! the property tests compare the two. Refused texts are given to `serde_json`, which has the error message. Long strings,
//! with escapes in them too, are read many bytes at a time: they make up the cost of a large body.

mod block;
mod members;
#[cfg(test)]
mod properties;
mod read;
mod scan;
mod walk;

use members::JsonMembers;
pub use read::{from_str, object, raw};
pub use scan::{DEPTH_MAX, Unread, is_value};
pub use walk::Walk;
