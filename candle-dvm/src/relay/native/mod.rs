//! Sockets natively: tokio and tungstenite.

mod connect;
mod http;
mod socket;

pub use http::fetch;
#[cfg(feature = "cashu")]
pub use http::send;
pub use socket::Socket;
