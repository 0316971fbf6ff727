//! An importance matrix of llama.cpp. The parser takes a path, so each input becomes a file.

#![no_main]

use candle_core::quantized::imatrix_file::load_imatrix;
use candle_core_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    bounded(data, || {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), data)?;
        load_imatrix(file.path()).map(drop)
    });
});
