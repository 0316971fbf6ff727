//! Sockets natively: tokio and tungstenite.

mod connect;
pub mod http;
mod socket;

pub use socket::Socket;
