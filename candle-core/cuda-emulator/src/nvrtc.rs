//! NVRTC's functions. A "cubin" is the bytes of a shared library of the host.

use crate::compile::{self, TEXT_PREFIX};
use crate::real;
use std::ffi::{c_char, c_int, CStr};
use std::path::PathBuf;

type Code = u32;

const SUCCESS: Code = 0;
const INVALID_INPUT: Code = 3;
const INVALID_PROGRAM: Code = 4;
const INVALID_OPTION: Code = 5;
const COMPILATION: Code = 6;

const ARCHITECTURES: [c_int; 12] = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];

pub struct Program {
    source: String,
    log: String,
    library: Option<PathBuf>,
    image: Vec<u8>,
}

unsafe fn put<T>(to: *mut T, value: T) -> Code {
    if to.is_null() {
        return INVALID_INPUT;
    }
    unsafe { to.write(value) };
    SUCCESS
}

#[no_mangle]
pub extern "C" fn nvrtcGetErrorString(code: Code) -> *const c_char {
    let text = match code {
        SUCCESS => c"NVRTC_SUCCESS",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        INVALID_OPTION => c"NVRTC_ERROR_INVALID_OPTION",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR unknown",
    };
    text.as_ptr()
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> Code {
    unsafe { put(major, 13).max(put(minor, 0)) }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetNumSupportedArchs(to: *mut c_int) -> Code {
    unsafe { put(to, ARCHITECTURES.len() as c_int) }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetSupportedArchs(to: *mut [c_int; ARCHITECTURES.len()]) -> Code {
    unsafe { put(to, ARCHITECTURES) }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcCreateProgram(
    to: *mut *mut Program,
    source: *const c_char,
    _name: *const c_char,
    headers: c_int,
    _header_texts: *const *const c_char,
    _header_names: *const *const c_char,
) -> Code {
    // Each of the backend's programs is a single source.
    if source.is_null() || headers != 0 {
        return INVALID_INPUT;
    }
    let source = unsafe { CStr::from_ptr(source) }
        .to_string_lossy()
        .into_owned();
    let program = Program {
        source,
        log: String::new(),
        library: None,
        image: Vec::new(),
    };
    unsafe { put(to, Box::into_raw(Box::new(program))) }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut Program) -> Code {
    if program.is_null() || unsafe { *program }.is_null() {
        return INVALID_PROGRAM;
    }
    unsafe {
        drop(Box::from_raw(*program));
        program.write(std::ptr::null_mut());
    }
    SUCCESS
}

/// A parsed option list: the architecture, the definitions, and everything except the architecture.
#[derive(Default)]
struct Options {
    arch: u32,
    definitions: Vec<String>,
    others: Vec<String>,
}

fn read_options(options: Vec<String>) -> Result<Options, String> {
    let mut read = Options {
        arch: 75,
        ..Options::default()
    };
    let mut options = options.into_iter();
    while let Some(option) = options.next() {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) if !name.starts_with("-D") => (name, Some(value.to_string())),
            _ => (option.as_str(), None),
        };
        if matches!(name, "-arch" | "--gpu-architecture") {
            let value = value.or_else(|| options.next()).unwrap_or_default();
            let digits = value
                .trim_start_matches(|c: char| !c.is_ascii_digit())
                .trim_end_matches(['a', 'f']);
            read.arch = digits
                .parse()
                .map_err(|_| format!("invalid value for {name}: {value}"))?;
            continue;
        }
        if name == "--define-macro" || name == "-D" {
            let definition = value.or_else(|| options.next()).unwrap_or_default();
            read.others.push(format!("-D{definition}"));
            read.definitions.push(definition);
            continue;
        }
        if let Some(definition) = option.strip_prefix("-D") {
            read.definitions.push(definition.to_string());
        }
        read.others.push(option);
    }
    Ok(read)
}

impl Program {
    fn compile(&mut self, options: Options) -> Result<(), String> {
        let library = compile::program(&self.source, options.arch, &options.definitions)?;
        real::check(&self.source, &options.others, options.arch)?;
        self.image =
            std::fs::read(&library).map_err(|error| format!("{}: {error}", library.display()))?;
        self.library = Some(library);
        Ok(())
    }

    fn text(&self) -> String {
        self.library
            .as_ref()
            .map(|library| format!("{TEXT_PREFIX}{}\n\0", library.display()))
            .unwrap_or_default()
    }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut Program,
    count: c_int,
    options: *const *const c_char,
) -> Code {
    let Some(program) = (unsafe { program.as_mut() }) else {
        return INVALID_PROGRAM;
    };
    let options = (0..count as usize)
        .map(|i| {
            unsafe { CStr::from_ptr(*options.add(i)) }
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    program.library = None;
    let (log, code) = match read_options(options) {
        Err(error) => (error, INVALID_OPTION),
        Ok(options) => match program.compile(options) {
            Err(error) => (error, COMPILATION),
            Ok(()) => (String::new(), SUCCESS),
        },
    };
    program.log = log;
    code
}

/// The length includes the final 0.
#[no_mangle]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(program: *mut Program, to: *mut usize) -> Code {
    match unsafe { program.as_ref() } {
        Some(program) => unsafe { put(to, program.log.len() + 1) },
        None => INVALID_PROGRAM,
    }
}

unsafe fn hand_out(bytes: &[u8], to: *mut c_char) -> Code {
    if to.is_null() {
        return INVALID_INPUT;
    }
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetProgramLog(program: *mut Program, to: *mut c_char) -> Code {
    match unsafe { program.as_ref() } {
        Some(program) => unsafe { hand_out(&[program.log.as_bytes(), b"\0"].concat(), to) },
        None => INVALID_PROGRAM,
    }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetCUBINSize(program: *mut Program, to: *mut usize) -> Code {
    match unsafe { program.as_ref() } {
        Some(program) if program.library.is_some() => unsafe { put(to, program.image.len()) },
        _ => INVALID_PROGRAM,
    }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetCUBIN(program: *mut Program, to: *mut c_char) -> Code {
    match unsafe { program.as_ref() } {
        Some(program) if program.library.is_some() => unsafe { hand_out(&program.image, to) },
        _ => INVALID_PROGRAM,
    }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetPTXSize(program: *mut Program, to: *mut usize) -> Code {
    match unsafe { program.as_ref() } {
        Some(program) if program.library.is_some() => unsafe { put(to, program.text().len()) },
        _ => INVALID_PROGRAM,
    }
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetPTX(program: *mut Program, to: *mut c_char) -> Code {
    match unsafe { program.as_ref() } {
        Some(program) if program.library.is_some() => unsafe {
            hand_out(program.text().as_bytes(), to)
        },
        _ => INVALID_PROGRAM,
    }
}
