//! Device memory out of cudarc's slices, and out of bare addresses.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};
use half::{bf16, f16};

use super::{DeviceBuffer, DeviceBytes, DeviceBytesMut, Source, SourceMut};
use crate::error::Result;

impl<'a> DeviceBytes<'a> {
    /// Device memory of another runtime, by address.
    ///
    /// # Safety
    /// `address` must be `bytes` bytes of device memory of the handle's context, alive and not written by anyone until
    /// the work enqueued with it is done; ordering against other streams is the caller's business.
    pub unsafe fn from_raw(address: u64, bytes: usize) -> Self {
        Self { source: Source::Raw(address, PhantomData), bytes }
    }
}

impl<'a> DeviceBytesMut<'a> {
    /// Device memory of another runtime, by address.
    ///
    /// # Safety
    /// As [`DeviceBytes::from_raw`], and nobody else may read it until the work enqueued with it is done.
    pub unsafe fn from_raw(address: u64, bytes: usize) -> Self {
        Self { source: SourceMut::Raw(address, PhantomData), bytes }
    }
}

/// A number of the host that device memory holds as it is: u8, u16, u32, i64, f32, bf16, f16 and FP8.
///
/// # Safety
/// It has no padding, and any bytes of its size are a value.
pub unsafe trait Element: Copy + Default + Send + Sync + 'static {}

macro_rules! bytes_of {
    ($($element:ty),+) => {$(
        // SAFETY: a plain number in which every bit pattern has a meaning.
        unsafe impl Element for $element {}
        impl<'a> From<CudaView<'a, $element>> for DeviceBytes<'a> {
            fn from(view: CudaView<'a, $element>) -> Self {
                let bytes = view.len() * size_of::<$element>();
                // SAFETY: the elements are plain numbers, so their bytes may be read as u8; the new view borrows the
                // same memory for the same lifetime and its length is the old one in bytes.
                match unsafe { view.transmute::<u8>(bytes) } {
                    Some(view) => Self { source: Source::View(view), bytes },
                    None => Self { source: Source::Raw(0, PhantomData), bytes: 0 },
                }
            }
        }
        impl<'a> From<&'a CudaSlice<$element>> for DeviceBytes<'a> {
            fn from(slice: &'a CudaSlice<$element>) -> Self {
                slice.as_view().into()
            }
        }
        impl<'a> From<&'a mut CudaSlice<$element>> for DeviceBytesMut<'a> {
            fn from(slice: &'a mut CudaSlice<$element>) -> Self {
                let bytes = slice.len() * size_of::<$element>();
                // SAFETY: as above, and any byte pattern is a valid element of the slice afterwards.
                match unsafe { slice.transmute_mut::<u8>(bytes) } {
                    Some(view) => Self { source: SourceMut::View(view), bytes },
                    None => Self { source: SourceMut::Raw(0, PhantomData), bytes: 0 },
                }
            }
        }
        impl<'a> From<&'a mut CudaViewMut<'_, $element>> for DeviceBytesMut<'a> {
            fn from(view: &'a mut CudaViewMut<'_, $element>) -> Self {
                let bytes = view.len() * size_of::<$element>();
                // SAFETY: as above.
                match unsafe { view.transmute_mut::<u8>(bytes) } {
                    Some(view) => Self { source: SourceMut::View(view), bytes },
                    None => Self { source: SourceMut::Raw(0, PhantomData), bytes: 0 },
                }
            }
        }
    )+};
}
bytes_of!(u8, u16, u32, i64, f32, bf16, f16, float8::F8E4M3, float8::F8E5M2);

impl DeviceBuffer {
    /// Device memory of another runtime, by address, as a buffer of this crate: its uses are ordered, captured graphs share it.
    ///
    /// `owner` is what keeps the memory alive; it is dropped in place of a free, once no work enqueued through this crate on
    /// `stream` can reach the memory in the order of `stream`; other threads' calls on the GPU wait for the drop, which must not wait
    /// for them. `()` where the memory outlives the program's work.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) while the stream is captured into a graph (`owner` is then never
    /// dropped); [`Error::Driver`](crate::Error::Driver).
    ///
    /// # Safety
    /// `address` must be `bytes` bytes of device memory of the stream's context, alive as long as `owner` is and, if dropping
    /// `owner` frees it, freed in the order of `stream`. What others do with the memory must be ordered before this call in
    /// `stream`, and nobody else may write it, or read what this crate writes, before the buffer is gone.
    pub unsafe fn from_raw(
        stream: &Arc<CudaStream>,
        address: u64,
        bytes: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Self> {
        Self::taken_over(stream, address, bytes, Box::new(owner))
    }
}

/// A promise for [`Handle::capture_borrowing`](crate::gpu::Handle::capture_borrowing).
pub struct BorrowsOutliveGraph(());

impl BorrowsOutliveGraph {
    /// Promises that borrowed memory outlives a graph.
    ///
    /// # Safety
    /// Every cudarc slice and bare address that the captured work uses must stay alive, at its place, until the last launch of
    /// the graph is done; and its other uses on other streams must be ordered against the launches by the caller.
    pub unsafe fn promise() -> Self {
        Self(())
    }
}

#[cfg(test)]
impl DeviceBytes<'static> {
    /// A borrow that no work ever reads, for tests of sizes without a GPU.
    pub(crate) fn pretended(address: u64, bytes: usize) -> Self {
        Self { source: Source::Raw(address, PhantomData), bytes }
    }
}
