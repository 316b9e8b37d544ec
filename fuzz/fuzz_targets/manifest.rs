//! Parser of a namespace's manifest, the file `tooldock.yaml` in its folder.

#![no_main]

use tooldock_workers::manifest::Manifest;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    if let Ok(manifest) = Manifest::parse(text) {
        let _ = manifest.declared_secrets();
        for template in manifest.env.values() {
            let (names, shown) = (template.names(), format!("{template:?}"));
            assert!(names.iter().all(|name| !name.is_empty()), "{shown}");
        }
    }
});
