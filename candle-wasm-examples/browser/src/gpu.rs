//! Whether there is WebGPU, and in words that help why not.

use candle_core::Device;
use js_sys::Reflect;
use wasm_bindgen::JsValue;

/// The browser's adapter as a device, or why there is none.
pub async fn open() -> Result<Device, String> {
    let global: JsValue = js_sys::global().into();
    let get =
        |of: &JsValue, name: &str| Reflect::get(of, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let gpu = get(&get(&global, "navigator"), "gpu");
    if gpu.is_undefined() || gpu.is_null() {
        return Err(match get(&global, "isSecureContext").as_bool() {
            Some(false) => "the page is no secure context, and browsers give WebGPU to such pages only: open it over https, or from \
                            127.0.0.1"
                .to_string(),
            _ => "this browser has no WebGPU (no navigator.gpu): use Chrome or Edge 113, Safari 26 or Firefox 141, or later ones; on Linux \
                  it may have to be switched on"
                .to_string(),
        });
    }
    let opened = Device::new_webgpu_async(0).await;
    opened.map_err(|err| {
        let err = err.to_string();
        match err.contains("no WebGPU adapter") {
            true => "the browser has WebGPU but gives no adapter: the GPU or its driver may be on the browser's list of those that do not \
                     work (chrome://gpu or about:support says so), or hardware acceleration is switched off"
                .to_string(),
            false => err,
        }
    })
}
