//! Counts connections that found the queue of a listening socket full. The kernel counts them for the whole machine.

use std::fs;

/// Number of connections that found a full queue since the machine was booted; `None` if the kernel does not report it.
pub(super) fn found_full() -> Option<u64> {
    let text = fs::read_to_string("/proc/net/netstat").ok()?;
    value(&text, "ListenOverflows")
}

/// Parses a value: a line of names is followed by a line of values, and both begin with `TcpExt:`.
fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|known| known == name)?;
    values.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_below_its_name() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 23 4\nIpExt: InNoRoutes\nIpExt: 7\n";
        assert_eq!(value(text, "ListenOverflows"), Some(23));
        assert_eq!(value(text, "InNoRoutes"), None);
        assert_eq!(value("", "ListenOverflows"), None);
    }
}
