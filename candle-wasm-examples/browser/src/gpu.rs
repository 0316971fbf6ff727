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
            Some(false) => "WebGPU needs a secure context, and this page is not one: open it over https, or from \
                            127.0.0.1"
                .to_string(),
            _ => "this browser has no WebGPU (no navigator.gpu): use Chrome or Edge 113, Safari 26 or Firefox 141, or later; on Linux \
                  you may need to enable it"
                .to_string(),
        });
    }
    let opened = Device::new_webgpu_async(0).await;
    opened.map_err(|err| {
        let err = err.to_string();
        match err.contains("no WebGPU adapter") {
            true => "the browser has WebGPU but no adapter: it may block this GPU or driver (see chrome://gpu or about:support), or hardware \
                     acceleration is off"
                .to_string(),
            false => err,
        }
    })
}
