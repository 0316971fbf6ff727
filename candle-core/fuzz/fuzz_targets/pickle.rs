//! A Python pickle without an archive around it.

#![no_main]

use std::path::Path;

use candle_core::pickle::{Object, Stack};
use candle_core_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    bounded(data, || {
        let mut stack = Stack::empty();
        let result = stack.read_loop(&mut &*data);
        // Also what is there when the pickle ends in the middle.
        let shown = format!("{:?}", stack.stack());
        assert!(shown.starts_with('['));
        result?;
        let name = Object::Unicode("w".to_string());
        let info = stack.finalize()?.into_tensor_info(name, Path::new("data"))?;
        assert!(info.is_none_or(|info| info.name == "w"));
        Ok(())
    });
});
