//! Return values of the driver's functions.

use std::ffi::{c_char, CStr};

pub type Status = u32;

macro_rules! statuses {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(pub const $name: Status = $value;)*

        fn name_and_text(status: Status) -> Option<(&'static CStr, &'static CStr)> {
            match status {
                $($value => Some((
                    const { as_c(concat!("CUDA_", stringify!($name), "\0")) },
                    const { as_c(concat!($text, "\0")) },
                )),)*
                _ => None,
            }
        }
    };
}

const fn as_c(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text without its end"),
    }
}

statuses! {
    SUCCESS = 0, "no error";
    ERROR_INVALID_VALUE = 1, "invalid argument";
    ERROR_OUT_OF_MEMORY = 2, "out of memory";
    ERROR_NOT_INITIALIZED = 3, "initialization error";
    ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
    ERROR_INVALID_IMAGE = 200, "device kernel image is invalid";
    ERROR_INVALID_CONTEXT = 201, "invalid device context";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    ERROR_INVALID_HANDLE = 400, "invalid resource handle";
    ERROR_NOT_FOUND = 500, "named symbol not found";
    ERROR_NOT_READY = 600, "device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    ERROR_NOT_SUPPORTED = 801, "operation not supported by the CUDA emulator";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    ERROR_ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    ERROR_UNKNOWN = 999, "unknown error";
}

/// A result as C's status.
pub fn status(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(SUCCESS)
}

/// Writes through a caller's pointer.
///
/// # Safety
/// `to` is null, or points to a `T`.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    unsafe { to.write(value) };
    Ok(())
}

#[no_mangle]
pub unsafe extern "C" fn cuGetErrorName(error: Status, text: *mut *const c_char) -> Status {
    match name_and_text(error) {
        Some((name, _)) => status(unsafe { put(text, name.as_ptr()) }),
        None => ERROR_INVALID_VALUE,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuGetErrorString(error: Status, text: *mut *const c_char) -> Status {
    match name_and_text(error) {
        Some((_, explained)) => status(unsafe { put(text, explained.as_ptr()) }),
        None => ERROR_INVALID_VALUE,
    }
}
