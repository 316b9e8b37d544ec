//! The word by which a key says that its feature is not used.

/// The value of a key whose feature is off.
pub(crate) const OFF: &str = "off";
