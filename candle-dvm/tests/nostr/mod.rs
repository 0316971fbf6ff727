//! NIP-90: the codec, the relay protocol, the journal, the service and the customer's commands, over a relay of the tests' own.

mod cache;
#[cfg(all(feature = "cashu", unix))]
mod cash;
mod client;
mod codec;
mod commands;
mod corpus;
#[cfg(unix)]
mod crash;
mod crowd;
#[cfg(target_os = "linux")]
mod disk;
mod fairness;
#[cfg(feature = "audio")]
mod files;
#[cfg(target_os = "linux")]
mod flood;
mod guests;
mod hostile;
mod inputs;
mod journal;
mod keys;
mod machine;
#[cfg(all(feature = "cashu", unix))]
mod mint;
mod pages;
mod payment;
mod privacy;
mod refusals;
mod relay;
mod relays;
mod served;
mod service;
#[cfg(target_os = "linux")]
mod soak;
#[cfg(feature = "audio")]
mod speech;
mod starts;
#[cfg(unix)]
mod stoppable;
mod turns;
mod wait;
mod waiting;
mod wild;
