//! The word that turns a feature off in the configuration.

/// The value of a configuration key that turns its feature off.
pub(crate) const OFF: &str = "off";
