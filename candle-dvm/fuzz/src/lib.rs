//! The codec and the relay protocol of candle-dvm, compiled by themselves: neither needs anything else of it, and a fuzzer's build of all
//! of candle takes minutes. `candle-dvm/tests/nostr/corpus.rs` runs the same targets over the valid inputs and their mutations.

#[path = "../../src/nip90/mod.rs"]
pub mod nip90;
#[path = "../../src/relay/mod.rs"]
pub mod relay;
pub mod targets;
