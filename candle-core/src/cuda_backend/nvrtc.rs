//! NVRTC, the compiler of CUDA C++.

use std::ffi::{c_char, CString};

use cudarc::nvrtc::{result as nvrtc, sys};

/// NVRTC's name for a card of this compute capability. From 9.0 on with the instructions specific to that generation (`a`), which matrix
/// products need; the machine code runs on no other card anyway.
pub(super) fn arch((major, minor): (i32, i32)) -> String {
    let special = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{special}")
}

/// Compiles a program to machine code, or returns NVRTC's log as an error.
pub(super) fn compile(
    text: &str,
    name: &str,
    arch: &str,
    options: &[String],
) -> std::result::Result<Vec<u8>, String> {
    let text = CString::new(text).map_err(|_| "the text has a zero byte".to_string())?;
    let name = CString::new(name).unwrap_or_default();
    let failed = |error: nvrtc::NvrtcError| format!("NVRTC reports {error}");
    let program = Program(nvrtc::create_program(&text, Some(&name)).map_err(failed)?);
    let mut all = vec![
        format!("--gpu-architecture={arch}"),
        "--device-as-default-execution-space".into(),
    ];
    let names_language = |option: &String| option.contains("-std=");
    if !options.iter().any(names_language) {
        all.push("--std=c++17".into());
    }
    all.extend_from_slice(options);
    // SAFETY: the program was just created, and lives until it is dropped below.
    unsafe {
        if let Err(error) = nvrtc::compile_program(program.0, &all) {
            let log = nvrtc::get_program_log(program.0).unwrap_or_default();
            let log: Vec<u8> = log
                .iter()
                .map(|c| *c as u8)
                .take_while(|c| *c != 0)
                .collect();
            return Err(format!("{error}: {}", String::from_utf8_lossy(&log).trim()));
        }
        let mut size = 0;
        sys::nvrtcGetCUBINSize(program.0, &mut size)
            .result()
            .map_err(failed)?;
        let mut cubin = vec![0u8; size];
        sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast::<c_char>())
            .result()
            .map_err(failed)?;
        Ok(cubin)
    }
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `create_program`, and destroyed once. A failure leaks some host memory.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

/// NVRTC's version.
pub(super) fn version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the pointers are to two numbers. A failure leaves zeros.
    let _ = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    (major, minor)
}

#[cfg(test)]
mod tests {
    use super::arch;

    #[test]
    fn architectures_are_named_as_nvrtc_names_them() {
        assert_eq!(arch((7, 5)), "sm_75");
        assert_eq!(arch((8, 9)), "sm_89");
        assert_eq!(arch((9, 0)), "sm_90a");
        assert_eq!(arch((12, 0)), "sm_120a");
    }
}
