//! The listening addresses of the gateways that use a data directory, for checks of a configuration. A check must not report a
//! port as occupied if such a gateway uses it, since the port is free when that gateway is restarted.
//!
//! The core and the manager each write their addresses and their process to a file of the data directory. Entries of processes
//! that have ended are ignored.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crate::data_dir::write_atomically;
use crate::gateway_process::GatewayProcess;
use crate::regular_file;

/// Names of the address files in the data directory: the first is written by the core, the second by the manager.
const FILES: [&str; 2] = ["gateway.addresses", "manager.addresses"];

/// Maximum size of an address file, in bytes; a larger file is treated as absent.
const BYTES_MAX: u64 = 64 * 1024;

/// Writes the addresses of this process to its file in the data directory.
///
/// # Errors
///
/// The error of the operating system.
pub fn note(data: &Path, is_manager: bool, addresses: &[String]) -> io::Result<()> {
    let mut text = format!("{}\n", GatewayProcess::this());
    for address in addresses {
        text.push_str(address);
        text.push('\n');
    }
    let file = data.join(FILES[usize::from(is_manager)]);
    write_atomically(&file, text.as_bytes(), 0o600)
}

/// The listening addresses of the gateways that currently run on a data directory.
pub fn addresses(data: &Path) -> BTreeSet<String> {
    let noted = FILES.map(|file| running(&data.join(file)).unwrap_or_default());
    noted.into_iter().flatten().collect()
}

/// The core process that currently runs on a data directory; `None` if there is none.
pub fn process(data: &Path) -> Option<GatewayProcess> {
    noted(&data.join(FILES[0])).map(|(process, _)| process)
}

/// The addresses in an address file; `None` if the process that wrote the file has ended.
fn running(file: &Path) -> Option<Vec<String>> {
    noted(file).map(|(_, addresses)| addresses)
}

/// The process and the addresses in an address file; `None` if that process has ended.
fn noted(file: &Path) -> Option<(GatewayProcess, Vec<String>)> {
    let text = regular_file::read(file, BYTES_MAX).ok()?;
    let text = String::from_utf8(text).ok()?;
    let mut lines = text.lines();
    let process: GatewayProcess = lines.next()?.parse().ok()?;
    let addresses = lines.map(str::to_owned).collect();
    process.is_running().then_some((process, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_while_their_process_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(addresses(folder.path()).is_empty());
        note(
            folder.path(),
            false,
            &["127.0.0.1:1".into(), "unix:/run/a".into()],
        )
        .expect("written");
        note(folder.path(), true, &["127.0.0.1:2".into()]).expect("written");
        let expected = ["127.0.0.1:1", "127.0.0.1:2", "unix:/run/a"].map(str::to_owned);
        assert_eq!(addresses(folder.path()), expected.into());
        std::fs::write(folder.path().join(FILES[0]), "2147483647.1\n127.0.0.1:1\n")
            .expect("written");
        assert_eq!(addresses(folder.path()), ["127.0.0.1:2".to_owned()].into());
        std::fs::write(folder.path().join(FILES[1]), "no process").expect("written");
        assert!(addresses(folder.path()).is_empty());
    }
}
