//! The codec and the relay protocol of candle-dvm, compiled separately: they are independent of the rest, and a fuzzing build of all of
//! candle takes minutes. `candle-dvm/tests/nostr/corpus.rs` runs the same targets over the valid inputs and mutations of them.

#[path = "../../src/nip90/mod.rs"]
pub mod nip90;
#[path = "../../src/relay/mod.rs"]
pub mod relay;
pub mod targets;
