//! Connections: TCP, TLS, and which addresses may be reached at all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use url::Url;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A byte stream in both directions, encrypted or not.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Which addresses may be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any: for what the configuration names.
    Anywhere,
    /// Public ones: for what a stranger names. A name is resolved first, and what is checked is what is connected to.
    Public,
}

/// Connects to the host of a `ws`, `wss`, `http` or `https` address.
///
/// # Errors
/// In one line: a host that is not found or not allowed, and failures to connect or to encrypt.
pub async fn connect(url: &Url, reach: Reach) -> Result<Box<dyn Io>, String> {
    let tls = match url.scheme() {
        "wss" | "https" => true,
        "ws" | "http" => false,
        other => return Err(format!("scheme {other}, expected ws, wss, http or https")),
    };
    let host = url.host_str().ok_or("the address has no host")?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let port = url
        .port_or_known_default()
        .ok_or("the address has no port")?;
    let open = async {
        let found = tokio::net::lookup_host((bare, port))
            .await
            .map_err(|err| err.to_string())?;
        let mut failure = "the host has no address".to_string();
        for address in found {
            if reach == Reach::Public && !is_public(address.ip()) {
                failure = format!("{} is no public address", address.ip());
                continue;
            }
            match open_one(address, bare, tls).await {
                Ok(stream) => return Ok(stream),
                Err(err) => failure = err,
            }
        }
        Err(failure)
    };
    tokio::time::timeout(TIMEOUT, open)
        .await
        .unwrap_or_else(|_| Err("no connection in time".to_string()))
}

async fn open_one(address: SocketAddr, host: &str, tls: bool) -> Result<Box<dyn Io>, String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|err| err.to_string())?;
    // Messages are small, and somebody waits for each.
    let _ = stream.set_nodelay(true);
    if !tls {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(host.to_string()).map_err(|err| err.to_string())?;
    let stream = TlsConnector::from(tls_config())
        .connect(name, stream)
        .await
        .map_err(|err| err.to_string())?;
    Ok(Box::new(stream))
}

fn tls_config() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let make = || {
        let mut roots = RootCertStore::empty();
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    };
    CONFIG.get_or_init(make).clone()
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
        // Only 2000::/3 is given out.
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
