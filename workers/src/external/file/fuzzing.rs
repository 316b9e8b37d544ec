//! Fuzzing of the parser of `external/config.yaml`. Compiled only for `make fuzz` and for tests.

use tooldock_base::yaml;

use super::{RegistryCache, ServersFile, check_entry};

/// Reads the servers' file. An accepted server must be equal after it is written and read again.
pub fn servers_file(text: &[u8]) {
    let Ok(tree) = yaml::from_slice(text) else {
        return;
    };
    let Ok(file) = ServersFile::parse(tree, RegistryCache::new) else {
        return;
    };
    for server in file.servers.values().flatten().filter(|it| it.enabled) {
        let written = yaml::to_string(server).expect("written");
        let entry = yaml::from_str(&written).expect("YAML");
        let read = check_entry(entry).expect("what is accepted is accepted again");
        assert_eq!(read, *server);
    }
}
