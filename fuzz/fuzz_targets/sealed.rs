//! Seals of session ids, states and handles: a changed seal, or a seal made with another key, is not opened.

#![no_main]

use tooldock_base::names::NamespaceName;
use tooldock_protocol::seal::SessionKey;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let key = SessionKey::from_bytes([7; 32]);
    let namespace: NamespaceName = "a".parse().expect("a name");
    if let Ok(text) = std::str::from_utf8(input) {
        // The fuzzer sees the seals that this process makes with its key, so this check uses another key.
        let key = SessionKey::from_bytes([9; 32]);
        assert!(key.open(text).is_none(), "an id without the key");
        assert!(key.open_state(text).is_none() && key.open_probe(text).is_none());
        assert!(key.open_toolset(&namespace, None, text).is_none());
    }
    let Some(((&at, &flip), state)) = input.split_first().and_then(|(at, rest)| {
        let (flip, state) = rest.split_first()?;
        Some(((at, flip), state))
    }) else {
        return;
    };
    let sealed = key.seal_state(state).expect("randomness");
    assert_eq!(key.open_state(&sealed).as_deref(), Some(state));
    assert!(
        key.open_passport(&sealed).is_none(),
        "a seal of another kind"
    );
    assert!(
        SessionKey::from_bytes([8; 32])
            .open_state(&sealed)
            .is_none()
    );
    let handle = key
        .seal_toolset(&namespace, Some("p"), state)
        .expect("randomness");
    assert!(key.open_toolset(&namespace, Some("q"), &handle).is_none());
    let mut changed = sealed.clone().into_bytes();
    let at = usize::from(at) % changed.len();
    changed[at] = flip & 0x7f;
    let changed = String::from_utf8(changed).expect("ASCII");
    assert!(changed == sealed || key.open_state(&changed).is_none());
});
