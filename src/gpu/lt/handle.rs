//! [`LtHandle`]: a cuBLASLt handle of one GPU.

use std::sync::{Arc, Mutex, PoisonError};

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

/// What was dropped, for who asks next in the same context, through whatever object of cudarc's: each program's own has the GPU's primary context. The object that it was made with
/// is never dropped, so that the context's address stays its own.
static SPARE: Mutex<Vec<(Arc<CudaContext>, RawHandle)>> = Mutex::new(Vec::new());

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

    fn spare(context: &CudaContext) -> Option<(Arc<CudaContext>, Self)> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = spare.iter().position(|(home, _)| home.cu_ctx() == context.cu_ctx())?;
        Some(spare.swap_remove(place))
    }
}

/// A cuBLASLt handle of one GPU. It may move between threads, which use it one at a time.
pub(crate) struct LtHandle {
    pub(super) handle: RawHandle,
    /// What the handle was made with.
    home: Arc<CudaContext>,
    pub(super) context: Arc<CudaContext>,
}

impl LtHandle {
    /// Finds and loads the library if this process has not done so.
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let library = library()?;
        context.bind_to_thread().map_err(|e| driver("binding the context", e))?;
        let (home, handle) = match RawHandle::spare(context) {
            Some(spare) => spare,
            None => (context.clone(), RawHandle::new(library)?),
        };
        Ok(Self { handle, home, context: context.clone() })
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
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push((self.home.clone(), self.handle));
    }
}
