//! Compiles the same source with NVIDIA's compiler, if there is one: code that NVIDIA's devices would reject is an error here too.

use crate::compile::{folder, hash, write_whole};
use crate::loader::Library;
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

type Program = *mut c_void;

struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const c_void,
        *const c_void,
    ) -> u32,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> u32,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> u32,
    log: unsafe extern "C" fn(Program, *mut c_char) -> u32,
    destroy: unsafe extern "C" fn(*mut Program) -> u32,
}

impl Nvrtc {
    fn open(path: &Path) -> Result<Self, String> {
        // It opens this one by its plain name, and only when it compiles.
        let folder = path.parent().unwrap_or(Path::new("."));
        let files =
            std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut names: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        names.retain(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc-builtins.so"))
        });
        names.sort();
        if let Some(builtins) = names.last() {
            Library::open(builtins, true)?;
        }
        let library = Library::open(path, false)?;
        unsafe {
            Ok(Self {
                create: library.function(c"nvrtcCreateProgram")?,
                compile: library.function(c"nvrtcCompileProgram")?,
                log_size: library.function(c"nvrtcGetProgramLogSize")?,
                log: library.function(c"nvrtcGetProgramLog")?,
                destroy: library.function(c"nvrtcDestroyProgram")?,
            })
        }
    }

    fn check(&self, source: &str, options: &[String]) -> Result<(), String> {
        let c_text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let source = c_text(source)?;
        let options = options
            .iter()
            .map(|option| c_text(option))
            .collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        let null = std::ptr::null();
        unsafe {
            if (self.create)(
                &mut program,
                source.as_ptr(),
                c"kernel.cu".as_ptr(),
                0,
                null,
                null,
            ) != 0
            {
                return Err("nvrtcCreateProgram failed".to_string());
            }
            let code = (self.compile)(program, pointers.len() as c_int, pointers.as_ptr());
            let mut length = 0;
            (self.log_size)(program, &mut length);
            let mut log = vec![0u8; length.max(1)];
            (self.log)(program, log.as_mut_ptr().cast());
            (self.destroy)(&mut program);
            log.retain(|byte| *byte != 0);
            if code == 0 {
                Ok(())
            } else {
                Err(format!("error {code}\n{}", String::from_utf8_lossy(&log)))
            }
        }
    }
}

/// The architectures to try: the requested ones that are not older than the source's own.
fn architectures(own: u32) -> Vec<String> {
    let asked = std::env::var("CANDLE_CUDA_EMULATOR_ARCHS")
        .unwrap_or_else(|_| "sm_75,sm_80,sm_90a,sm_120".to_string());
    let number = |name: &str| {
        name.trim_start_matches("sm_")
            .trim_end_matches(['a', 'f'])
            .parse::<u32>()
    };
    asked
        .split(',')
        .map(str::trim)
        .filter(|name| number(name).is_ok_and(|arch| arch >= own))
        .map(String::from)
        .collect()
}

/// Compiles for each architecture, if `CANDLE_CUDA_EMULATOR_NVRTC` names NVIDIA's library. Successes are cached.
pub fn check(source: &str, options: &[String], arch: u32) -> Result<(), String> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    let Some(path) = std::env::var_os("CANDLE_CUDA_EMULATOR_NVRTC").map(PathBuf::from) else {
        return Ok(());
    };
    let size = std::fs::metadata(&path).map(|data| data.len()).unwrap_or(0);
    for name in architectures(arch) {
        let mut options: Vec<String> = options.to_vec();
        options.push(format!("-arch={name}"));
        let passed = folder()?.join(format!("{}.passed", hash((source, &options, &path, size))));
        if passed.exists() {
            continue;
        }
        let nvrtc = NVRTC
            .get_or_init(|| Nvrtc::open(&path))
            .as_ref()
            .map_err(Clone::clone)?;
        nvrtc
            .check(source, &options)
            .map_err(|error| format!("NVRTC for {name}: {error}"))?;
        write_whole(&passed, b"")?;
    }
    Ok(())
}
