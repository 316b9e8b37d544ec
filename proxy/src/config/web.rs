//! Settings of the web UI that only variables set: the user name of browsers, and the data directory's path on the
//! host.

/// The settings of the web UI that have no key in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebSettings {
    /// The user name of `Authorization: Basic`.
    pub(crate) user: String,
    /// The data directory as the host has it; shown, and never opened.
    pub(crate) host_data_dir: String,
}

impl Default for WebSettings {
    fn default() -> Self {
        Self {
            user: "admin".to_owned(),
            host_data_dir: "./tooldock_data".to_owned(),
        }
    }
}
