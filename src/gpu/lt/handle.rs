//! [`LtHandle`]: a cuBLASLt handle of one GPU.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use cublaslt_sys::cublasLtHandle_t;
use cudarc::driver::CudaContext;

use super::quirks::Version;
use super::types::Status;
use super::{Library, check, library, status};
use crate::error::{Error, Result};
use crate::gpu::device::memory::driver;

/// The library's own. Never destroyed: `cublasLtDestroy` waits for all of the GPU, which breaks a capture of whatever thread, unless that is relaxed.
#[derive(Clone, Copy)]
pub(super) struct RawHandle {
    pub(super) raw: cublasLtHandle_t,
    pub(super) library: &'static Library,
}

// SAFETY: the library ties a handle to no thread.
unsafe impl Send for RawHandle {}

/// What was dropped, for who asks next in the same context. A context that is gone takes what was made in it along.
static SPARE: Mutex<Vec<(Weak<CudaContext>, RawHandle)>> = Mutex::new(Vec::new());

impl RawHandle {
    pub(super) fn new(library: &'static Library) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call, which writes one handle to it.
        let answer = unsafe { library.api.cublasLtCreate(&mut raw) };
        if status(answer)? == Status::NOT_INITIALIZED {
            return Err(Error::NoGpu {
                reason: format!("cuBLASLt {} cannot start here: {}", library.version, Status::NOT_INITIALIZED),
                remedy: "check nvidia-smi: CUDA 13 libraries need driver 580 or newer, CUDA 12 libraries 525"
                    .to_string(),
            });
        }
        check("cublasLtCreate", answer, || format!("cuBLASLt {}", library.version))?;
        Ok(Self { raw, library })
    }

    fn spare(context: &Arc<CudaContext>) -> Option<Self> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        spare.retain(|(of, _)| of.strong_count() > 0);
        let place = spare.iter().position(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(context)))?;
        Some(spare.swap_remove(place).1)
    }
}

/// A cuBLASLt handle of one GPU. It may move between threads, which use it one at a time.
pub(crate) struct LtHandle {
    pub(super) handle: RawHandle,
    pub(super) context: Arc<CudaContext>,
}

impl LtHandle {
    /// Finds and loads the library if this process has not done so.
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let library = library()?;
        context.bind_to_thread().map_err(|e| driver("binding the context", e))?;
        let handle = RawHandle::spare(context).map_or_else(|| RawHandle::new(library), Ok)?;
        Ok(Self { handle, context: context.clone() })
    }

    pub(crate) fn version(&self) -> Version {
        self.handle.library.version
    }

    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|e| driver("binding the context", e))
    }

    pub(super) fn device(&self) -> String {
        self.context.name().unwrap_or_else(|_| "an unnamed GPU".to_string())
    }
}

impl Drop for LtHandle {
    fn drop(&mut self) {
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::downgrade(&self.context), self.handle));
    }
}
