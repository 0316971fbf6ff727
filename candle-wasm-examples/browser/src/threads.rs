//! Threads of a module that shares its memory with Web Workers. JavaScript starts the workers (`wasm.js`): each makes an instance of the same
//! module over the same memory, and calls [`work`].

use candle_core::utils::barrier_pool;
#[cfg(target_feature = "atomics")]
use candle_core::utils::{set_barrier_pool, BarrierPool};
use wasm_bindgen::prelude::*;

/// On how many threads the CPU's ops run, with the one that calls.
#[wasm_bindgen]
pub fn threads() -> usize {
    barrier_pool().n_workers() + 1
}

/// Announces `workers` threads in addition to the calling one. They have to call [`work`] before the first op, which waits for them.
#[cfg(target_feature = "atomics")]
#[wasm_bindgen]
pub fn expect_workers(workers: usize) -> Result<(), JsError> {
    set_barrier_pool(BarrierPool::of_program(workers)).map_err(|_| {
        JsError::new("expect_workers: this module has its threads; call it once, before any op")
    })
}

/// The loop of a worker, until it is terminated: it runs its parts of the ops of the thread that loaded the module.
#[cfg(target_feature = "atomics")]
#[wasm_bindgen]
pub fn work(worker: usize) {
    barrier_pool().work(worker);
}

/// Reports that `work` of this worker threw: the op that waits for it fails.
#[cfg(target_feature = "atomics")]
#[wasm_bindgen]
pub fn lose_worker(worker: usize) {
    barrier_pool().lose(worker);
}

/// The memory that workers make their instances over.
#[cfg(target_feature = "atomics")]
#[wasm_bindgen]
pub fn shared_memory() -> JsValue {
    wasm_bindgen::memory()
}
