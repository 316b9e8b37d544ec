//! Fuzzing of the parser of an aggregate's file. Compiled only for `make fuzz` and for tests.

use std::path::Path;

use super::{AggregateText, ServedOver, spec};

/// Reads the file of an aggregate. An error must be one line that names the file.
pub fn aggregate_file(text: &str) {
    let source = AggregateText {
        name: "tools.toml",
        text,
    };
    for over in [ServedOver::Http, ServedOver::Stdio] {
        if let Err(error) = spec(source, Path::new("tools.toml"), (Path::new(""), over)) {
            assert!(error.starts_with("tools.toml:"), "{error:?}");
            assert_eq!(error.lines().count(), 1, "{error:?}");
        }
    }
}
