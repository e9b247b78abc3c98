//! Codes of results (`CUresult`), and their names.

use std::ffi::{CStr, c_char};

/// `CUresult`.
pub type Code = u32;
/// How a function ends inside this crate: `Err` is never [`SUCCESS`].
pub type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $number:literal, $cuda:literal, $words:literal;)+) => {
        $(#[doc = concat!("`", $cuda, "`: ", $words, ".")] pub const $name: Code = $number;)+

        fn name(code: Code) -> Option<&'static CStr> {
            match code {
                $($name => CStr::from_bytes_with_nul(concat!($cuda, "\0").as_bytes()).ok(),)+
                _ => None,
            }
        }

        fn words(code: Code) -> Option<&'static CStr> {
            match code {
                $($name => CStr::from_bytes_with_nul(concat!($words, "\0").as_bytes()).ok(),)+
                _ => None,
            }
        }
    };
}

codes! {
    SUCCESS = 0, "CUDA_SUCCESS", "no error";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    NO_BINARY_FOR_GPU = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device";
    INVALID_PTX = 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
    FILE_NOT_FOUND = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
    CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences";
    CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
    CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
    CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
    CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
    CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread";
    INVALID_CLUSTER_SIZE = 912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}

/// The code that a function of the API returns.
pub fn code(outcome: Outcome) -> Code {
    outcome.err().unwrap_or(SUCCESS)
}

/// Writes what a function answers to where its caller wants it.
///
/// # Safety
/// `place` is null, which is refused, or a place for a `T`.
pub unsafe fn put<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and so a place for a `T`.
    unsafe { place.write(value) };
    Ok(())
}

unsafe fn put_text(text: Option<&'static CStr>, place: *mut *const c_char) -> Code {
    let Some(text) = text else {
        // SAFETY: the caller's, as CUDA documents.
        let _ = unsafe { put(place, std::ptr::null()) };
        return INVALID_VALUE;
    };
    // SAFETY: as above.
    code(unsafe { put(place, text.as_ptr()) })
}

/// `cuGetErrorName`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: Code, text: *mut *const c_char) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { put_text(name(error), text) }
}

/// `cuGetErrorString`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: Code, text: *mut *const c_char) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { put_text(words(error), text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names() {
        assert_eq!(name(CAPTURE_UNJOINED), Some(c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED"));
        assert_eq!(words(SUCCESS), Some(c"no error"));
        assert_eq!(name(12345), None);
    }
}
