//! Device memory out of cudarc's slices, and out of bare addresses.

use std::marker::PhantomData;

use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use half::{bf16, f16};

use crate::gpu::memory::{DeviceBytes, DeviceBytesMut, Source, SourceMut};

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

macro_rules! bytes_of {
    ($($element:ty),+) => {$(
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
bytes_of!(u8, u16, u32, f32, bf16, f16, float8::F8E4M3, float8::F8E5M2);
