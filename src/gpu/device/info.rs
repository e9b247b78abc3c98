//! [`DeviceInfo`]: what a GPU is.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

use super::memory::driver;
use super::memory::raw::driver_version;
use crate::error::{Error, Result};

/// The GPU of a [`Handle`](crate::gpu::Handle).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Place in the driver's list.
    pub ordinal: usize,
    /// Name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor: `(9, 0)` is sm_90; that of an older GPU where `SCALED_GEMM_SM` asks to be treated as one.
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors.
    pub sm_count: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: usize,
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// CUDA version of the driver: 13000 is 13.0.
    pub driver: u32,
}

impl DeviceInfo {
    pub(crate) fn of(context: &Arc<CudaContext>) -> Result<Self> {
        let number = |attribute, what: &str| {
            let value = context.attribute(attribute).map_err(|e| driver(&format!("reading the {what}"), e))?;
            u32::try_from(value).map_err(|_| Error::Driver {
                call: format!("reading the {what}"),
                reason: format!("the driver said {value}"),
            })
        };
        Ok(Self {
            ordinal: context.ordinal(),
            name: context.name().map_err(|e| driver("reading the GPU's name", e))?,
            compute_capability: compute_capability(context)?,
            sm_count: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessor count")?,
            l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "L2 cache size")? as usize,
            memory_bytes: context.total_mem().map_err(|e| driver("reading the memory size", e))?,
            driver: driver_version()?,
        })
    }
}

/// Names an older GPU as which this one is treated, `80` or `89`, to run what such GPUs would.
pub(crate) const AS_OLDER: &str = "SCALED_GEMM_SM";

/// Compute capability of a GPU, or of the older one that [`AS_OLDER`] names: kernels are compiled for that, and ways chosen.
pub(crate) fn compute_capability(context: &Arc<CudaContext>) -> Result<(u32, u32)> {
    let (major, minor) = context.compute_capability().map_err(|e| driver("reading the compute capability", e))?;
    as_older(std::env::var(AS_OLDER).ok().as_deref(), (major as u32, minor as u32))
}

fn as_older(asked: Option<&str>, (major, minor): (u32, u32)) -> Result<(u32, u32)> {
    let Some(asked) = asked else { return Ok((major, minor)) };
    match asked.parse() {
        Ok(sm @ (80 | 86 | 87 | 89)) if sm <= major * 10 + minor => Ok((sm / 10, sm % 10)),
        Ok(sm) if sm == major * 10 + minor => Ok((major, minor)),
        _ => Err(Error::unsupported(
            format!("{AS_OLDER}={asked}"),
            format!("it names 80, 86, 87 or 89, if this GPU is no older, or what it is, {}", major * 10 + minor),
            "unset it, or name such a one",
        )),
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        write!(f, "{} (sm_{major}{minor})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_treated_as_an_older_one_that_nvrtc_knows() {
        assert_eq!(as_older(None, (12, 0)).unwrap(), (12, 0));
        assert_eq!([80, 89, 90].map(|sm| as_older(Some(&sm.to_string()), (9, 0)).unwrap()), [(8, 0), (8, 9), (9, 0)]);
        for (asked, gpu) in
            [("75", (9, 0)), ("89", (8, 6)), ("90", (10, 0)), ("100", (9, 0)), ("sm_80", (9, 0)), ("", (9, 0))]
        {
            let why = as_older(Some(asked), gpu).unwrap_err().to_string();
            assert!(why.contains(&format!("SCALED_GEMM_SM={asked}")) && why.contains("80, 86, 87 or 89"), "{why}");
        }
    }
}
