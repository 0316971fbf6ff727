//! The list of `candle-conformance`, and layers of candle-nn, run on the browser's adapter and on the CPU in WebAssembly.

#![deny(missing_docs)]

mod layers;
mod speed;

use candle_conformance::{check, Record, CASES, DTYPES, LAYOUTS};
use candle_core::Device;
use js_sys::Function;
use wasm_bindgen::prelude::*;

/// The browser's GPU, opened.
#[wasm_bindgen]
pub struct Checker {
    device: Device,
}

#[wasm_bindgen]
impl Checker {
    /// Opens the GPU, or says why there is none.
    pub async fn open() -> Result<Checker, JsError> {
        let device = browser::gpu::open().await;
        Ok(Self {
            device: device.map_err(|reason| JsError::new(&reason))?,
        })
    }

    /// Runs every op with arguments of one dtype. `each` gets a list of records as JSON, which are those of `candle-conformance`, whenever
    /// all ops have run in one layout.
    pub async fn check(&self, dtype: &str, each: &Function) -> Result<(), JsError> {
        let found = DTYPES.into_iter().find(|known| known.as_str() == dtype);
        let dtype = found.ok_or_else(|| JsError::new(&format!("no dtype {dtype}")))?;
        let mut records: Vec<Record> = Vec::with_capacity(CASES.len());
        let run = check(&self.device, dtype, |record| {
            records.push(record);
            if records.len() == CASES.len() {
                let json = serde_json::to_string(&records).unwrap_or_default();
                // What the callback throws is an error of the page, and shows in its console.
                let _ = each.call1(&JsValue::NULL, &json.into());
                records.clear();
            }
        });
        run.await.map_err(|err| JsError::new(&err.to_string()))
    }

    /// Runs layers of candle-nn. `each` gets the record of each as JSON: `layer`, `outcome` and `milliseconds`.
    pub async fn layers(&self, each: &Function) {
        let check = layers::check(&self.device, |record| {
            let json = serde_json::to_string(&record).unwrap_or_default();
            let _ = each.call1(&JsValue::NULL, &json.into());
        });
        check.await;
    }
}

/// Ops for timing, each with its arguments on the browser's GPU.
#[wasm_bindgen]
pub struct Speed {
    op: speed::Op,
}

#[wasm_bindgen]
impl Speed {
    /// The ops that can be timed, by name, with sizes.
    pub fn names() -> Vec<String> {
        speed::OPS.map(|(name, _)| name.to_string()).to_vec()
    }

    /// Prepares one of [`Speed::names`] on the GPU that a checker has opened.
    #[wasm_bindgen(constructor)]
    pub fn new(name: &str, checker: &Checker) -> Result<Speed, JsError> {
        let found = speed::OPS.iter().find(|(known, _)| *known == name);
        let (_, prepare) = found.ok_or_else(|| JsError::new(&format!("no op {name}")))?;
        let op = prepare(&checker.device).map_err(|err| JsError::new(&err.to_string()))?;
        Ok(Self { op })
    }

    /// Runs it this many times, and resolves when the GPU is done.
    pub async fn run(&self, runs: usize) -> Result<(), JsError> {
        let run = speed::run(&self.op, runs);
        run.await.map_err(|err| JsError::new(&err.to_string()))
    }
}

/// The list as JSON: `version`, `dtypes`, `layouts`, `ops` with `name` and `family` each, and the names of `layers`.
#[wasm_bindgen]
pub fn list() -> String {
    let ops = CASES
        .iter()
        .map(|case| serde_json::json!({ "name": case.name, "family": case.family }));
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "dtypes": DTYPES.map(|dtype| dtype.as_str()),
        "layouts": LAYOUTS.map(|(name, _)| name),
        "ops": ops.collect::<Vec<_>>(),
        "layers": layers::LAYERS.map(|(name, _)| name),
    })
    .to_string()
}
