//! Giving way to the page's other tasks.

use js_sys::Promise;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

// A message rather than a timer: browsers stretch timers that follow each other to 4 ms.
#[wasm_bindgen(inline_js = "
const channel = new MessageChannel();
const waiting = [];
channel.port1.onmessage = () => waiting.shift()();
export function next_turn() {
    return new Promise(done => {
        waiting.push(done);
        channel.port2.postMessage(0);
    });
}
")]
extern "C" {
    fn next_turn() -> Promise;
}

/// Lets messages be received, a click on `Stop` for one.
pub async fn give_way() {
    let _ = JsFuture::from(next_turn()).await;
}
