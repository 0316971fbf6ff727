//! Connections: TCP and TLS.

use crate::platform::timeout;
use crate::relay::reach::{is_public, Reach};
use crate::relay::NoConnection;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use url::Url;

/// After which the next address of a host is tried.
const PATIENCE: Duration = Duration::from_secs(5);

/// A byte stream in both directions, encrypted or not.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Connects to the host of a `ws`, `wss`, `http` or `https` address.
///
/// # Errors
/// In one line: a host that is not found or not allowed, and failures to connect or to encrypt.
pub async fn connect(url: &Url, reach: Reach) -> Result<Box<dyn Io>, NoConnection> {
    let tls = match url.scheme() {
        "wss" | "https" => true,
        "ws" | "http" => false,
        other => {
            let reason = format!("scheme {other}, expected ws, wss, http or https");
            return Err(NoConnection::not_allowed(reason));
        }
    };
    let host = url.host_str().ok_or("the address has no host")?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let port = url
        .port_or_known_default()
        .ok_or("the address has no port")?;
    let found = tokio::net::lookup_host((bare, port)).await?;
    let mut tried = false;
    let mut failure = NoConnection::from("the host has no address");
    for address in found {
        if reach == Reach::Public && !is_public(address.ip()) {
            if !tried {
                let reason = format!("{} is not a public address", address.ip());
                failure = NoConnection::not_allowed(reason);
            }
            continue;
        }
        tried = true;
        failure = match timeout(PATIENCE, open_one(address, bare, tls)).await {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(err)) => err.into(),
            None => "no connection in time".into(),
        };
    }
    Err(failure)
}

async fn open_one(address: SocketAddr, host: &str, tls: bool) -> Result<Box<dyn Io>, String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|err| err.to_string())?;
    // Messages are small, and each is waited for.
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
