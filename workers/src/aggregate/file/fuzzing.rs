//! Entry point for fuzzing the file of an aggregate. Compiled by `make fuzz` alone.

use std::path::Path;

use super::{AggregateText, ServedOver, spec};

/// Reads the file of an aggregate. An error is one line, with the position of the fault.
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
