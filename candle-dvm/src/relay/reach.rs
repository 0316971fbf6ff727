//! Restricts the addresses to which the service connects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses to which a connection is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any: for what the configuration names.
    Anywhere,
    /// Public addresses only, for relays that a stranger names. Natively, the name is resolved first, and the checked address is the one
    /// connected to. A browser does not reveal the address of a name, and has separate rules for local networks.
    Public,
}

/// Whether an address is one of the open internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || a == 0
        || a >= 224
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19));
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // An IPv4 address in any of its wrappings is judged as that: mapped, NAT64, 6to4.
    let [s0, s1, s2, s3, s4, s5, s6, s7] = address.segments();
    let v4 = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_public_v4(mapped);
    }
    match (s0, s1, s2, s3, s4, s5) {
        (0x64, 0xff9b, 0, 0, 0, 0) => is_public_v4(v4(s6, s7)),
        (0x2002, ..) => is_public_v4(v4(s1, s2)),
        // Documentation, and Teredo, which hides an address too.
        (0x2001, 0xdb8 | 0, ..) => false,
        // Only 2000::/3 is allocated.
        _ => s0 & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::is_public;

    #[test]
    fn addresses_inside_are_not_public() {
        let inside = [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2001:db8::1",
        ];
        for address in inside {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "93.184.215.14",
            "2606:4700::1111",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
