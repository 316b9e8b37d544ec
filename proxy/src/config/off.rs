//! The value that disables a feature.

/// The value of a key whose feature is off.
pub(crate) const OFF: &str = "off";
