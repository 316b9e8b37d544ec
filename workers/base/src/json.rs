//! Reads JSON without decoding it: finds the members of an object and returns their positions in the text (spans). The whole text
//! is validated.
//!
//! The result is the same as that of `serde_json`: a text that is accepted here is accepted by `serde_json`, with the same spans,
//! and vice versa, up to the nesting depth [`DEPTH_MAX`]. Property tests compare the two. A refused text is passed to
//! `serde_json` to get the error message. Long strings, including those with escapes, are read many bytes at a time, because
//! they make up most of a large body.

mod block;
mod members;
#[cfg(test)]
mod properties;
mod read;
mod scan;
mod walk;

use members::JsonMembers;
pub use read::{from_str, object, raw};
pub use scan::{DEPTH_MAX, InvalidJson, is_value};
pub use walk::Walk;
