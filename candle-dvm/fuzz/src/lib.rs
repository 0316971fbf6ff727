//! The codec and the relay protocol of candle-dvm, compiled separately: they are independent of the rest, and a fuzzing build of all of
//! candle takes minutes.

#[path = "../../src/nip90/mod.rs"]
pub mod nip90;
#[path = "../../src/relay/mod.rs"]
pub mod relay;

use nostr::prelude::Keys;
use std::sync::LazyLock;

/// Who asks. The same keys in each run, so that an input means the same.
pub static CUSTOMER: LazyLock<Keys> = LazyLock::new(|| keys('1'));
/// Who is asked.
pub static PROVIDER: LazyLock<Keys> = LazyLock::new(|| keys('2'));
/// When everything happens, in seconds.
pub const NOW: u64 = 1_800_000_000;

fn keys(digit: char) -> Keys {
    let secret = digit.to_string().repeat(64);
    Keys::parse(&secret).expect("a secret key")
}
