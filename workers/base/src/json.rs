//! Reads JSON as spans of its text: the members of an object and their positions. All of the text is validated, and nothing is
//! decoded.
//!
//! Texts that are accepted here are accepted by `serde_json`, with equal spans, and vice versa up to [`DEPTH_MAX`]; the
//! property tests compare the two. Refused texts are passed to `serde_json` for the error message. Long strings, including
//! those with escapes, are read many bytes at a time: they dominate the cost of a large body.

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
