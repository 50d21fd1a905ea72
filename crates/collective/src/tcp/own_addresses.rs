//! The addresses of this host, from the tables of Linux.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use system::input;

/// Maximum bytes of a table.
const MOST_BYTES: u64 = 16 << 20;

/// Returns the addresses of this host: IPv4 first, loopback last.
#[must_use]
pub fn own_addresses() -> Vec<IpAddr> {
    let read = |table: &str| input::read_text(table.as_ref(), MOST_BYTES).unwrap_or_default();
    let v4 = of_routes(&read("/proc/net/fib_trie")).into_iter().map(IpAddr::V4);
    let v6 = of_interfaces(&read("/proc/net/if_inet6")).into_iter().map(IpAddr::V6);
    let mut addresses: Vec<IpAddr> = v4.chain(v6).collect();
    addresses.sort_by_key(|address| (address.is_loopback(), *address));
    addresses.dedup();
    addresses
}

/// Returns the local addresses in the kernel's routing table.
fn of_routes(table: &str) -> Vec<Ipv4Addr> {
    let mut last: Option<Ipv4Addr> = None;
    let mut local = Vec::new();
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            local.extend(last);
        }
    }
    local
}

/// Returns the addresses in the kernel's interface table, except link-local ones, which need a link's name.
fn of_interfaces(table: &str) -> Vec<Ipv6Addr> {
    let digits = table.lines().filter_map(|line| line.split_whitespace().next());
    let addresses = digits.filter_map(|digits| u128::from_str_radix(digits, 16).ok()).map(Ipv6Addr::from);
    addresses.filter(|address| !address.is_unicast_link_local()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_the_tables() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- \
                     10.1.2.0/24 2 0 2\n        |-- 10.1.2.3\n           /32 host LOCAL\n     |-- 127.0.0.1\n\
                     \x20       /32 host LOCAL\n     |-- 10.1.2.255\n        /32 link BROADCAST\n";
        assert_eq!(of_routes(table), [Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::LOCALHOST]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe80000000000000021122fffe334455 02 40 20 80     eth0\n\
                     20010db8000000000000000000000007 02 40 00 80     eth0\n";
        let global = "2001:db8::7".parse::<Ipv6Addr>().unwrap();
        assert_eq!(of_interfaces(table), [Ipv6Addr::LOCALHOST, global]);
        assert!(own_addresses().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
