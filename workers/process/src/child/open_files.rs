//! The limit on open files. The gateway raises its own to the maximum; its children get the original one.
//!
//! Some programs close every descriptor up to the limit, or use `select`, which fails for high descriptors. Under a raised limit,
//! they are slow or wrong. So only the gateway's soft limit is raised, and its guards restore the original for their commands.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Option of the guard whose value is the soft limit for its command.
pub(super) const OPTION: &str = "--open-files";

/// The soft limit with which this process was started; set only if it was raised since.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Maximum number of files that this process may have open; `None` for no limit.
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Maximum number of files that this process may have open after [`raise`]; `None` for no limit.
pub fn highest() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Raises the soft limit to the hard limit. Returns the soft limit that is then in force.
pub fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current?;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if maximum.is_none_or(|maximum| maximum > before) && setrlimit(Resource::Nofile, raised).is_ok()
    {
        let _ = BEFORE.set(before);
    }
    limit()
}

/// Arguments that tell a guard the soft limit with which this process was started; `None` if the limit was not raised.
pub(super) fn for_children() -> Option<[String; 2]> {
    BEFORE
        .get()
        .map(|before| [OPTION.to_owned(), before.to_string()])
}

/// Sets the soft limit of this process and its children. If that fails, the higher limit stays in force.
pub(super) fn lower(soft: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let lowered = Rlimit {
        current: Some(soft),
        maximum,
    };
    let _ = setrlimit(Resource::Nofile, lowered);
}
