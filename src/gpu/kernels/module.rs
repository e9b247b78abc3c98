//! Families of kernels in a context: loaded by the driver when the first of their kernels is used, and kept as long as the
//! process.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use super::image::{FILES, KernelFamily, KernelFile, KernelSource};
use super::launch::{ByInput, Kernel};
use crate::error::{Error, Result};
use crate::gpu::device::info::compute_capability;
use crate::gpu::device::memory::driver;

/// Where modules are loaded to, and from.
pub(super) struct Loader {
    pub(super) context: Arc<CudaContext>,
    pub(super) source: KernelSource,
    /// Compute capability, major * 10 + minor.
    gpu: u32,
}

/// The loaded files of a family. There is no `Drop`: work, graphs and other handles of the process may still run their kernels.
pub(super) struct Modules(Vec<Module>);

/// One loaded file.
#[derive(Clone, Copy)]
pub(super) struct Module {
    file: &'static str,
    raw: sys::CUmodule,
}

impl Loader {
    pub(super) fn new(context: &Arc<CudaContext>, source: KernelSource) -> Result<Self> {
        let (major, minor) = compute_capability(context)?;
        Ok(Self { context: context.clone(), source, gpu: major * 10 + minor })
    }

    /// Major and minor.
    pub(super) fn compute_capability(&self) -> (u32, u32) {
        (self.gpu / 10, self.gpu % 10)
    }

    /// Loads the files of a family; takes milliseconds, or with NVRTC and no entry in the cache up to a minute. The context
    /// stays bound to this thread.
    pub(super) fn load(&self, family: KernelFamily) -> Result<Modules> {
        self.context.bind_to_thread().map_err(|e| driver("binding the context", e))?;
        let files = FILES.iter().filter(|file| file.family == family);
        Ok(Modules(
            files.map(|file| Ok(Module { file: file.name, raw: self.load_file(file)? })).collect::<Result<_>>()?,
        ))
    }

    fn load_file(&self, file: &'static KernelFile) -> Result<sys::CUmodule> {
        let gpu = self.gpu;
        let failed = |reason: String, remedy: &str| Error::Kernel {
            kernel: format!("kernels/{}.cu for sm_{gpu}", file.name),
            reason,
            remedy: remedy.into(),
        };
        if !file.gpus.contains(&gpu) {
            let (from, to) = (file.gpus.start(), file.gpus.end());
            let last = if *to == u32::MAX { " and later".into() } else { format!(" to sm_{to}") };
            return Err(failed(format!("it runs on sm_{from}{last}"), "use a GPU or a formulation that can run it"));
        }
        let image = file.image(self.source, gpu)?;
        // SAFETY: the image is a fatbin or PTX that ends with a NUL, and lives past the call, which copies what it needs.
        unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(|e| {
            let reason = format!("the driver refused the {:?} image: {e}", self.source);
            failed(reason, "set SCALED_GEMM_KERNELS=nvrtc to compile for this GPU at run time")
        })
    }
}

impl Modules {
    /// A file of the family by its name in the table. A kernel is asked of the file that has it, and of no other: the driver, and
    /// tools that watch it, count each question that it cannot answer as an error.
    pub(super) fn file(&self, name: &str) -> Result<Module> {
        self.0.iter().find(|module| module.file == name).copied().ok_or_else(|| Error::Kernel {
            kernel: format!("kernels/{name}.cu"),
            reason: "the family has no such file".into(),
            remedy: "report it: kernels/files.rs and the typed functions do not agree".into(),
        })
    }
}

impl Module {
    /// A kernel by its name. The context is bound, as [`Loader::load`] left it.
    pub(super) fn kernel(&self, name: &str) -> Result<Kernel> {
        let refused = |reason: &dyn fmt::Display| Error::Kernel {
            kernel: format!("{name} of kernels/{}.cu", self.file),
            reason: reason.to_string(),
            remedy: "rebuild: the image and this program are not of one version".into(),
        };
        let text = CString::new(name).map_err(|e| refused(&e))?;
        // SAFETY: the module is loaded and stays so.
        let function = unsafe { result::module::get_function(self.raw, text) }.map_err(|e| refused(&e))?;
        // SAFETY: the function is of this module, which is never unloaded.
        unsafe { Kernel::new(function) }.map_err(|e| refused(&e))
    }

    /// A kernel that is launched with this much dynamic shared memory, in bytes: more than 48 KiB must be allowed once.
    pub(super) fn kernel_with_shared(&self, name: &str, shared: u32) -> Result<Kernel> {
        let kernel = self.kernel(name)?;
        kernel.allow_shared(shared).map_err(|e| Error::Kernel {
            kernel: format!("{name} of kernels/{}.cu", self.file),
            reason: format!("{shared} bytes of shared memory: {e}"),
            remedy: "use another formulation: this GPU gives a thread block less".into(),
        })?;
        Ok(kernel)
    }

    /// A kernel that releases one which takes much shared memory.
    pub(super) fn kernel_before_shared(&self, name: &str) -> Result<Kernel> {
        let kernel = self.kernel(name)?;
        kernel.leave_shared().map_err(|e| Error::Kernel {
            kernel: format!("{name} of kernels/{}.cu", self.file),
            reason: format!("its part of shared memory: {e}"),
            remedy: "use another formulation, or report it".into(),
        })?;
        Ok(kernel)
    }

    /// Its variants for each element type, aligned and not: `FOR_EACH_TYPE` of `kernels/base/types.cuh`.
    pub(super) fn by_input(&self, pattern: &str) -> Result<ByInput> {
        let kernel = |dtype: &str| self.kernel(&format!("{pattern}_{dtype}"));
        Ok(ByInput([
            [kernel("bf16")?, kernel("f16")?, kernel("f32")?],
            [kernel("bf16_unaligned")?, kernel("f16_unaligned")?, kernel("f32_unaligned")?],
        ]))
    }
}
