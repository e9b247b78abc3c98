//! Raw bindings of cuBLASLt (`cublasLt.h` of cuBLAS 13.10), loaded at run time.
//!
//! Nothing of CUDA is needed to build. [`CublasLt`] holds one function pointer per symbol; each method returns
//! `Result<_, &libloading::Error>`: a symbol that an older library lacks is an error when it is called, neither when the
//! library is loaded nor a panic. Enums are open-ended newtypes, because a newer library may return values that this
//! header does not know. The bindings serve cuBLAS 12.4 to 13.10: which attribute needs which version is the caller's
//! business, by [`CublasLt::cublasLtGetVersion`].
//!
//! Opaque descriptors grew between versions: use the `*Create` functions, never the opaque structs by value.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    rustdoc::all
)]
#[rustfmt::skip]
mod bindings;

pub mod numerical_impl;

pub use bindings::*;
pub use libloading;

use std::ffi::OsStr;

/// The symbols this crate cannot do without: every cuBLASLt since 12.0 has them.
const REQUIRED: [&str; 2] = ["cublasLtGetVersion", "cublasLtCreate"];

impl CublasLt {
    /// Loads the library `path` (a name for the system's loader, or a file).
    ///
    /// # Errors
    /// The loader's, if there is no such library or it is not cuBLASLt.
    ///
    /// # Safety
    /// Loading runs the library's initialisers: `path` must be NVIDIA's cuBLASLt, or something that behaves like it.
    pub unsafe fn open(path: impl AsRef<OsStr>) -> Result<Self, libloading::Error> {
        // SAFETY: the caller vouches for the library; the function types come from NVIDIA's header.
        unsafe { Self::checked(libloading::Library::new(path.as_ref())?) }
    }

    /// The library `name` if this process has it already, whoever loaded it; `None` if not.
    ///
    /// # Safety
    /// As [`CublasLt::open`].
    #[cfg(unix)]
    pub unsafe fn already_loaded(name: &str) -> Option<Self> {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        // Not in libloading; 4 on Linux (the only unix that NVIDIA ships cuBLASLt for).
        const RTLD_NOLOAD: i32 = 4;
        // SAFETY: RTLD_NOLOAD runs no initialiser: it only raises the count of a library that is there.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) }.ok()?;
        // SAFETY: the caller vouches for the library; the function types come from NVIDIA's header.
        unsafe { Self::checked(library.into()) }.ok()
    }

    /// # Safety
    /// `library` must be cuBLASLt.
    unsafe fn checked(library: libloading::Library) -> Result<Self, libloading::Error> {
        for name in REQUIRED {
            // SAFETY: the symbol is only looked up, never used at this type.
            unsafe { library.get::<*const ()>(name.as_bytes()) }?;
        }
        // SAFETY: the caller vouches that the symbols have the types of NVIDIA's header.
        unsafe { Self::from_library(library) }
    }
}
