//! Identifies the process of a gateway. It is written to `gateway.lock`, to the list of the gateway's addresses, and to the tags
//! of its children.

use std::fmt;
use std::fs;
use std::str::FromStr;
use std::sync::OnceLock;

/// A process of a gateway, identified by its process id and its start time. The start time distinguishes it from a later process
/// with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayProcess {
    pid: i32,
    started: u64,
}

impl GatewayProcess {
    /// Identifies the process that calls this function.
    pub fn this() -> Self {
        static THIS: OnceLock<GatewayProcess> = OnceLock::new();
        *THIS.get_or_init(|| {
            let pid = i32::try_from(std::process::id()).unwrap_or_default();
            let started = start_of(pid).unwrap_or_default();
            Self { pid, started }
        })
    }

    /// Identifies the process that has this process id now. `None` if there is none.
    pub fn of(pid: i32) -> Option<Self> {
        let started = start_of(pid)?;
        Some(Self { pid, started })
    }

    /// The process id. Another process may have it now.
    pub fn pid(self) -> i32 {
        self.pid
    }

    /// Returns true if the process is still running.
    pub fn is_running(self) -> bool {
        start_of(self.pid) == Some(self.started)
    }
}

/// Writes the process id and the start time, as in tags and in `gateway.lock`.
impl fmt::Display for GatewayProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pid, self.started)
    }
}

impl FromStr for GatewayProcess {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, started) = text.split_once('.').ok_or(())?;
        let pid: i32 = pid.parse().map_err(drop)?;
        let started = started.parse().map_err(drop)?;
        (pid > 0).then_some(Self { pid, started }).ok_or(())
    }
}

/// The start time of a process, in the kernel's unit. `None` if the process does not exist.
pub fn start_of(pid: i32) -> Option<u64> {
    stat_field(pid, 22)
}

/// A field of a process's `/proc/<pid>/stat`, numbered from 1 as in the manual page. `None` if the process does not exist.
pub fn stat_field<T: FromStr>(pid: i32, number: usize) -> Option<T> {
    field(
        &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?,
        number,
    )
}

/// A field in the text of a `stat` file. Fields are counted after the last parenthesis, because the second field, the command's
/// name, may contain spaces and parentheses.
fn field<T: FromStr>(stat: &str, number: usize) -> Option<T> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let text = after_name
        .split_ascii_whitespace()
        .nth(number.checked_sub(3)?)?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_texts_name_no_gateway() {
        for text in ["", "1", "x.1", "1.x", "0.1", "-1.1", "1.2.3"] {
            assert_eq!(text.parse::<GatewayProcess>(), Err(()), "{text}");
        }
    }

    #[test]
    fn fields_are_read_past_any_command_name() {
        assert_eq!(field("7 (python3) S 3 7 7 0", 4), Some(3));
        assert_eq!(field("7 (a) b (c d)) R 12 7 7 0", 4), Some(12));
        assert_eq!(field::<i32>("7 (cut", 4), None);
        assert_eq!(field::<i32>("7 (short) S", 22), None);
    }
}
