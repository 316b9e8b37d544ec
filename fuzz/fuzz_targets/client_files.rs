//! Import of the configuration files of MCP clients: no secret gets into an entry or an error.

#![no_main]

use std::path::Path;

use tooldock_base::yaml;
use tooldock_import_clients::{ClientFile, read};

/// Minimum length, in bytes, of a value to look for: a shorter value may occur in a message by chance.
const TELLING: usize = 12;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let file = ClientFile {
        text,
        folder: Path::new("/folder"),
        home: Some(Path::new("/home/user")),
    };
    match read(&file) {
        Ok(import) => {
            for server in import.servers {
                let entry = yaml::to_string(&server.entry).expect("an entry is YAML");
                for secret in server.secrets.values().map(|it| it.expose()) {
                    let is_telling = secret.len() >= TELLING && text.matches(secret).count() == 1;
                    assert!(!is_telling || !entry.contains(secret), "{entry}");
                }
            }
        }
        Err(refused) => {
            let mut words = text.split(|it: char| !it.is_ascii_alphanumeric());
            let quoted = words.find(|it| it.len() >= TELLING && refused.reason.contains(it));
            let known = ["mcpServers", "context_servers", "mcp_servers"];
            assert!(quoted.is_none_or(|it| known.contains(&it)), "{refused}");
        }
    }
});
