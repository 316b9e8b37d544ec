//! Reading JSON as spans of its text: which members an object has and where they stand, with everything in them checked
//! and nothing decoded.
//!
//! What is taken here `serde_json` takes as well, with the same spans, and the other way round up to [`DEPTH_MAX`]; the
//! property tests hold the two against each other. What is not taken is for `serde_json` to judge, which says why. Long
//! strings are read many bytes at a time, escapes in them too, which is what a large body costs.

mod block;
mod members;
#[cfg(test)]
mod properties;
mod read;
mod scan;
mod walk;

use members::Members;
pub use read::{from_str, object, raw};
pub use scan::{DEPTH_MAX, Unread, is_value};
pub use walk::Walk;
