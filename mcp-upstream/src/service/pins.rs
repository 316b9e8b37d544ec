//! Pinned definitions of servers: writes their events to the audit log, and applies decisions about them to lists and clients.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tooldock_servers::pool::Pools;
use tooldock_sessions::audit::{AuditRecord, AuditSender, KeptArguments, Transport};
use tooldock_sessions::broadcast::{Audience, Change};
use tooldock_workers::pins::{PinEvent, PinKind, PinState, Pins};

/// Connects the pins to the audit log: each of their events is recorded there.
pub(super) fn report(pins: &Pins, audit: AuditSender) {
    pins.observe(Box::new(move |event| audit.send(record(event))));
}

/// Returns the audit record of an event about a pin. The record's method is the method of the list, and its subject is the
/// definition.
fn record(event: &PinEvent) -> AuditRecord {
    AuditRecord {
        at: SystemTime::now(),
        request_id: "pins".into(),
        transport: Transport::Mcp,
        namespace: event.namespace.clone(),
        via: None,
        method: match event.kind {
            PinKind::Tool => "tools/list",
            PinKind::Prompt => "prompts/list",
            PinKind::Template => "resources/templates/list",
        },
        subject: event.name.as_str().into(),
        status: match event.state {
            PinState::Approved => "ok",
            PinState::Changed => "pin_changed",
            PinState::New => "pin_new",
            PinState::Suspicious => "pin_suspicious",
        },
        http_status: 200,
        cause: None,
        latency: Duration::ZERO,
        protocol_version: None,
        session: None,
        client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        principal: None,
        token_id: None,
        relay: None,
        arguments: KeptArguments::None,
        coerced: false,
        hook: None,
    }
}

/// Waits for decisions about pins. After each, reads the lists of the namespace concerned again, and notifies its clients that
/// they changed. Ends when the pools are dropped.
pub(super) async fn announce(pins: Arc<Pins>, pools: Weak<Pools>, audience: Arc<Audience>) {
    loop {
        let decided = pins.decisions().await;
        let Some(pools) = pools.upgrade() else { return };
        for name in decided {
            pools.list_anew(&name);
            for change in [Change::Tools, Change::Prompts, Change::Resources] {
                audience.announce(&name, change);
            }
        }
    }
}
