//! Device memory out of cudarc's slices, and out of bare addresses.

use std::marker::PhantomData;

use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::format::Scheme;
use crate::gpu::matrix::{Parts, QuantMatrix, Store};
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

impl QuantMatrix {
    /// A `rows x cols` matrix in device memory of another runtime, by the addresses of its buffers; 0 where the scheme has
    /// none of a kind.
    ///
    /// Codes are row-major with zero rows up to the scheme's row multiple, scales in device order, as [`QuantMatrix`] says:
    /// `scheme.code_bytes(rows, cols)` bytes, `scheme.scale_len(rows, cols)` numbers and
    /// `scheme.block_scale_len(rows, cols)` bytes. Nothing is copied, read or freed.
    ///
    /// # Errors
    /// [`Error::Alignment`] unless all addresses are multiples of 16; [`Error::Shape`] for an impossible size.
    ///
    /// # Safety
    /// The addresses must be device memory of that length, in the context of every handle the matrix is used with, and
    /// alive until the matrix is dropped and all work enqueued with it is done, replays of captured graphs included.
    /// Nothing else may write it meanwhile, nor read what this crate writes; cudarc's events do not cover it, so ordering
    /// against other streams is the caller's business.
    pub unsafe fn from_raw_parts(scheme: Scheme, rows: usize, cols: usize, addresses: Parts<u64>) -> Result<Self> {
        let Parts { codes, scales, block_scales } = addresses;
        for (operand, address) in [("codes", codes), ("scales", scales), ("block scales", block_scales)] {
            if !address.is_multiple_of(16) {
                return Err(Error::Alignment {
                    operand: operand.to_string(),
                    address,
                    required: 16,
                    remedy: "begin at an allocation or at a multiple of 16 bytes in it".to_string(),
                });
            }
        }
        Self::check_size(scheme, rows, cols)?;
        let codes = Store::Raw { address: codes, len: scheme.code_bytes(rows, cols) };
        let scales = Store::Raw { address: scales, len: scheme.scale_len(rows, cols) };
        let block_scales = Store::Raw { address: block_scales, len: scheme.block_scale_len(rows, cols) };
        Self::from_store(scheme, rows, cols, codes, scales, block_scales)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Fp8Format;

    #[test]
    fn raw_matrices_check_alignment_and_size() {
        let scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
        // SAFETY: the matrices are only asked for their sizes; no work reads these addresses.
        let build = |rows, codes, scales| unsafe {
            QuantMatrix::from_raw_parts(scheme, rows, 144, Parts { codes, scales, block_scales: 0 })
        };
        let matrix = build(3, 4096, 8192).unwrap();
        assert_eq!((matrix.rows(), matrix.cols(), matrix.scheme()), (3, 144, scheme));
        assert_eq!((matrix.codes().len(), matrix.scales().len()), (4 * 144, 4 * 2 * 4));
        for (codes, scales, word) in [(4104, 8192, "codes"), (4096, 8196, "scales")] {
            let error = build(3, codes, scales).map(|_| ()).unwrap_err();
            assert!(matches!(&error, Error::Alignment { operand, .. } if operand == word), "{error}");
        }
        assert!(matches!(build(usize::MAX, 4096, 8192), Err(Error::Shape { .. })));
    }
}
