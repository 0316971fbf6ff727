//! Sockets natively: tokio and tungstenite.

mod connect;
mod http;
mod socket;

pub use http::fetch;
pub use socket::Socket;
