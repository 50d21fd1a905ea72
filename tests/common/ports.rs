//! Ports of jobs over TCP.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns an unused port, outside the range from which the system assigns ports.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(7919);
    loop {
        let port = 20_000 + (first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
