//! Fuzzing of the import of nginx configurations. Compiled only for `make fuzz` and for tests.

use std::sync::Arc;

use crate::report::Report;
use crate::tree::{self, Directive, Failure, Includes};
use crate::{GatewayRules, imported};

/// Maximum number of directives in an input.
const DIRECTIVES_MAX: usize = 10_000;

/// Handler of `include` that adds no directives, so that the import reads no file of this machine.
struct Nothing {
    /// The number of directives that may still be read.
    directives: usize,
}

impl Includes for Nothing {
    fn include(&mut self, _: &Directive, _: usize) -> Result<Vec<Directive>, Failure> {
        Ok(Vec::new())
    }

    fn left(&mut self) -> &mut usize {
        &mut self.directives
    }
}

/// Imports an nginx configuration without its included files. Returns the gateway's configuration; `None` if the import was
/// refused.
pub fn nginx_conf(text: &str, gateway: &GatewayRules) -> Option<String> {
    let file: Arc<str> = "nginx.conf".into();
    let mut report = Report::default();
    let mut includes = Nothing {
        directives: DIRECTIVES_MAX,
    };
    let tree = tree::parse(text, &file, 0, &mut includes).ok()?;
    let yaml = imported(&tree, gateway, &mut report).ok()?;
    assert!(report.lines().all(|line| !line.to_string().contains('\n')));
    Some(yaml)
}
